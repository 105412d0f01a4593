package sim

import (
	"context"
	"fmt"
	"time"

	"github.com/penstockmq/penstock/broker/lite"
	"github.com/penstockmq/penstock/suspend"
	"github.com/penstockmq/penstock/suspend/policy"
	"github.com/penstockmq/penstock/suspend/quota"
)

// RunLimiter lets the trace arrive at a limiter that has the same limits and no buckets: what may not go now is answered
// 429 and gone. It is what buckets are compared with.
func RunLimiter(ctx context.Context, trace []Request, o Options) (*Result, error) {
	if o.Policy == nil {
		o.Policy = policy.Empty()
	}
	if len(trace) == 0 {
		return nil, fmt.Errorf("%w: it has no request", ErrTrace)
	}
	e := &engine{opts: o, trace: trace, doc: o.Policy, gate: newAdmission(o.Policy), out: make([]Outcome, len(trace))}
	l := &limiter{engine: e, ledger: quota.New(o.Policy), running: map[int]charged{}}
	for i := range trace {
		if i%pulse == 0 && ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err := l.arrive(i); err != nil {
			return nil, fmt.Errorf("%w: request %d: %w", ErrTrace, i+1, err)
		}
	}
	return e.result(), nil
}

// limiter is a ledger with the requests that run.
type limiter struct {
	*engine
	ledger  *quota.Ledger
	running map[int]charged // by index in the trace
}

type charged struct {
	place  suspend.Place
	ticket quota.Ticket
}

func (l *limiter) arrive(i int) error {
	q := &l.trace[i]
	l.now = q.Time.Time
	l.end()
	cell := lite.Cell{User: q.User, Model: q.Model}
	name, err := lite.Encode(cell)
	if err != nil {
		return err
	}
	p := suspend.Place{Bucket: name, User: q.User, Model: q.Model, Level: l.ledger.Importance(cell, q.level())}
	output := l.ledger.Expect(p, q.MaxTokens)
	ask := quota.Ask{Place: p, Cost: quota.Cost{
		Requests: q.cost(), Tokens: q.InputTokens + output, Output: output, BytesIn: q.Bytes,
	}}
	if !l.open(ask) || !l.gate.take(l.now, p) {
		l.out[i].Limited = true
		return nil
	}
	l.running[i] = charged{p, l.ledger.Charge(l.now, ask)}
	l.out[i].Started, l.out[i].Ended = l.now, l.now.Add(time.Duration(q.ServiceTime))
	l.done.push(completion{at: l.out[i].Ended, request: i})
	return nil
}

// open asks every limit that applies.
func (l *limiter) open(a quota.Ask) bool {
	if _, closed := l.ledger.Narrow(l.now, a.Place); closed {
		return false
	}
	open := true
	l.ledger.Wide(l.now, a.Place, func(_ suspend.Target, closed bool, _ time.Time) { open = open && !closed })
	if !open {
		return false
	}
	_, fits := l.ledger.Fits(l.now, a)
	return fits
}

// end frees what is done by now.
func (l *limiter) end() {
	for _, c := range l.done.popDue(l.now) {
		r := l.running[c.request]
		delete(l.running, c.request)
		l.ledger.Free(c.at, r.place, r.ticket, settlement(&l.trace[c.request]))
	}
	for _, due := l.ledger.Due(l.now); due; _, due = l.ledger.Due(l.now) { // timers that nobody waits for
	}
}
