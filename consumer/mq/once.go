package mq

import (
	"context"
	"sync"
)

// once lets at most one delivery of a message run in this process. A second delivery proves that the lease of the first has
// ended: the first delivery gets ErrLeaseLost, and the second begins when the handler of the first has returned.
type once struct {
	mu     sync.Mutex // guards the following field
	newest map[string]*turn
}

// turn is the entry of one delivery.
type turn struct {
	lose context.CancelCauseFunc
	over chan struct{} // closed when this delivery and all before it have ended
}

func newOnce() *once { return &once{newest: make(map[string]*turn)} }

// enter ends the earlier deliveries of message id by lose, and waits for them. The returned function must be called when this
// delivery has ended. The delivery may begin unless its ctx has ended: a newer delivery ends it.
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
