package consumer

import (
	"context"
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstockmq/penstock/broker/lite"
	"github.com/penstockmq/penstock/suspend/limit"
	"github.com/penstockmq/penstock/suspend/policy"
)

const (
	limiterShards = 64
	// sweepPeriod is how often states that owe nothing are dropped. A state is kept a while longer than it owes, so that
	// it still notices a clock that goes back.
	sweepPeriod = 10 * time.Second
	sweepAfter  = time.Minute
	// lateMax is how late an ask may be and still be charged as of the instant it was promised; see limitState.promised.
	// It bounds what a cell may catch up after a stall of the pool.
	lateMax = 250 * time.Millisecond

	// A hold that a worker has set cannot be taken back, but the policy may change in the meantime, and a change is to act
	// within promptly. So longer waits are cut into holds of recheckFloor, after which the limits are asked again; with very
	// many cells waiting, into longer ones, so that asking again costs a thousand deliveries a second at most.
	promptly     = time.Second
	recheckFloor = 750 * time.Millisecond // leaves time for the policy's file to be noticed and read
	recheckEach  = time.Millisecond       // for each waiting cell
)

// limiter holds the state of the cells' limits. The limits themselves come from the policy with each ask: a change of policy
// acts on the next, and what a cell has used already stays charged as long as it has a limit of that kind.
//
// A state that owes nothing is the same as none, so idle cells cost no memory.
type limiter struct {
	policy func() *policy.Document
	step   time.Duration // waits below are slept
	seed   maphash.Seed
	shards [limiterShards]limiterShard
	// waiting is the number of states with a promise.
	waiting atomic.Int64
}

type limiterShard struct {
	mu    sync.Mutex // guards the following field; held for one ask, or for one sweep of this shard
	cells map[lite.Cell]limitState
}

type limitState struct {
	limit.CellState
	owes time.Time // from here on the state is as good as none
	// promised is what the last refusal named as the instant of the next pass; zero after a pass. The ask that comes
	// then is late by what the way through the broker takes, a millisecond or two. It is charged as of the promise:
	// else a backlog would run slower than its limit by that much with every message, four per cent at 20/s.
	promised time.Time
}

func newLimiter(doc func() *policy.Document, step time.Duration) *limiter {
	l := &limiter{policy: doc, step: step, seed: maphash.MakeSeed()}
	for i := range l.shards {
		l.shards[i].cells = make(map[lite.Cell]limitState)
	}
	return l
}

func (l *limiter) shard(c lite.Cell) *limiterShard {
	return &l.shards[maphash.Comparable(l.seed, c)%limiterShards]
}

// ask asks the cell's limits for cost at now and, if charge says so, charges them when all of them pass.
func (l *limiter) ask(now time.Time, c lite.Cell, cost int64, charge bool) limit.Verdict {
	limits := l.policy().Resolve(c.User, c.Model).Release()
	if limits.Leaky == nil && limits.Window == nil {
		return limit.Verdict{Decision: limit.Decision{Allowed: true}} // a state that is there goes with the next sweep
	}
	how := limit.Cell.Peek
	if charge {
		how = limit.Cell.Take
	}
	s := l.shard(c)
	s.mu.Lock()
	defer s.mu.Unlock()
	last := s.cells[c]
	state, v := how(limits, last.CellState, last.due(now), cost)
	next := limitState{CellState: state, owes: owes(limits, state), promised: last.promised}
	switch {
	case !v.Allowed:
		next.promised = v.RetryAt
	case charge:
		next.promised = time.Time{}
	}
	s.cells[c] = next
	l.waiting.Add(next.waits() - last.waits())
	return v
}

// waits is 1 for a cell whose last answer was no, else 0.
func (s limitState) waits() int64 {
	if s.promised.IsZero() {
		return 0
	}
	return 1
}

// hold is how long a bucket is held that has to wait for wait.
func (l *limiter) hold(wait time.Duration) time.Duration {
	if wait <= promptly {
		return wait
	}
	return min(wait, max(recheckFloor, time.Duration(l.waiting.Load())*recheckEach))
}

// due is the instant as of which an ask at now is charged.
func (s limitState) due(now time.Time) time.Time {
	if s.promised.Before(now) && now.Sub(s.promised) <= lateMax {
		return s.promised
	}
	return now
}

// owes is when nothing of s matters any more.
func owes(c limit.Cell, s limit.CellState) time.Time {
	var until int64
	if c.Leaky != nil {
		until = s.Leaky.TAT
	}
	if c.Window != nil && s.Window.Used > 0 {
		until = max(until, s.Window.At+int64(c.Window.Window)) // its end is sooner
	}
	return time.Unix(0, until)
}

// sweep drops idle states once a period until ctx ends.
func (l *limiter) sweep(ctx context.Context) {
	ticker := time.NewTicker(sweepPeriod)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			l.drop(time.Now())
		}
	}
}

func (l *limiter) drop(now time.Time) {
	before := now.Add(-sweepAfter)
	for i := range l.shards {
		s := &l.shards[i]
		s.mu.Lock()
		for c, state := range s.cells {
			if state.owes.Before(before) {
				delete(s.cells, c)
				l.waiting.Add(-state.waits())
			}
		}
		s.mu.Unlock()
	}
}

// len is the number of cells with a state.
func (l *limiter) len() int {
	n := 0
	for i := range l.shards {
		s := &l.shards[i]
		s.mu.Lock()
		n += len(s.cells)
		s.mu.Unlock()
	}
	return n
}

// acquireOrSuspend asks for cost until it is allowed, or finds that the wait is one for the broker. It sleeps waits below
// the step, and of those above it returns how long to suspend the bucket before it asks again. ctx ends a sleep; its error is returned.
//
// charge is false when something else must be had first; the caller then comes back with true.
func (l *limiter) acquireOrSuspend(ctx context.Context, c lite.Cell, cost int64, charge bool, asleep func() func()) (suspend time.Duration, err error) {
	for {
		now := time.Now().Round(0)
		v := l.ask(now, c, cost, charge)
		switch {
		case v.Allowed:
			return 0, nil
		case v.Never:
			return 0, errNever
		}
		// Rounded up to the broker's millisecond: then the bucket opens when the same ask passes, not before.
		wait := v.Wait(now)
		if wait >= l.step {
			return l.hold(wait), nil
		}
		awake := asleep()
		err := sleep(ctx, wait)
		awake()
		if err != nil {
			return 0, err
		}
	}
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
