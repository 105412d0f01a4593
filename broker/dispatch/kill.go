package dispatch

import (
	"time"

	"github.com/penstockmq/penstock/suspend/quota"
)

// kill settles messages [from, to) for every group and deletes them, but for those
// that a group has out, and says why. It returns how many were waiting in some group.
//
// Their cursors need no record: the bucket records its dead messages, and in memory
// cursors step over the messages in deadSet.
func (m *Machine) kill(now time.Time, b *bucket, from, to Offset, inStore bool, why DiscardReason) int {
	from, to = max(from, b.head()), min(to, b.durable())
	n := 0
	for from < to {
		stop := b.nextLeased(from, to)
		if from < stop {
			n += m.killQuiet(b, from, stop, inStore, why)
		}
		from = stop + 1
	}
	if n == 0 {
		return 0
	}
	for c := b.first; c != nil; c = c.sibling {
		c.advance()
		m.moved(c)
	}
	m.trim(now, b)
	m.changed(b)
	m.arrangeAll(now, b)
	return n
}

// nextLeased is the first offset from from on that a group has out, or to.
func (b *bucket) nextLeased(from, to Offset) Offset {
	for c := b.first; c != nil; c = c.sibling {
		for off := max(from, c.floor); c.leased > 0 && off < min(to, c.next()); off++ {
			if c.at(off).state == out {
				to = off
			}
		}
	}
	return to
}

// killQuiet kills messages of which none is out.
func (m *Machine) killQuiet(b *bucket, from, to Offset, inStore bool, why DiscardReason) int {
	n := 0
	b.eachLive(from, to, func(from, to Offset, size uint32) {
		n += int(to - from)
		m.discarded(b, from, to, why)
		if inStore {
			m.forget(b, from, to, size)
		} else {
			m.uncount(b, from, to, size)
		}
	})
	if n == 0 {
		return 0 // they were dead already
	}
	m.entomb(b, from, to)
	for c := b.first; c != nil; c = c.sibling {
		for off := max(from, c.floor); off < min(to, c.next()); off++ {
			if p := c.at(off); p.state == back {
				c.set(p, settled)
				p.attempts = 0
			}
		}
	}
	return n
}

// discarded tells of those of the messages that nobody was given for good.
func (m *Machine) discarded(b *bucket, from, to Offset, why DiscardReason) {
	if why == untold {
		return
	}
	tell := func(to Offset) {
		if n := len(m.out.Discards); n > 0 && from < to {
			if last := &m.out.Discards[n-1]; last.Bucket == b.id && last.Reason == why && last.To == from {
				last.To = to
				return
			}
		}
		if from < to {
			m.out.Discards = append(m.out.Discards, Discard{Bucket: b.id, Name: b.name, Offset: from, To: to, Reason: why})
		}
	}
	for off := from; off < to; off++ {
		seen, further := b.settledSomewhere(off)
		if seen {
			tell(off)
			from = off + 1
		} else if !further {
			break
		}
	}
	tell(to)
}

// settledSomewhere is whether a group is done with a message, and whether any can be
// with one above it.
func (b *bucket) settledSomewhere(off Offset) (done, further bool) {
	for c := b.first; c != nil; c = c.sibling {
		done = done || c.stateAt(off) == settled
		further = further || off < c.next()
	}
	return done, further
}

// isSettled reports whether every group has settled a message; false without groups.
func (b *bucket) isSettled(off Offset) bool {
	for c := b.first; c != nil; c = c.sibling {
		if c.stateAt(off) != settled {
			return false
		}
	}
	return b.first != nil
}

// Cancel settles a queued message in every group. One that a group has out is
// Running and left alone: its consumer has to be told otherwise.
func (m *Machine) Cancel(now time.Time, name string, id BucketID, off Offset) CancelResult {
	defer m.check(now)
	b := m.byName[name]
	if b == nil || b.id != id || off < b.head() || off >= b.durable() {
		return Gone
	}
	if b.leased(off) {
		return Running
	}
	if m.kill(now, b, off, off+1, true, untold) == 0 {
		return Gone
	}
	m.out.Counters.Settled++
	return Cancelled
}

// Purge settles every queued message of a bucket in every group and returns how
// many there were. What is out stays out.
func (m *Machine) Purge(now time.Time, name string) int {
	defer m.check(now)
	b := m.byName[name]
	if b == nil {
		return 0
	}
	n := m.kill(now, b, b.head(), b.durable(), true, DiscardPurged)
	m.out.Counters.Settled += n
	return n
}

// Seek moves a group to an offset of a bucket, or to the nearest one that is there.
// In one step it forgets what the group has out and what came back to it. In an idle
// bucket there is nowhere to go.
func (m *Machine) Seek(now time.Time, id GroupID, name string, off Offset) error {
	defer m.check(now)
	if m.group(id) == nil {
		return ErrNoGroup
	}
	b := m.byName[name]
	if b == nil {
		return nil
	}
	c := b.cursor(id)
	m.emptyWindow(now, c)
	c.floor = min(max(off, b.head()), b.durable())
	c.skipDead()
	m.moved(c)
	m.buryDone(b)
	m.trim(now, b)
	m.arrange(now, c)
	return nil
}

// emptyWindow forgets what became of the messages above the floor.
func (m *Machine) emptyWindow(now time.Time, c *cursor) {
	for i := range c.window {
		p := &c.window[i]
		if p.state == out {
			m.endLease(now, p.lease, 0, quota.Settlement{})
		}
		c.set(p, settled)
	}
	clear(c.window)
	c.window = c.window[:0]
}
