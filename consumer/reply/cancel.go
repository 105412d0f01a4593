package reply

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// ErrCancelled is the cause a pool gives the context of a request that its caller cancelled.
var ErrCancelled = errors.New("reply: cancelled by the caller")

// Canceller asks the pools to stop a request that has left its bucket.
type Canceller struct {
	nc   *nats.Conn
	wait time.Duration
}

// NewCanceller returns a Canceller that waits at most wait for a pool to say that it runs the request; 0 means 250 ms.
func NewCanceller(nc *nats.Conn, wait time.Duration) *Canceller {
	if wait <= 0 {
		wait = 250 * time.Millisecond
	}
	return &Canceller{nc: nc, wait: wait}
}

// Cancel stops request id wherever it runs and says whether a pool had it running. False without an error means that none
// answered in time: it has ended, or it is on its way to a pool, which then stops it on arrival (see [Cancels]).
func (c *Canceller) Cancel(ctx context.Context, id string) (bool, error) {
	if err := CheckID(id); err != nil {
		return false, err
	}
	ctx, cancel := context.WithTimeout(ctx, c.wait)
	defer cancel()
	_, err := c.nc.RequestWithContext(ctx, cancelPrefix+"."+id, nil)
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, nats.ErrNoResponders), errors.Is(err, context.DeadlineExceeded), errors.Is(err, nats.ErrTimeout):
		return false, nil
	default:
		return false, fmt.Errorf("cancel request: %w", err)
	}
}

// CancelsOptions configures [Cancels].
type CancelsOptions struct {
	// Remember is how long a cancel of a request that does not run here is kept. 0 means 5 minutes.
	Remember time.Duration
	// RememberMax bounds their number; the oldest go first. 0 means 65,536.
	RememberMax int
}

// Cancels is the pool's side. A cancel may overtake its request: the gateway finds it gone from the bucket while it is
// still on its way to a worker. So every pool remembers cancels for a while, and a request that arrives cancelled is
// stopped when it registers.
type Cancels struct {
	opts CancelsOptions
	sub  *nats.Subscription

	mu      sync.Mutex // guards the following fields; not held while a cancel function runs
	running map[string][]*registration
	recent  map[string]time.Time // cancelled when
	oldest  []string             // keys of recent in order of arrival
}

type registration struct{ cancel func() }

// NewCancels subscribes on nc. The caller keeps nc open until after Close.
func NewCancels(nc *nats.Conn, opts CancelsOptions) (*Cancels, error) {
	if opts.Remember <= 0 {
		opts.Remember = 5 * time.Minute
	}
	if opts.RememberMax <= 0 {
		opts.RememberMax = 1 << 16
	}
	c := &Cancels{
		opts:    opts,
		running: make(map[string][]*registration),
		recent:  make(map[string]time.Time),
	}
	sub, err := nc.Subscribe(cancelPrefix+".*", c.deliver)
	if err != nil {
		return nil, fmt.Errorf("subscribe to cancels: %w", err)
	}
	c.sub = sub
	return c, nil
}

// Register makes a cancel of request id call cancel, at once if it has come already. The pool calls release when the
// request has ended. cancel must not block; it may be called more than once.
func (c *Cancels) Register(id string, cancel func()) (release func()) {
	r := &registration{cancel: cancel}
	c.mu.Lock()
	c.running[id] = append(c.running[id], r)
	at, cancelled := c.recent[id]
	cancelled = cancelled && time.Since(at) < c.opts.Remember
	c.mu.Unlock()
	if cancelled {
		cancel()
	}
	return func() { c.release(id, r) }
}

func (c *Cancels) release(id string, r *registration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	left := slices.DeleteFunc(c.running[id], func(o *registration) bool { return o == r })
	if len(left) == 0 {
		delete(c.running, id)
		return
	}
	c.running[id] = left
}

// Close unsubscribes. It may be called twice.
func (c *Cancels) Close() error {
	err := c.sub.Unsubscribe()
	if err != nil && !errors.Is(err, nats.ErrConnectionClosed) && !errors.Is(err, nats.ErrBadSubscription) {
		return fmt.Errorf("unsubscribe from cancels: %w", err)
	}
	return nil
}

// deliver runs on the subscription's goroutine. Only a pool that runs the request answers: with several pools, a "not
// here" of one would hide the "stopped" of another.
func (c *Cancels) deliver(m *nats.Msg) {
	id := m.Subject[len(cancelPrefix)+1:]
	now := time.Now()
	c.mu.Lock()
	c.rememberLocked(id, now)
	found := slices.Clone(c.running[id])
	c.mu.Unlock()
	for _, r := range found {
		r.cancel()
	}
	if len(found) > 0 && m.Reply != "" {
		// An error means that the connection is gone; the asker then sees its time-out.
		_ = m.Respond([]byte("running"))
	}
}

func (c *Cancels) rememberLocked(id string, now time.Time) {
	for len(c.oldest) > 0 && (len(c.oldest) >= c.opts.RememberMax || now.Sub(c.recent[c.oldest[0]]) >= c.opts.Remember) {
		delete(c.recent, c.oldest[0])
		c.oldest = c.oldest[1:]
	}
	if _, known := c.recent[id]; !known {
		c.recent[id] = now
		c.oldest = append(c.oldest, id)
	}
}
