package live

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"github.com/penstockmq/penstock/suspend/policy"
)

// PollerOptions configure a Poller.
type PollerOptions struct {
	// Current and Changed are the policy that names what to poll; Policies, policy.File and the like have them. Required.
	Current func() *policy.Document
	Changed func() <-chan struct{}
	// Signals is where the signals go. Required.
	Signals *Signals
	// Client fetches the pages. Nil: one of its own, without redirects or proxy.
	Client *http.Client
	// Logger gets what is stale and what is back. Nil drops it.
	Logger *slog.Logger
}

// Poller reads the metrics that the policy's signals name and publishes what they say.
type Poller struct{}

// NewPoller does no I/O; Run does.
func NewPoller(opts PollerOptions) *Poller { return nil }

// Run polls until ctx is done.
func (p *Poller) Run(ctx context.Context) error { return errors.ErrUnsupported }

// PollStats is what the poller knows of one polled signal, for metrics.
type PollStats struct {
	Name     string
	Target   string
	Permille int64     // the factor that was published last
	Value    float64   // the metric as read last
	At       time.Time // when it was read last; zero: never
	Stale    bool
	Polls    uint64
	Failures uint64
}

// Stats are those of all polled signals, by name.
func (p *Poller) Stats() []PollStats { return nil }
