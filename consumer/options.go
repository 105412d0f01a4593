package consumer

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/penstockmq/penstock/consumer/forward"
	"github.com/penstockmq/penstock/consumer/mq"
	"github.com/penstockmq/penstock/consumer/reply"
	"github.com/penstockmq/penstock/suspend/policy"
)

// Options configures a [Pool]. The zero of a field means its default.
type Options struct {
	// Consumer is where messages come from. Required.
	Consumer mq.Consumer
	// Downstream is where they go. Required.
	Downstream forward.Downstream
	// Policy is the document in force, asked for each message, so that a change acts at once. Nil means no limits. Where the
	// broker asks the limits of its own policy, as Penstock's does unless the group is exempt, this one is not used.
	Policy func() *policy.Document
	// NATS carries replies and cancels. Nil means that nobody waits: answers are dropped.
	NATS *nats.Conn
	// Store takes the answers of asynchronous requests. Nil means that they are dropped.
	Store *reply.Store

	// Workers is the number of messages that the Consumer hands to its handler at once. 0: unknown, which disables the shares.
	Workers int
	// Share is the largest part of Workers, in percent, that the requests of one model, or of one user, may hold when no
	// other requests run; the share shrinks as more models or users hold many workers, see shares. 100 disables it. Default 50.
	Share int
	// BodyBytes bounds the bodies of running requests, in bytes; one request may always run. Default 512 MiB. Unused without Workers.
	BodyBytes int64

	// Cost is how many requests a message counts as. Nil means what its sender stamped on it, else 1.
	Cost func(*mq.Message) int64
	// Concurrency is the number of requests of a model that run at the same time in this pool; 0 means no bound but the
	// workers. It is asked for each message. Nil means no bounds. Not used where the broker asks the limits: there a
	// column's in_flight is the bound, of all pools together.
	Concurrency func(model string) int
	// SlotWait is how long a worker waits for a model at its Concurrency before it gives the message back. Default 100 ms.
	SlotWait time.Duration

	// Attempts bounds the deliveries of a message that fails; after them it goes to the dead letters. Default 3. The
	// group's own bound is the broker's, and counts workers that died.
	Attempts int
	// BackoffMin is the delay before the second attempt; it doubles with each, up to BackoffMax. Defaults 200 ms, 30 s.
	BackoffMin, BackoffMax time.Duration

	// Logger takes failed and refused messages. Nil discards.
	Logger *slog.Logger
	// Metrics counts. Nil counts for nobody.
	Metrics *Metrics
	// Observer hears times. Nil means nobody.
	Observer Observer
}

func (o *Options) fill() error {
	var errs []error
	if o.Consumer == nil {
		errs = append(errs, errors.New("consumer: missing"))
	}
	if o.Downstream == nil {
		errs = append(errs, errors.New("downstream: missing"))
	}
	if o.Policy == nil {
		empty := policy.Empty()
		o.Policy = func() *policy.Document { return empty }
	}
	if o.Cost == nil {
		o.Cost = requestsOf
	}
	if o.Concurrency == nil {
		o.Concurrency = func(string) int { return 0 }
	}
	if o.Workers < 0 {
		errs = append(errs, fmt.Errorf("workers: %d is negative", o.Workers))
	}
	if o.Share == 0 {
		o.Share = 50
	}
	if o.Share < 1 || o.Share > 100 {
		errs = append(errs, fmt.Errorf("share: %d is not between 1 and 100 percent", o.Share))
	}
	if o.BodyBytes == 0 {
		o.BodyBytes = 512 << 20
	}
	if o.BodyBytes < 0 {
		errs = append(errs, fmt.Errorf("body_bytes: %d is negative", o.BodyBytes))
	}
	if o.Attempts == 0 {
		o.Attempts = 3
	}
	if o.Attempts < 1 {
		errs = append(errs, fmt.Errorf("attempts: %d is less than 1", o.Attempts))
	}
	duration := func(name string, d *time.Duration, zero time.Duration) {
		if *d == 0 {
			*d = zero
		}
		if *d < 0 {
			errs = append(errs, fmt.Errorf("%s: %s is negative", name, *d))
		}
	}
	duration("slot_wait", &o.SlotWait, 100*time.Millisecond)
	duration("backoff_min", &o.BackoffMin, 200*time.Millisecond)
	duration("backoff_max", &o.BackoffMax, max(30*time.Second, o.BackoffMin))
	if o.BackoffMax < o.BackoffMin {
		errs = append(errs, fmt.Errorf("backoff_max: %s is less than backoff_min, %s", o.BackoffMax, o.BackoffMin))
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Metrics == nil {
		o.Metrics = new(Metrics)
	}
	if o.Observer == nil {
		o.Observer = nobody{}
	}
	return errors.Join(errs...)
}
