package dispatch

import (
	"slices"
	"time"

	"github.com/penstockmq/penstock/readyset"
	"github.com/penstockmq/penstock/suspend"
	"github.com/penstockmq/penstock/suspend/quota"
)

// Match hands what is ready to those who wait, and then ends the polls whose time is
// over. Groups in which nothing has changed are not looked at, and a poll is touched
// only if it takes something: O(1) for each message, however many buckets wait. It tries no more
// buckets than a turn's share; then NextWake is in the past, and the next Match goes on
// with another group.
func (m *Machine) Match(now time.Time) {
	for m.openFreed(now); len(m.hungry) > 0 && m.left.looks > 0 && !m.stalled; m.openFreed(now) {
		for n := len(m.hungry); n > 0; n-- {
			g := m.hungry[0]
			m.hungry = m.hungry[:copy(m.hungry, m.hungry[1:])]
			g.hungry = false
			if !m.feed(now, g) {
				m.wake(g)
			}
		}
	}
	m.unfinished = len(m.hungry) > 0 || m.freed.len() > 0
	m.stalled = false
	popDue(&m.polls, now, &m.left.polls, m.endPoll)
	m.check(now)
}

// wake has the next Match look at the group.
func (m *Machine) wake(g *group) {
	if !g.hungry {
		g.hungry = true
		m.hungry = append(m.hungry, g)
	}
}

// eager has the next Match look at a member with a set of its own.
func (m *Machine) eager(mb *member) {
	if !mb.eager {
		mb.eager = true
		mb.g.eager = append(mb.g.eager, mb)
	}
	m.wake(mb.g)
}

// feed serves the group's exact clients, then its wildcard clients. Within each, the
// client that waits longest takes first. It reports whether it finished within the turn's
// looks.
func (m *Machine) feed(now time.Time, g *group) bool {
	if g.ledger.Pending() {
		return false // a new policy may have closed units that were not checked yet
	}
	n := len(g.eager)
	for i := range n {
		mb := g.eager[i]
		mb.eager = false
		for mb.set != nil && !mb.wildcard && mb.waiters.head != nil && m.fill(now, mb.waiters.head, mb.set) {
		}
		if m.left.looks <= 0 && mb.waiters.head != nil && mb.set != nil && mb.set.Ready() > 0 {
			mb.eager = true
			g.dropEager(i + 1)
			g.eager = append(g.eager, mb)
			return false
		}
	}
	g.dropEager(n)
	for g.waiting.head != nil && m.fill(now, g.waiting.head, g.set) {
	}
	return !m.stalled && (m.left.looks > 0 || g.waiting.head == nil || g.set.Ready() == 0)
}

// dropEager drops the first n of the group's eager members.
func (g *group) dropEager(n int) {
	kept := copy(g.eager, g.eager[n:])
	clear(g.eager[kept:])
	g.eager = g.eager[:kept]
}

// fill gives a poll what is ready, at most one message of a bucket and at most what
// it asked for. If there is nothing it stays where it is and reports false.
func (m *Machine) fill(now time.Time, w *Waiter, set *readyset.Set[*cursor]) bool {
	m.pulls++
	first := len(m.out.items)
	later := m.later[:0]
	for len(m.out.items)-first < w.max && m.left.looks > 0 {
		e := set.Next()
		if e == nil {
			break
		}
		m.left.looks--
		c := e.Value
		if slices.Contains(later, c) {
			// All others have had their turn since: what is left is for another poll.
			// To pass over it would give its turns away.
			set.PutBack(e)
			break
		}
		off, ask, ok := m.choose(now, c, set, e)
		if !ok {
			if m.stalled && e.Ready() {
				later = append(later, c)
			}
			continue
		}
		m.checkStart(now, c, ask)
		c.withdraw()
		l := m.newLease(now, c, off, w, m.charge(now, c, set, e, ask))
		l.fair, l.output = c.g.fair(ask.Cost), ask.Cost.Output
		c.paced(now)
		m.deliverOne(w, l)
		m.arrange(now, c)
		later = append(later, c)
	}
	clear(later)
	m.later = later[:0]
	if len(m.out.items) == first {
		return false
	}
	m.wakeups++
	m.unqueue(w)
	m.deliver(w, first)
	return true
}

// choose finds the message to deliver from a bucket whose turn it is, and what it
// asks of the limits. A gate that closed since the bucket became ready is noticed
// here, and so are deadlines: rows and deadlines would otherwise need an index each.
// If there is nothing, the bucket is where it belongs.
//
// A bucket with more overdue messages than a turn may settle passes its turn to another bucket.
func (m *Machine) choose(now time.Time, c *cursor, set *readyset.Set[*cursor], e *readyset.Entry[*cursor]) (Offset, quota.Ask, bool) {
	if target, closed := c.narrow(now); closed {
		c.kept(target, aGate)
		return 0, quota.Ask{}, false
	}
	for {
		off, ok := c.pick()
		if !ok {
			c.withdraw()
			return 0, quota.Ask{}, false
		}
		if c.b.overdue(instant(now), off) {
			if !spend(&m.left.expiries) {
				m.stalled = true
				set.Add(e)
				return 0, quota.Ask{}, false
			}
			m.expire(now, c, off)
			continue
		}
		ask := m.ask(c, off)
		switch gate, fits := c.g.ledger.Fits(now, ask); {
		case fits:
			return off, ask, true
		case gate.Never:
			m.buryUnsent(now, c, off)
		case gate.Of.Scope > suspend.Row:
			c.kept(gate.Target, aUnit)
			return 0, quota.Ask{}, false
		default:
			c.kept(gate.Target, aGate)
			return 0, quota.Ask{}, false
		}
	}
}

// kept parks a bucket whose turn it was.
func (c *cursor) kept(target suspend.Target, lost lostTo) {
	c.park(target)
	c.lost = lost
}

// buryUnsent makes a message that can never go a dead letter.
func (m *Machine) buryUnsent(now time.Time, c *cursor, off Offset) {
	c.reach(off)
	m.bury(now, c, off, c.at(off).attempts, reasonNever, quota.Settlement{})
}

func (m *Machine) deliverOne(w *Waiter, l *lease) {
	m.out.items = append(m.out.items, l.itemOut())
	m.out.Counters.Delivered++
	if l.attempt > 1 {
		m.out.Counters.Redelivered++
	}
	if w.attemptID == "" {
		return
	}
	cl, key := w.member.client, batchKey{w.member.g.cfg.ID, w.attemptID}
	b := cl.batches[key]
	if b == nil {
		b = &batch{client: cl, key: key}
		if cl.batches == nil {
			cl.batches = map[batchKey]*batch{}
		}
		cl.batches[key] = b
	}
	b.leases = append(b.leases, l)
	l.batch = b
}
