package dispatch

import (
	"time"

	"github.com/penstockmq/penstock/readyset"
	"github.com/penstockmq/penstock/suspend"
)

// SetHold is an operator's suspend: exact, and an Until that is not after now lifts.
// Errors: ErrNoGroup and those of suspend.Table.Set; nothing was changed.
func (m *Machine) SetHold(now time.Time, id GroupID, h suspend.Hold) error {
	defer m.check(now)
	g := m.group(id)
	if g == nil {
		return ErrNoGroup
	}
	_, had := g.holds.Get(h.Target)
	if err := g.holds.Set(now, h); err != nil {
		return err
	}
	if _, has := g.holds.Get(h.Target); has || had {
		m.holdChanged(now, g, h.Target)
	}
	return nil
}

// ExtendHold is a worker's suspend of any scope: it never shortens one. It returns
// the hold in force.
// Errors: ErrNoGroup and those of suspend.Table.Extend; nothing was changed.
func (m *Machine) ExtendHold(now time.Time, id GroupID, h suspend.Hold) (suspend.Hold, error) {
	defer m.check(now)
	g := m.group(id)
	if g == nil {
		return suspend.Hold{}, ErrNoGroup
	}
	return m.extend(now, g, h)
}

func (m *Machine) extend(now time.Time, g *group, h suspend.Hold) (suspend.Hold, error) {
	inForce, changed, err := g.holds.Extend(now, h)
	if err == nil && changed {
		m.holdChanged(now, g, h.Target)
	}
	return inForce, err
}

// LiftHold ends a hold and reports whether there was one. Holds of other scopes stay.
func (m *Machine) LiftHold(now time.Time, id GroupID, t suspend.Target) (bool, error) {
	defer m.check(now)
	g := m.group(id)
	if g == nil {
		return false, ErrNoGroup
	}
	_, had := g.holds.Lift(t)
	if had {
		m.holdChanged(now, g, t)
	}
	return had, nil
}

// EachHold calls f for the holds of a group until f returns false.
func (m *Machine) EachHold(id GroupID, f func(suspend.Hold) bool) {
	if g := m.group(id); g != nil {
		g.holds.Each(f)
	}
}

// holdChanged writes what the table now says of a target and opens or closes its gate.
func (m *Machine) holdChanged(now time.Time, g *group, t suspend.Target) {
	h, held := g.holds.Get(t)
	op := PutHold
	if !held {
		op, h = DeleteHold, suspend.Hold{Target: t}
	}
	m.write(Write{Op: op, Group: g.cfg.ID, Hold: put(&m.out.holds, h)})
	m.armGates(g)
	m.setGate(now, g, t, held)
}

// holdsDue lifts the holds of a group whose instant has come.
func (m *Machine) holdsDue(now time.Time, g *group) {
	for {
		h, ok := g.holds.PopDue(now)
		if !ok {
			break
		}
		m.out.Counters.HoldsEnded++
		m.holdChanged(now, g, h.Target)
	}
	m.armGates(g)
}

func (m *Machine) armGates(g *group) {
	if at, ok := g.holds.Next(); ok {
		m.gates.Set(&g.item, at)
	} else {
		m.gates.Remove(&g.item)
	}
}

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
			g.set.Open(t, func(e *readyset.Entry[*cursor]) { m.arrange(now, e.Value) })
		}
	default:
		m.setWideGate(g, t, closed)
	}
}

func (m *Machine) setWideGate(g *group, t suspend.Target, closed bool) {
	if _, was := g.shut[t]; was == closed {
		return
	}
	if closed {
		g.shut[t] = struct{}{}
	} else {
		delete(g.shut, t)
	}
	switchUnit(g.set, t, closed)
	for _, mb := range g.members {
		if mb.set != nil {
			switchUnit(mb.set, t, closed)
			if !closed {
				m.eager(mb)
			}
		}
	}
	m.wake(g)
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
