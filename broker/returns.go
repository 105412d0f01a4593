package broker

import "sync"

// returns are commands that give back what was delivered and not handed over. They have a
// queue of their own that is never full: a lease that the broker renews by itself would
// else be renewed for as long as its client lives, up to 3 h, because the other queue was
// full for a moment.
//
// There is at most one for each poll and one for each lease that a poll got, so what bounds
// polls and leases bounds these.
type returns struct {
	// wake has a token when there is something to take.
	wake chan struct{} // immutable

	mu   sync.Mutex
	list []command // guarded by mu
}

func newReturns() returns { return returns{wake: make(chan struct{}, 1)} }

func (r *returns) put(c command) {
	r.mu.Lock()
	r.list = append(r.list, c)
	r.mu.Unlock()
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

func (r *returns) take() []command {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := r.list
	r.list = nil
	return list
}

// giveBack queues c for the loop and never waits. After the loop has ended it does nothing:
// what was not handed over is then in the lease records.
func (o *owner) giveBack(c command) {
	select {
	case <-o.done:
	default:
		o.returns.put(c)
	}
}
