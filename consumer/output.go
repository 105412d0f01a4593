package consumer

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/penstockmq/penstock/consumer/forward"
	"github.com/penstockmq/penstock/consumer/reply"
)

// storeTimeout bounds a call to the request store, and storePace is added to it for each MiB: a large result is written in
// pieces, each synced before the next. The call does not end with the job's ctx: an outcome must be stored after that, too.
const (
	storeTimeout = 5 * time.Second
	storePace    = time.Second
)

// output is where a job's answer goes: to the caller who waits, into the request store, or nowhere. It is the job's sink.
type output struct {
	forward.Sink
	writer    *reply.Writer    // of a request that somebody waits for
	collector *reply.Collector // of an asynchronous one
	store     *reply.Store     // nil: dropped
	record    reply.Record     // of an asynchronous request, made from its message
	id        string
	attempt   int
	first     func() // called before the first of the answer that a caller gets
	has       bool   // whether there was some of an answer
}

// newOutput returns the output of j. The answer ends with j's ctx, and j ends when the caller takes no more of its answer.
func newOutput(j *job) *output {
	opts, req := j.p.opts, j.req
	o := &output{id: req.ID, attempt: j.m.Attempt, first: j.begun}
	if req.Async {
		o.record = recordOf(req)
		o.store, o.collector = opts.Store, reply.NewCollector(0)
		o.Sink = o.collector
		return o
	}
	if opts.NATS == nil {
		req.Reply = ""
	}
	o.writer = reply.NewWriter(opts.NATS, req, o.attempt)
	o.writer.Remember(j.p.endings)
	o.writer.Control(j.ctx, j.p.credits, j.cancel)
	o.Sink = o.writer
	return o
}

// Head implements [forward.Sink].
func (o *output) Head(status int, header http.Header) error {
	o.touch()
	return o.Sink.Head(status, header)
}

// Answer implements [forward.Sink].
func (o *output) Answer(status int, header http.Header, body []byte, u reply.Usage) error {
	o.touch()
	return o.Sink.Answer(status, header, body, u)
}

func (o *output) touch() {
	if !o.has && o.writer != nil {
		o.first()
	}
	o.has = true
}

// begun says whether the caller has some of the answer. An asynchronous one gets all or nothing.
func (o *output) begun() bool { return o.has && o.writer != nil }

func (o *output) started(at time.Time) {
	if o.writer != nil {
		_ = o.writer.Started(at, false) // not announced: nothing can fail
	}
}

// end says that the answer is whole.
func (o *output) end(u reply.Usage) error {
	if o.writer != nil {
		return o.writer.End(u)
	}
	return o.change(func(ctx context.Context) error {
		r := o.collector.Result()
		r.Usage = u
		return o.store.Finish(ctx, o.id, o.attempt, r)
	})
}

// fail reports that the answer, or its rest, will not come. A partial answer of an asynchronous request is dropped.
func (o *output) fail(f reply.Failure) error {
	if o.writer != nil {
		return o.writer.Fail(f)
	}
	o.collector = reply.NewCollector(0)
	return o.change(func(ctx context.Context) error { return o.store.Fail(ctx, o.id, o.attempt, f) })
}

// expire says that the deadline has passed.
func (o *output) expire(f reply.Failure) error {
	if o.writer != nil {
		return o.writer.Fail(f)
	}
	return o.change(func(ctx context.Context) error { return o.store.Expire(ctx, o.id) })
}

// queued records that an asynchronous request waits again. The record only informs.
func (o *output) queued() {
	if o.writer == nil && o.store != nil {
		ctx, cancel := context.WithTimeout(context.Background(), storeTimeout)
		defer cancel()
		o.store.Queued(ctx, o.id)
	}
}

// stored returns the number of bytes that an asynchronous request will write to the store.
func (o *output) stored() int64 {
	if o.collector == nil {
		return 0
	}
	return int64(len(o.collector.Result().Body))
}

// change writes to the store. A missing record is made first: it keeps the outcome, and a record in a final state keeps
// another delivery of the message from running the request.
func (o *output) change(write func(context.Context) error) error {
	if o.store == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), storeTimeout+time.Duration(o.stored()>>20)*storePace)
	defer cancel()
	err := write(ctx)
	if errors.Is(err, reply.ErrNotFound) {
		if err = o.store.Create(ctx, o.record); err == nil || errors.Is(err, reply.ErrExists) {
			err = write(ctx)
		}
	}
	return err
}

// recordOf makes the record of an asynchronous request from its message.
func recordOf(req reply.Request) reply.Record {
	return reply.Record{ID: req.ID, User: req.User, Model: req.Model, Created: req.Accepted.Round(0), Deadline: req.Deadline}
}
