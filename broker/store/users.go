package store

import "sync/atomic"

// users counts the calls that are inside the engine, so that Close can wait for them
// and turn later ones away: Pebble panics when it is used after its Close. It is not
// a mutex because scans call out of the package, and what they call may read again.
type users struct {
	n    atomic.Int64  // the calls, plus closing once Close was called
	idle chan struct{} // capacity 1: told when the last call leaves after that
}

const closing = -1 << 62

// enter reports whether the call may go on; if so, leave must follow.
func (u *users) enter() bool {
	if u.n.Add(1) > 0 {
		return true
	}
	u.leave()
	return false
}

func (u *users) leave() {
	if u.n.Add(-1) != closing {
		return
	}
	select {
	case u.idle <- struct{}{}:
	default: // said before, by a call that was turned away at the end
	}
}

// close turns new calls away and waits for those inside. REQUIRES: called once.
func (u *users) close() {
	if u.n.Add(closing) != closing {
		<-u.idle
	}
}
