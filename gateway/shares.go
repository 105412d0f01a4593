package gateway

import (
	"sync"
	"time"
)

// shares bounds what the requests of a gateway hold together, and what those of one user hold of it: no more than is free
// after it, but always one request and one body. So one user alone may take half, two that want all a third each, and a user
// that comes later finds room (dynamic thresholds, Choudhury & Hahne 1998). No share has to be configured.
type shares struct {
	most holding // immutable
	one  holding // that every user may have while there is room; immutable

	mu    sync.Mutex // guards the following fields
	total holding
	users map[string]*holding // those that hold something
}

// holding is what requests hold: themselves, and the bytes of their bodies from their arrival until the broker has them.
type holding struct{ requests, bytes int64 }

func newShares(o Options) *shares {
	return &shares{
		most:  holding{requests: int64(o.MaxActive), bytes: o.MaxBufferBytes},
		one:   holding{requests: 1, bytes: o.MaxBodyBytes},
		users: make(map[string]*holding),
	}
}

// take adds n to what user holds, or refuses and changes nothing.
func (s *shares) take(user string, n holding) error {
	if n == (holding{}) {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	total := s.total.plus(n)
	switch {
	case total.requests > s.most.requests:
		return after(errBusy, time.Second, "the gateway holds %d requests, its maximum", s.most.requests)
	case total.bytes > s.most.bytes:
		return after(errBusy, time.Second, "the gateway holds %d bytes of bodies, its maximum", s.most.bytes)
	}
	u := s.users[user]
	if u == nil {
		u = &holding{}
	}
	own := u.plus(n)
	switch {
	case n.requests > 0 && own.requests > max(s.most.requests-total.requests, s.one.requests):
		return after(errShare, time.Second, "the user has %d requests under way, as many as one user may have now", u.requests)
	case n.bytes > 0 && own.bytes > max(s.most.bytes-total.bytes, s.one.bytes):
		return after(errShare, time.Second, "the user has %d bytes of bodies under way, as many as one user may have now", u.bytes)
	}
	s.total, *u = total, own
	s.users[user] = u
	return nil
}

// give takes n away from what user holds.
func (s *shares) give(user string, n holding) {
	if n == (holding{}) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	n.requests, n.bytes = -n.requests, -n.bytes
	s.total = s.total.plus(n)
	u := s.users[user]
	if *u = u.plus(n); *u == (holding{}) {
		delete(s.users, user)
	}
}

// held is what all requests hold.
func (s *shares) held() holding {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.total
}

func (h holding) plus(n holding) holding {
	return holding{requests: h.requests + n.requests, bytes: h.bytes + n.bytes}
}
