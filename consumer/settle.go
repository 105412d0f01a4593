package consumer

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/penstockmq/penstock/consumer/forward"
	"github.com/penstockmq/penstock/consumer/mq"
	"github.com/penstockmq/penstock/consumer/reply"
	"github.com/penstockmq/penstock/suspend"
)

// settle turns an outcome into what the caller hears and what becomes of the message:
//
//	outcome                          caller               message
//	done, refused                    has the answer       acked
//	busy                             waits on             back at once, attempt unchanged, its column held; or suspended
//	failed, may be tried again       waits on             comes again after a back-off, attempt+1
//	failed for good                  error                dead letter
//	failed in mid-answer             error                dead letter: a second answer would not fit the first
//	cancelled by the caller          is gone              acked
//	deadline                         504                  acked
//	lease lost                       waits on             the broker has it
//	grace over, nothing sent yet     waits on             given back, attempt unchanged
//	grace over in mid-answer         error                dead letter
//
// The outcome of an asynchronous request is stored before the message is settled, see keep.
func (j *job) settle(o forward.Outcome) mq.Verdict {
	metrics := j.p.opts.Metrics
	switch o.Kind {
	case forward.Done:
		return j.finish(&metrics.Answered, o.Usage)
	case forward.Refused:
		return j.finish(&metrics.Refused, reply.Usage{})
	case forward.Busy:
		metrics.Busy.Add(1)
		j.out.queued()
		return j.busy(o)
	case forward.Cancelled:
		return j.stopped(o)
	case forward.Failed:
		if j.ctx.Err() != nil { // the downstream took the end of ctx for a failure
			return j.stopped(o)
		}
		return j.failed(o)
	}
	return j.failed(forward.Outcome{
		Started: j.out.begun(), Err: fmt.Errorf("downstream came to outcome %s", o.Kind),
		Failure: reply.Failure{Status: http.StatusBadGateway, Code: "internal_error", Message: "the request could not be handled"},
	})
}

// busy leaves the model alone for as long as it asked for, never shorter. At a broker that takes holds it is the column that
// waits, with everybody in it, and the message waits its turn there; its deadline is watched by the broker. Any other broker
// holds the one bucket, and this pool the column for itself.
func (j *job) busy(o forward.Outcome) mq.Verdict {
	after := spread(o.After)
	reason := fmt.Sprintf("the model answered %d and asked for %s", o.Status, o.After)
	can := j.p.features()
	switch {
	case j.req.Model == "":
		return j.suspend(after)
	case can.Holds && can.Scopes:
		v := mq.Suspend(0)
		v.Hold = &mq.Hold{Scope: suspend.Column.String(), Name: j.req.Model, For: after, Reason: reason}
		return v
	case !can.Limits:
		j.p.limiter.leaveAlone(time.Now().Round(0), j.req.Model, after, reason)
	}
	return j.suspend(after)
}

func (j *job) failed(o forward.Outcome) mq.Verdict {
	if o.Retry && !o.Started && !j.out.begun() && j.m.Attempt < j.p.opts.Attempts {
		j.p.opts.Logger.Info("request failed, comes again", "message_id", j.m.ID, "model", j.req.Model,
			"attempt", j.m.Attempt, "status", o.Status, "error", o.Err)
		j.p.opts.Metrics.Retried.Add(1)
		j.out.queued()
		return mq.Retry(j.p.backoff(j.m.Attempt))
	}
	return j.dead(o.Failure, o.Err)
}

func (j *job) dead(f reply.Failure, err error) mq.Verdict {
	j.p.opts.Logger.Warn("request failed for good", "message_id", j.m.ID, "model", j.req.Model,
		"attempt", j.m.Attempt, "code", f.Code, "error", err)
	j.p.opts.Metrics.Dead.Add(1)
	j.untold(j.keep(func() error { return j.out.fail(f) }))
	return mq.Reject()
}

// stopped is a request that ran when its ctx ended.
func (j *job) stopped(o forward.Outcome) mq.Verdict {
	cause := context.Cause(j.ctx)
	if (o.Started || j.out.begun()) && errors.Is(cause, mq.ErrStopping) {
		return j.dead(reply.Failure{
			Status: http.StatusServiceUnavailable, Code: "worker_stopped", Message: "the worker stopped in the middle of the answer",
		}, cause)
	}
	return j.interrupted(cause)
}

// interrupted is a request whose caller has no byte yet when cause ended its wait or its run.
func (j *job) interrupted(cause error) mq.Verdict {
	metrics := j.p.opts.Metrics
	switch {
	case errors.Is(cause, reply.ErrCancelled):
		metrics.Cancelled.Add(1)
		return mq.Ack()
	case errors.Is(cause, errDeadline):
		return j.expired()
	case errors.Is(cause, mq.ErrLeaseLost):
		metrics.Lost.Add(1)
		return mq.Retry(0)
	default: // the pool or the consumer stops
		metrics.Returned.Add(1)
		j.out.queued()
		return mq.Suspend(0)
	}
}

// expired answers a request that came too late to be forwarded, or whose model was too slow. It is done: nobody waits.
func (j *job) expired() mq.Verdict {
	j.p.opts.Metrics.Expired.Add(1)
	j.untold(j.out.expire(reply.Failure{
		Status: http.StatusGatewayTimeout, Code: "deadline_exceeded", Message: "the deadline passed before the model answered",
	}))
	return mq.Ack()
}

// finish ends the answer that the caller has received. A streamed answer is acked even if its end could not be sent: the
// model has done the work, and the reader notices the missing end. An answer for the store is acked once it is stored.
func (j *job) finish(counter interface{ Add(int64) int64 }, u reply.Usage) mq.Verdict {
	counter.Add(1)
	if !j.req.Async {
		j.untold(j.out.end(u))
		return mq.Ack()
	}
	err := j.keep(func() error { return j.out.end(u) })
	switch {
	case err == nil, errors.Is(err, reply.ErrFinal): // final: cancelled or expired meanwhile, and reported
		return mq.Ack()
	case errors.Is(err, reply.ErrTooLarge):
		return j.dead(reply.Failure{
			Status: http.StatusBadGateway, Code: forward.CodeTooLarge, Message: "the answer is too large to keep",
		}, err)
	case errors.Is(err, reply.ErrFull), errors.Is(err, errManyWait):
		j.p.opts.Metrics.Unkept.Add(1)
		return j.dead(reply.Failure{
			Status: http.StatusInsufficientStorage, Code: codeNotKept, Message: "the model answered, and there was no room to keep the answer",
		}, err)
	}
	switch cause := context.Cause(j.ctx); {
	case errors.Is(cause, reply.ErrCancelled):
		return mq.Ack()
	case errors.Is(cause, errDeadline):
		// A record that becomes readable again shows expired by its deadline.
		j.untold(err)
		return mq.Reject()
	case errors.Is(cause, mq.ErrLeaseLost):
		j.p.opts.Metrics.Lost.Add(1)
	}
	// The pool stops, or another worker has the message. Running the request again repeats the model's work; settling the
	// message would lose the caller's answer.
	j.p.opts.Logger.Warn("answer could not be stored, the request will be delivered again", "message_id", j.m.ID, "error", err, "cause", context.Cause(j.ctx))
	return mq.Retry(0)
}

// codeNotKept is the code of a request whose answer found no room in the store.
const codeNotKept = "result_not_kept"

// errManyWait: the answers that wait for the store have reached unstoredMost bytes.
var errManyWait = errors.New("too many answers wait for the request store")

const (
	// unstoredMost bounds the bytes of answers that wait for the store. An answer beyond it is dropped.
	unstoredMost = 256 << 20

	keepFirst = 100 * time.Millisecond
	keepMost  = 10 * time.Second
	// fullMost bounds the wait of an answer for room in a full store. Room appears as results age, which may take hours, and
	// other requests need the worker.
	fullMost = 30 * time.Second
)

// keep stores the outcome of an asynchronous request: it calls store until that succeeds. Meanwhile the consumer holds the
// lease, so no other worker has the message, and the answer waits in memory. At most one answer per worker waits, since no
// request is started while one waits (see start), and together they have at most unstoredMost bytes.
//
// keep gives up after one more try when j.ctx ends (deadline passed, lease lost, cancelled by the caller, grace over), at
// once when another try changes nothing, and after fullMost when the store is full.
func (j *job) keep(store func() error) error {
	err := store()
	if err == nil || !j.req.Async || !worthAnother(err) {
		return err
	}
	metrics, bytes := j.p.opts.Metrics, j.out.stored()
	defer gauge(&metrics.Unstored)()
	if metrics.UnstoredBytes.Add(bytes) > unstoredMost {
		metrics.UnstoredBytes.Add(-bytes)
		return fmt.Errorf("%w: %w", errManyWait, err)
	}
	defer metrics.UnstoredBytes.Add(-bytes)
	if j.p.storeWarned.due(time.Now()) {
		j.p.opts.Logger.Warn("an outcome waits for the request store", "request_id", j.req.ID, "bytes", bytes, "error", err)
	}
	full := time.Now().Add(j.p.fullMost)
	for wait := keepFirst; worthAnother(err); wait = min(2*wait, keepMost) {
		if errors.Is(err, reply.ErrFull) && time.Now().After(full) {
			return err
		}
		ended := sleep(j.ctx, wait) != nil
		if err = store(); ended {
			return err
		}
	}
	return err
}

// worthAnother reports whether a store that refused with err may accept the same write later.
func worthAnother(err error) bool {
	switch {
	case err == nil, errors.Is(err, reply.ErrFinal), errors.Is(err, reply.ErrTooLarge), errors.Is(err, reply.ErrNotFound),
		errors.Is(err, reply.ErrRecord):
		return false
	}
	return true
}

// untold logs that a caller will not hear how its request ended.
func (j *job) untold(err error) {
	if err != nil && !errors.Is(err, reply.ErrFinal) {
		if j.req.Async {
			j.p.opts.Metrics.Untold.Add(1)
		}
		j.p.opts.Logger.Warn("caller could not be told", "message_id", j.m.ID, "error", err)
	}
}
