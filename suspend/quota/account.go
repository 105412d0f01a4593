package quota

import (
	"time"

	"github.com/penstockmq/penstock/suspend"
	"github.com/penstockmq/penstock/suspend/deadline"
	"github.com/penstockmq/penstock/suspend/limit"
)

// account is what a cell, row, column, level or the whole has used. It exists while something of it is in flight, while it
// owes something, and a moment longer; those of the levels and of the whole always.
//
// A parked cell with a rate costs 96 bytes here, 64 for its meter, and its places in a map and a heap.
type account struct {
	// item is in the ledger's gates while a gate is closed until an instant, or its factor changes at one; else in its
	// rest, until the account is dropped.
	item  deadline.Item[*account]
	name  string
	scope suspend.Scope

	gated  bool // item is in gates
	parked bool // cell or row: buckets wait at it
	shut   bool // column or wider: what the machine was last told
	waited bool // it was found closed until an instant, and nothing was charged since
	again  bool // in the ledger's again
	dirty  bool // in the ledger's dirty
	stored bool // has a record
	dead   bool // dropped

	running int32 // in flight
	res     *resolved
	meters  []meter // as res.enforced
	extra   *extra  // nil: as the zero extra, with the factor full
}

// extra is what few accounts have.
type extra struct {
	shadow []meter // as res.shadow
	// learned is the output that a cell's messages caused, until learnedAt.
	learned   limit.Estimate
	learnedAt int64
	// frozen is a record that was restored before anybody said under which rules; restsAt is when it is worth nothing.
	frozen  []byte
	restsAt int64
	// factor is what signals leave of a column's or level's limits, until next (zero: until they change), in thousandths.
	factor int64
	next   time.Time
}

const (
	// learnedFor is how long an estimate or an adaptive window is kept that nothing is added to.
	learnedFor = time.Hour
	// restStep is the grain of the timers that drop accounts: one wake-up drops all that came to rest in a second.
	restStep = time.Second
	// sweepMost is how many accounts one call drops; a million that come to rest together must not stop the machine.
	sweepMost = 64
)

func (a *account) target() suspend.Target { return suspend.Target{Scope: a.scope, Name: a.name} }

func (a *account) narrow() bool { return a.scope <= suspend.Row }

// level is which level the account is of. REQUIRES: its scope is Level.
func (a *account) level() uint8 { return a.name[0] - '0' }

func (a *account) more() *extra {
	if a.extra == nil {
		a.extra = &extra{factor: full}
	}
	return a.extra
}

func (a *account) factor() int64 {
	if a.extra == nil {
		return full
	}
	return a.extra.factor
}

// follow puts another resolution in force. Kinds of limit that are in both keep what is used, one that vanished forgets it.
func (a *account) follow(now time.Time, res *resolved) {
	old := a.res
	a.res = res
	if len(res.shadow) > 0 || a.extra != nil {
		x := a.more()
		var was []spec
		if old != nil {
			was = old.shadow
		}
		x.shadow = carry(now, res.shadow, was, x.shadow, full)
	}
	var was []spec
	if old != nil {
		was = old.enforced
	}
	a.meters = carry(now, res.enforced, was, a.meters, a.factor())
	if x := a.extra; x != nil && x.frozen != nil {
		a.thaw(now, x.frozen)
		x.frozen = nil
	}
}

// carry is the meters for specs, taken over from those of other specs where there is one of the same kind.
func carry(now time.Time, specs, oldSpecs []spec, old []meter, permille int64) []meter {
	if len(specs) == 0 {
		return nil
	}
	meters := make([]meter, len(specs))
	j := 0
	for i, s := range specs { // both are in the order of kinds
		for j < len(old) && oldSpecs[j].kind < s.kind {
			j++
		}
		if j < len(old) && oldSpecs[j].kind == s.kind {
			meters[i] = old[j]
			meters[i].follow(now, s.law, permille)
			continue
		}
		meters[i] = newMeter(s.law)
		if permille < full {
			meters[i].follow(now, s.law, permille)
		}
	}
	return meters
}

// scale puts a factor in force.
func (a *account) scale(now time.Time, permille int64) {
	a.more().factor = permille
	for i, m := range a.meters {
		m.follow(now, a.res.enforced[i].law, permille)
	}
}

// convert brings all states in line with their laws and the clock at now.
func (a *account) convert(now time.Time) {
	for _, m := range a.meters {
		m.convert(now)
	}
	if a.extra != nil {
		for _, m := range a.extra.shadow {
			m.convert(now)
		}
	}
}

// rests is the instant from which the account is worth nothing, with nothing in flight.
func (a *account) rests(now time.Time) time.Time {
	at := now
	for _, m := range a.meters {
		at = later(at, m.rests(now))
	}
	if x := a.extra; x != nil {
		for _, m := range x.shadow {
			at = later(at, m.rests(now))
		}
		if x.learnedAt != 0 {
			at = later(at, time.Unix(0, x.learnedAt).Add(learnedFor))
		}
		if x.frozen != nil {
			at = later(at, time.Unix(0, x.restsAt))
		}
		if x.factor < full || !x.next.IsZero() {
			at = later(at, now.Add(restStep))
		}
	}
	return at
}

// learn adds what a message of the cell put out to what the next is expected to.
func (a *account) learn(now time.Time, output int64) {
	x := a.more()
	x.learned, x.learnedAt = x.learned.Observe(output), now.UnixNano()
}

// binds is the gate that keeps the account closed longest; false if none does. One that opens when something else happens, and
// not at an instant, counts as the longest: nobody knows.
func (a *account) binds(now time.Time) (Gate, bool) {
	t := a.target()
	g := Gate{Target: t, Of: t}
	if a.factor() <= 0 {
		g.Limit = kindSignal.String()
		return g, true
	}
	closed := false
	for i, m := range a.meters {
		at, open := m.opens(now, int64(a.running))
		if open || closed && (g.Until.IsZero() || !at.IsZero() && !at.After(g.Until)) {
			continue
		}
		closed = true
		g.Limit, g.Until = a.res.enforced[i].kind.String(), at
	}
	return g, closed
}

// adaptive is the account's adaptive window; nil if it has none.
func (a *account) adaptive() *adaptiveMeter {
	m, _ := a.meter(kindAdaptive).(*adaptiveMeter)
	return m
}
