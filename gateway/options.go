package gateway

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"regexp"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/penstockmq/penstock/broker/lite"
	"github.com/penstockmq/penstock/consumer/mq"
	"github.com/penstockmq/penstock/consumer/reply"
	"github.com/penstockmq/penstock/suspend/policy"
)

// Producer is the way into the broker; an mq.Producer is one.
type Producer interface {
	Send(ctx context.Context, m mq.Outgoing) (mq.Receipt, error)
	Recall(ctx context.Context, topic, handle string) error
}

// Options configures a Gateway. The zero of a field means its default.
type Options struct {
	// Addr is where Run listens, HOST:PORT. Default 127.0.0.1:8080. Serve does not use it.
	Addr string
	// Name stands for this gateway in NATS subjects: 1 to 64 of [A-Za-z0-9_-], different for each gateway of a NATS
	// cluster. Default: random.
	Name string
	// Topic is the parent topic of the buckets. Default "requests".
	Topic string

	// Producer sends and recalls. Required; the caller closes it after Close.
	Producer Producer
	// NATS carries replies and cancels. Required; the caller closes it after Close.
	NATS *nats.Conn
	// Requests keeps asynchronous requests. Nil: "Prefer: respond-async" is refused.
	Requests *reply.Store
	// Keys knows whose a key is. Required.
	Keys KeySource
	// Policy returns the document in force. Nil: no limits.
	Policy func() *policy.Document
	// Explain says why a request is still queued: GET /v1/requests/{id} shows it. Nil: nobody knows.
	Explain Explain
	// Models are those that are served: GET /v1/models lists them, and a request for any other gets 404. Empty: any model
	// is taken, and the list is empty.
	Models []string

	// DefaultTimeout is the deadline of a request that names none. Default 10 min, that of OpenAI's clients.
	DefaultTimeout time.Duration
	// AsyncTimeout is that of an asynchronous request. Default 1 h.
	AsyncTimeout time.Duration
	// MaxTimeout bounds what a caller may name. Default 24 h.
	MaxTimeout time.Duration
	// KeepAlive is how long a stream may be silent before a comment is sent. Default 15 s.
	KeepAlive time.Duration
	// StallTimeout is how long an answer that has begun may pause. It must be longer than what the pool allows a model, which
	// knows better; it is for answers whose worker is gone. Default 5 min.
	StallTimeout time.Duration
	// BodyTimeout bounds the time in which the first 64 KiB of a body, and each further 64 KiB, must arrive. A slower body ends
	// with 408. Default 10 s, which is 6.4 KiB/s.
	BodyTimeout time.Duration
	// WriteTimeout is how long one write to a caller may block. Default 30 s.
	WriteTimeout time.Duration
	// SendTimeout bounds one send to the broker. Default 5 s.
	SendTimeout time.Duration
	// Grace is how long running requests may go on when the gateway stops. Default 10 s; negative: none.
	Grace time.Duration
	// StopNow ends the Grace of a stopping gateway when it is closed. Workers that stop at the same time have lastWords to send
	// the end of their answers. Nil: the Grace always runs to its end.
	StopNow <-chan struct{}
	// MaxBodyBytes bounds a body. Default 4,032 KiB, the broker's own bound.
	MaxBodyBytes int64
	// MaxBufferBytes bounds the bytes of bodies held at once, each byte from its arrival until the broker has the body; one
	// user may hold at most as many bytes as are free. Default 512 MiB.
	MaxBufferBytes int64
	// MaxActive bounds the requests with a known key held at once; one user may hold at most as many as are free, so a single
	// user gets half. Default 65,536.
	MaxActive int
	// MaxStrangers bounds the connections on which no request has shown a known key; the oldest is closed to make room.
	// Default 4,096.
	MaxStrangers int

	// Observer receives the durations that histograms are made of. Nil: none.
	Observer Observer
	// Logger takes what an operator should know. Nil discards it.
	Logger *slog.Logger
}

var nameRE = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// fill sets defaults and returns all faults, each with its key.
func (o *Options) fill() error {
	var errs []error
	fault := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if o.Addr == "" {
		o.Addr = "127.0.0.1:8080"
	}
	if _, _, err := net.SplitHostPort(o.Addr); err != nil {
		fault("addr: %q is not HOST:PORT", o.Addr)
	}
	if o.Name == "" {
		o.Name = "gw-" + rand.Text()
	}
	if !nameRE.MatchString(o.Name) {
		fault("name: %q is not 1 to 64 of [A-Za-z0-9_-]", o.Name)
	}
	if o.Topic == "" {
		o.Topic = "requests"
	}
	if err := lite.CheckTopic(o.Topic); err != nil {
		fault("topic: %w", err)
	}
	if o.Producer == nil || o.NATS == nil || o.Keys == nil {
		fault("producer, nats, keys: required")
	}
	for i, m := range o.Models {
		if err := lite.CheckModel(m); err != nil {
			fault("models[%d]: %w", i, err)
		}
	}
	if o.Policy == nil {
		empty := policy.Empty()
		o.Policy = func() *policy.Document { return empty }
	}
	if o.Observer == nil {
		o.Observer = noObserver{}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	errs = append(errs, o.fillBounds()...)
	return errors.Join(errs...)
}

func (o *Options) fillBounds() (errs []error) {
	bound := func(name string, d *time.Duration, standard time.Duration) {
		if *d == 0 {
			*d = standard
		}
		if *d < time.Millisecond {
			errs = append(errs, fmt.Errorf("%s: %s is less than 1ms", name, *d))
		}
	}
	bound("default_timeout", &o.DefaultTimeout, 10*time.Minute)
	bound("async_timeout", &o.AsyncTimeout, time.Hour)
	bound("max_timeout", &o.MaxTimeout, 24*time.Hour)
	bound("keep_alive", &o.KeepAlive, 15*time.Second)
	bound("stall_timeout", &o.StallTimeout, 5*time.Minute)
	bound("body_timeout", &o.BodyTimeout, 10*time.Second)
	bound("write_timeout", &o.WriteTimeout, 30*time.Second)
	bound("send_timeout", &o.SendTimeout, 5*time.Second)
	if o.DefaultTimeout > o.MaxTimeout || o.AsyncTimeout > o.MaxTimeout {
		errs = append(errs, fmt.Errorf("default_timeout, async_timeout: more than max_timeout, %s", o.MaxTimeout))
	}
	if o.Grace == 0 {
		o.Grace = 10 * time.Second
	}
	if o.MaxBodyBytes == 0 {
		o.MaxBodyBytes = 4032 << 10
	}
	if o.MaxBufferBytes == 0 {
		o.MaxBufferBytes = max(512<<20, o.MaxBodyBytes)
	}
	if o.MaxActive == 0 {
		o.MaxActive = 1 << 16
	}
	if o.MaxStrangers == 0 {
		o.MaxStrangers = 4096
	}
	if o.MaxBodyBytes < 1 || o.MaxActive < 1 || o.MaxStrangers < 1 {
		errs = append(errs, errors.New("max_body_bytes, max_active, max_strangers: want 1 or more"))
	}
	if o.MaxBufferBytes < o.MaxBodyBytes {
		errs = append(errs, fmt.Errorf("max_buffer_bytes: less than max_body_bytes, %d", o.MaxBodyBytes))
	}
	return errs
}
