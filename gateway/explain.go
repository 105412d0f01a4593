package gateway

import (
	"context"
	"errors"
	"time"

	"github.com/penstockmq/penstock/broker/lite"
	"github.com/penstockmq/penstock/consumer/reply"
)

// Explain says where the request stands that handle (of a recall) belongs to, in the bucket of that name. It is asked for
// requests that have not ended, as far as the gateway knows. [ErrGone] means that no worker will get it any more; any other
// error that nothing is known.
type Explain func(ctx context.Context, bucket, handle string) (Explanation, error)

// Explanation is why a request waits.
type Explanation struct {
	Position       int64     // how many of its bucket come before it; negative: unknown
	EstimatedStart time.Time // when a worker will take it, at the pace of now; zero: unknown
	WaitingFor     string    // the closed gate, for people; empty: none, or unknown
}

// ErrGone is returned by an [Explain] of a broker that does not have the message any more: it was settled, or never was.
var ErrGone = errors.New("the message is gone")

// explainMax bounds the question; an answer without an explanation is better than none.
const explainMax = time.Second

const (
	// pollHint is the Retry-After of a request that has not ended, when nothing better is known, and
	// the least there is.
	pollHint = time.Second
	// pollHintMax is the most: what lets a request go sooner than estimated is noticed within this time.
	pollHintMax = time.Minute
	// pollHintStep is what each request before it adds when no pace is known. A deep bucket whose
	// callers all ask each second costs the broker a look for each of them.
	pollHintStep = 50 * time.Millisecond
)

// pollAfter is when it is worth to ask again for a request that waits so: half of what is left until it
// is expected to start, as estimates err, else by how many come before it.
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

// explain adds to d what is known about why r waits, if it does, and returns when to ask again. lost: its message
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
