package live

import (
	"context"
	"errors"

	"github.com/nats-io/nats.go"

	"github.com/penstockmq/penstock/suspend"
	"github.com/penstockmq/penstock/suspend/signal"
)

// Signals follows the signals in force.
type Signals struct{}

// OpenSignals makes the bucket if it does not exist, and reads the signals in force.
func OpenSignals(ctx context.Context, nc *nats.Conn, opts Options) (*Signals, error) {
	return nil, errors.ErrUnsupported
}

// Publish sets what the signal's source says of its target, in all processes.
func (s *Signals) Publish(ctx context.Context, sig signal.Signal) error { return errors.ErrUnsupported }

// Clear takes back what a source said of a target. That there was nothing is no error.
func (s *Signals) Clear(ctx context.Context, target suspend.Target, source string) error {
	return errors.ErrUnsupported
}

// All are the signals in force, by target and source.
func (s *Signals) All() []signal.Signal { return nil }

// Subscribe calls f for each signal in force before it returns, and from then on for each that is published or, with gone
// set, taken back. f is called by one goroutine at a time and must not block or call Signals; the returned function ends it.
func (s *Signals) Subscribe(f func(s signal.Signal, gone bool)) (cancel func()) { return func() {} }

// Run follows the bucket until ctx is done.
func (s *Signals) Run(ctx context.Context) error { return errors.ErrUnsupported }

// Close ends Run. It may be called more than once, and without Run.
func (s *Signals) Close() error { return nil }
