package quota

import (
	"math"
	"time"

	"github.com/penstockmq/penstock/suspend"
	"github.com/penstockmq/penstock/suspend/limit"
)

// scaledRetry is when an ask is looked at again that a window would let pass were it not scaled by a signal.
const scaledRetry = time.Second

// Narrow asks the cell and the row of a place whether they are open. If not, it returns the gate that opens last, and its
// timer is armed: the bucket waits at that gate, which comes out of Due or Free when it opens. The instant is exact unless
// something else is charged in between.
func (l *Ledger) Narrow(now time.Time, p suspend.Place) (Gate, bool) {
	l.observe(now)
	var g Gate
	var at, cell *account
	for scope := suspend.Bucket; scope <= suspend.Row; scope++ {
		t, ok := p.Target(scope)
		a := l.find(t)
		if !ok || a == nil {
			continue
		}
		l.refresh(now, a, p)
		gate, closed := a.binds(now)
		if closed && (at == nil || opensLater(gate.Until, g.Until)) {
			g, at = gate, a
		}
		if scope == suspend.Bucket {
			cell = a
		}
	}
	if cell != nil && cell != at {
		l.unpark(now, cell) // it has one bucket, and that is here
	}
	if at == nil {
		return Gate{}, false
	}
	if !at.parked {
		l.held[at.scope][kindOf(g.Limit)]++
	}
	l.park(at, g.Until)
	return g, true
}

// opensLater is whether a gate that opens at a opens later than one that opens at b; zero is when nobody knows.
func opensLater(a, b time.Time) bool { return !b.IsZero() && (a.IsZero() || a.After(b)) }

func kindOf(name string) kind {
	for k := range kind(kinds) {
		if kindNames[k] == name {
			return k
		}
	}
	return 0
}

// park notes that buckets wait at an account until an instant, or (zero) until something of it is freed.
func (l *Ledger) park(a *account, until time.Time) {
	a.parked = true
	if until.IsZero() {
		l.disarm(a)
		return
	}
	a.waited = true
	l.armGate(a, until)
}

// unpark notes that nothing waits at a narrow account any more.
func (l *Ledger) unpark(now time.Time, a *account) {
	if a.parked {
		a.parked = false
		l.alone.leave(a)
		l.disarm(a)
		l.retire(now, a)
	}
}

func (l *Ledger) armGate(a *account, at time.Time) {
	if !a.gated {
		l.rest.Remove(&a.item)
		a.gated = true
	}
	l.gates.Set(&a.item, at)
}

func (l *Ledger) disarm(a *account) {
	if a.gated {
		l.gates.Remove(&a.item)
		a.gated = false
	}
}

// Fits asks the limits whose answer depends on what the ask costs: fixed windows, of all scopes. If one has no room, the
// bucket waits at the gate of its own cell until the window ends or has room again, as others that cost less may still pass.
func (l *Ledger) Fits(now time.Time, a Ask) (Gate, bool) {
	l.observe(now)
	cost := a.Cost.normal()
	if gate, never := l.tooLarge(a.Place, cost); never {
		return gate, false
	}
	var g Gate
	var of *account
	for scope := range suspend.Scope(scopes) {
		t, ok := a.Place.Target(scope)
		if !ok || l.unlimited != nil {
			continue
		}
		acc := l.find(t)
		if acc == nil {
			// It has used nothing, so only what can never pass does not fit.
			if never(l.resolve(scope, a.Place), cost) {
				return l.refuse(Gate{Target: t, Of: t, Limit: kindWindow.String(), Never: true}), false
			}
			continue
		}
		l.refresh(now, acc, a.Place)
		gate, fits := acc.fits(now, cost)
		switch {
		case gate.Never:
			return l.refuse(gate), false
		case !fits && (of == nil || opensLater(gate.Until, g.Until)):
			g, of = gate, acc
		}
	}
	if of == nil {
		return Gate{}, true
	}
	cell, ok := a.Place.Target(suspend.Bucket)
	if ok {
		g.Target = cell
		at := l.open(cell)
		l.refresh(now, at, a.Place)
		l.park(at, g.Until)
		if at != of {
			l.alone.join(at, of, cost.Requests)
		}
	}
	return l.refuse(g), false
}

func (l *Ledger) refuse(g Gate) Gate {
	l.held[g.Of.Scope][kindWindow]++
	return g
}

// never is whether a cost is more than a window ever gives.
func never(r *resolved, c Cost) bool {
	for _, s := range r.enforced {
		if w, ok := s.law.(*limit.FixedWindow); ok && c.Requests > w.Limit {
			return true
		}
	}
	return false
}

// fits asks the account's fixed window.
func (a *account) fits(now time.Time, c Cost) (Gate, bool) {
	for i, m := range a.meters {
		w, ok := m.(*windowMeter)
		if !ok {
			continue
		}
		g := Gate{Target: a.target(), Of: a.target(), Limit: kindWindow.String()}
		_, d := w.law.Peek(w.state, now, c.Requests)
		switch whole, ok := a.res.enforced[i].law.(*limit.FixedWindow); {
		case d.Allowed:
		case ok && c.Requests > whole.Limit:
			g.Never = true
			return g, false
		case d.Never: // for as long as a signal scales it
			g.Until = now.Add(scaledRetry)
			return g, false
		default:
			g.Until = d.RetryAt
			return g, false
		}
	}
	return Gate{}, true
}

// roomUnknown is the assumed Room under a limit whose unit is only known when a message is charged.
const roomUnknown = 8

// Room returns for how many requests of cost one a cell or a row has room at now: at least one, and math.MaxInt if no limit
// counts requests. For limits of tokens and bytes it is a guess.
func (l *Ledger) Room(now time.Time, t suspend.Target) int {
	l.observe(now)
	a := l.find(t)
	if a == nil || a.res == nil || a.res.gen != l.gen {
		return math.MaxInt
	}
	room := int64(math.MaxInt)
	for i, m := range a.meters {
		switch a.res.enforced[i].kind {
		case kindRate, kindWindow, kindQuota, kindObserved, kindInFlight, kindAdaptive:
			used, most := m.used(now, int64(a.running))
			room = min(room, most-used)
		default:
			room = min(room, roomUnknown)
		}
	}
	return int(max(room, 1))
}

// Wide calls f with the state of the column, the level and the whole that a place belongs to, and arms the timers of those
// that are closed: they come out of Due or Free when there is reason to ask again. If levels give way to a limit of the
// whole, f is called for each of them. Until is zero if the unit does not open at an instant.
func (l *Ledger) Wide(now time.Time, p suspend.Place, f func(t suspend.Target, closed bool, until time.Time)) {
	l.observe(now)
	l.wide(now, l.all)
	if t, ok := p.Target(suspend.Column); ok {
		if a := l.find(t); a != nil {
			l.tell(now, a, f)
		} else {
			f(t, false, time.Time{})
		}
	}
	for i, a := range l.levels {
		if len(l.squeezes) > 0 || i == int(level(p)) {
			l.tell(now, a, f)
		}
	}
	l.tell(now, l.all, f)
}

func (l *Ledger) tell(now time.Time, a *account, f func(suspend.Target, bool, time.Time)) {
	g, closed := l.watch(now, a)
	f(a.target(), closed, g.Until)
}

// Look is the state of one target: the gate that closes it, and whether one does. The machine asks after Due or Free has named
// a column, a level or the whole; for these it is what Wide says, timers and all.
func (l *Ledger) Look(now time.Time, t suspend.Target) (Gate, bool) {
	l.observe(now)
	a := l.find(t)
	switch {
	case a == nil:
		return Gate{}, false
	case !a.narrow():
		return l.watch(now, a)
	case a.res == nil:
		return Gate{}, false
	}
	return a.binds(now)
}

// watch judges a wide account and arms its timer. The machine is told the answer.
func (l *Ledger) watch(now time.Time, a *account) (Gate, bool) {
	g, closed := l.judge(now, a)
	if closed && !a.shut {
		l.held[a.scope][kindOf(g.Limit)]++
	}
	a.shut = closed
	a.waited = a.waited || closed && !g.Until.IsZero()
	l.rearm(now, a, g, closed)
	return g, closed
}

// judge is the gate that binds a wide account.
func (l *Ledger) judge(now time.Time, a *account) (Gate, bool) {
	l.wide(now, a)
	g, closed := a.binds(now)
	if a.scope == suspend.Level {
		if until, limit, short := l.squeezed(now, a); short && (!closed || opensLater(until, g.Until)) {
			t := a.target()
			return Gate{Target: t, Of: suspend.Target{Scope: suspend.All}, Limit: limit.String(), Until: until}, true
		}
	}
	return g, closed
}

// rearm sets a wide account's timer: to when it opens, or its factor changes, whatever is first.
func (l *Ledger) rearm(now time.Time, a *account, g Gate, closed bool) {
	var at time.Time
	if closed {
		at = g.Until
	}
	if x := a.extra; x != nil && !x.next.IsZero() && (at.IsZero() || x.next.Before(at)) {
		at = x.next
	}
	if at.IsZero() {
		l.disarm(a)
		l.retire(now, a)
		return
	}
	l.armGate(a, at)
}
