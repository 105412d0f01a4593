package gateway

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/penstockmq/penstock/consumer/reply"
)

var (
	errKeepAlive = errors.New("a keep-alive is due")
	errDrain     = errors.New("the gateway begins to stop")
)

// holdMax is how much of an answer is held back until its end has come: up to that size an answer that breaks off is a clean
// error. It is more than nearly all answers but streams.
const holdMax = 1 << 20

// heldBackMax bounds the bytes held back by all relays; at the bound an answer is written as it arrives.
const heldBackMax = 128 << 20

// relay turns the frames of one reply into the HTTP answer. It belongs to the request's goroutine.
type relay struct {
	x       *exchange
	c       *call
	stream  *reply.Stream
	silence time.Time // since when nothing was written to the caller
	heard   time.Time // the latest frame of an answer that has begun; zero: none has
	silent  bool      // the answer is no stream: no keep-alives

	heldBack int64 // bytes counted by hold
}

// codeDeadline is the code of the pool's own word that the deadline has passed. Which of the two notices first is chance,
// and the caller must not see a difference.
const codeDeadline = "deadline_exceeded"

// awayRetry is the Retry-After of a request that was dropped while its gateway was cut off from the pools.
const awayRetry = time.Second

// run returns nil when the whole answer was written; else why not, and the caller of run tells the caller of the gateway.
//
// The deadline bounds the wait for the answer's head, as it does in the pool: an answer that has begun is not cut.
func (r *relay) run(ctx context.Context) error {
	timed, cancel := context.WithDeadlineCause(ctx, r.x.deadline, errDeadline)
	f, err := r.first(timed)
	cancel()
	if err != nil {
		return err
	}
	r.heard = time.Now()
	if f.Status < 200 || f.Status > 599 {
		return refuse(errUpstream, "", "the model answered with status %d", f.Status)
	}
	switch {
	case isEventStream(f.Header):
		return r.events(ctx, f)
	case r.c.wrote:
		return r.late(ctx, f)
	default:
		return r.whole(ctx, f)
	}
}

// first waits for the head of the answer. While the request is queued, the wait also ends when the gateway begins to stop.
func (r *relay) first(ctx context.Context) (reply.Frame, error) {
	queued, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(r.x.g.draining, func() { cancel(errDrain) })()
	for wait := queued; ; {
		f, err := r.next(wait)
		switch {
		case errors.Is(err, errDrain):
			if !r.stays(ctx) {
				return reply.Frame{}, reason(errStopping)
			}
			wait = ctx
		case err != nil:
			return reply.Frame{}, err
		case f.Kind == reply.Started:
			r.started(f)
			wait = ctx
		case f.Kind == reply.Error:
			r.started(f)
			switch {
			case f.Failure.Code == codeDeadline && f.Failure.Status == http.StatusGatewayTimeout:
				return reply.Frame{}, errDeadline
			case f.Failure.Code == reply.CodeGatewayAway && f.Failure.Status == http.StatusServiceUnavailable:
				r.x.sent = false // the pool has settled it: there is nothing left to withdraw
				return reply.Frame{}, after(errReplies, awayRetry, "%s", f.Failure.Message)
			}
			return reply.Frame{}, f.Failure
		case f.Kind == reply.Head:
			r.started(f)
			return f, nil
		}
	}
}

// stays decides what becomes of a request whose gateway begins to stop: one that is queued still leaves its bucket, one
// that a worker has may finish.
func (r *relay) stays(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, withdrawMax)
	defer cancel()
	if !r.x.g.recall(ctx, r.c.id, r.x.handle) {
		return true
	}
	r.x.sent = false // there is nothing left to withdraw
	return false
}

// started notes that a worker has, or had, the request. An error without an instant says that none had.
func (r *relay) started(f reply.Frame) {
	if f.Kind != reply.Error || !f.Begun.IsZero() {
		r.c.begin(f.Begun)
	}
	r.x.leave()
}

// next returns the next frame, and writes keep-alives while it waits for it if the caller reads a stream.
func (r *relay) next(ctx context.Context) (reply.Frame, error) {
	for {
		f, err := r.wait(ctx)
		switch {
		case err == nil:
			return f, nil
		case errors.Is(err, errKeepAlive):
			if err := r.keepAlive(); err != nil {
				return reply.Frame{}, err
			}
		case errors.Is(err, io.EOF): // the inbox was closed
			return reply.Frame{}, reason(errStopping)
		default:
			return reply.Frame{}, reason(err)
		}
	}
}

func (r *relay) wait(ctx context.Context) (reply.Frame, error) {
	due, cause := r.due()
	if due.IsZero() {
		return r.stream.Next(ctx)
	}
	ctx, cancel := context.WithDeadlineCause(ctx, due, cause)
	defer cancel()
	f, err := r.stream.Next(ctx)
	if err == nil && !r.heard.IsZero() {
		r.heard = time.Now()
	}
	return f, err
}

// due is when the wait for a frame is to be interrupted, and why; zero: never.
func (r *relay) due() (at time.Time, cause error) {
	if r.x.q.stream && !r.silent {
		at, cause = r.silence.Add(r.x.g.opts.KeepAlive), errKeepAlive
	}
	if r.heard.IsZero() {
		return at, cause
	}
	if stalls := r.heard.Add(r.x.g.opts.StallTimeout); at.IsZero() || stalls.Before(at) {
		at, cause = stalls, errStalled
	}
	return at, cause
}

// keepAlive writes a comment. The first one sends the header with it, and from then on errors are events.
func (r *relay) keepAlive() error {
	if !r.c.wrote {
		r.c.w.Header().Set("Content-Type", eventStream)
		r.openEvents(http.StatusOK)
	}
	r.x.g.metrics.KeepAlives.Add(1)
	return r.send([]byte(": keep-alive\n\n"))
}

func (r *relay) openEvents(status int) {
	h := r.c.w.Header()
	h.Set("Cache-Control", "no-cache")
	h.Set("X-Accel-Buffering", "no") // nginx would collect the events
	r.c.events = true
	r.c.head(status)
}

func (r *relay) send(p []byte) error {
	r.silence = time.Now()
	if err := r.c.write(p); err != nil {
		return err
	}
	return r.c.flush()
}

// events passes a stream on, whole events only.
func (r *relay) events(ctx context.Context, head reply.Frame) error {
	if r.c.wrote {
		waited := r.c.queueTime(time.Now()).Milliseconds()
		if err := r.send([]byte(": queue-time-ms=" + strconv.FormatInt(waited, 10) + "\n\n")); err != nil {
			return err
		}
	} else {
		copyHeader(r.c.w.Header(), head.Header)
		r.openEvents(head.Status)
		if err := r.c.flush(); err != nil {
			return err
		}
	}
	var split splitter
	for {
		f, err := r.next(ctx)
		if err != nil {
			return err
		}
		switch f.Kind {
		case reply.Chunk:
			whole, ok := split.add(f.Data)
			if !ok {
				return refuse(errUpstream, "", "the model sent an event of more than %d bytes", eventMax)
			}
			if len(whole) == 0 {
				continue
			}
			if err := r.send(whole); err != nil {
				return err
			}
		case reply.End:
			return r.send(split.tail())
		case reply.Error:
			return f.Failure
		case reply.Started, reply.Head:
		}
	}
}

// whole passes on an answer that is no stream. It is held back up to holdMax, its header too: an error must not go out with
// the content encoding of the answer that broke off.
func (r *relay) whole(ctx context.Context, head reply.Frame) error {
	r.silent = true
	defer r.letGo()
	var held []byte
	for {
		f, err := r.next(ctx)
		if err != nil {
			return err
		}
		switch f.Kind {
		case reply.Chunk:
			if held, err = r.hold(held, head, f.Data); err != nil {
				return err
			}
		case reply.End:
			if r.c.wrote {
				return nil
			}
			copyHeader(r.c.w.Header(), head.Header)
			return r.c.whole(head.Status, held)
		case reply.Error:
			return f.Failure
		case reply.Started, reply.Head:
		}
	}
}

// hold keeps p, or, when too much is held, writes everything and from then on each part as it comes.
func (r *relay) hold(held []byte, head reply.Frame, p []byte) ([]byte, error) {
	if r.c.wrote {
		return nil, r.c.write(p)
	}
	if len(held) == 0 && len(p) <= holdMax {
		return p, nil // the common case: one frame, and it is ours
	}
	if len(held)+len(p) <= holdMax && r.mayHold(held, p) {
		return append(held, p...), nil
	}
	copyHeader(r.c.w.Header(), head.Header)
	r.c.head(head.Status)
	if err := r.c.write(held); err != nil {
		return nil, err
	}
	r.letGo()
	return nil, r.c.write(p)
}

// mayHold counts held and p as held back. The first frame is counted together with the second: until the second is
// requested, the inbox counts the first.
func (r *relay) mayHold(held, p []byte) bool {
	n := int64(len(held)+len(p)) - r.heldBack
	r.heldBack += n
	return r.x.g.heldBack.Add(n) <= heldBackMax
}

func (r *relay) letGo() {
	r.x.g.heldBack.Add(-r.heldBack)
	r.heldBack = 0
}

// late reads an answer that is no stream although the caller reads one already: a keep-alive has been sent. An error of
// the model becomes an error event; anything else has no form in which this caller could take it.
func (r *relay) late(ctx context.Context, head reply.Frame) error {
	if head.Status < 400 {
		return refuse(errUpstream, "", "the model sent no event stream")
	}
	const most = 64 << 10
	var body []byte
	for {
		f, err := r.next(ctx)
		if err != nil {
			return err
		}
		switch f.Kind {
		case reply.Chunk:
			body = append(body, f.Data[:min(len(f.Data), most-len(body))]...)
		case reply.End:
			return upstreamFailure(head.Status, body)
		case reply.Error:
			return f.Failure
		case reply.Started, reply.Head:
		}
	}
}
