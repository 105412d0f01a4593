package consumer

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstockmq/penstock/broker/lite"
	"github.com/penstockmq/penstock/consumer/mq"
	"github.com/penstockmq/penstock/consumer/reply"
	"github.com/penstockmq/penstock/suspend/signal"
)

// Causes that end a job's context, beside mq's and reply's.
var (
	errDeadline = errors.New("deadline passed")
	errStopping = errors.New("pool is stopping") // ends waits, not running requests
	errNever    = errors.New("costs more than its limit ever gives")
	errBegun    = errors.New("the caller has a part of an answer")
	errFull     = errors.New("as many run as may") // and none of them says when it ends
)

// errRan is returned by a second Run.
var errRan = errors.New("pool has run already")

// Pool forwards messages to models.
type Pool struct {
	opts    Options
	limiter *limiter
	slots   *modelSlots
	shares  *shares
	cancels *reply.Cancels // nil without NATS; set by Run before the first message
	endings *reply.Endings // as cancels
	callers *reply.Callers // as cancels
	credits *reply.Credits // as cancels
	ran     atomic.Bool
	// fullMost bounds the wait of an answer for room in a full request store. Immutable.
	fullMost time.Duration
	// storeWarned spaces out the warnings about an unreachable or full request store.
	storeWarned spaced
	// warnConcurrency tells once that Options.Concurrency means nothing to the broker at hand.
	warnConcurrency sync.Once
	// stopping ends when Run's ctx does: whoever waits gives its message back. Set by Run before the first message.
	stopping context.Context
}

// New returns a Pool, or an error that names every option that is wrong.
func New(opts Options) (*Pool, error) {
	if err := opts.fill(); err != nil {
		return nil, fmt.Errorf("pool: %w", err)
	}
	return &Pool{
		opts:    opts,
		limiter: newLimiter(opts.Policy, opts.Consumer.SuspendStep()),
		slots:   newModelSlots(),
		shares:  newShares(opts.Workers, opts.Share, opts.BodyBytes),

		fullMost: fullMost,
	}, nil
}

// Run serves until ctx is done and running requests have had the consumer's grace. It returns nil then.
func (p *Pool) Run(ctx context.Context) error {
	if p.ran.Swap(true) {
		return errRan
	}
	if p.opts.NATS != nil {
		cancels, err := reply.NewCancels(p.opts.NATS, reply.CancelsOptions{})
		if err != nil {
			return fmt.Errorf("pool: %w", err)
		}
		defer cancels.Close() //nolint:errcheck // the connection's end does as well
		p.cancels = cancels
		p.callers = reply.NewCallers(p.opts.NATS)
		p.endings = reply.NewEndings(p.opts.NATS)
		defer p.endings.Close()
		if p.credits, err = reply.NewCredits(p.opts.NATS); err != nil {
			return fmt.Errorf("pool: %w", err)
		}
		defer p.credits.Close() //nolint:errcheck // the connection's end does as well
	}
	stopping, stop := context.WithCancel(ctx)
	p.stopping = stopping
	var sweeper sync.WaitGroup
	if p.callers != nil {
		sweeper.Go(func() { p.callers.Run(stopping) })
	}
	sweeper.Go(func() { p.limiter.sweep(stopping) })
	sweeper.Go(func() { p.shares.sweep(stopping) })
	defer sweeper.Wait()
	defer stop()
	if err := p.opts.Consumer.Run(ctx, p.handle); err != nil {
		return fmt.Errorf("pool: %w", err)
	}
	return nil
}

// Signal tells the pool what a source says of a column or level or, with gone, that it says nothing any more. It matters
// where the pool asks the limits itself; a broker that does is told by others.
func (p *Pool) Signal(s signal.Signal, gone bool) { p.limiter.signal(time.Now().Round(0), s, gone) }

// handle is the turn of one message.
func (p *Pool) handle(ctx context.Context, m *mq.Message) mq.Verdict {
	p.opts.Metrics.Received.Add(1)
	defer gauge(&p.opts.Metrics.Handling)()
	req, cell, err := read(m)
	if err != nil {
		// Whom to answer is part of what cannot be trusted.
		p.opts.Logger.Warn("message is no request", "message_id", m.ID, "lite_topic", m.Lite, "error", err)
		p.opts.Metrics.Dead.Add(1)
		return mq.Reject().With(unused())
	}
	j := newJob(ctx, p, m, req, cell)
	defer j.close()
	return j.run()
}

// features are what the broker can do, as far as the consumer can tell.
func (p *Pool) features() mq.Features {
	if d, ok := p.opts.Consumer.(mq.Describer); ok {
		return d.Features()
	}
	return mq.Features{}
}

// read is the request that m carries and the cell it is charged to.
func read(m *mq.Message) (reply.Request, lite.Cell, error) {
	req, err := reply.FromProperties(m.Properties)
	if err != nil {
		return reply.Request{}, lite.Cell{}, err
	}
	cell, err := lite.Resolve(m.Lite, req.User, req.Model)
	if err != nil {
		return reply.Request{}, lite.Cell{}, err
	}
	req.User, req.Model = cell.User, cell.Model
	if req.Accepted.IsZero() {
		req.Accepted = m.Born
	}
	return req, cell, nil
}

// backoff is the delay after attempt failed: doubling, and the upper half at random, so that what failed together does
// not come back together.
func (p *Pool) backoff(attempt int) time.Duration {
	d := p.opts.BackoffMax
	if shift := attempt - 1; shift < 32 && p.opts.BackoffMin<<shift < d && p.opts.BackoffMin<<shift > 0 {
		d = p.opts.BackoffMin << shift
	}
	return d/2 + rand.N(d/2+1)
}

// gauge raises g until the returned function is called.
func gauge(g *atomic.Int64) (lower func()) {
	g.Add(1)
	return func() { g.Add(-1) }
}
