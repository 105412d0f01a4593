package consumer

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"
	"time"

	"github.com/penstockmq/penstock/broker/lite"
	"github.com/penstockmq/penstock/consumer/forward"
	"github.com/penstockmq/penstock/consumer/mq"
	"github.com/penstockmq/penstock/consumer/reply"
)

// job is one delivery of one request, on one goroutine.
type job struct {
	p    *Pool
	m    *mq.Message
	req  reply.Request
	cell lite.Cell
	out  *output

	// ctx ends when the caller cancels, the deadline passes, the lease is lost or the consumer's grace is over; its cause
	// says which.
	ctx      context.Context
	cancel   context.CancelCauseFunc
	deadline *time.Timer // nil if the request has none
	release  func()      // of the registration for cancels
}

func newJob(ctx context.Context, p *Pool, m *mq.Message, req reply.Request, cell lite.Cell) *job {
	j := &job{p: p, m: m, req: req, cell: cell, release: func() {}}
	j.ctx, j.cancel = context.WithCancelCause(ctx)
	if !req.Deadline.IsZero() {
		j.deadline = time.AfterFunc(time.Until(req.Deadline), func() { j.cancel(errDeadline) })
	}
	if p.cancels != nil && req.ID != "" {
		j.release = p.cancels.Register(req.ID, func() { j.cancel(reply.ErrCancelled) })
	}
	j.out = newOutput(j)
	return j
}

func (j *job) close() {
	j.release()
	j.begun()
	j.cancel(nil)
}

// begun is called when the caller has the first of its answer: from then on the deadline, which bounds the wait, is kept.
func (j *job) begun() {
	if j.deadline != nil {
		j.deadline.Stop()
	}
}

// late says whether the deadline has passed. The timer may be a moment behind.
func (j *job) late() bool {
	return !j.req.Deadline.IsZero() && !time.Now().Before(j.req.Deadline)
}

// run is the turn of the message. A verdict without a settlement is of a request that no model was asked for.
func (j *job) run() mq.Verdict {
	v := j.turn()
	if v.Settlement == nil {
		v = v.With(unused())
	}
	return v
}

func (j *job) turn() mq.Verdict {
	switch {
	case j.late():
		return j.expired()
	case j.ctx.Err() != nil:
		return j.interrupted(context.Cause(j.ctx))
	case j.m.Attempt > j.p.opts.Attempts:
		// The attempts before were lost with their workers. One of them may be the request's fault.
		return j.dead(reply.Failure{
			Status: http.StatusBadGateway, Code: "attempts_exhausted", Message: "the request was tried too often",
		}, fmt.Errorf("attempt %d, at most %d", j.m.Attempt, j.p.opts.Attempts))
	}
	leave, hold := j.p.shares.enter(time.Now(), j.cell, int64(len(j.m.Body)))
	if leave == nil {
		j.p.opts.Metrics.Full.Add(1)
		return j.suspend(hold)
	}
	defer leave()
	free, v, ok := j.decide()
	if !ok {
		return v
	}
	used := unused()
	defer func() { free(used) }()
	if v, ok := j.askCaller(); !ok {
		return v
	}
	if v, ok := j.start(); !ok {
		return v
	}
	if j.ctx.Err() != nil { // between two waits; from here on ending it is up to the downstream
		return j.interrupted(context.Cause(j.ctx))
	}
	o := j.forward()
	used = settlementOf(o)
	return j.settle(o).With(used)
}

// decide waits until the request may go, as long as a worker may wait, or returns the verdict that gives it back. Limits are
// asked first and charged last: a request that then finds its model full has used nothing of them. free ends what was
// taken, with what was learned.
//
// Where the broker asks the limits there is nothing to decide: what it delivers may go.
func (j *job) decide() (free func(mq.Settlement), v mq.Verdict, ok bool) {
	if j.p.features().Limits {
		if j.p.opts.Concurrency(j.req.Model) > 0 {
			j.p.warnConcurrency.Do(func() {
				j.p.opts.Logger.Warn("a concurrency of models is not kept: this broker asks the policy's limits, and columns have in_flight there",
					"model", j.req.Model)
			})
		}
		return func(mq.Settlement) {}, mq.Verdict{}, true
	}
	ctx, cancel := context.WithCancelCause(j.ctx)
	defer cancel(nil)
	// Waiting ends when the pool stops; running does not.
	defer context.AfterFunc(j.p.stopping, func() { cancel(errStopping) })()

	slots := max(j.p.opts.Concurrency(j.req.Model), 0)
	c := claimOf(j.m, j.cell, j.p.opts.Cost(j.m))
	for {
		p, wait, err := j.pace(ctx, c, slots == 0)
		if wait > 0 || err != nil {
			return nil, j.held(wait, err), false
		}
		if slots == 0 {
			return func(s mq.Settlement) { j.end(p, s) }, mq.Verdict{}, true
		}
		lower := gauge(&j.p.opts.Metrics.Waiting)
		leave, err := j.p.slots.acquire(ctx, j.req.Model, slots, j.p.opts.SlotWait)
		lower()
		switch {
		case err != nil:
			return nil, j.interrupted(err), false
		case leave == nil:
			return nil, j.held(j.p.opts.SlotWait, errFull), false
		}
		if a := j.p.limiter.ask(time.Now().Round(0), c, true); a.ok {
			return func(s mq.Settlement) { leave(); j.end(a.permit, s) }, mq.Verdict{}, true
		}
		leave() // another request of this cell was faster
	}
}

func (j *job) pace(ctx context.Context, c claim, charge bool) (permit, time.Duration, error) {
	return j.p.limiter.acquireOrSuspend(ctx, c, charge, j.p.opts.SlotWait, func() func() { return gauge(&j.p.opts.Metrics.Waiting) })
}

// end gives a permit back.
func (j *job) end(p permit, s mq.Settlement) {
	j.p.limiter.free(time.Now().Round(0), p, ledgered(s))
}

// held is the verdict of a request that its limits hold, or that err ended while they did.
func (j *job) held(wait time.Duration, err error) mq.Verdict {
	switch {
	case err == nil:
		j.p.opts.Metrics.Limited.Add(1)
		return j.suspend(wait)
	case errors.Is(err, errFull):
		j.p.opts.Metrics.Full.Add(1)
		return j.suspend(wait)
	case errors.Is(err, errNever):
		return j.dead(reply.Failure{
			Status: http.StatusTooManyRequests, Code: "over_limit", Message: "the request costs more than its limit ever gives",
		}, err)
	default:
		return j.interrupted(err)
	}
}

// suspend holds the bucket for d, but not past the request's deadline: its caller is to hear in time that it has passed.
func (j *job) suspend(d time.Duration) mq.Verdict {
	if !j.req.Deadline.IsZero() {
		d = min(d, max(time.Until(j.req.Deadline), time.Millisecond))
	}
	return mq.Suspend(d)
}

const (
	// askPatience bounds the wait for the state of the caller at the first delivery of a request.
	askPatience = 250 * time.Millisecond
	// askPatienceAgain is the same bound for later deliveries. It is longer, since the previous worker may have been killed in
	// the middle of the answer: an unknown state does not justify a second call of the model.
	askPatienceAgain = 30 * time.Second
)

// askCaller asks the gateway of a synchronous request whether the caller still waits and has received no byte of an answer.
// The state has to be asked: pool and gateway may both have been restarted since the previous delivery.
//
// If the state is still unknown after the patience, the caller counts as waiting: then NATS or the gateway hangs, or the
// gateway's version does not know the question.
func (j *job) askCaller() (mq.Verdict, bool) {
	if j.p.callers == nil || j.req.Async || j.req.Reply == "" {
		return mq.Verdict{}, true
	}
	patience := askPatience
	if j.m.Attempt > 1 {
		patience = askPatienceAgain
	}
	ctx, cancel := context.WithCancelCause(j.ctx)
	defer cancel(nil)
	defer context.AfterFunc(j.p.stopping, func() { cancel(errStopping) })()
	switch state := j.p.callers.Ask(ctx, j.req.Reply, patience); {
	case ctx.Err() != nil:
		return j.interrupted(context.Cause(ctx)), false
	case state == reply.CallerGone, state == reply.CallerAbsent:
		if state == reply.CallerAbsent {
			j.p.callers.Drop(j.req, j.m.Attempt) // NATS may be wrong
		}
		j.p.opts.Metrics.Cancelled.Add(1)
		return mq.Ack(), false
	case state == reply.CallerBegun:
		return j.dead(reply.Failure{
			Status: http.StatusBadGateway, Code: "worker_lost", Message: "the worker was lost in the middle of the answer",
		}, errBegun), false
	case state == reply.CallerUnknown && j.m.Attempt > 1:
		j.p.opts.Logger.Warn("the gateway does not say whether the caller waits; the request is sent again",
			"message_id", j.m.ID, "attempt", j.m.Attempt)
	}
	return mq.Verdict{}, true
}

// start records that an asynchronous request runs, and checks that it may still run. The model is not called while the
// store has no room for a result, or while other answers of this pool wait for the store.
func (j *job) start() (mq.Verdict, bool) {
	store := j.p.opts.Store
	if !j.req.Async || store == nil {
		return mq.Verdict{}, true
	}
	if n := j.p.opts.Metrics.Unstored.Load(); n > 0 {
		return j.notNow(fmt.Errorf("%d answers wait for the request store", n)), false
	}
	switch err := store.Running(j.ctx, j.out.record, j.m.Attempt); {
	case err == nil:
		return mq.Verdict{}, true
	case errors.Is(err, reply.ErrFinal):
		j.p.opts.Metrics.Cancelled.Add(1)
		return mq.Ack(), false
	case j.ctx.Err() != nil:
		return j.interrupted(context.Cause(j.ctx)), false
	case errors.Is(err, reply.ErrRecord): // it stays unreadable: no answer could be stored, and the bucket would wait for ever
		return j.dead(reply.Failure{
			Status: http.StatusInternalServerError, Code: "internal_error", Message: "the record of the request cannot be read",
		}, err), false
	default:
		return j.notNow(err), false
	}
}

// storeWait is the hold of a request whose outcome could not be stored now.
const storeWait = time.Second

// notNow suspends a request that the store cannot take now.
func (j *job) notNow(err error) mq.Verdict {
	if j.p.storeWarned.due(time.Now()) {
		j.p.opts.Logger.Warn("asynchronous requests wait for the request store", "request_id", j.req.ID, "error", err)
	}
	j.p.opts.Metrics.Returned.Add(1)
	return j.suspend(storeWait)
}

// forward runs the request at its model. A panic is a failure of this request alone.
func (j *job) forward() (o forward.Outcome) {
	metrics := j.p.opts.Metrics
	metrics.Forwarded.Add(1)
	begin := time.Now()
	j.out.started(begin)
	if !j.req.Accepted.IsZero() {
		j.p.opts.Observer.Queued(max(begin.Sub(j.req.Accepted), 0))
	}
	defer gauge(&metrics.InFlight)()
	defer func() {
		if r := recover(); r != nil {
			metrics.Panics.Add(1)
			j.p.opts.Logger.Error("downstream panicked", "message_id", j.m.ID, "panic", fmt.Sprint(r), "stack", string(debug.Stack()))
			o = forward.Outcome{
				Kind: forward.Failed, Started: j.out.begun(), Retry: !j.out.begun(), Err: fmt.Errorf("panic: %v", r),
				Failure: reply.Failure{Status: http.StatusBadGateway, Code: "internal_error", Message: "the request could not be handled"},
			}
		}
		j.p.opts.Observer.Upstream(o.Kind, time.Since(begin))
	}()
	return j.p.opts.Downstream.Forward(j.ctx, forward.Request{Request: j.req, Body: j.m.Body, Attempt: j.m.Attempt}, j.out)
}
