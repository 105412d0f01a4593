package mq

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/penstockmq/penstock/broker/lite"
)

// Kind names an adapter.
type Kind string

// The adapters.
const (
	// Stubs speaks the protocol with its generated stubs: batched acks, suspends from 1 ms, lease renewal. The default.
	Stubs Kind = "stubs"
	// Official uses the official Go client, see official.go for its limits.
	Official Kind = "official"
)

// Secret prints as "***"; only a conversion to string shows it.
type Secret string

// String hides the secret.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return "***"
}

// GoString hides the secret from %#v.
func (s Secret) GoString() string { return `"` + s.String() + `"` }

// LogValue hides the secret from slog.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// MarshalText hides the secret from encoders.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Options configures a consumer or a producer. The zero of a field means its default.
type Options struct {
	// Endpoint of the broker or proxy, HOST:PORT. Required.
	Endpoint string
	// TLS encrypts; InsecureSkipVerify accepts any certificate.
	TLS, InsecureSkipVerify bool
	// AccessKey and Secret sign the calls; without a key they are not signed.
	AccessKey string
	Secret    Secret
	// Topic is the parent topic. Required for consumers; a producer checks at its first Send otherwise.
	Topic string
	// Logger takes connection losses and settle calls that were given up. Nil discards.
	Logger *slog.Logger

	// The following are for consumers only.

	// Group is the consumer group. Required.
	Group string
	// Workers bounds the messages that run at the same time. Default 64.
	Workers int
	// Subscribe names lite topics, or "*" for all there are and will be. Default "*".
	Subscribe []string
	// Invisible is the length of a lease. A worker that dies frees its messages after it. Default 30 s; with Official,
	// which cannot renew a lease, 15 min, and then it bounds the run of a handler with all its retries.
	Invisible time.Duration
	// Grace is how long running handlers may go on after Run's ctx is done. Default 0: they are told at once.
	Grace time.Duration
	// StopNow ends the Grace of a stopping consumer when it is closed. Nil: the Grace always runs to its end.
	StopNow <-chan struct{}
	// Polls is the number of long polls at the same time. Default 4. Stubs only.
	Polls int

	// The following is for producers only.

	// SendBatch bounds the messages of one call. Messages whose Sends wait at the same time share one. Default 64 with
	// a Penstock broker; 1 with any other, whose batches of lite messages are untested. Stubs only.
	SendBatch int

	// dialer connects in the place of TCP; for tests in memory.
	dialer func(ctx context.Context, address string) (net.Conn, error)
}

// Bounds of options.
const (
	MaxWorkers   = 1 << 16
	MaxPolls     = 256
	minInvisible = time.Second
	maxInvisible = 12 * time.Hour
)

// common checks and fills what consumers and producers both need.
func (o *Options) common() []error {
	var errs []error
	if _, port, err := net.SplitHostPort(o.Endpoint); err != nil || port == "" {
		errs = append(errs, fmt.Errorf("endpoint: %q is not HOST:PORT", o.Endpoint))
	}
	if (o.AccessKey == "") != (o.Secret == "") {
		errs = append(errs, errors.New("access_key, secret: one without the other"))
	}
	if o.Topic != "" {
		if err := lite.CheckTopic(o.Topic); err != nil {
			errs = append(errs, fmt.Errorf("topic: %w", err))
		}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return errs
}

func (o *Options) fillConsumer(kind Kind) error {
	errs := o.common()
	if o.Topic == "" {
		errs = append(errs, errors.New("topic: missing"))
	}
	if err := lite.CheckGroup(o.Group); err != nil {
		errs = append(errs, fmt.Errorf("group: %w", err))
	}
	if len(o.Subscribe) == 0 {
		o.Subscribe = []string{lite.Wildcard}
	}
	for _, name := range o.Subscribe {
		if name == lite.Wildcard {
			continue
		}
		if err := lite.CheckName(name); err != nil {
			errs = append(errs, fmt.Errorf("subscribe: %w", err))
		}
	}
	if o.Invisible == 0 {
		o.Invisible = 30 * time.Second
		if kind == Official {
			o.Invisible = 15 * time.Minute
		}
	}
	if o.Invisible < minInvisible || o.Invisible > maxInvisible {
		errs = append(errs, fmt.Errorf("invisible: %s is not between %s and %s", o.Invisible, minInvisible, maxInvisible))
	}
	if o.Grace < 0 {
		errs = append(errs, fmt.Errorf("grace: %s is negative", o.Grace))
	}
	number := func(name string, n *int, zero, limit int) {
		if *n == 0 {
			*n = zero
		}
		if *n < 1 || *n > limit {
			errs = append(errs, fmt.Errorf("%s: %d is not between 1 and %d", name, *n, limit))
		}
	}
	number("workers", &o.Workers, 64, MaxWorkers)
	number("polls", &o.Polls, 4, MaxPolls)
	return errors.Join(errs...)
}

func (o *Options) fillProducer() error {
	errs := o.common()
	if o.SendBatch < 0 || o.SendBatch > 1024 {
		errs = append(errs, fmt.Errorf("send_batch: %d is not between 1 and 1024", o.SendBatch))
	}
	return errors.Join(errs...)
}
