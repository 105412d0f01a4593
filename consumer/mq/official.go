package mq

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"regexp"
	"sync"
	"sync/atomic"
	"time"

	rocketmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
	v2 "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"

	"github.com/penstockmq/penstock/broker/lite"
)

// What the official client (v5.1.4) does otherwise than the stubs, and cannot be made to do from outside:
//
//   - It does not renew leases. A handler with all its retries must end within Options.Invisible. It does not show when a
//     delivery was asked for either: one that waited in a stopped process until its lease ended begins, but never beside
//     another delivery of its message to this process.
//   - It retries by itself: after [Retry] it keeps the message and calls the handler again, with the next attempt, after
//     the delay of the group's back-off policy; the verdict's own is not used. The broker does not hear of the attempt. A
//     consumer that stops meanwhile leaves the message to its lease.
//   - A suspend is at least 50 ms, and so is a release.
//   - Its threads are the workers, and messages it has fetched wait for one, with their leases running. So a throttled
//     bucket keeps nobody waiting, but a slow one may.
//   - Its graceful stop waits for the long poll under way, up to 23 s. Run does not: the client stops in the background,
//     and what its last poll still brings is suspended. A process that ends cuts it off.
//   - It speaks RocketMQ's service only. What the broker can do beside it, holds and settlements go over a second, small
//     connection. A message is settled there first; what the client then says of it has no effect any more. The broker is
//     asked again for its features once in 30 s, since the client does not show a reconnect. A [Retry] is not told at all.
//   - TLS and the log are settings of the process, see [SetUpOfficial]. With TLS it accepts any certificate.
const officialStep = 50 * time.Millisecond

// OfficialProcess is what the official client has one of in a process.
type OfficialProcess struct {
	TLS bool
	// LogDir is where it writes rocketmq_client_go.log. Empty means ~/logs/rocketmq.
	LogDir string
	// LogLevel is debug, info, warn or error. Empty means info.
	LogLevel string
}

// SetUpOfficial configures the official client for the whole process. REQUIRES: no official client has been made yet, and
// none is being made; its settings are plain variables of its package.
func SetUpOfficial(p OfficialProcess) error {
	rocketmq.EnableSsl = p.TLS
	for key, value := range map[string]string{
		rocketmq.CLIENT_LOG_ROOT: p.LogDir, rocketmq.CLIENT_LOG_LEVEL: p.LogLevel,
	} {
		if value == "" {
			continue
		}
		if err := os.Setenv(key, value); err != nil {
			return fmt.Errorf("set up official client: %w", err)
		}
	}
	rocketmq.ResetLogger()
	return nil
}

// errOfficialTLS is a configuration that differs from the process's.
var errOfficialTLS = errors.New("tls: differs from what the official client was set up with")

func officialConfig(o Options) (*rocketmq.Config, error) {
	if o.TLS != rocketmq.EnableSsl {
		return nil, errOfficialTLS
	}
	c := &rocketmq.Config{Endpoint: o.Endpoint, ConsumerGroup: o.Group}
	if o.AccessKey != "" {
		c.Credentials = &credentials.SessionCredentials{AccessKey: o.AccessKey, AccessSecret: string(o.Secret)}
	}
	return c, nil
}

// statusText is how the client's errors print a refusal.
var statusText = regexp.MustCompile(`CODE: ([A-Z_]+), MESSAGE: (.*)`)

// officialError turns the client's error into ours. Its start wraps errors by their text only.
func officialError(op string, err error) error {
	if status, ok := rocketmq.AsErrRpcStatus(err); ok {
		err = &CodeError{Code: status.GetCode(), Message: status.GetMessage()}
	} else if text := statusText.FindStringSubmatch(err.Error()); text != nil {
		if code, known := v2.Code_value[text[1]]; known {
			err = &CodeError{Code: code, Message: text[2]}
		}
	}
	return fmt.Errorf("%s: %w", op, err)
}

// officialConsumer is the Consumer on the official client.
type officialConsumer struct {
	opts   Options
	config *rocketmq.Config
	ran    atomic.Bool

	features atomic.Pointer[Features]
}

// Features implements [Describer].
func (c *officialConsumer) Features() Features { return featuresOf(&c.features) }

// SuspendStep implements [Consumer].
func (c *officialConsumer) SuspendStep() time.Duration { return officialStep }

// Run implements [Consumer].
func (c *officialConsumer) Run(ctx context.Context, h Handler) error {
	if c.ran.Swap(true) {
		return ErrClosed
	}
	messages, end := context.WithCancelCause(context.WithoutCancel(ctx))
	defer end(nil)
	beside := c.opts
	beside.InsecureSkipVerify = true // as the client does
	link, err := dial(beside)
	if err != nil {
		return err
	}
	defer link.close() //nolint:errcheck // nothing that matters is under way any more
	r := &officialRun{
		opts: c.opts, log: c.opts.Logger, handler: h, messages: messages, once: newOnce(), penstock: newPenstock(link, c.opts, &c.features),
	}
	var watch sync.WaitGroup
	defer watch.Wait()
	watching, endWatching := context.WithCancel(ctx)
	defer endWatching()
	client, err := r.start(ctx, c.config)
	if err != nil {
		return err
	}
	if client == nil { // asked to stop before it began
		return nil
	}
	watch.Go(func() { every(watching, describePeriod, nil, r.penstock.describe) })
	<-ctx.Done()
	r.stop(client, end)
	return nil
}

// officialRun is one Run.
type officialRun struct {
	opts     Options
	log      *slog.Logger
	handler  Handler
	messages context.Context // parent of all handlers' contexts
	penstock *penstock
	once     *once

	client atomic.Pointer[deadLetterer]
	mu     sync.Mutex // guards the following field, and handlers.Add against handlers.Wait
	// stopping means that no handler begins any more.
	stopping bool
	handlers sync.WaitGroup
}

// deadLetterer is a method that the client has, and its interface has not.
type deadLetterer interface {
	ForwardMessageToDeadLetterQueue(ctx context.Context, m *rocketmq.MessageView) error
}

// start returns a started client, or nil if ctx ended first. The client's start blocks as long as the broker pleases, so it
// runs aside; one that succeeds too late is stopped.
func (r *officialRun) start(ctx context.Context, config *rocketmq.Config) (rocketmq.LitePushConsumer, error) {
	type started struct {
		client rocketmq.LitePushConsumer
		err    error
	}
	for n := 1; ; n++ {
		result := make(chan started, 1)
		go func() {
			// Before the client's first message. One that does not answer now does not answer the client either.
			err := r.penstock.describe(ctx)
			if err != nil {
				result <- started{nil, err}
				return
			}
			client, err := r.connect(config)
			result <- started{client, err}
		}()
		select {
		case <-ctx.Done():
			go func() {
				if late := <-result; late.err == nil {
					_ = late.client.GracefulStop() // in the background; there is nobody to tell
				}
			}()
			return nil, nil //nolint:nilnil // see above
		case s := <-result:
			if s.err == nil {
				return s.client, nil
			}
			err := officialError("start consumer", s.err)
			if hopeless(err) {
				return nil, err
			}
			r.log.Warn("broker does not answer yet", "error", err)
		}
		if !pause(ctx, retryDelay(n)) {
			return nil, nil //nolint:nilnil // see above
		}
	}
}

func (r *officialRun) connect(config *rocketmq.Config) (rocketmq.LitePushConsumer, error) {
	client, err := rocketmq.NewLitePushConsumer(config,
		rocketmq.NewLitePushConsumerConfig(r.opts.Topic, r.opts.Invisible),
		rocketmq.WithPushMessageListener(&rocketmq.FuncMessageListener{Consume: r.consume}),
		rocketmq.WithPushConsumptionThreadCount(int32(r.opts.Workers)),
		rocketmq.WithPushMaxCacheMessageCount(int32(max(2*r.opts.Workers, 64))),
		// Without it a batch is run one after the other, buckets of all tenants in one line.
		rocketmq.WithPushEnableFifoConsumeAccelerator(true),
	)
	if err != nil {
		return nil, err
	}
	if d, ok := client.(deadLetterer); ok {
		r.client.Store(&d)
	}
	if err := client.Start(); err != nil {
		return nil, err
	}
	for _, name := range r.opts.Subscribe {
		err := client.SubscribeLite(name)
		if name == lite.Wildcard && err != nil && wildcardRefused(officialError("subscribe", err)) {
			err = nil // a broker whose wildcard is the group's attribute; the client's empty set has joined it
		}
		if err != nil {
			_ = client.GracefulStop() // err says more
			return nil, err
		}
	}
	return client, nil
}

// consume is the client's listener.
func (r *officialRun) consume(view *rocketmq.MessageView) rocketmq.ConsumerResult {
	received := time.Now()
	if !r.enter() {
		return rocketmq.NewConsumerResultSuspend(officialStep)
	}
	defer r.handlers.Done()
	ctx, cancel := context.WithDeadlineCause(r.messages, received.Add(r.opts.Invisible), ErrLeaseLost)
	defer cancel()
	ctx, lose := context.WithCancelCause(ctx)
	defer lose(nil)
	defer r.once.enter(view.GetMessageId(), lose)()
	if errors.Is(context.Cause(ctx), ErrLeaseLost) {
		return rocketmq.NewConsumerResultSuspend(officialStep) // after a failure the client would call again, beside a newer delivery
	}
	v := callHandler(ctx, r.handler, messageOfView(view, received), r.log)
	if cause := context.Cause(ctx); v.Kind == VerdictRetry && (errors.Is(cause, ErrStopping) || errors.Is(cause, ErrLeaseLost)) {
		v = Suspend(0) // a stop is no attempt, and without a lease the client must not call again by itself
	}
	return r.settle(context.WithoutCancel(ctx), v, view) // a stop waits for it
}

// settle tells the broker what it takes beside the client, and the client the rest.
func (r *officialRun) settle(ctx context.Context, v Verdict, view *rocketmq.MessageView) rocketmq.ConsumerResult {
	v = r.penstock.held(ctx, v)
	told := false
	if v.Kind != VerdictRetry { // after which the client keeps the message
		err := r.penstock.tell(ctx, v, view.GetReceiptHandle())
		if told = err == nil; !told && !errors.Is(err, errNotTold) {
			r.log.Warn("settlement was not taken", "message_id", view.GetMessageId(), "error", err)
		}
	}
	switch v.Kind {
	case VerdictAck:
		return rocketmq.SUCCESS
	case VerdictSuspend:
		if told { // the handle is stale by now
			return rocketmq.NewConsumerResultSuspend(officialStep)
		}
		return rocketmq.NewConsumerResultSuspend(max(ceilMilli(v.After), officialStep))
	case VerdictReject:
		if told {
			return rocketmq.SUCCESS
		}
		return r.reject(ctx, view)
	case VerdictRetry:
		return rocketmq.FAILURE
	}
	return rocketmq.FAILURE
}

// reject moves the message to the dead letters and then lets the client ack it, which has no effect on a message that is
// gone. If the move fails for long, the message stays failed: it is tried again.
func (r *officialRun) reject(ctx context.Context, view *rocketmq.MessageView) rocketmq.ConsumerResult {
	client := r.client.Load()
	if client == nil {
		return rocketmq.FAILURE
	}
	for n := 1; n <= 5; n++ {
		err := (*client).ForwardMessageToDeadLetterQueue(ctx, view)
		if err == nil {
			return rocketmq.SUCCESS
		}
		r.log.Warn("message could not be moved to the dead letters", "message_id", view.GetMessageId(), "error", err)
		if !pause(ctx, retryDelay(n)) {
			break
		}
	}
	return rocketmq.FAILURE
}

func (r *officialRun) enter() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stopping {
		return false
	}
	r.handlers.Add(1)
	return true
}

// stop ends receiving, gives running handlers their grace, and leaves the client to its own slow end.
func (r *officialRun) stop(client rocketmq.LitePushConsumer, end context.CancelCauseFunc) {
	r.mu.Lock()
	r.stopping = true
	r.mu.Unlock()
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		if err := client.GracefulStop(); err != nil {
			r.log.Debug("official client stopped with an error", "error", err)
		}
	}()
	ended := make(chan struct{})
	go func() { defer close(ended); r.handlers.Wait() }()
	if !withinGrace(r.opts, ended) {
		end(ErrStopping)
		if !within(ended) {
			r.log.Error("handlers do not end; their leases will", "wait", unwindWait)
		}
	}
	// The client acks on the thread that ran the handler, and shows no end of it.
	within(stopped)
}

func messageOfView(view *rocketmq.MessageView, received time.Time) *Message {
	m := &Message{
		ID:         view.GetMessageId(),
		Topic:      view.GetTopic(),
		Lite:       view.GetLiteTopic(),
		Body:       view.GetBody(),
		Properties: view.GetProperties(),
		Keys:       view.GetKeys(),
		Attempt:    max(int(view.GetDeliveryAttempt()), 1),
		Received:   received,
		Offset:     view.GetOffset(),
	}
	if tag := view.GetTag(); tag != nil {
		m.Tag = *tag
	}
	if born := view.GetBornTimestamp(); born != nil {
		m.Born = *born
	}
	return m
}
