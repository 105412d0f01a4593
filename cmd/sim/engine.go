package sim

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/penstockmq/penstock/broker/dispatch"
	"github.com/penstockmq/penstock/broker/lite"
	"github.com/penstockmq/penstock/suspend"
	"github.com/penstockmq/penstock/suspend/limit"
	"github.com/penstockmq/penstock/suspend/policy"
	"github.com/penstockmq/penstock/suspend/quota"
)

// Options configure a run. The zero value of a field takes its default.
type Options struct {
	// Policy is the document in force. Nil: no limits.
	Policy *policy.Document
	// Workers is how many requests the pool runs at the same time. Default 64.
	Workers int
	// InFlight is how many requests of one bucket may run at once where the policy does not say. Default 1.
	InFlight int
	// Until ends the run so long after the last arrival, whatever is still queued. Default 24 h.
	Until time.Duration
}

const (
	simGroup  = dispatch.GroupID(1)
	simClient = "pool"
	// pollWait is how long a poll waits before it is made again. It is shorter than the time after which a silent client
	// is forgotten.
	pollWait = time.Minute
	// pulse is how many turns pass between two looks at ctx.
	pulse = 1024
)

// engine is a run under way: the machine, and around it what the world does.
type engine struct {
	opts    Options
	trace   []Request
	doc     *policy.Document
	m       *dispatch.Machine
	now     time.Time
	queued  map[messageKey]int // the index in the trace of what is queued or out
	buckets map[string]int     // messages queued in a bucket, for depth caps
	bytes   map[string]int64   // and their bytes
	known   map[string]dispatch.BucketState
	idle    int // workers without a poll
	done    completions
	gate    *admission
	out     []Outcome // by index in the trace
}

type messageKey struct {
	bucket dispatch.BucketID
	offset dispatch.Offset
}

// Outcome is what became of one request of the trace.
type Outcome struct {
	// Limited: the gateway answered 429; nothing else is set.
	Limited bool
	// Dead: it costs more than its limit ever gives.
	Dead bool
	// Started and Ended are zero for what did not come so far.
	Started, Ended time.Time
}

// Run lets the trace arrive and the machine decide. It ends when everything is answered, or Options.Until after the last
// arrival. Its error is ctx's, or that of an arrival which the machine refused for another reason than a full bucket.
func Run(ctx context.Context, trace []Request, o Options) (*Result, error) {
	setDefault(&o.Workers, 64)
	setDefault(&o.InFlight, 1)
	setDefault(&o.Until, 24*time.Hour)
	if o.Policy == nil {
		o.Policy = policy.Empty()
	}
	if len(trace) == 0 {
		return nil, fmt.Errorf("%w: it has no request", ErrTrace)
	}
	e := &engine{
		opts: o, trace: trace, doc: o.Policy, now: trace[0].Time.Round(0),
		queued: map[messageKey]int{}, buckets: map[string]int{}, bytes: map[string]int64{},
		known: map[string]dispatch.BucketState{},
		idle:  o.Workers, gate: newAdmission(o.Policy), out: make([]Outcome, len(trace)),
	}
	e.m = dispatch.New(dispatch.TopicConfig{Name: "simulation", ID: 1, CostOf: e.costOf})
	e.m.SetPolicy(e.now, o.Policy)
	e.m.AddGroup(dispatch.GroupConfig{Name: simClient, ID: simGroup, Wildcard: true, InFlight: o.InFlight})
	e.m.Start(e.now)
	if err := e.run(ctx); err != nil {
		return nil, err
	}
	return e.result(), nil
}

func (e *engine) run(ctx context.Context) error {
	next := 0
	last := e.trace[len(e.trace)-1].Time.Add(e.opts.Until)
	for turns := 0; ; turns++ {
		if turns%pulse == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		for next < len(e.trace) && !e.trace[next].Time.After(e.now) {
			if err := e.arrive(next); err != nil {
				return err
			}
			next++
		}
		for _, c := range e.done.popDue(e.now) {
			if err := e.complete(c); err != nil {
				return err
			}
		}
		if err := e.poll(); err != nil {
			return err
		}
		e.m.Tick(e.now)
		e.m.Match(e.now)
		e.take(e.m.Take())
		if next == len(e.trace) && len(e.queued) == 0 {
			return nil
		}
		at, ok := e.wake(next)
		if !ok || at.After(last) {
			return nil
		}
		if at.After(e.now) {
			e.now = at
		}
	}
}

// wake is the next instant at which something happens: an arrival, an end, or what the machine waits for.
func (e *engine) wake(next int) (time.Time, bool) {
	at, ok := e.m.NextWake()
	sooner := func(t time.Time) {
		if !ok || t.Before(at) {
			at, ok = t, true
		}
	}
	if next < len(e.trace) {
		sooner(e.trace[next].Time.Time)
	}
	if end, running := e.done.next(); running {
		sooner(end)
	}
	return at, ok
}

// arrive is a request at the gateway: refused, or stored.
func (e *engine) arrive(i int) error {
	q := &e.trace[i]
	cell := lite.Cell{User: q.User, Model: q.Model}
	name, err := lite.Encode(cell)
	if err != nil {
		return fmt.Errorf("%w: request %d: %w", ErrTrace, i+1, err)
	}
	limits := e.doc.Resolve(q.User, q.Model)
	full := limits.Depth > 0 && int64(e.buckets[name]) >= limits.Depth ||
		limits.DepthBytes > 0 && e.bytes[name]+q.Bytes > limits.DepthBytes
	level := q.level()
	place := suspend.Place{Bucket: name, User: q.User, Model: q.Model}
	if place.Level, _ = e.doc.Importance(q.User, q.Model); level >= 0 {
		place.Level = uint8(level)
	}
	if full || !e.gate.take(e.now, place) {
		e.out[i].Limited = true
		return nil
	}
	if s, ok := e.known[name]; ok && !e.m.Resident(name) {
		e.m.Load(s)
	}
	a, err := e.m.Append(e.now, dispatch.AppendRequest{
		Name: name, Cell: cell, Level: level, Messages: []dispatch.MessageMeta{{Size: int(q.Bytes)}},
	})
	if err != nil {
		return fmt.Errorf("%w: request %d: %w", ErrTrace, i+1, err)
	}
	e.queued[messageKey{a.Bucket, a.First}] = i
	e.buckets[name]++
	e.bytes[name] += q.Bytes
	e.m.Durable(e.now, a.Bucket, a.First+1)
	return nil
}

// costOf is the machine's question what a message costs.
func (e *engine) costOf(b dispatch.BucketID, off dispatch.Offset) dispatch.MessageCost {
	i, ok := e.queued[messageKey{b, off}]
	if !ok {
		return dispatch.MessageCost{Requests: 1}
	}
	q := &e.trace[i]
	return dispatch.MessageCost{Requests: q.cost(), Input: q.InputTokens, MaxOutput: q.MaxTokens, Bytes: q.Bytes}
}

// poll gives every idle worker a poll.
func (e *engine) poll() error {
	for ; e.idle > 0; e.idle-- {
		_, err := e.m.Pull(e.now, dispatch.PullRequest{
			Group: simGroup, Client: simClient, Max: 1, Invisible: maxSpan, Until: e.now.Add(pollWait),
		})
		if err != nil {
			return fmt.Errorf("poll: %w", err)
		}
	}
	return nil
}

// take does what the machine decided.
func (e *engine) take(effects dispatch.Effects) {
	for i := range effects.Writes {
		e.wrote(&effects.Writes[i])
	}
	e.idle += len(effects.EmptyPulls)
	for _, d := range effects.Deliveries {
		for _, it := range d.Items {
			i := e.queued[messageKey{it.Handle.Bucket, it.Handle.Offset}]
			e.left(it.Name, i)
			e.out[i].Started = e.now
			e.done.push(completion{at: e.now.Add(time.Duration(e.trace[i].ServiceTime)), handle: it.Handle, request: i})
		}
	}
}

// wrote keeps what of the store a run needs: buckets that went idle, and what was given up.
func (e *engine) wrote(w *dispatch.Write) {
	switch w.Op {
	case dispatch.PutBucket:
		e.known[w.Name] = *w.State
	case dispatch.DeleteBucket:
		delete(e.known, w.Name)
	case dispatch.DeadLetter:
		key := messageKey{w.Bucket, w.Offset}
		if i, ok := e.queued[key]; ok {
			e.left(w.Name, i)
			e.out[i].Dead = true
			delete(e.queued, key)
		}
	default: // nothing is restarted here
	}
}

func (e *engine) left(name string, i int) {
	e.buckets[name]--
	e.bytes[name] -= e.trace[i].Bytes
	if e.buckets[name] == 0 {
		delete(e.buckets, name)
		delete(e.bytes, name)
	}
}

// complete is the end of a request at its model.
func (e *engine) complete(c completion) error {
	q := &e.trace[c.request]
	e.out[c.request].Ended = e.now
	delete(e.queued, messageKey{c.handle.Bucket, c.handle.Offset})
	e.idle++
	err := e.m.Settle(e.now, c.handle, settlement(q), dispatch.ThenAck())
	if err != nil && !errors.Is(err, dispatch.ErrStaleHandle) {
		return fmt.Errorf("settle: %w", err)
	}
	return nil
}

// settlement is what is told of a request that its model answered, as all of a trace are.
func settlement(q *Request) quota.Settlement {
	return quota.Settlement{
		Outcome: quota.Used, Tokens: q.InputTokens + q.OutputTokens, OutputTokens: q.OutputTokens,
		Feedback: limit.Good, Latency: time.Duration(q.ServiceTime),
	}
}
