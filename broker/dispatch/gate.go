package dispatch

import (
	"time"

	"github.com/penstockmq/penstock/readyset"
	"github.com/penstockmq/penstock/suspend"
)

// cause is why a wide gate is closed: one bit for each, as both may be true. The unit is
// open iff there is none, so that lifting a hold does not undo a limit, nor a limit
// that has time again a hold.
type cause uint8

const (
	byHold cause = 1 << iota
	byLimit
)

// setGate makes the ready matrix agree with a hold. A bucket's gate closes at once.
// A row's closes for each of its buckets when its turn comes, see choose. Wide gates
// close the group's sets as units.
func (m *Machine) setGate(now time.Time, g *group, t suspend.Target, closed bool) {
	switch {
	case t.Scope == suspend.Bucket && closed:
		if b := m.byName[t.Name]; b != nil {
			m.arrange(now, b.cursor(g.cfg.ID))
		}
	case t.Scope == suspend.Bucket || t.Scope == suspend.Row:
		if !closed {
			m.freed.push(freed{g, t}) // the next Match looks at it: a row may have many buckets
		}
	default:
		m.setWideGate(g, t, byHold, closed)
	}
}

// setWideGate notes whether there is this cause for a unit to be closed, and closes or
// opens it.
func (m *Machine) setWideGate(g *group, t suspend.Target, why cause, closed bool) {
	was := g.shut[t]
	is := was &^ why
	if closed {
		is |= why
	}
	if is == 0 {
		delete(g.shut, t)
	} else if is != was {
		g.shut[t] = is
	}
	if (is == 0) == (was == 0) {
		return
	}
	switchUnit(g.set, t, closed)
	if closed {
		g.recallUnit(t)
	}
	for _, mb := range g.members {
		if mb.set != nil {
			switchUnit(mb.set, t, closed)
			if !closed {
				m.eager(mb)
			}
		}
	}
	if !closed {
		m.wake(g)
	}
}

// switchUnit closes or opens a column, a level or all of a set.
func switchUnit(s *readyset.Set[*cursor], t suspend.Target, closed bool) {
	switch {
	case t.Scope == suspend.Column && closed:
		s.CloseColumn(t.Name)
	case t.Scope == suspend.Column:
		s.OpenColumn(t.Name)
	case t.Scope == suspend.Level && closed:
		s.CloseLevel(levelOf(t))
	case t.Scope == suspend.Level:
		s.OpenLevel(levelOf(t))
	case closed:
		s.CloseAll()
	default:
		s.OpenAll()
	}
}

// levelOf is the level a valid target names: "0" to "3".
func levelOf(t suspend.Target) readyset.Level { return readyset.Level(t.Name[0] - '0') }
