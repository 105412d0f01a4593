package signal

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/penstockmq/penstock/suspend"
)

const (
	// RisePermille is by how much a factor rises in a second once what held it down is gone: back from nothing takes 10 s.
	// A backend that was just relieved is not to be hit by all that waited.
	RisePermille = 100
	// RiseStep is how often it rises; a limit need not be computed anew for each permille.
	RiseStep = 100 * time.Millisecond
	// MaxSources bounds the signals of one target. Of more, those that cut least are forgotten.
	MaxSources = 256

	perStep = int64(RisePermille * RiseStep / time.Second)
)

// Board joins the signals of each target into one factor. The zero Board is ready. Not safe for concurrent use.
//
// The factor of a target is the lowest that any of its sources asks for. It falls at once and rises gradually. What it is at
// an instant depends on the signals and the instant alone, not on how often it was asked: between two calls the board
// lives through everything that fell due in between, in order.
//
// Each call takes now. A now that goes back a little is taken for the latest seen of the target, so nothing rises early. A
// clock that was set back by more than clockTolerance draws the target's signals in: none lasts longer from then on than
// it was to last in all. The same holds for a signal of a process whose clock is ahead.
type Board struct {
	targets map[suspend.Target]*entry
}

// entry is what the board knows of one target.
//
// Invariant: it exists while it has a source or its factor is below Full.
type entry struct {
	sources map[string]Signal
	factor  int64     // at seen
	seen    time.Time // all that fell due until here has happened
	rising  time.Time // if factor is below what the sources allow: its last step, or when the rise began
	next    time.Time // when the factor may change by itself; zero: never. Valid until the sources change
}

// clockTolerance is how far now may go back before it is taken for a step of the clock.
const clockTolerance = time.Second

// Put sets what a source says of a target. It replaces what the same source said before.
func (b *Board) Put(now time.Time, s Signal) {
	e := b.targets[s.Target]
	if e == nil {
		if b.targets == nil {
			b.targets = make(map[suspend.Target]*entry)
		}
		e = &entry{sources: make(map[string]Signal), factor: Full, seen: now, rising: now}
		b.targets[s.Target] = e
	}
	e.advance(now)
	e.sources[s.Source] = s.drawnIn(now)
	e.prune()
	if len(e.sources) > MaxSources {
		e.forgetOne()
	}
	e.settle()
	b.release(s.Target, e)
}

// Drop forgets what a source said of a target. The factor then rises gradually.
func (b *Board) Drop(now time.Time, target suspend.Target, source string) {
	e := b.targets[target]
	if e == nil {
		return
	}
	e.advance(now)
	delete(e.sources, source)
	e.settle()
	b.release(target, e)
}

// Factor is the target's factor in permille, and the instant at which it may next change by itself; zero if it does not.
func (b *Board) Factor(now time.Time, target suspend.Target) (permille int64, next time.Time) {
	e := b.targets[target]
	if e == nil {
		return Full, time.Time{}
	}
	if e.next.IsZero() || now.Before(e.next) {
		if now.After(e.seen.Add(-clockTolerance)) {
			return e.factor, e.next // nothing happened since: by far the most frequent
		}
	}
	e.advance(now)
	b.release(target, e)
	return e.factor, e.next
}

// Targets are those with a signal in force or a factor below Full, columns before levels and by name.
func (b *Board) Targets(now time.Time) []suspend.Target {
	for target, e := range b.targets {
		e.advance(now)
		b.release(target, e)
	}
	return slices.SortedFunc(maps.Keys(b.targets), func(x, y suspend.Target) int {
		return cmp.Or(cmp.Compare(x.Scope, y.Scope), cmp.Compare(x.Name, y.Name))
	})
}

// State is one signal in force.
type State struct {
	Signal   Signal
	Permille int64 // what it asks for now: its default if it is stale
	Stale    bool
}

// Explain lists the signals in force of a target, the lowest factor first. The factor itself may be lower than all of them
// while it rises.
func (b *Board) Explain(now time.Time, target suspend.Target) []State {
	e := b.targets[target]
	if e == nil {
		return nil
	}
	e.advance(now)
	states := make([]State, 0, len(e.sources))
	for _, s := range e.sources {
		permille, stale := s.Effective(e.seen)
		states = append(states, State{Signal: s, Permille: permille, Stale: stale})
	}
	b.release(target, e)
	slices.SortFunc(states, func(x, y State) int {
		return cmp.Or(cmp.Compare(x.Permille, y.Permille), cmp.Compare(x.Signal.Source, y.Signal.Source))
	})
	return states
}

func (b *Board) release(target suspend.Target, e *entry) {
	if len(e.sources) == 0 && e.factor == Full {
		delete(b.targets, target)
	}
}

// Effective is the factor the signal asks for at now, and whether it is stale.
func (s Signal) Effective(now time.Time) (permille int64, stale bool) {
	switch {
	case s.Until.IsZero() || now.Before(s.Until):
		return s.Permille, false
	case s.Kind == Poll:
		return s.Default, true
	}
	return Full, false
}

// drawnIn is s as if it had been made no later than now.
func (s Signal) drawnIn(now time.Time) Signal {
	ahead := s.At.Sub(now)
	if ahead <= 0 {
		return s
	}
	s.At = now
	if !s.Until.IsZero() {
		s.Until = s.Until.Add(-ahead)
	}
	return s
}

// advance lives through all that fell due until now: signals that end one by one, and the rise between their ends.
func (e *entry) advance(now time.Time) {
	if now.Before(e.seen) {
		if now.After(e.seen.Add(-clockTolerance)) {
			return
		}
		e.seen, e.rising = now, now // the clock was set back; a rise begins anew rather than stand still for as long
		for source, s := range e.sources {
			e.sources[source] = s.drawnIn(now)
		}
	}
	for {
		allowed, end := e.allowed(e.seen)
		if end.IsZero() || end.After(now) {
			e.rise(allowed, now)
			break
		}
		e.rise(allowed, end)
		e.prune()
	}
	e.prune()
	e.settle()
}

// allowed is the lowest factor that the sources ask for at an instant, and when that may next change; zero: never.
func (e *entry) allowed(at time.Time) (permille int64, change time.Time) {
	permille = Full
	for _, s := range e.sources {
		p, _ := s.Effective(at)
		permille = min(permille, p)
		if s.Until.After(at) && (change.IsZero() || s.Until.Before(change)) {
			change = s.Until
		}
	}
	return permille, change
}

// rise moves the factor from seen to end, between which nothing else happens.
func (e *entry) rise(allowed int64, end time.Time) {
	e.seen = end
	if e.factor >= allowed {
		e.factor, e.rising = allowed, end
		return
	}
	steps := int64(end.Sub(e.rising) / RiseStep)
	if steps <= 0 {
		return
	}
	if missing := allowed - e.factor; steps >= (missing+perStep-1)/perStep {
		e.factor, e.rising = allowed, end
		return
	}
	e.factor += steps * perStep
	e.rising = e.rising.Add(time.Duration(steps) * RiseStep)
}

// prune removes what is over: only polls stay beyond their time.
func (e *entry) prune() {
	for source, s := range e.sources {
		if s.Ended(e.seen) {
			delete(e.sources, source)
		}
	}
}

// settle brings factor and next in line with the sources as they are at seen.
func (e *entry) settle() {
	allowed, change := e.allowed(e.seen)
	if e.factor >= allowed {
		e.factor, e.rising = allowed, e.seen
	} else if step := e.rising.Add(RiseStep); change.IsZero() || step.Before(change) {
		change = step
	}
	e.next = change
}

// forgetOne removes the source that cuts least; of several the last by name, so that every process forgets the same.
func (e *entry) forgetOne() {
	var worst Signal
	highest := int64(-1)
	for _, s := range e.sources {
		p, _ := s.Effective(e.seen)
		if p > highest || p == highest && s.Source > worst.Source {
			worst, highest = s, p
		}
	}
	delete(e.sources, worst.Source)
}
