package consumer

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/penstockmq/penstock/suspend"
	"github.com/penstockmq/penstock/suspend/policy"
	"github.com/penstockmq/penstock/suspend/quota"
	"github.com/penstockmq/penstock/suspend/signal"
)

const (
	// sweepPeriod is how often the ledger is looked after when nobody asks it.
	sweepPeriod = 10 * time.Second
	// sweepChunk bounds what is looked after under one lock.
	sweepChunk = 1024
	// askChunk is the same beside one ask: more than one ask can add, so nothing piles up.
	askChunk = 16

	// A hold that a worker has set cannot be taken back, but the policy may change in the meantime, and a change is to act
	// within promptly. So longer waits are cut into holds of recheckFloor, after which the limits are asked again; with very
	// many cells waiting, into longer ones, so that asking again costs a thousand deliveries a second at most.
	promptly     = time.Second
	recheckFloor = 750 * time.Millisecond // leaves time for the policy's file to be noticed and read
	recheckEach  = time.Millisecond       // for each waiting cell
)

// limiter asks the limits of the policy in this process, for a broker that does not ask them itself. It runs the broker's
// code, a [quota.Ledger]; what the ledger says of its gates' timers is of no use here, since a bucket is held at the
// broker and comes back by itself.
//
// An account that owes nothing is the same as none, and the ledger drops it when its timer is due: no ask and no sweep looks
// at all of them (case C109).
type limiter struct {
	policy func() *policy.Document
	step   time.Duration // waits below are slept

	mu     sync.Mutex // guards the following fields; held for one ask, or for one chunk of a sweep
	doc    *policy.Document
	ledger *quota.Ledger
	// asked holds the columns whose model asked to be left alone, where the broker cannot hold them.
	asked   *suspend.Table
	waiting waiting
}

// permit is a request's leave to run. Whoever has it calls limiter.free.
type permit struct {
	place  suspend.Place
	ticket quota.Ticket
	given  bool // by the limiter; else by the broker
}

// answer is what the limits say.
type answer struct {
	permit

	ok    bool
	never bool // it costs more than a limit ever gives
	// until is the earliest instant at which the same ask may pass; zero if something has to end first.
	until time.Time
	// shared says that others wait for the same gate, so the instant is not a promise.
	shared bool
	// waiters is the number of cells that were told to wait.
	waiters int
}

func newLimiter(doc func() *policy.Document, step time.Duration) *limiter {
	d := doc()
	return &limiter{policy: doc, step: step, doc: d, ledger: quota.New(d), asked: suspend.New(0)}
}

// ask asks all limits that apply for c at now and, if charge says so, charges them when all of them pass.
func (l *limiter) ask(now time.Time, c claim, charge bool) answer {
	doc := l.policy()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.follow(now, doc)
	place := c.place
	place.Level = l.ledger.Importance(c.cell, c.level)
	a := quota.Ask{Place: place, Cost: c.cost, Since: c.since}
	a.Cost.Output = l.ledger.Expect(place, c.maxOutput)
	a.Cost.Tokens += a.Cost.Output
	if no, closed := l.closed(now, a); closed {
		if !no.never {
			l.waiting.note(c.cell, now)
		}
		no.waiters = l.waiting.len()
		return no
	}
	yes := answer{ok: true}
	if charge {
		yes.permit = permit{place: place, ticket: l.ledger.Charge(now, a), given: true}
		l.waiting.forget(c.cell)
	}
	l.tend(now, askChunk)
	return yes
}

// follow puts the document in force. Two asks at the same time may do so in the wrong order; the next one puts it right.
func (l *limiter) follow(now time.Time, doc *policy.Document) {
	if doc != l.doc {
		l.doc = doc
		l.ledger.SetPolicy(now, doc)
	}
}

// signal scales the limits of a column or level in this process, or with gone no longer.
func (l *limiter) signal(now time.Time, s signal.Signal, gone bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if gone {
		l.ledger.DropSignal(now, s.Target, s.Source)
		return
	}
	l.ledger.SetSignal(now, s)
}

// closed finds the gates that are closed for a and returns when the last of them opens.
func (l *limiter) closed(now time.Time, a quota.Ask) (answer, bool) {
	var out answer
	shut := false
	gate := func(t suspend.Target, until time.Time) {
		if !shut || !out.until.IsZero() && (until.IsZero() || until.After(out.until)) {
			out.until = until
		}
		out.shared = out.shared || t.Scope != suspend.Bucket
		shut = true
	}
	if h, held := l.asked.Blocking(now, a.Place); held {
		gate(h.Target, h.Until)
	}
	if g, is := l.ledger.Narrow(now, a.Place); is {
		gate(g.Target, g.Until)
	}
	l.ledger.Wide(now, a.Place, func(t suspend.Target, is bool, until time.Time) {
		if is {
			gate(t, until)
		}
	})
	if shut {
		return out, true
	}
	if g, fits := l.ledger.Fits(now, a); !fits {
		gate(g.Of, g.Until)
		out.never = g.Never
	}
	return out, shut
}

// free ends what a permit began. In its place the next ask of a cell may pass; no bucket is woken by it.
func (l *limiter) free(now time.Time, p permit, s quota.Settlement) {
	if !p.given {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ledger.Free(now, p.place, p.ticket, s)
	l.tend(now, askChunk)
}

// leaveAlone closes a column for d: its model asked for it, and the broker takes no holds of columns.
func (l *limiter) leaveAlone(now time.Time, model string, d time.Duration, reason string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	// A name that is no column, or a time over a day, is nothing to hold; the message itself is suspended all the same.
	_, _, _ = l.asked.Extend(now, suspend.Hold{
		Target: suspend.Target{Scope: suspend.Column, Name: model}, Until: now.Add(d), Reason: reason,
	})
}

// tend takes note of up to limit things that are due, and says whether that was all.
func (l *limiter) tend(now time.Time, limit int) (done bool) {
	l.ledger.Dirty(func(quota.Record) {}) // nothing is stored here
	for range limit {
		if _, ended := l.asked.PopDue(now); ended {
			continue
		}
		next, ok := l.ledger.Next()
		if !ok || next.After(now) {
			return true
		}
		l.ledger.Due(now)
	}
	return false
}

// sweep looks after the ledger once a period until ctx ends.
func (l *limiter) sweep(ctx context.Context) {
	ticker := time.NewTicker(sweepPeriod)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			for ctx.Err() == nil && !l.sweepOnce(time.Now().Round(0)) {
			}
		}
	}
}

func (l *limiter) sweepOnce(now time.Time) (done bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	done = l.tend(now, sweepChunk)
	return l.waiting.drop(now, sweepChunk) && done
}

// hold is how long a bucket is held that has to wait for wait.
func (l *limiter) hold(a answer, wait time.Duration) time.Duration {
	many := time.Duration(a.waiters) * recheckEach
	if wait > promptly {
		wait = min(wait, max(recheckFloor, many))
	}
	if a.shared && a.waiters > 1 {
		// All who wait for a shared gate would come back at its instant, and all but one for nothing. Spread out, the
		// first of them still comes within a millisecond or so.
		wait += rand.N(many)
	}
	return wait
}

// acquireOrSuspend asks for c until it is allowed, or finds that the wait is one for the broker. It sleeps waits below the
// step, and of those above it returns how long to suspend the bucket before it asks again; full stands for a wait whose end
// nobody knows. ctx ends a sleep; its error is returned.
//
// charge is false when something else must be had first; the caller then comes back with true.
func (l *limiter) acquireOrSuspend(ctx context.Context, c claim, charge bool, full time.Duration, asleep func() func()) (p permit, suspend time.Duration, err error) {
	for {
		now := time.Now().Round(0)
		a := l.ask(now, c, charge)
		switch {
		case a.ok:
			return a.permit, 0, nil
		case a.never:
			return permit{}, 0, errNever
		case a.until.IsZero():
			return permit{}, full, errFull
		}
		// Rounded up to the broker's millisecond: then the bucket opens when the same ask passes, not before.
		wait := ceilMilli(a.until.Sub(now))
		if wait >= l.step {
			return permit{}, l.hold(a, wait), nil
		}
		awake := asleep()
		err := sleep(ctx, wait)
		awake()
		if err != nil {
			return permit{}, 0, err
		}
	}
}

// ceilMilli is d in whole milliseconds, at least one.
func ceilMilli(d time.Duration) time.Duration {
	return max((d+time.Millisecond-1)/time.Millisecond*time.Millisecond, time.Millisecond)
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
