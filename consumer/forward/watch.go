package forward

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"
)

// errTimeout is the cause of a request that a time-out of its downstream ended.
var errTimeout = errors.New("upstream timed out")

// watch ends a request's context when the current phase takes too long. net/http has a time-out for response headers and
// one for the whole, but none between chunks; one mechanism for all keeps the cause of an end in one place.
type watch struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	timer  *time.Timer // ends ctx; re-armed by within
}

// watchdog returns a watch below ctx that ends after total. stop releases it.
func watchdog(ctx context.Context, total time.Duration) (w *watch, stop func()) {
	ctx, cancelTotal := context.WithTimeoutCause(ctx, total, fmt.Errorf("%w: total, %s", errTimeout, total))
	ctx, cancel := context.WithCancelCause(ctx)
	w = &watch{ctx: ctx, cancel: cancel}
	return w, func() {
		if w.timer != nil {
			w.timer.Stop()
		}
		cancel(nil)
		cancelTotal()
	}
}

// within gives the phase that begins now the time d.
func (w *watch) within(d time.Duration, phase string) {
	if w.timer != nil {
		w.timer.Stop()
	}
	w.timer = time.AfterFunc(d, func() {
		w.cancel(fmt.Errorf("%w: %s, %s", errTimeout, phase, d))
	})
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
