package consumer

import (
	"sync/atomic"
	"time"

	"github.com/penstockmq/penstock/consumer/forward"
)

// Metrics counts what a pool does. All fields may be read at any time.
type Metrics struct {
	Received  atomic.Int64 // deliveries
	Forwarded atomic.Int64 // requests sent to a downstream

	// Ends of deliveries. Received is their sum once nothing is in a handler.
	Answered  atomic.Int64 // the caller has a 2xx
	Refused   atomic.Int64 // the caller has the upstream's 4xx
	Limited   atomic.Int64 // suspended by a limit of the policy
	Full      atomic.Int64 // suspended because the model is at its concurrency, or it or the user holds its share of the pool
	Busy      atomic.Int64 // suspended by a Retry-After of the upstream
	Returned  atomic.Int64 // given back because the pool stops, or a store is away
	Retried   atomic.Int64 // failed, comes again
	Dead      atomic.Int64 // failed, went to the dead letters
	Cancelled atomic.Int64 // the caller left
	Expired   atomic.Int64 // the deadline passed
	Lost      atomic.Int64 // the lease was lost while the request ran

	Panics atomic.Int64 // of downstreams, beside their end

	// Asynchronous requests; their ends are counted above.
	Unkept atomic.Int64 // failed, although the model answered: the store had no room for the answer
	Untold atomic.Int64 // ended, but the end could not be stored

	// Gauges; they are 0 when nothing is in a handler.
	Handling atomic.Int64 // deliveries in a handler
	InFlight atomic.Int64 // requests at a downstream
	Waiting  atomic.Int64 // handlers that sleep a short limit or wait for a model

	Unstored      atomic.Int64 // outcomes of asynchronous requests that wait for the store
	UnstoredBytes atomic.Int64 // size of their answers
}

// Observer hears times. Its methods are called from many goroutines and must not block.
type Observer interface {
	// Queued: a request is about to be forwarded after waiting d since it was accepted.
	Queued(d time.Duration)
	// Upstream: a downstream took d to come to an outcome.
	Upstream(k forward.Kind, d time.Duration)
}

type nobody struct{}

func (nobody) Queued(time.Duration)                 {}
func (nobody) Upstream(forward.Kind, time.Duration) {}
