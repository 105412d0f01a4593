package gateway

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstockmq/penstock/consumer/reply"
)

// Gateway is the HTTP front. It is an http.Handler; Run and Serve put it behind a server.
type Gateway struct {
	opts      Options // immutable after New
	models    modelList
	admission *admission
	inbox     *reply.Inbox
	canceller *reply.Canceller
	mux       *http.ServeMux // immutable after New
	metrics   Metrics
	seed      maphash.Seed // of callers' hashes; immutable after New
	heldBack  atomic.Int64 // bytes of answers held back by relays
	shares    *shares
	strangers *strangers

	burials chan struct{}  // holds a token for each goroutine of buried
	buried  sync.WaitGroup // goroutines that take requests back; they end with ended

	// draining ends when the gateway begins to stop: what is still queued is given up. ended ends when the grace of
	// running requests is over.
	draining, ended     context.Context
	startDrain, endRuns context.CancelCauseFunc
}

// New checks opts and subscribes to replies.
func New(opts Options) (*Gateway, error) {
	if err := opts.fill(); err != nil {
		return nil, fmt.Errorf("gateway: %w", err)
	}
	inbox, err := reply.NewInbox(opts.NATS, reply.InboxOptions{Gateway: opts.Name, Logger: opts.Logger})
	if err != nil {
		return nil, fmt.Errorf("gateway: %w", err)
	}
	windows, err := newShared(opts.NATS, opts.Topic)
	if err != nil {
		return nil, fmt.Errorf("gateway: %w", errors.Join(err, inbox.Close()))
	}
	g := &Gateway{
		opts:      opts,
		models:    newModelList(opts.Models, time.Now()),
		inbox:     inbox,
		canceller: reply.NewCanceller(opts.NATS, 0),
		seed:      maphash.MakeSeed(),
		shares:    newShares(opts),
		strangers: newStrangers(opts.MaxStrangers),
		burials:   make(chan struct{}, burialsMax),
	}
	g.admission = newAdmission(&g.metrics, opts.Logger, windows)
	g.draining, g.startDrain = context.WithCancelCause(context.Background())
	g.ended, g.endRuns = context.WithCancelCause(context.Background())
	g.mux = g.routes()
	return g, nil
}

// ServeHTTP answers one request.
func (g *Gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) { g.mux.ServeHTTP(w, r) }

// Metrics returns the gateway's counters.
func (g *Gateway) Metrics() *Metrics { return &g.metrics }

// Close ends every wait with an error and unsubscribes. It may be called twice; after Run or Serve have returned it
// disturbs nobody.
func (g *Gateway) Close() error {
	g.startDrain(errStopping)
	g.endRuns(errStopping)
	g.buried.Wait()
	return g.inbox.Close()
}
