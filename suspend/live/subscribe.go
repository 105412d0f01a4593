package live

import (
	"sync"

	"github.com/penstockmq/penstock/suspend/signal"
)

// notice is one change that a subscriber has yet to hear of.
type notice struct {
	signal signal.Signal
	gone   bool
}

// subscription hands changes to one subscriber. A slow one holds up nobody: what it has yet to hear of is kept, the latest
// for each signal, so it is never more than there are signals.
type subscription struct {
	f    func(signal.Signal, bool)
	wake chan struct{} // holds one token while something is pending

	mu      sync.Mutex // guards the following fields; taken while Signals.mu is held, never the other way round
	pending map[string]notice
	order   []string // the keys of pending, the oldest first
}

func (b *subscription) put(key string, n notice) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, ok := b.pending[key]; !ok {
		b.order = append(b.order, key)
	}
	b.pending[key] = n
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// take returns what is pending, the oldest first.
func (b *subscription) take() []notice {
	b.mu.Lock()
	defer b.mu.Unlock()
	notices := make([]notice, 0, len(b.order))
	for _, key := range b.order {
		notices = append(notices, b.pending[key])
	}
	clear(b.pending)
	b.order = b.order[:0]
	return notices
}

// Subscribe calls f for each signal in force before it returns, and from then on for each that is published or, with gone
// set, taken back. Of changes of one signal that follow each other quickly, f may see the last alone. f is called by one
// goroutine at a time; it may block, and holds up nobody but itself. The returned function ends the subscription and waits
// for a call of f to return, so f must not call it.
func (s *Signals) Subscribe(f func(s signal.Signal, gone bool)) (cancel func()) {
	sub := &subscription{f: f, wake: make(chan struct{}, 1), pending: make(map[string]notice)}
	s.mu.Lock()
	for key, e := range s.stored {
		sub.put(key, notice{signal: e.signal})
	}
	s.subs[sub] = true // from here on nothing is missed
	s.mu.Unlock()
	sub.deliver(nil)
	quit, done := make(chan struct{}), make(chan struct{})
	go func() { // ends when cancel is called
		defer close(done)
		for {
			select {
			case <-sub.wake:
				sub.deliver(quit)
			case <-quit:
				return
			}
		}
	}()
	return sync.OnceFunc(func() {
		s.mu.Lock()
		delete(s.subs, sub)
		s.mu.Unlock()
		close(quit)
		<-done
	})
}

func (b *subscription) deliver(quit <-chan struct{}) {
	for _, n := range b.take() {
		select {
		case <-quit:
			return
		default:
		}
		b.f(n.signal, n.gone)
	}
}
