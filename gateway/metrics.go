package gateway

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/penstockmq/penstock/suspend"
)

// Metrics counts what a gateway did since New. All fields may be read at any time.
type Metrics struct {
	Active     atomic.Int64 // requests being answered now
	Accepted   atomic.Int64 // sent to the broker
	Refused    atomic.Int64 // with a 429 or 503 of the gateway's own: a limit, a full bucket, an overload, a broker out of reach
	Limited    ByScope      // of the refused: by the window of a scope
	Full       atomic.Int64 // of the refused: by a full bucket, as the gateway or the broker has it
	Async      atomic.Int64 // of the accepted ones, asynchronous
	KeepAlives atomic.Int64 // comments sent
	Recalled   atomic.Int64 // taken out of their bucket again
	Cancelled  atomic.Int64 // cancelled at a worker, or on their way to it
	Broken     atomic.Int64 // answers that broke off after their first byte
	SlowBodies atomic.Int64 // requests whose body arrived too slowly
	Shared     atomic.Int64 // refused because the user has reached the share of one user; part of the refused
	Unread     atomic.Int64 // callers whose connection was cut because they read nothing for WriteTimeout
	StoreFull  atomic.Int64 // asynchronous requests refused by a full request store; part of the refused

	WouldRefuse atomic.Int64 // let in, though a shadow rule would have refused them; each request once
	WouldLimit  ByScope      // by the shadow window of a scope
	WouldFill   atomic.Int64 // by a shadow depth

	Alone atomic.Int64 // windows that this gateway counted alone, because the account of all could not be reached

	Unexplained atomic.Int64 // requests asked about of which Options.Explain knew nothing
}

// ByScope is a counter for each [suspend.Scope].
type ByScope [suspend.All + 1]atomic.Int64

// accepted counts a request that the broker has, and what shadow rules would have done to it.
func (m *Metrics) accepted(w would) {
	m.Accepted.Add(1)
	if w == (would{}) {
		return
	}
	m.WouldRefuse.Add(1)
	if w.fill {
		m.WouldFill.Add(1)
	}
	for i := range m.WouldLimit {
		if w.limit.has(suspend.Scope(i)) {
			m.WouldLimit[i].Add(1)
		}
	}
}

// Observer receives what histograms are made of. Its methods must be quick and safe for concurrent use. No argument
// holds a user, a model or a request.
type Observer interface {
	// Request is one answer. route is the pattern of its URL; code is "ok", a code of status.go, or "upstream_failure"
	// for errors in the words of a model, whose codes are not bounded; status is its HTTP status, 499 if the caller left.
	Request(route, code string, status int, took time.Duration)
	// QueueTime is how long one request waited until a worker took it.
	QueueTime(waited time.Duration)
}

type noObserver struct{}

func (noObserver) Request(string, string, int, time.Duration) {}
func (noObserver) QueueTime(time.Duration)                    {}

// shared returns 1 if err is a refusal by the share of a user, 0 otherwise.
func shared(err error) int64 {
	if errors.Is(err, errShare) {
		return 1
	}
	return 0
}

// Stats is the present size of things.
type Stats struct {
	Cells    int   // cells that are remembered
	Accounts int   // windows of which something is used
	Queued   int64 // requests of this gateway that wait in buckets, as far as it knows
	Streams  int   // open reply streams
}

// Callers is the present use of the gateway's resources by callers.
type Callers struct {
	BodyBytes int64 // of bodies, from their arrival until the broker has them
	Strangers int64 // connections on which no request has shown a known key
	Dropped   int64 // strangers whose connection was closed to make room, since New
}

// Callers returns the present use of the gateway's resources by callers.
func (g *Gateway) Callers() Callers {
	return Callers{BodyBytes: g.shares.held().bytes, Strangers: g.strangers.len(), Dropped: g.strangers.dropped.Load()}
}

// Answers is the present size of the answers under way.
type Answers struct {
	Held      int64 // bytes that wait for their callers
	LinkBytes int64 // bytes that may be on their way from NATS to this gateway
	Slow      int64 // answers that failed because the caller was too slow, since New
}

// Answers returns the present size of the answers under way.
func (g *Gateway) Answers() Answers {
	return Answers{Held: g.inbox.Held() + g.heldBack.Load(), LinkBytes: g.inbox.LinkBytes(), Slow: g.inbox.Slow()}
}

// Stats returns the present size of things. It looks at every cell: for a scrape, not for a loop.
func (g *Gateway) Stats() Stats {
	cells, accounts, queued := g.admission.counts()
	return Stats{Cells: cells, Accounts: accounts, Queued: queued, Streams: g.inbox.Streams()}
}
