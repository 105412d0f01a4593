package mq

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	v2 "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
)

// How long a stop waits for what.
const (
	// pollsWait is for the broker to end our polls after our good-bye. Penstock does so at once. A poll that is cut off
	// instead may have a message on its way, which then is out until its lease ends and costs it an attempt.
	pollsWait = 300 * time.Millisecond
	// unwindWait is for handlers whose ctx has ended, and then again for their settlements to reach the broker.
	unwindWait = time.Second
)

// stubsConsumer is the Consumer on the plain stubs.
type stubsConsumer struct {
	opts     Options
	ran      atomic.Bool
	features atomic.Pointer[Features]
}

// Features implements [Describer].
func (c *stubsConsumer) Features() Features { return featuresOf(&c.features) }

// SuspendStep implements [Consumer].
func (c *stubsConsumer) SuspendStep() time.Duration { return time.Millisecond }

// Run implements [Consumer].
func (c *stubsConsumer) Run(ctx context.Context, h Handler) error {
	if c.ran.Swap(true) {
		return ErrClosed
	}
	link, err := dial(c.opts)
	if err != nil {
		return err
	}
	defer link.close() //nolint:errcheck // nothing is under way any more
	service := newPenstock(link, c.opts, &c.features)
	settler := newSettler(link, service, c.opts)
	session := newSession(link, c.opts, v2.ClientType_LITE_PUSH_CONSUMER)
	session.describe = service.describe
	r := &stubsRun{
		opts: c.opts, log: c.opts.Logger, link: link, handler: h, accept: ctx,
		session: session,
		slots:   newSlots(c.opts.Workers),
		once:    newOnce(),
		settler: settler,
		leases: newLeases(c.opts.Invisible, func(ctx context.Context, handle string, l *lease) (string, error) {
			return settler.renew(ctx, l, handle, c.opts.Invisible)
		}, func() time.Duration {
			if service.known().Renew {
				return outagePatience
			}
			return 0
		}),
	}
	return r.run()
}

// stubsRun is one Run. Its goroutines end before run returns, but for handlers that ignore their ctx.
type stubsRun struct {
	opts    Options
	log     *slog.Logger
	link    *link
	handler Handler
	accept  context.Context // Run's: when it ends, no message is taken on any more
	session *session
	slots   *slots
	once    *once
	leases  *leases
	settler *settler

	handlers sync.WaitGroup
	// messages is the parent of all handlers' contexts, settling that of calls that settle.
	messages, settling context.Context
}

func (r *stubsRun) run() error {
	// Duties, leases and settling outlive accept: running handlers need them.
	base := context.WithoutCancel(r.accept)
	duties, endDuties := context.WithCancel(base)
	var background sync.WaitGroup
	defer background.Wait()
	defer endDuties()
	background.Go(func() { r.session.run(duties) })
	if err := r.session.start(r.accept); err != nil {
		if r.accept.Err() != nil {
			return nil
		}
		return fmt.Errorf("start consumer: %w", err)
	}

	messages, endMessages := context.WithCancelCause(base)
	defer endMessages(nil)
	settling, endSettling := context.WithCancel(base)
	defer endSettling()
	r.messages, r.settling = messages, settling
	background.Go(func() { r.leases.run(duties) })
	settled := make(chan struct{})
	go func() { defer close(settled); r.settler.run(settling) }()

	polling, endPolling := context.WithCancel(base)
	var polls sync.WaitGroup
	for i := range r.opts.Polls {
		polls.Go(func() { r.poll(polling, i) })
	}
	<-r.accept.Done()
	r.stopPolls(&polls, endPolling)
	r.stopHandlers(endMessages)
	close(r.settler.quit)
	within(settled)
	endSettling()
	<-settled
	return nil
}

// stopPolls asks the broker to end the polls, and cuts off those that it leaves open.
func (r *stubsRun) stopPolls(polls *sync.WaitGroup, cut context.CancelFunc) {
	ended := make(chan struct{})
	go func() { defer close(ended); polls.Wait() }()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.accept), pollsWait)
	defer cancel()
	if err := r.session.terminate(ctx); err == nil {
		select {
		case <-ended:
		case <-ctx.Done():
		}
	}
	cut()
	<-ended
}

func (r *stubsRun) stopHandlers(end context.CancelCauseFunc) {
	ended := make(chan struct{})
	go func() { defer close(ended); r.handlers.Wait() }()
	if withinGrace(r.opts, ended) {
		return
	}
	end(ErrStopping)
	if !within(ended) {
		r.log.Error("handlers do not end; their leases will", "wait", unwindWait)
	}
}

// withinGrace waits for ended until the grace of a stop is over.
func withinGrace(o Options, ended <-chan struct{}) bool {
	grace := time.NewTimer(o.Grace)
	defer grace.Stop()
	select {
	case <-ended:
		return true
	case <-grace.C:
	case <-o.StopNow:
	}
	return false
}

// within waits up to unwindWait for c.
func within(c <-chan struct{}) bool {
	ctx, cancel := context.WithTimeout(context.Background(), unwindWait)
	defer cancel()
	select {
	case <-c:
		return true
	case <-ctx.Done():
		return false
	}
}

// begin runs one message on a goroutine of its own. Its slot is free again when it is settled, or its ack queued.
func (r *stubsRun) begin(m *v2.Message, asked, received time.Time) {
	p := m.GetSystemProperties()
	l := &lease{id: p.GetMessageId(), lite: p.GetLiteTopic(), handle: p.GetReceiptHandle()}
	r.handlers.Go(func() {
		defer r.slots.give(1)
		from, ok := r.leases.confirm(r.accept, l, asked, received)
		if !ok {
			r.log.Warn("delivery dropped: its lease had ended before the delivery was read", "message_id", l.id)
			return
		}
		v, ok := r.decide(m, l, from, received)
		handle, until := r.leases.end(l)
		if !ok {
			r.log.Warn("delivery dropped: its lease ended before the handler began", "message_id", l.id)
			return
		}
		r.settler.settle(r.settling, v, l, handle, until)
	})
}

// decide returns the verdict on a delivery whose lease began at from, or false if a newer delivery has taken its place.
func (r *stubsRun) decide(m *v2.Message, l *lease, from, received time.Time) (Verdict, bool) {
	ctx, cancel := context.WithCancelCause(r.messages)
	defer cancel(nil)
	r.leases.begin(l, from, cancel)
	if r.accept.Err() != nil {
		return Suspend(0), true // it came while the consumer was stopping
	}
	message, err := messageOf(m, received)
	if err != nil {
		r.log.Error("message cannot be read", "message_id", l.id, "error", err)
		return Reject(), true
	}
	defer r.once.enter(l.id, cancel)()
	if errors.Is(context.Cause(ctx), ErrLeaseLost) {
		return Verdict{}, false
	}
	v := callHandler(ctx, r.handler, message, r.log)
	if v.Kind == VerdictRetry && errors.Is(context.Cause(ctx), ErrStopping) {
		return Suspend(0), true // it failed because of the stop: that is no attempt
	}
	return v, true
}

// callHandler is a net under the handler: a panic costs one attempt of one message, not the process.
func callHandler(ctx context.Context, h Handler, m *Message, log *slog.Logger) (v Verdict) {
	defer func() {
		if p := recover(); p != nil {
			log.Error("handler panicked", "message_id", m.ID, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			v = Retry(time.Second)
		}
	}()
	return h(ctx, m)
}
