package gateway

import (
	"context"
	"errors"
	"time"

	"github.com/penstockmq/penstock/broker/lite"
	"github.com/penstockmq/penstock/consumer/reply"
)

// Explain says where the request stands that handle (of a recall) belongs to, in the bucket of that name. It is asked for
// requests that have not ended, as far as the gateway knows. [ErrGone] means that no worker will get the message any more; any other
// error means that the state is unknown.
type Explain func(ctx context.Context, bucket, handle string) (Explanation, error)

// Explanation is why a request waits.
type Explanation struct {
	Position       int64     // how many of its bucket come before it; negative: unknown
	EstimatedStart time.Time // when a worker will take it, at the pace of now; zero: unknown
	WaitingFor     string    // the closed gate, for people; empty: none, or unknown
}

// ErrGone is returned by an [Explain] when the broker does not have the message: it was settled, or never stored.
var ErrGone = errors.New("the message is gone")

// explainMax bounds the question; an answer without an explanation is better than none.
const explainMax = time.Second

const (
	// pollHint is the Retry-After of an unfinished request without an estimate, and the smallest Retry-After.
	pollHint = time.Second
	// pollHintMax is the largest Retry-After: a request that starts earlier than estimated is noticed within this time.
	pollHintMax = time.Minute
	// pollHintStep is added for each request ahead when no pace is known. If all callers of a deep bucket asked each
	// second, the broker would have to look up each of their messages.
	pollHintStep = 50 * time.Millisecond
)

// pollAfter returns the time until the next poll of a waiting request: half of the time until its estimated start, since
// estimates err, or else a time that grows with the number of requests ahead.
func (e Explanation) pollAfter(now time.Time) time.Duration {
	var wait time.Duration
	switch {
	case !e.EstimatedStart.IsZero():
		wait = e.EstimatedStart.Sub(now) / 2
	case e.Position > int64(pollHintMax/pollHintStep):
		wait = pollHintMax
	case e.Position > 0:
		wait = time.Duration(e.Position) * pollHintStep
	}
	return min(max(wait, pollHint), pollHintMax)
}

// explain adds to d the known reason for which r waits, and returns the time until the next poll. lost: the message of r
// is gone.
func (g *Gateway) explain(ctx context.Context, r reply.Record, d *requestDocument) (wait time.Duration, lost bool) {
	if g.opts.Explain == nil || r.RecallHandle == "" {
		return pollHint, false
	}
	bucket, err := lite.Encode(lite.Cell{User: r.User, Model: r.Model})
	if err != nil { // it was made from a bucket: cannot happen
		return pollHint, false
	}
	ctx, cancel := context.WithTimeout(ctx, explainMax)
	defer cancel()
	e, err := g.opts.Explain(ctx, bucket, r.RecallHandle)
	if errors.Is(err, ErrGone) {
		return 0, true
	}
	if err != nil {
		g.metrics.Unexplained.Add(1)
		g.opts.Logger.Debug("wait not explained", "request_id", r.ID, "error", err)
		return pollHint, false
	}
	if r.State != reply.StateQueued {
		return pollHint, false
	}
	if e.Position >= 0 {
		d.Position = &e.Position
	}
	if !e.EstimatedStart.IsZero() {
		d.EstimatedStart = e.EstimatedStart.UTC().Format(time.RFC3339)
	}
	d.WaitingFor = e.WaitingFor
	return e.pollAfter(time.Now()), false
}
