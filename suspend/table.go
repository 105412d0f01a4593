package suspend

import (
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/penstockmq/penstock/suspend/deadline"
)

const (
	// MaxNoteBytes is where By and Reason are cut. They are notes for people: too long is no reason to refuse a suspend.
	MaxNoteBytes = 255
	// clockTolerance is how far now may go back before the table takes it for a step of the clock. Callers that take turns
	// see small inversions all the time.
	clockTolerance = time.Second
	// shrinkFloor is how many holds of a scope a map must have seen for its memory to be given back when the last one ends.
	shrinkFloor = 1024
)

// Table holds the suspends of one consumer group. A hold of a bucket costs about 150 bytes beside its name, so a million of
// them fit. Not safe for concurrent use.
type Table struct {
	max  time.Duration // immutable after New
	last time.Time     // the latest now that was seen; shows when the clock steps back

	// Invariant: an item is in due if and only if it is in the map of its scope under its name.
	due  deadline.Heap[record]
	held [scopes]map[string]*item
	peak [scopes]int // the most entries a map had since it was made; Go's maps never shrink on their own
}

// record is a Hold without its instant, which the heap keeps. Name, by and reason are shared, not copied.
type record struct {
	name, by, reason string
	scope            Scope
}

type item = deadline.Item[record]

// New returns an empty table that refuses holds longer than that; zero means DefaultMax.
func New(longest time.Duration) *Table { return &Table{max: orDefault(longest)} }

// Max is the longest hold the table accepts.
func (t *Table) Max() time.Duration { return t.max }

// Len is the number of holds, those that are due but not yet popped included.
func (t *Table) Len() int { return t.due.Len() }

// Extend is a worker's suspend: the target is held until the later of h.Until and what is in force. It returns the hold in
// force afterwards (none: the zero Hold) and whether it changed. An Until that is not after now changes nothing.
// Errors: ErrScope, ErrTarget, ErrTooLong; the table is then as it was.
func (t *Table) Extend(now time.Time, h Hold) (Hold, bool, error) {
	if err := t.check(now, h); err != nil {
		return Hold{}, false, err
	}
	old, ok := t.Get(h.Target)
	if !h.Until.After(now) || (ok && !h.Until.After(old.Until)) {
		return old, false, nil
	}
	return t.put(h), true, nil
}

// Set is an operator's suspend: the target is held until h.Until exactly, whatever was in force. An Until that is not after
// now lifts it. Errors: ErrScope, ErrTarget, ErrTooLong; the table is then as it was.
func (t *Table) Set(now time.Time, h Hold) error {
	if err := t.check(now, h); err != nil {
		return err
	}
	if !h.Until.After(now) {
		t.Lift(h.Target)
		return nil
	}
	t.put(h)
	return nil
}

// Restore puts back a hold that was accepted before a restart. It differs from Set where the world may have moved since: a
// hold further away than the maximum (the clock went back, or the maximum was lowered) is drawn in, not refused.
// It returns the hold as it is now in force; false if it has ended.
func (t *Table) Restore(now time.Time, h Hold) (Hold, bool) {
	if latest := now.Add(t.max); h.Until.After(latest) {
		h.Until = latest
	}
	if h.Target.Validate() != nil || !h.Until.After(now) {
		return Hold{}, false
	}
	return t.put(h), true
}

// Lift ends the hold of exactly this target and returns it; holds of other scopes that cover the same buckets stay.
func (t *Table) Lift(target Target) (Hold, bool) {
	it := t.find(target)
	if it == nil {
		return Hold{}, false
	}
	h := holdOf(it)
	t.due.Remove(it)
	t.forget(it)
	return h, true
}

// Get is the hold of exactly this target, also if it is due but not yet popped.
func (t *Table) Get(target Target) (Hold, bool) {
	it := t.find(target)
	if it == nil {
		return Hold{}, false
	}
	return holdOf(it), true
}

// Blocking is the hold that keeps the place closed longest, of all that cover it; false if it is open at now.
// Of two that end together, the wider one.
func (t *Table) Blocking(now time.Time, p Place) (Hold, bool) {
	t.observe(now)
	return t.latest(now, p, All)
}

// Parking is Blocking among the narrow scopes alone, Bucket and Row. Columns, levels and the whole group are closed as
// units, whatever buckets are in them; a single bucket need only wait for its own gates.
func (t *Table) Parking(now time.Time, p Place) (Hold, bool) {
	t.observe(now)
	return t.latest(now, p, Row)
}

func (t *Table) latest(now time.Time, p Place, widest Scope) (Hold, bool) {
	var found *item
	until := now
	for scope := widest; ; scope-- {
		target, ok := p.Target(scope)
		if it := t.find(target); ok && it != nil && it.At().After(until) {
			found, until = it, it.At()
		}
		if scope == Bucket {
			break
		}
	}
	if found == nil {
		return Hold{}, false
	}
	return holdOf(found), true
}

// PopDue removes and returns one hold whose time has come, the earliest first; false if there is none.
func (t *Table) PopDue(now time.Time) (Hold, bool) {
	t.observe(now)
	at, _ := t.due.Next()
	it := t.due.PopDue(now)
	if it == nil {
		return Hold{}, false
	}
	h := holdOf(it)
	h.Until = at // a popped item has no instant any more
	t.forget(it)
	return h, true
}

// Next is the instant at which PopDue will have something; false if nothing is held.
func (t *Table) Next() (time.Time, bool) { return t.due.Next() }

// Each calls f for every hold, the wider scopes first and otherwise in no order, until f returns false. f must not change
// the table.
func (t *Table) Each(f func(Hold) bool) {
	for scope := scopes - 1; scope >= 0; scope-- {
		for _, it := range t.held[scope] {
			if !f(holdOf(it)) {
				return
			}
		}
	}
}

func (t *Table) check(now time.Time, h Hold) error {
	t.observe(now)
	if err := h.Target.Validate(); err != nil {
		return err
	}
	if latest := now.Add(t.max); h.Until.After(latest) {
		return fmt.Errorf("%w: %v is until %s, the limit is %v from now", ErrTooLong, h.Target, h.Until.Format(time.RFC3339), t.max)
	}
	return nil
}

// observe notices a clock that went back. No hold may then be more than the maximum away, as none could have been set to
// be; those that are, are drawn in. It visits every hold, once for each step of the clock.
func (t *Table) observe(now time.Time) {
	if now.After(t.last) {
		t.last = now
		return
	}
	if t.last.Sub(now) <= clockTolerance {
		return
	}
	t.last = now
	latest := now.Add(t.max)
	for _, held := range t.held {
		for _, it := range held {
			if it.At().After(latest) {
				t.due.Set(it, latest)
			}
		}
	}
}

// Shift moves the ends of all holds by d when the clock was set by d: a hold is a length of time.
func (t *Table) Shift(d time.Duration) {
	t.due.Shift(d)
	if !t.last.IsZero() {
		t.last = t.last.Add(d)
	}
}

func (t *Table) find(target Target) *item {
	if target.Scope >= scopes {
		return nil
	}
	return t.held[target.Scope][target.Name]
}

func (t *Table) put(h Hold) Hold {
	it := t.find(h.Target)
	if it == nil {
		it = &item{Value: record{name: h.Target.Name, scope: h.Target.Scope}}
		t.remember(it)
	}
	it.Value.by, it.Value.reason = cut(h.By), cut(h.Reason)
	t.due.Set(it, h.Until)
	return holdOf(it)
}

func (t *Table) remember(it *item) {
	held := &t.held[it.Value.scope]
	if *held == nil {
		*held = make(map[string]*item)
	}
	(*held)[it.Value.name] = it
	t.peak[it.Value.scope] = max(t.peak[it.Value.scope], len(*held))
}

func (t *Table) forget(it *item) {
	scope := it.Value.scope
	delete(t.held[scope], it.Value.name)
	if len(t.held[scope]) == 0 && t.peak[scope] > shrinkFloor {
		t.held[scope], t.peak[scope] = nil, 0
	}
}

func holdOf(it *item) Hold {
	r := it.Value
	return Hold{Target: Target{Scope: r.scope, Name: r.name}, Until: it.At(), By: r.by, Reason: r.reason}
}

// Note returns a text in its stored form: cut to MaxNoteBytes between two characters.
func Note(text string) string { return cut(text) }

// cut shortens a note to MaxNoteBytes without splitting a character.
func cut(s string) string {
	if len(s) <= MaxNoteBytes {
		return s
	}
	n := MaxNoteBytes
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}
