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

// explain adds to d what is known about why r waits, if it does. lost: its message is gone.
func (g *Gateway) explain(ctx context.Context, r reply.Record, d *requestDocument) (lost bool) {
	if g.opts.Explain == nil || r.RecallHandle == "" {
		return false
	}
	bucket, err := lite.Encode(lite.Cell{User: r.User, Model: r.Model})
	if err != nil { // it was made from a bucket: cannot happen
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, explainMax)
	defer cancel()
	e, err := g.opts.Explain(ctx, bucket, r.RecallHandle)
	if errors.Is(err, ErrGone) {
		return true
	}
	if err != nil {
		g.metrics.Unexplained.Add(1)
		g.opts.Logger.Debug("wait not explained", "request_id", r.ID, "error", err)
		return false
	}
	if r.State != reply.StateQueued {
		return false
	}
	if e.Position >= 0 {
		d.Position = &e.Position
	}
	if !e.EstimatedStart.IsZero() {
		d.EstimatedStart = e.EstimatedStart.UTC().Format(time.RFC3339)
	}
	d.WaitingFor = e.WaitingFor
	return false
}
