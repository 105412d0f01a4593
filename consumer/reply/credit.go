package reply

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
)

// Causes that end a request whose answer is no longer taken. Both are cancels: the message is settled as for a caller that
// left.
var (
	errCallerGone = fmt.Errorf("%w: no gateway takes its answer", ErrCancelled)
	errNotRead    = fmt.Errorf("%w: it reads none of its answer", ErrCancelled)
)

const (
	// probeEvery is the pause before a writer without credit asks for it, and between two questions: a lost grant delays
	// a stream by that time.
	probeEvery = time.Second
	// notReadMax is the time for which a writer waits for credit while the limit does not move. The gateway cuts a caller that
	// does not read much earlier; this bound is for a gateway that answers and never cuts.
	notReadMax = 5 * time.Minute
	// aliveEvery is the pause between two chunks that ask whether the gateway still has the stream. Only a gateway without it answers.
	aliveEvery = 5 * time.Second
	// creditChunk bounds the bytes of one frame of a stream with credit: the reader gives credit back frame by frame.
	creditChunk = 64 << 10
)

// Messages of a gateway on a credit subject: a limit, or the word for a stream without a reader.
const (
	creditWord = "credit"
	goneWord   = "gone"
)

// Credits receives the credit of a pool's writers with one subscription. A reply stream begins with the credit that its
// request carries ([Request.Window]); the gateway raises the limit as the caller reads. A limit is an offset in the body and
// not a difference, so a grant may be lost, repeated or late.
type Credits struct {
	nc     *nats.Conn
	prefix string // "penstock.credit.<pool>."
	sub    *nats.Subscription
	waits  atomic.Int64 // times that a writer had to wait for credit

	mu    sync.Mutex // guards the following fields
	flows map[string]*flow
	next  uint64 // number of the next flow
}

// flow is the credit of one writer.
type flow struct {
	subject string
	wake    chan struct{} // holds a token after a change of limit or gone
	limit   atomic.Int64  // bytes of body that may be sent
	gone    atomic.Bool   // no reader has the stream
}

// NewCredits subscribes on nc. The caller keeps nc open until after Close.
func NewCredits(nc *nats.Conn) (*Credits, error) {
	c := &Credits{nc: nc, prefix: creditPrefix + "." + rand.Text() + ".", flows: make(map[string]*flow)}
	sub, err := nc.Subscribe(c.prefix+"*", c.deliver)
	if err != nil {
		return nil, fmt.Errorf("subscribe to credit: %w", err)
	}
	c.sub = sub
	return c, nil
}

// Close unsubscribes. It may be called twice.
func (c *Credits) Close() error {
	err := c.sub.Unsubscribe()
	if err != nil && !errors.Is(err, nats.ErrConnectionClosed) && !errors.Is(err, nats.ErrBadSubscription) {
		return fmt.Errorf("unsubscribe from credit: %w", err)
	}
	return nil
}

// Waits returns how many times a writer ran out of credit and stopped reading its upstream.
func (c *Credits) Waits() int64 { return c.waits.Load() }

func (c *Credits) open(window int64) *flow {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.next++
	f := &flow{subject: c.prefix + strconv.FormatUint(c.next, 36), wake: make(chan struct{}, 1)}
	f.limit.Store(window)
	c.flows[f.subject] = f
	return f
}

func (c *Credits) forget(f *flow) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.flows, f.subject)
}

// deliver runs on the subscription's goroutine, one message at a time. To a question without a subscriber NATS itself
// answers with the status 503.
func (c *Credits) deliver(m *nats.Msg) {
	c.mu.Lock()
	f := c.flows[m.Subject]
	c.mu.Unlock()
	if f == nil {
		return // the writer has ended
	}
	word, number, _ := strings.Cut(string(m.Data), " ")
	switch {
	case m.Header.Get("Status") == "503", word == goneWord:
		f.gone.Store(true)
	case word == creditWord:
		limit, err := strconv.ParseInt(number, 10, 64)
		if err != nil || limit <= f.limit.Load() { // only this goroutine raises limit
			return
		}
		f.limit.Store(limit)
	default:
		return // of a later version
	}
	select {
	case f.wake <- struct{}{}:
	default: // a token is there already
	}
}

// Control makes w keep to the credit of its request: Chunk waits while there is none, until ctx is done. Control calls cancel
// with a cause that wraps [ErrCancelled] when the stream has lost its reader or the reader takes nothing. It does nothing
// for a request whose gateway gives no credit.
//
// The writer's entry in c lives until ctx is done.
func (w *Writer) Control(ctx context.Context, c *Credits, cancel context.CancelCauseFunc) {
	if c == nil || w.window == 0 || w.subject == "" {
		return
	}
	w.credits, w.ctx, w.cancel = c, ctx, cancel
	w.size = min(w.size, creditChunk)
}

// startFlow makes the writer's entry, before its Head.
func (w *Writer) startFlow() {
	if w.credits == nil || w.flow != nil {
		return
	}
	w.flow = w.credits.open(w.window)
	w.asked = time.Now()
	context.AfterFunc(w.ctx, func() { w.credits.forget(w.flow) })
}

// room waits for credit and returns how many of the next n bytes may be sent, at least 1.
func (w *Writer) room(n int) (int, error) {
	f := w.flow
	if f == nil {
		return n, nil
	}
	if f.gone.Load() {
		return 0, w.abandon(errCallerGone)
	}
	if f.limit.Load() <= w.sent {
		w.credits.waits.Add(1)
		if err := w.wait(); err != nil {
			return 0, err
		}
	}
	return int(min(int64(n), f.limit.Load()-w.sent)), nil
}

// wait blocks until there is credit.
func (w *Writer) wait() error {
	since := time.Now()
	probe := time.NewTimer(probeEvery)
	defer probe.Stop()
	for {
		select {
		case <-w.flow.wake:
		case <-w.ctx.Done():
			return context.Cause(w.ctx)
		case <-probe.C:
			if time.Since(since) >= notReadMax {
				_ = w.Fail(Failure{Code: CodeReplySlow, Message: "the answer was not read"}) // the cause reports it as well
				return w.abandon(errNotRead)
			}
			// An error means that the connection is gone: the reader then fails the stream and reports it to the next question.
			_ = w.publish(0, Frame{Kind: kindProbe})
			probe.Reset(probeEvery)
		}
		if w.flow.gone.Load() {
			return w.abandon(errCallerGone)
		}
		if w.flow.limit.Load() > w.sent {
			return nil
		}
	}
}

func (w *Writer) abandon(cause error) error {
	w.cancel(cause)
	return cause
}

// question returns the reply subject of the next frame: a probe asks for credit, and a chunk from time to time whether the
// stream has a reader. Empty: the frame asks nothing.
func (w *Writer) question(kind Kind) string {
	if w.flow == nil || kind != kindProbe && (kind != Chunk || time.Since(w.asked) < aliveEvery) {
		return ""
	}
	w.asked = time.Now()
	return w.flow.subject
}
