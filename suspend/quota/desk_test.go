package quota

import (
	"testing"
	"time"

	"github.com/penstockmq/penstock/suspend"
	"github.com/penstockmq/penstock/suspend/policy"
)

var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func document(t testing.TB, text string) *policy.Document {
	t.Helper()
	return documentOf(t, text)
}

// documentOf is document for a property.
func documentOf(t interface{ Fatal(...any) }, text string) *policy.Document {
	doc, err := policy.Parse([]byte("version: 1\n" + text))
	if err != nil {
		t.Fatal(err)
	}
	return doc
}

func place(user, model string, level uint8) suspend.Place {
	return suspend.Place{Bucket: user + "__" + model, User: user, Model: model, Level: level}
}

func one(p suspend.Place) Ask { return Ask{Place: p, Cost: Cost{Requests: 1}} }

// desk is the machine that asks a ledger, cut down to what its answers mean.
type desk struct {
	*Ledger
	now    time.Time
	shut   map[suspend.Target]bool
	parked map[suspend.Target]bool
}

func newDesk(doc *policy.Document) *desk {
	return &desk{Ledger: New(doc), now: start, shut: map[suspend.Target]bool{}, parked: map[suspend.Target]bool{}}
}

func (d *desk) tell(t suspend.Target, closed bool, _ time.Time) { d.shut[t] = closed }

// look takes note of a target that came out of Due or Free.
func (d *desk) look(t suspend.Target) {
	delete(d.parked, t)
	if t.Scope > suspend.Row {
		_, closed := d.Look(d.now, t)
		d.shut[t] = closed
	}
}

func (d *desk) tick() {
	for t, ok := d.Due(d.now); ok; t, ok = d.Due(d.now) {
		d.look(t)
	}
}

// kept is whether the machine would not even ask.
func (d *desk) kept(p suspend.Place) bool {
	for scope := range suspend.Scope(scopes) {
		if t, ok := p.Target(scope); ok && (d.shut[t] || d.parked[t]) {
			return true
		}
	}
	return false
}

// try lets a message go if it may.
func (d *desk) try(a Ask) (Ticket, bool) {
	if d.kept(a.Place) {
		return Ticket{}, false
	}
	if g, closed := d.Narrow(d.now, a.Place); closed {
		d.parked[g.Target] = true
		return Ticket{}, false
	}
	if g, fits := d.Fits(d.now, a); !fits {
		d.parked[g.Target] = !g.Never
		return Ticket{}, false
	}
	t := d.Charge(d.now, a)
	d.Wide(d.now, a.Place, d.tell)
	return t, true
}

func (d *desk) free(p suspend.Place, t Ticket, s Settlement) {
	for _, target := range append([]suspend.Target(nil), d.Free(d.now, p, t, s)...) {
		d.look(target)
	}
}

// to moves the clock to an instant, through all timers.
func (d *desk) to(at time.Time) {
	for {
		next, ok := d.Next()
		if !ok || next.After(at) {
			break
		}
		if next.After(d.now) {
			d.now = next
		}
		d.tick()
	}
	d.now = at
	d.tick()
}

// stream offers messages of a place at an even pace.
type stream struct {
	place     suspend.Place
	every     time.Duration
	next      time.Time
	queued    int
	went      int
	forgetful bool // what does not go at once is not offered again
}

// run lets streams run until an instant, the first before the others when several may go. What goes is done at once.
func (d *desk) run(until time.Time, streams []*stream) {
	for {
		d.tick()
		for again := true; again; {
			again = false
			for _, s := range streams {
				for !s.next.After(d.now) {
					s.queued++
					s.next = s.next.Add(s.every)
				}
				if s.queued == 0 {
					continue
				}
				if t, ok := d.try(one(s.place)); ok {
					d.free(s.place, t, Settlement{})
					s.queued--
					s.went++
					again = true
				}
				if s.forgetful {
					s.queued = 0
				}
			}
		}
		next := until
		for _, s := range streams {
			if s.next.Before(next) {
				next = s.next
			}
		}
		if at, ok := d.Next(); ok && at.Before(next) {
			next = at
		}
		if !next.Before(until) {
			d.now = until
			return
		}
		d.now = later(d.now, next)
	}
}
