package dispatch

import (
	"time"

	"github.com/penstockmq/penstock/readyset"
	"github.com/penstockmq/penstock/suspend"
)

// narrow is a closed gate of the bucket or its row: a hold, the one that opens last, or
// else a limit. Wide gates close a group's sets as units and need no look here.
func (c *cursor) narrow(now time.Time) (suspend.Target, bool) {
	place := c.where()
	if c.g.holds.Len() > 0 {
		if h, closed := c.g.holds.Parking(now, place); closed {
			return h.Target, true
		}
	}
	gate, closed := c.g.ledger.Narrow(now, place)
	return gate.Target, closed
}

// arrange puts the bucket where it belongs in the group's ready matrix: nowhere, on
// a gate, or in the rings. Every event that may change the answer ends with it: this
// is what keeps a wake-up from being lost.
func (m *Machine) arrange(now time.Time, c *cursor) {
	if !c.deliverable() {
		c.withdraw()
		return
	}
	if c.since == 0 {
		c.since = instant(now)
	}
	if target, closed := c.narrow(now); closed {
		c.park(target)
		return
	}
	m.offer(c)
}

// arrangeAll is arrange for every group.
func (m *Machine) arrangeAll(now time.Time, b *bucket) {
	for c := b.first; c != nil; c = c.sibling {
		m.arrange(now, c)
	}
}

// park makes the bucket wait for a gate and for nothing else.
func (c *cursor) park(target suspend.Target) {
	c.withdrawSubs()
	c.g.recall(c)
	c.g.set.Park(&c.entry, target)
}

// offer puts the bucket into the rings of the group and of its exact subscribers; one
// that was kept from its turn is the first there.
func (m *Machine) offer(c *cursor) {
	if c.entry.Ready() {
		return
	}
	enter := (*readyset.Set[*cursor]).Add
	if c.lost != nothing {
		enter = (*readyset.Set[*cursor]).Resume
	}
	c.lost = nothing
	enter(c.g.set, &c.entry)
	if c.link != nil {
		for s := c.link.first; s != nil; s = s.next {
			enter(s.member.set, &s.entry)
		}
	}
	m.rouse(c)
}

// rouse has the next Match look at everybody who could take the bucket.
func (m *Machine) rouse(c *cursor) {
	if c.link != nil {
		for s := c.link.first; s != nil; s = s.next {
			m.eager(s.member)
		}
	}
	m.wake(c.g)
}

// withdraw takes the bucket out of all rings, and off its gate.
func (c *cursor) withdraw() {
	c.since, c.lost = 0, nothing
	c.g.recall(c)
	c.g.set.Remove(&c.entry)
	c.withdrawSubs()
}

func (c *cursor) withdrawSubs() {
	if c.link == nil {
		return
	}
	for s := c.link.first; s != nil; s = s.next {
		s.member.set.Remove(&s.entry)
	}
}

// eachEntry calls f for the bucket's entry in each set of the group.
func (c *cursor) eachEntry(f func(*readyset.Set[*cursor], *readyset.Entry[*cursor])) {
	f(c.g.set, &c.entry)
	if c.link == nil {
		return
	}
	for s := c.link.first; s != nil; s = s.next {
		f(s.member.set, &s.entry)
	}
}
