package dispatch

import (
	"time"

	"github.com/penstockmq/penstock/broker/lite"
	"github.com/penstockmq/penstock/readyset"
	"github.com/penstockmq/penstock/suspend"
	"github.com/penstockmq/penstock/suspend/policy"
	"github.com/penstockmq/penstock/suspend/signal"
)

const (
	// signalsFloor is the number of signals below which expired signals are kept.
	signalsFloor = 64
	// maxLevel is the least important level.
	maxLevel = 3
)

// signalKey names a signal: a later one of the same source replaces it.
type signalKey struct {
	target suspend.Target
	source string
}

// SetPolicy puts a policy in force, for what is queued too. Columns, levels and the
// whole follow with the next Tick. The resident buckets are reviewed by the Ticks from
// then on, some hundreds by each: NextWake is in the past until all are reviewed.
func (m *Machine) SetPolicy(now time.Time, doc *policy.Document) { m.ChangePolicy(now, doc, nil, nil) }

// ChangePolicy is SetPolicy for who has compared the document with the one before:
// reach is what policy.ReachOf says of old and doc, and only those buckets are reviewed.
// If another one than old is in force, or the review of an earlier change is not
// over, all are.
func (m *Machine) ChangePolicy(now time.Time, doc, old *policy.Document, reach *policy.Reach) {
	if doc == nil {
		doc = policy.Empty()
	}
	if old != m.doc || m.review > 0 {
		reach = nil
	}
	m.doc = doc
	for _, g := range m.groups {
		if g.cfg.Unlimited {
			continue
		}
		g.ledger.SetPolicy(now, doc)
		if unit := doc.CostUnit(); unit != g.unit {
			m.setUnit(g, unit)
		}
	}
	m.review, m.reviewAt, m.reach = len(m.all), now, reach
	m.check(now)
}

// setUnit changes what turns cost in a group.
func (m *Machine) setUnit(g *group, unit policy.CostUnit) {
	g.unit, g.forgive = unit, true
	g.set.SetQuantum(quantum(unit))
	for _, mb := range g.members {
		if mb.set != nil {
			mb.set.SetQuantum(quantum(unit))
		}
	}
}

// SetSignal puts a load signal in force, in all groups that have limits.
func (m *Machine) SetSignal(now time.Time, s signal.Signal) {
	if m.signals == nil {
		m.signals = map[signalKey]signal.Signal{}
	}
	// The threshold doubles, so that each signal is examined a few times in all, and not once
	// for each new signal.
	if len(m.signals) >= m.signalsFull {
		for k, old := range m.signals {
			if old.Ended(now) {
				delete(m.signals, k)
			}
		}
		m.signalsFull = 2*len(m.signals) + signalsFloor
	}
	m.signals[signalKey{s.Target, s.Source}], m.signalsAt = s, now
	for _, g := range m.groups {
		if !g.cfg.Unlimited {
			g.ledger.SetSignal(now, s)
		}
	}
	m.check(now)
}

// DropSignal forgets what a source said of a target.
func (m *Machine) DropSignal(now time.Time, t suspend.Target, source string) {
	delete(m.signals, signalKey{t, source})
	for _, g := range m.groups {
		if !g.cfg.Unlimited {
			g.ledger.DropSignal(now, t, source)
		}
	}
	m.check(now)
}

// reviewSome brings the next resident buckets in line with the policy. It goes from the
// end of all to its beginning: what comes meanwhile is appended, and knows the policy.
func (m *Machine) reviewSome(now time.Time) {
	if m.review == 0 {
		return
	}
	for m.review > 0 && spend(&m.left.reviews) {
		m.review--
		if b := m.all[m.review]; m.reach == nil || m.reach.Has(b.cell) || b.waitsForUnit() {
			m.reviewBucket(now, b)
		}
	}
	if m.review == 0 {
		m.reach = nil
		for _, g := range m.groups {
			g.forgive = false
		}
	}
}

// waitsForUnit is whether the bucket waits alone for a window of a column or above: what
// a policy changes there reaches it.
func (b *bucket) waitsForUnit() bool {
	for c := b.first; c != nil; c = c.sibling {
		if c.lost == aUnit {
			return true
		}
	}
	return false
}

func (m *Machine) reviewBucket(now time.Time, b *bucket) {
	m.relevel(b)
	for c := b.first; c != nil; c = c.sibling {
		place := c.where()
		if c.entry.Parked() { // then it has an account, which answers the rest once it was asked
			c.g.ledger.Narrow(now, place)
		}
		var weight uint16
		c.inFlight, weight = c.g.terms(place)
		c.eachEntry(func(s *readyset.Set[*cursor], e *readyset.Entry[*cursor]) {
			s.SetWeight(e, weight)
			if c.g.forgive {
				s.Forgive(e)
			}
		})
		c.skipDead() // its window may be longer than before
		m.arrange(now, c)
	}
}

// importance is the level in force for a cell whose messages have this stamp.
func (m *Machine) importance(c lite.Cell, stamped int8) uint8 {
	if stamped >= 0 {
		return min(uint8(stamped), maxLevel)
	}
	level, _ := m.doc.Importance(c.User, c.Model)
	return min(level, maxLevel)
}

// stamp takes note of the level of messages that are about to join the bucket.
func (m *Machine) stamp(b *bucket, level int8) {
	level = min(max(level, -1), maxLevel)
	if b.live > 0 && m.importance(b.cell, level) >= b.level {
		return // those that wait are as important
	}
	b.stamped = level
	m.relevel(b)
}

// relevel puts the level in force.
func (m *Machine) relevel(b *bucket) {
	level := m.importance(b.cell, b.stamped)
	if level == b.level {
		return
	}
	b.level = level
	for c := b.first; c != nil; c = c.sibling {
		c.g.recall(c)
		c.eachEntry(func(s *readyset.Set[*cursor], e *readyset.Entry[*cursor]) {
			s.SetLevel(e, readyset.Level(level))
		})
		if c.entry.Ready() { // perhaps out of a level that is closed
			m.rouse(c)
		}
	}
}

// enlist and delist keep Machine.all.
func (m *Machine) enlist(b *bucket) {
	b.at = uint32(len(m.all))
	m.all = append(m.all, b)
}

// delist fills the place of b with the last one. If b is still to be reviewed the last
// one is reviewed again, which does no harm.
//
// Invariant: those below review are the ones to be reviewed, and maybe others.
func (m *Machine) delist(b *bucket) {
	last := len(m.all) - 1
	m.all[b.at] = m.all[last]
	m.all[b.at].at = b.at
	m.all[last] = nil
	m.all = m.all[:last]
	m.review = min(m.review, last)
	if cap(m.all) > allFloor && last < cap(m.all)/4 {
		m.all = append(make([]*bucket, 0, cap(m.all)/2), m.all...)
	}
}

// allFloor is the capacity below which Machine.all keeps its array.
const allFloor = 1024
