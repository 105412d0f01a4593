package broker

import "sync"

// returns are commands that give back messages that were leased and not handed over. They
// have their own queue, which is never full: if a full command queue dropped them, a lease
// that the broker renews by itself would be renewed for as long as its client lives, up to
// 3 h.
//
// There is at most one for each poll and one for each lease of a poll, so the bounds of
// polls and leases bound the queue.
type returns struct {
	// wake has a token while the queue is not empty.
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
// the lease records then show the messages that were not handed over.
func (o *owner) giveBack(c command) {
	select {
	case <-o.done:
	default:
		o.returns.put(c)
	}
}
