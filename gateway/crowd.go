package gateway

import (
	"hash/maphash"
	"math"
	"net"
	"time"
)

const (
	// spreadPermille is how far those who are refused together are spread: up to so many thousandths of the wait beyond it.
	spreadPermille = 200

	// together is how soon after another a refusal is taken for that of somebody else, if only its connection is new: one
	// caller that opens a connection for every ask is slower than that.
	together = 100 * time.Millisecond
)

// caller is who asks, as two hashes. They decide nothing but who is told to come back at which moment of a spread.
type caller struct {
	who  uint64 // user and host
	conn uint64 // and port: the connection
}

func callerOf(seed maphash.Seed, user, addr string) caller {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		host = addr
	}
	return caller{
		who:  maphash.Comparable(seed, [2]string{user, host}),
		conn: maphash.Comparable(seed, [2]string{user, addr}),
	}
}

// isAgain guesses whether c is the one who was refused before it, after a pause of since.
func (c caller) isAgain(before caller, since time.Duration) bool {
	return c.who == before.who && (c.conn == before.conn || since >= together)
}

// later is base or up to two seconds more, always the same for one caller: for refusals of which nobody knows when they
// will end.
func (c caller) later(base time.Duration) time.Duration {
	return base + time.Duration(c.conn%3)*time.Second
}

// crowd spreads the return of the callers that one window refuses, so that they do not all come back in the moment in which
// it opens.
//
// A caller that is refused alone is told that moment exactly. As soon as there are several, each is told a moment that is
// later by a share of its own, at most spreadPermille of what is left to wait:
//
//	wait = left + left · spread · share      0 ≤ share < 1
//
// The share is a hash of the caller and not drawn for each answer, and what it is a share of shrinks with the time that is
// left. So wait falls as time goes on, at least as fast as the clock, and no caller is told a later moment than before. The one
// who was there first keeps the share 0. What a caller is told is never less than what is left: after it, the window is
// open, and what may keep the caller out is only that others have used the window up again.
//
// A share belongs to the user and host as long as each of them asks over one connection, then to the connection; a caller of
// that moment may rise once. A caller that opens a connection for each ask, in the midst of a crowd of its own host and user,
// is told another share each time.
//
// The zero crowd has refused nobody. It belongs to the owner of its account.
type crowd struct {
	until time.Time // the return it is about: the end of one window
	first caller    // who was there first; while alone, by the latest connection
	last  caller    // refused last
	at    time.Time // that moment
	hosts bool      // several users or hosts were refused
	conns bool      // one of them over several connections at a time
}

// wait is what c is told to wait at the instant now for the window that opens at until.
func (w *crowd) wait(now, until time.Time, c caller) time.Duration {
	left := until.Sub(now)
	share := w.share(now, until, c)
	return left + time.Duration(share*float64(left)*spreadPermille/1000)
}

func (w *crowd) share(now, until time.Time, c caller) float64 {
	if !w.until.Equal(until) {
		*w = crowd{until: until, first: c, last: c, at: now}
		return 0
	}
	again := c.isAgain(w.last, now.Sub(w.at))
	switch {
	case again && !w.hosts && !w.conns:
		w.first = c
	case c.who != w.last.who:
		w.hosts = true
	case !again:
		w.conns = true
	}
	w.last, w.at = c, now
	switch {
	case c.conn == w.first.conn, c.who == w.first.who && !w.conns:
		return 0
	case w.conns:
		return fraction(c.conn)
	default:
		return fraction(c.who)
	}
}

// fraction maps a hash to [0, 1).
func fraction(hash uint64) float64 { return float64(hash>>11) / (math.MaxUint64>>11 + 1) }
