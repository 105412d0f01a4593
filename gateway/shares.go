package gateway

import (
	"sync"
	"time"
)

// shares bounds the resources held by all requests of a gateway, and by the requests of one user: a user may hold at most as
// much as is free afterwards, but always one request and one body. So a single user may take half, two busy users a third
// each, and a later user finds room (dynamic thresholds, Choudhury & Hahne 1998). No share has to be configured.
type shares struct {
	most holding // immutable
	one  holding // granted to every user while there is room; immutable

	mu    sync.Mutex // guards the following fields
	total holding
	users map[string]*holding // without users that hold nothing
}

// holding is the use by requests: their number, and the bytes of their bodies from their arrival until the broker has them.
type holding struct{ requests, bytes int64 }

func newShares(o Options) *shares {
	return &shares{
		most:  holding{requests: int64(o.MaxActive), bytes: o.MaxBufferBytes},
		one:   holding{requests: 1, bytes: o.MaxBodyBytes},
		users: make(map[string]*holding),
	}
}

// take adds n to the holding of user, or returns a refusal and changes nothing.
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

// give subtracts n from the holding of user.
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

// held returns the holding of all requests.
func (s *shares) held() holding {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.total
}

func (h holding) plus(n holding) holding {
	return holding{requests: h.requests + n.requests, bytes: h.bytes + n.bytes}
}
