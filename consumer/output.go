package consumer

import (
	"context"
	"net/http"
	"time"

	"github.com/penstockmq/penstock/consumer/forward"
	"github.com/penstockmq/penstock/consumer/reply"
)

// storeTimeout bounds a call to the request store. It is not bound to the job's ctx: what has to be told when that ended
// would not be told.
const storeTimeout = 5 * time.Second

// output is where a job's answer goes: to the caller who waits, into the request store, or nowhere. It is the job's sink.
type output struct {
	forward.Sink
	writer    *reply.Writer    // of a request that somebody waits for
	collector *reply.Collector // of an asynchronous one
	store     *reply.Store     // nil: dropped
	id        string
	attempt   int
	first     func() // called before the first of the answer that a caller gets
	has       bool   // whether there was some of an answer
}

// newOutput returns the output of j. The answer that it takes ends with j's ctx, and ends j when its caller takes no more.
func newOutput(j *job) *output {
	opts, req := j.p.opts, j.req
	o := &output{id: req.ID, attempt: j.m.Attempt, first: j.begun}
	if req.Async {
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
	return o.record(func(ctx context.Context) error {
		r := o.collector.Result()
		r.Usage = u
		return o.store.Finish(ctx, o.id, o.attempt, r)
	})
}

// fail says that no answer, or no more of it, will come.
func (o *output) fail(f reply.Failure) error {
	if o.writer != nil {
		return o.writer.Fail(f)
	}
	return o.record(func(ctx context.Context) error { return o.store.Fail(ctx, o.id, f) })
}

// expire says that the deadline has passed.
func (o *output) expire(f reply.Failure) error {
	if o.writer != nil {
		return o.writer.Fail(f)
	}
	return o.record(func(ctx context.Context) error { return o.store.Expire(ctx, o.id) })
}

// queued says that an asynchronous request waits again. It only informs, so an error changes nothing: the next delivery
// says that it runs.
func (o *output) queued() {
	if o.writer == nil {
		_ = o.record(func(ctx context.Context) error { return o.store.Queued(ctx, o.id) })
	}
}

func (o *output) record(change func(context.Context) error) error {
	if o.store == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), storeTimeout)
	defer cancel()
	return change(ctx)
}
