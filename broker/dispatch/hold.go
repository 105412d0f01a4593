package dispatch

import (
	"fmt"
	"time"

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
// Errors: ErrNoGroup, ErrTooManyHolds and those of suspend.Table.Extend; nothing was
// changed.
func (m *Machine) ExtendHold(now time.Time, id GroupID, h suspend.Hold) (suspend.Hold, error) {
	defer m.check(now)
	g := m.group(id)
	if g == nil {
		return suspend.Hold{}, ErrNoGroup
	}
	if _, had := g.holds.Get(h.Target); !had && g.holds.Len() >= m.maxHolds {
		return suspend.Hold{}, fmt.Errorf("%w: %d, at most %d", ErrTooManyHolds, g.holds.Len(), m.maxHolds)
	}
	return m.extend(now, g, h)
}

// maxHolds bounds the holds of a group that workers may set by name: a name need not exist.
// Holds of buckets with a message in flight are bounded by the number of such buckets, and
// an operator is not refused.
const maxHolds = 1_000_000

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

// Hold returns a group's hold of exactly this target.
func (m *Machine) Hold(id GroupID, t suspend.Target) (suspend.Hold, bool) {
	g := m.group(id)
	if g == nil {
		return suspend.Hold{}, false
	}
	return g.holds.Get(t)
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
	for m.left.holds > 0 {
		h, ok := g.holds.PopDue(now)
		if !ok {
			break
		}
		m.left.holds--
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
