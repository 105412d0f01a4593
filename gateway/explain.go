package gateway

import (
	"context"
	"time"

	"github.com/penstockmq/penstock/broker/lite"
	"github.com/penstockmq/penstock/consumer/reply"
)

// Explain says where the request stands that handle (of a recall) belongs to, in the bucket of that name. It is asked for
// requests that are queued, as far as the gateway knows. An error means that nothing is known.
type Explain func(ctx context.Context, bucket, handle string) (Explanation, error)

// Explanation is why a request waits.
type Explanation struct {
	Position       int64     // how many of its bucket come before it; negative: unknown
	EstimatedStart time.Time // when a worker will take it, at the pace of now; zero: unknown
	WaitingFor     string    // the closed gate, for people; empty: none, or unknown
}

// explainMax bounds the question; an answer without an explanation is better than none.
const explainMax = time.Second

// explain adds to d what is known about why r waits.
func (g *Gateway) explain(ctx context.Context, r reply.Record, d *requestDocument) {
	if g.opts.Explain == nil || r.RecallHandle == "" {
		return
	}
	bucket, err := lite.Encode(lite.Cell{User: r.User, Model: r.Model})
	if err != nil { // it was made from a bucket: cannot happen
		return
	}
	ctx, cancel := context.WithTimeout(ctx, explainMax)
	defer cancel()
	e, err := g.opts.Explain(ctx, bucket, r.RecallHandle)
	if err != nil {
		g.metrics.Unexplained.Add(1)
		g.opts.Logger.Debug("wait not explained", "request_id", r.ID, "error", err)
		return
	}
	if e.Position >= 0 {
		d.Position = &e.Position
	}
	if !e.EstimatedStart.IsZero() {
		d.EstimatedStart = e.EstimatedStart.UTC().Format(time.RFC3339)
	}
	d.WaitingFor = e.WaitingFor
}
