package forward

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"time"
)

// errTimeout is the cause of a request that a time-out of its downstream ended.
var errTimeout = errors.New("upstream timed out")

// watch ends a request's context when the current phase takes too long. net/http has a time-out for response headers and
// one for the whole, but none between chunks; one mechanism for all keeps the cause of an end in one place.
//
// Time in which the sink holds the answer back is the caller's: it does not count against the upstream.
type watch struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	begun  time.Time
	phase  bound // re-armed by within
	whole  bound

	held    atomic.Int64 // nanoseconds spent in hand
	handing atomic.Int64 // start of the current hand, in nanoseconds after begun, at least 1; 0: no hand is running
}

// bound ends the context of its watch when the upstream has had the time d.
type bound struct {
	w     *watch
	timer *time.Timer // immutable after the first arm

	mu   sync.Mutex // guards the following fields
	name string
	d    time.Duration
	from time.Duration // value of spent when the timer was armed
}

// watchdog returns a watch below ctx that ends after total. stop releases it.
func watchdog(ctx context.Context, total time.Duration) (w *watch, stop func()) {
	w = &watch{begun: time.Now()}
	w.ctx, w.cancel = context.WithCancelCause(ctx)
	w.phase.w, w.whole.w = w, w
	w.whole.arm(total, "total")
	return w, func() {
		w.cancel(nil)
		w.whole.timer.Stop()
		if w.phase.timer != nil {
			w.phase.timer.Stop()
		}
	}
}

// within gives the phase that begins now the time d.
func (w *watch) within(d time.Duration, phase string) { w.phase.arm(d, phase) }

func (b *bound) arm(d time.Duration, name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.d, b.name, b.from = d, name, b.w.spent()
	if b.timer == nil {
		b.timer = time.AfterFunc(d, b.fire)
		return
	}
	b.timer.Reset(d)
}

// fire is called by the timer, which does not know the time spent in hand.
func (b *bound) fire() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.w.ctx.Err() != nil {
		return
	}
	if left := b.d - (b.w.spent() - b.from); left > 0 {
		b.timer.Reset(left)
		return
	}
	b.w.cancel(fmt.Errorf("%w: %s, %s", errTimeout, b.name, b.d))
}

// spent returns the time that counts against the upstream.
func (w *watch) spent() time.Duration {
	now := time.Since(w.begun)
	held := time.Duration(w.held.Load())
	if since := time.Duration(w.handing.Load()); since > 0 {
		held += max(now-since, 0)
	}
	return now - held
}

// hand calls f, which may hold the answer back.
func (w *watch) hand(f func() error) error {
	since := max(time.Since(w.begun), 1)
	w.handing.Store(int64(since))
	err := f()
	w.held.Add(int64(time.Since(w.begun) - since))
	w.handing.Store(0)
	return err
}

// failure turns an error of the transport into an outcome. The contexts know better than the error why it came.
func (w *watch) failure(pool context.Context, started bool, err error) Outcome {
	if pool.Err() != nil {
		return cancelled(pool, started)
	}
	var o Outcome
	var netErr net.Error
	switch cause := context.Cause(w.ctx); {
	case errors.Is(cause, errTimeout):
		o = failed(http.StatusGatewayTimeout, CodeTimeout, "the upstream took too long", !started, cause)
	case errors.As(err, &netErr) && netErr.Timeout(): // connect
		o = failed(http.StatusGatewayTimeout, CodeTimeout, "the upstream took too long", !started, err)
	case started:
		o = failed(http.StatusBadGateway, CodeBroken, "the upstream broke off in the middle of its answer", false, err)
	default:
		o = failed(http.StatusBadGateway, CodeUnreachable, "the upstream could not be reached or broke off", true, err)
	}
	o.Started = started
	return o
}

// withoutURL takes the address out of a client's error: a base URL may hold a password.
func withoutURL(err error) error {
	if u, ok := errors.AsType[*url.Error](err); ok {
		return fmt.Errorf("%s upstream: %w", u.Op, u.Err)
	}
	return err
}

// watchedReader restarts the idle time with each read that brings bytes.
type watchedReader struct {
	r     io.Reader
	watch *watch
	idle  time.Duration
	heard func() // called with each read that brings bytes
}

func (r *watchedReader) Read(p []byte) (int, error) {
	n, err := r.r.Read(p)
	if n > 0 {
		r.watch.within(r.idle, "idle")
		r.heard()
	}
	return n, err
}
