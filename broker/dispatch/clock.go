package dispatch

import (
	"maps"
	"slices"
	"time"

	"github.com/penstockmq/penstock/suspend"
	"github.com/penstockmq/penstock/suspend/deadline"
)

const (
	// startGrace is the minimum remaining time of a lease after a start: its worker could not
	// renew it while the broker was down, and may still run.
	startGrace = 10 * time.Second
	// maxLease bounds the remaining time of a lease after a start.
	maxLease = 12 * time.Hour
)

// ClockStepped reports that the wall clock was set by step and now reads now. Instants
// that stand for a length of time move along: the ends of leases, polls and holds, the last
// requests of clients, signals. So a hold of 2 s lasts 2 s, and a running message is not
// delivered again because of the step.
//
// Instants chosen by another clock stay: the deadlines of messages, which their senders
// set, and the TTL of buckets. The ledger detects a step by itself.
//
// A call between the Restore calls and Start reports a step that happened while the broker
// was down.
func (m *Machine) ClockStepped(now time.Time, step time.Duration) {
	m.moveLeases(step)
	m.leases.Each(func(it *deadline.Item[*lease]) { it.Value.first += int64(step) })
	m.polls.Shift(step)
	m.living.Shift(step)
	for _, c := range m.clients {
		c.seen += int64(step)
	}
	for i := range m.startHolds {
		h := &m.startHolds[i]
		h.hold.Until, h.moved = h.hold.Until.Add(step), true
	}
	for _, g := range m.groups {
		g.holds.Shift(step)
		g.holds.Each(func(h suspend.Hold) bool {
			m.write(Write{Op: PutHold, Group: g.cfg.ID, Hold: put(&m.out.holds, h)})
			return true
		})
		m.armGates(g)
	}
	for k, s := range m.signals {
		s.At = s.At.Add(step)
		if !s.Until.IsZero() {
			s.Until = s.Until.Add(step)
		}
		m.signals[k] = s
	}
	for _, s := range maps.Clone(m.signals) { // SetSignal may drop expired signals
		m.SetSignal(now, s)
	}
	if !m.reviewAt.IsZero() {
		m.reviewAt = m.reviewAt.Add(step)
	}
	m.check(now)
}

// Paused reports that no event could arrive for gap, because the process was stopped or the
// disk stalled. Leases and the last requests of clients are prolonged by gap, since workers
// could not renew their leases meanwhile. Holds are not: their time has passed.
func (m *Machine) Paused(now time.Time, gap time.Duration) {
	m.moveLeases(gap)
	m.living.Shift(gap)
	for _, c := range m.clients {
		c.seen = min(c.seen+int64(gap), instant(now))
	}
	m.check(now)
}

// moveLeases moves the ends of all leases, in memory and in their records.
func (m *Machine) moveLeases(d time.Duration) {
	m.leases.Shift(d)
	m.leases.Each(func(it *deadline.Item[*lease]) { m.putLease(it.Value) })
}

// StoppedAt tells the machine the last instant at which the process before this one is
// known to have run. REQUIRES: before Start; not after the now of Start.
func (m *Machine) StoppedAt(last time.Time) { m.stoppedAt = last }

// graceAtStart is the time that a lease with the given end gets at a start. A lease of 4 s
// gets no more than the part of the 4 s that was left when the broker stopped: a message
// whose worker died with the broker must not wait for longer than its lease.
func (m *Machine) graceAtStart(end time.Time) time.Duration {
	if m.stoppedAt.IsZero() {
		return startGrace
	}
	return min(startGrace, max(0, end.Sub(m.stoppedAt)))
}

// startLeases limits the remaining time of restored leases to graceAtStart at least and
// maxLease at most: the clock may have been set while the broker was down.
func (m *Machine) startLeases(now time.Time) {
	high := now.Add(maxLease)
	within := func(end time.Time) time.Time {
		low := now.Add(m.graceAtStart(end))
		switch {
		case end.Before(low):
			return low
		case end.After(high):
			return high
		}
		return end
	}
	var odd []*lease
	m.leases.Each(func(it *deadline.Item[*lease]) {
		if !within(it.At()).Equal(it.At()) {
			odd = append(odd, it.Value)
		}
	})
	slices.SortFunc(odd, func(x, y *lease) int { return x.item.At().Compare(y.item.At()) }) // earliest end first
	for _, l := range odd {
		m.leases.Set(&l.item, within(l.item.At()))
		m.putLease(l)
	}
}
