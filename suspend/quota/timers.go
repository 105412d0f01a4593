package quota

import (
	"math"
	"time"

	"github.com/penstockmq/penstock/suspend"
	"github.com/penstockmq/penstock/suspend/limit"
)

// Due returns one target that has to be looked at again at now; false if there is none. What waits at a cell or a row is to be
// asked anew; of a wider one the caller learns by Look whether it is open.
func (l *Ledger) Due(now time.Time) (suspend.Target, bool) {
	most := math.MaxInt
	return l.DueWithin(now, &most)
}

// DueWithin is Due for a caller with a bounded number of looks: left decreases by the number of accounts examined, and at
// zero DueWithin returns false, though Next may be in the past.
func (l *Ledger) DueWithin(now time.Time, left *int) (suspend.Target, bool) {
	l.observe(now)
	for len(l.again) > 0 && *left > 0 {
		*left--
		a := l.again[0]
		l.again = l.again[1:]
		a.again = false
		if !a.dead {
			return a.target(), true
		}
	}
	if len(l.again) == 0 {
		l.again = nil
	}
	for *left > 0 {
		*left--
		it := l.gates.PopDue(now)
		if it == nil {
			break
		}
		if a := it.Value; l.opens(now, a) {
			return a.target(), true
		}
	}
	l.sweep(now)
	return suspend.Target{}, false
}

// opens judges an account whose timer has fired: whether the caller has to hear of it.
func (l *Ledger) opens(now time.Time, a *account) bool {
	a.gated = false
	if !a.narrow() {
		g, closed := l.judge(now, a)
		if closed == a.shut {
			l.rearm(now, a, g, closed)
			return false
		}
		return true
	}
	// A row may have been charged again meanwhile. Under another policy only its buckets can tell.
	if a.res != nil && a.res.gen == l.gen {
		if g, closed := a.binds(now); closed {
			l.park(a, g.Until)
			return false
		}
	}
	a.parked = false
	l.alone.leave(a)
	l.retire(now, a)
	return true
}

// Pending reports whether columns, levels or the broker scope must be examined, because a policy or a signal has changed: until
// Due has returned them, one of them may be open that has to be closed.
func (l *Ledger) Pending() bool { return len(l.again) > 0 }

// Next is the instant at which Due will have something; false if nothing waits for an instant.
func (l *Ledger) Next() (time.Time, bool) {
	if len(l.again) > 0 {
		return l.last, true
	}
	at, ok := l.gates.Next()
	if rest, some := l.rest.Next(); some && (!ok || rest.Before(at)) {
		return rest, true
	}
	return at, ok
}

// clockTolerance is how far now may go back before it is taken for a step of the clock.
const clockTolerance = limit.ClockTolerance

// observe notices a clock that went back, and takes what is owed and the timers back with it: a state that kept the instants
// of before would seem to wait as long at every later look. It visits every account, once for each step of the clock.
func (l *Ledger) observe(now time.Time) {
	if now.After(l.last) {
		l.last = now
		return
	}
	back := l.last.Sub(now)
	if back <= clockTolerance {
		return
	}
	was := l.last
	l.last = now
	for i := range l.squeezes {
		l.squeezes[i].convert(was)
		l.squeezes[i].convert(now)
	}
	l.each(func(a *account) {
		a.waited = false
		a.convert(was) // or what had gone by of a wait would have to be waited for again
		a.convert(now)
		if a.gated {
			l.gates.Set(&a.item, a.item.At().Add(-back))
		} else if a.item.Armed() {
			l.rest.Set(&a.item, a.item.At().Add(-back))
		}
	})
}

func (l *Ledger) each(f func(*account)) {
	for i := range l.books {
		for _, a := range l.books[i].accounts {
			f(a)
		}
	}
	for _, a := range l.levels {
		f(a)
	}
	f(l.all)
}
