package gateway

import (
	"context"
	"time"
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
