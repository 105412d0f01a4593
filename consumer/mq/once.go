package mq

import (
	"context"
	"sync"
)

// once lets at most one delivery of a message run in this process. A second delivery proves that the lease of the first has
// ended: the first is told so, and the second begins when it has unwound.
type once struct {
	mu     sync.Mutex // guards the following field
	newest map[string]*turn
}

// turn is one delivery's.
type turn struct {
	lose context.CancelCauseFunc
	over chan struct{} // closed when this delivery and all before it have ended
}

func newOnce() *once { return &once{newest: make(map[string]*turn)} }

// enter waits for the deliveries of message id that came before, and ends them by lose. The returned function must be called when
// this delivery has ended; whether it may begin says its ctx, which a still newer delivery ends.
func (o *once) enter(id string, lose context.CancelCauseFunc) (leave func()) {
	if id == "" {
		return func() {}
	}
	t := &turn{lose, make(chan struct{})}
	o.mu.Lock()
	before := o.newest[id]
	o.newest[id] = t
	o.mu.Unlock()
	if before != nil {
		before.lose(ErrLeaseLost)
		<-before.over
	}
	return func() {
		o.mu.Lock()
		if o.newest[id] == t {
			delete(o.newest, id)
		}
		o.mu.Unlock()
		close(t.over)
	}
}
