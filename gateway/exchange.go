package gateway

import (
	"context"
	"errors"
	"time"

	"github.com/penstockmq/penstock/broker/lite"
	"github.com/penstockmq/penstock/consumer/mq"
	"github.com/penstockmq/penstock/consumer/reply"
)

const (
	// withdrawMax bounds the attempt to take a request back whose caller does not wait any more.
	withdrawMax = 2 * time.Second

	// brokerRetry is when a caller is asked to come back while the broker cannot be reached: about as long as the
	// producer needs to connect again.
	brokerRetry = 2 * time.Second
	// storageRetry is the same while the broker's disk is nearly full: an operator has to make room, or the pool has to
	// work off queued messages.
	storageRetry = 10 * time.Second

	// queuesRetry is the Retry-After for one more bucket: an unserved bucket is removed some minutes after its last use.
	queuesRetry = time.Minute

	// peekMax bounds the records that are read before a full cell refuses.
	peekMax = 16
)

// exchange is one question on its way to a model. It belongs to the request's goroutine.
type exchange struct {
	g        *Gateway
	c        *call
	q        question
	cell     lite.Cell
	name     string    // of the bucket
	deadline time.Time // with its monotonic reading
	rules    rules

	pass   pass   // its place is nil until the request was let in
	handle string // for a recall; empty: not sent, or the broker has no recall
	sent   bool   // the broker has it, or may have it
}

// sync sends the question and waits for its answer. Whatever ends the wait is answered first and then tidied up, so that
// nobody waits for the tidying.
func (x *exchange) sync() error {
	stream, err := x.g.inbox.Open(x.c.id)
	if err != nil {
		return after(errStopping, time.Second, "the gateway is stopping")
	}
	defer stream.Close()
	ctx, cancel := x.context()
	defer cancel()
	err = x.enqueue(ctx, reply.Request{Reply: x.g.inbox.Subject(x.c.id), Window: stream.Window(), Stream: x.q.stream})
	if err == nil {
		r := &relay{x: x, c: x.c, stream: stream, silence: time.Now()}
		err = r.run(ctx)
		x.leave()
	}
	if err != nil {
		x.c.refuse(err)
		if x.sent && !answered(err) {
			x.withdraw()
		}
	}
	return nil
}

// answered reports whether err came from the worker: then the request is over there as well. The reader's own failures say
// only that the answer cannot be read.
func answered(err error) bool {
	var failed reply.Failure
	if !errors.As(err, &failed) {
		return false
	}
	switch failed.Code {
	case reply.CodeReplyLost, reply.CodeReplyRestart, reply.CodeReplySlow:
		return false
	}
	return true
}

// context ends when the caller leaves, and when the grace of a stopping gateway is over.
func (x *exchange) context() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(x.c.r.Context())
	stop := context.AfterFunc(x.g.ended, func() { cancel(errStopping) })
	return ctx, func() {
		stop()
		cancel(nil)
	}
}

// reason turns the cause of a context's end into a condition.
func reason(err error) error {
	switch {
	case errors.Is(err, context.Canceled):
		return errCallerGone
	case errors.Is(err, context.DeadlineExceeded):
		return errDeadline
	case errors.Is(err, errStopping):
		return after(errStopping, time.Second, "the gateway is stopping")
	}
	return err
}

// enqueue admits the question and sends it with the properties of r.
func (x *exchange) enqueue(ctx context.Context, r reply.Request) error {
	if err := x.admit(ctx, r.Async); err != nil {
		return err
	}
	err := x.send(ctx, r)
	x.q.body = nil // the wait may be long
	x.c.release()
	if err != nil {
		x.g.admission.refund(x.pass)
		return err
	}
	x.g.metrics.accepted(x.pass.would)
	return nil
}

func (x *exchange) ask() ask {
	return ask{rules: x.rules, caller: x.c.caller, bytes: int64(len(x.q.body))}
}

func (x *exchange) admit(ctx context.Context, async bool) error {
	q := x.ask()
	if async {
		q.async, q.until = x.c.id, x.deadline.Round(0)
	}
	if x.g.admission.isFull(q) {
		x.freeStarted(ctx)
	}
	var err error
	x.pass, err = x.g.admission.admit(ctx, q)
	x.c.quota = x.pass.tight
	return err
}

// leave gives the request's place back: it is with a worker, or gone.
func (x *exchange) leave() { x.g.admission.leave(time.Now(), x.pass.place) }

// freeStarted looks whether the cell's oldest asynchronous requests are queued still, and frees the places of those that
// are not. It stops at the first that is: a bucket is first in, first out.
func (x *exchange) freeStarted(ctx context.Context) {
	for _, p := range x.g.admission.oldest(x.cell, peekMax) {
		rec, err := x.g.opts.Requests.Get(ctx, p.id, x.cell.User)
		if err != nil && !errors.Is(err, reply.ErrNotFound) {
			break // unknown is not free
		}
		if err == nil && rec.State == reply.StateQueued && p.until.After(time.Now()) {
			break
		}
		x.g.admission.leave(time.Now(), p)
	}
}

// send hands the message to the broker. A caller that leaves does not cut it short: whether the message was stored would
// be unknown, and with it how to take it back.
func (x *exchange) send(ctx context.Context, r reply.Request) error {
	now := time.Now()
	until := now.Add(x.g.opts.SendTimeout)
	if x.deadline.Before(until) {
		until = x.deadline
	}
	ctx, cancel := context.WithDeadline(context.WithoutCancel(ctx), until)
	defer cancel()
	r.ID, r.User, r.Model = x.c.id, x.cell.User, x.cell.Model
	r.Path, r.ContentType = x.q.path, x.q.contentType
	r.Deadline, r.Accepted = x.deadline.Round(0), now.Round(0)
	r.Level, r.HasLevel = x.rules.place.Level, x.rules.stamped
	r.InputTokens, r.MaxTokens = x.q.inputTokens, x.q.maxTokens

	x.c.queued = now
	x.sent = true
	receipt, err := x.g.opts.Producer.Send(ctx, mq.Outgoing{
		Topic: x.g.opts.Topic, Lite: x.name, Body: x.q.body, Properties: r.Properties(), Keys: []string{x.c.id},
	})
	if err != nil {
		return x.unsent(err)
	}
	x.handle = receipt.RecallHandle
	return nil
}

// unsent says what a failed send means to the caller. Only a refusal by the broker proves that it does not have the message.
func (x *exchange) unsent(err error) error {
	now := time.Now()
	if _, ok := errors.AsType[*mq.CodeError](err); ok {
		x.sent, x.c.queued = false, time.Time{}
	}
	if !now.Before(x.deadline) {
		return errDeadline
	}
	switch condition := sendCondition(err); {
	case errors.Is(condition, errQueueFull):
		d := x.g.admission.brokerFull(now, x.pass.place, x.ask())
		full := after(condition, d, "the queue of this user and model is full")
		if depth := x.rules.cell.Depth; depth > 0 {
			full.quota = depthQuota(depth, depth, now.Add(d))
		}
		return full
	case errors.Is(condition, errQueues):
		return after(condition, queuesRetry, "this user has as many queues as one user may have: use fewer models, or wait until unused ones are gone")
	case errors.Is(condition, errStorage):
		return after(condition, storageRetry, "the broker's disk is nearly full: it takes no new requests")
	case errors.Is(condition, errBroker):
		x.g.opts.Logger.Warn("message not sent", "request_id", x.c.id, "error", err)
		return after(condition, brokerRetry, "the broker cannot be reached")
	default:
		return condition
	}
}

// withdraw takes the request back: out of its bucket, or out of the hands of the worker that has it. It goes by id when the
// recall fails for whatever reason; pools remember cancels, so one that comes before its request still counts.
func (x *exchange) withdraw() { x.g.withdraw(x.c.id, x.handle) }

// withdraw reports whether the message was still in its bucket and was removed, so that it certainly does not run.
func (g *Gateway) withdraw(id, handle string) bool {
	ctx, cancel := context.WithTimeout(context.Background(), withdrawMax)
	defer cancel()
	if g.recall(ctx, id, handle) {
		return true
	}
	if _, err := g.canceller.Cancel(ctx, id); err != nil {
		g.opts.Logger.Warn("request not cancelled", "request_id", id, "error", err)
		return false
	}
	g.metrics.Cancelled.Add(1)
	return false
}

// recall reports whether the request was still queued and is not any more.
func (g *Gateway) recall(ctx context.Context, id, handle string) bool {
	if handle == "" {
		return false
	}
	err := g.opts.Producer.Recall(ctx, g.opts.Topic, handle)
	if err == nil {
		g.metrics.Recalled.Add(1)
		return true
	}
	if !errors.Is(err, mq.ErrNotQueued) {
		g.opts.Logger.Debug("request not recalled", "request_id", id, "error", err)
	}
	return false
}
