package rpc

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"time"

	"github.com/penstockmq/penstock/broker"
)

// Options configure a Server. The zero value of a field takes its default.
type Options struct {
	// Broker is served. Required; the caller closes it after Run has returned.
	Broker *broker.Broker
	// Notices carries the broker's notices to clients; nil when the broker was not
	// opened with one.
	Notices *Notices

	// Advertise is the HOST:PORT that QueryRoute tells clients to connect to. Empty
	// echoes the endpoints that the client used, which suits every network layout
	// in which the client reached us.
	Advertise string
	// BrokerName is the name clients see; it must survive restarts. Default "penstock".
	BrokerName string
	// Version is this build's, for people who ask the broker. Default "unknown".
	Version string
	// TLS configures the TLS half of the port. Nil generates a self-signed certificate.
	TLS *tls.Config

	// MaxRequestBytes bounds one gRPC request. Default 16 MiB.
	MaxRequestBytes int
	// MaxBodyBytes bounds a message body and is sent to producers. Default
	// broker.DefaultMaxBodyBytes; with a larger value, consumers need a higher receive limit
	// than gRPC's 4 MiB.
	MaxBodyBytes int
	// MaxStreams bounds the calls under way on one connection. Default 10,000.
	MaxStreams uint32
	// ReceiveBatch bounds the messages of one answer to ReceiveMessage. Default 32.
	ReceiveBatch int
	// PollMax bounds a long poll and is told to consumers. Default 20 s.
	PollMax time.Duration
	// MinInvisible is the shortest lease that ReceiveMessage grants. Default 1 s:
	// a shorter one ends before its ack can cross a busy network.
	MinInvisible time.Duration
	// DefaultInvisible is the lease of a request that names none, and of one with
	// auto_renew. Default 60 s.
	DefaultInvisible time.Duration
	// StopGrace bounds how long Run waits for calls under way after its context
	// ended. Long polls end at once and need none of it. Default 2 s.
	StopGrace time.Duration

	// Logger receives what an operator should know; nil discards it.
	Logger *slog.Logger
}

// Limits that RocketMQ has as constants of its configuration.
const (
	maxInvisible       = 12 * time.Hour
	maxAckEntries      = 1024
	maxSyncNames       = 100_000
	maxDelay           = 24 * time.Hour
	maxUserProperties  = 128
	maxPropertiesBytes = 16 << 10
	maxMessageGroup    = 63 // "strictly less than 64"
	maxMessageIDBytes  = 255
	maxAttemptIDBytes  = 256 // official clients send a UUID; the broker keeps it while its messages are in flight
	// replyMargin is kept of a caller's deadline so that the answer can reach it.
	replyMargin = 100 * time.Millisecond
)

func (o Options) withDefaults() Options {
	setDefault(&o.BrokerName, "penstock")
	setDefault(&o.Version, "unknown")
	setDefault(&o.MaxRequestBytes, 16<<20)
	setDefault(&o.MaxBodyBytes, broker.DefaultMaxBodyBytes)
	setDefault(&o.MaxStreams, 10_000)
	setDefault(&o.ReceiveBatch, 32)
	setDefault(&o.PollMax, 20*time.Second)
	setDefault(&o.MinInvisible, time.Second)
	setDefault(&o.DefaultInvisible, time.Minute)
	setDefault(&o.StopGrace, 2*time.Second)
	if o.Notices == nil {
		o.Notices = NewNotices()
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

func setDefault[T comparable](v *T, def T) {
	var zero T
	if *v == zero {
		*v = def
	}
}

// validate names every field that is out of its limits.
func (o Options) validate() error {
	var errs []error
	if o.Broker == nil {
		errs = append(errs, errors.New("broker is missing"))
	}
	if o.Advertise != "" {
		if _, err := endpointsOf(o.Advertise); err != nil {
			errs = append(errs, fmt.Errorf("advertise: %w", err))
		}
	}
	for _, f := range []struct {
		key       string
		v, lo, hi int64
	}{
		{"max request bytes", int64(o.MaxRequestBytes), 1 << 10, 1 << 30},
		{"max body bytes", int64(o.MaxBodyBytes), 1, int64(o.MaxRequestBytes)},
		{"receive batch", int64(o.ReceiveBatch), 1, 1024},
	} {
		if f.v < f.lo || f.v > f.hi {
			errs = append(errs, fmt.Errorf("%s %d is outside %d to %d", f.key, f.v, f.lo, f.hi))
		}
	}
	for _, f := range []struct {
		key       string
		v, lo, hi time.Duration
	}{
		{"poll max", o.PollMax, time.Second, time.Hour},
		{"min invisible", o.MinInvisible, time.Millisecond, maxInvisible},
		{"default invisible", o.DefaultInvisible, o.MinInvisible, maxInvisible},
		{"stop grace", o.StopGrace, 0, time.Hour},
	} {
		if f.v < f.lo || f.v > f.hi {
			errs = append(errs, fmt.Errorf("%s %v is outside %v to %v", f.key, f.v, f.lo, f.hi))
		}
	}
	return errors.Join(errs...)
}

// splitAddress splits HOST:PORT with a numeric port.
func splitAddress(addr string) (string, int32, error) {
	host, text, err := net.SplitHostPort(addr)
	if err != nil {
		return "", 0, err
	}
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil || host == "" || port == 0 {
		return "", 0, fmt.Errorf("address %q is not HOST:PORT", addr)
	}
	return host, int32(port), nil
}
