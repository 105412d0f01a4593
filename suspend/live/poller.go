package live

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/penstockmq/penstock/suspend"
	"github.com/penstockmq/penstock/suspend/policy"
	"github.com/penstockmq/penstock/suspend/signal"
)

// Store is where a Poller reads and publishes signals; *Signals is one.
type Store interface {
	Get(target suspend.Target, source string) (signal.Signal, bool)
	All() []signal.Signal
	Publish(ctx context.Context, s signal.Signal) error
	Clear(ctx context.Context, target suspend.Target, source string) error
}

// PollerOptions configure a Poller.
type PollerOptions struct {
	// Current and Changed are the policy that names what to poll; Policies, policy.File and the like have them. Required.
	Current func() *policy.Document
	Changed func() <-chan struct{}
	// Signals is where the signals go. Required.
	Signals Store
	// Client fetches the pages. Nil: one of its own, without redirects or proxy.
	Client *http.Client
	// Logger gets what is stale and what is back. Nil drops it.
	Logger *slog.Logger
}

// PollStats is what the poller knows of one target of a polled signal, for metrics.
type PollStats struct {
	Name     string // of the signal in the policy
	Target   suspend.Target
	Permille int64     // the factor that its last reading asked for
	Value    float64   // the metric as read last
	At       time.Time // when it was read last; zero: never
	Stale    bool      // nobody has read it for nearly two intervals
	Polls    uint64    // of the signal's page
	Failures uint64    // polls that gave no reading
}

// Poller reads the metrics that the policy's signals name and publishes what they say. Any number of processes may poll
// the same signals: each goes on from what is published, so they agree, and one of them writes.
type Poller struct {
	opts PollerOptions

	mu      sync.Mutex // guards workers; Run alone changes it
	workers map[string]*worker
}

// NewPoller does no I/O; Run does.
func NewPoller(opts PollerOptions) *Poller {
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	if opts.Client == nil {
		opts.Client = &http.Client{
			Transport:     &http.Transport{MaxIdleConnsPerHost: 1, IdleConnTimeout: time.Minute, MaxResponseHeaderBytes: 64 << 10},
			CheckRedirect: func(*http.Request, []*http.Request) error { return errors.New("a redirect is not followed") },
		}
	}
	return &Poller{opts: opts, workers: make(map[string]*worker)}
}

// Run polls until ctx is done, and then returns nil. What is published then gets stale unless another process polls it.
// It is to be called once.
func (p *Poller) Run(ctx context.Context) error {
	defer p.stopAll()
	for {
		changed := p.opts.Changed()
		p.apply(ctx, p.opts.Current().Signals())
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
	}
}

// apply starts a worker for each new signal and ends those of signals that are gone or different.
func (p *Poller) apply(ctx context.Context, specs []policy.Signal) {
	defer p.takeBack(ctx, specs)
	wanted := make(map[string]policy.Signal, len(specs))
	for _, spec := range specs {
		spec.File, spec.Line = "", 0 // where it stands makes no difference
		wanted[spec.Name] = spec
	}
	for name, w := range p.snapshot() {
		spec, ok := wanted[name]
		if ok && spec == w.spec {
			delete(wanted, name)
			continue
		}
		w.stop()
		if !ok || spec.Of != w.spec.Of {
			w.clear(ctx)
		}
		p.mu.Lock()
		delete(p.workers, name)
		p.mu.Unlock()
	}
	for name, spec := range wanted {
		w, err := startWorker(ctx, &p.opts, spec)
		if err != nil {
			p.opts.Logger.Error("load signal cannot be polled", "signal", name, "error", err)
			continue
		}
		p.mu.Lock()
		p.workers[name] = w
		p.mu.Unlock()
	}
}

// takeBack clears what some poller has published before and none will publish any more: the policy lost the signal, or it
// scales something else now, while that poller was dead. A polled signal has no end of its own, so it would hold its target at the
// default for ever.
func (p *Poller) takeBack(ctx context.Context, specs []policy.Signal) {
	of := make(map[string]policy.Scaled, len(specs))
	for _, spec := range specs {
		of[sourceOf(spec)] = spec.Of
	}
	for _, s := range p.opts.Signals.All() {
		if s.Kind != signal.Poll || !strings.HasPrefix(s.Source, sourcePrefix) {
			continue
		}
		scaled, ok := of[s.Source]
		if ok && (scaled.By != "" && s.Target.Scope == suspend.Column || scaled.By == "" && s.Target == targetOf(scaled)) {
			continue
		}
		if err := p.opts.Signals.Clear(ctx, s.Target, s.Source); err != nil {
			p.opts.Logger.Warn("load signal could not be taken back", "source", s.Source, "target", s.Target, "error", err)
		}
	}
}

func (p *Poller) snapshot() map[string]*worker {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.workers)
}

func (p *Poller) stopAll() {
	for _, w := range p.snapshot() {
		w.stop()
	}
	if p.opts.Client.Transport != nil {
		p.opts.Client.CloseIdleConnections()
	}
}

// Stats are those of all polled signals, by name and target.
func (p *Poller) Stats() []PollStats {
	var stats []PollStats
	for _, w := range p.snapshot() {
		stats = append(stats, w.stats()...)
	}
	slices.SortFunc(stats, func(a, b PollStats) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Target.Scope, b.Target.Scope), cmp.Compare(a.Target.Name, b.Target.Name))
	})
	return stats
}
