package dispatch

import (
	"math"
	"time"

	"github.com/penstockmq/penstock/suspend/quota"
)

// kill settles messages [from, to) for every group and deletes them, but for those
// that a group has out, and says why. It returns how many were waiting in some group.
//
// Their cursors need no record of it: after a restart such a message is not in the
// store, and a message that is not there is settled when its turn comes. In memory
// their runs are dead and cursors step over them, so that nobody reads what is not there.
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
	b.runs.kill(from, to, b.tail, func(from, to Offset, size uint32) {
		n += int(to-from) - b.settledEverywhere(from, to)
		m.discarded(b, from, to, why)
		if inStore {
			m.forget(b, from, to, size)
		} else {
			m.uncount(b, from, to, size)
		}
	})
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

// settledEverywhere counts the messages in [from, to) that no group waits for any
// more and that only a message below keeps from being deleted.
func (b *bucket) settledEverywhere(from, to Offset) int {
	c := b.first
	if c == nil {
		return 0
	}
	for other := c.sibling; other != nil; other = other.sibling {
		if other.floor < c.floor {
			c = other // none is below the lowest floor, and its window has all that are above
		}
	}
	n := 0
	for off := max(from, c.floor); off < min(to, c.next()); off++ {
		if b.isSettled(off) {
			n++
		}
	}
	return n
}

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
	if b.isSettled(off) || m.kill(now, b, off, off+1, true, untold) == 0 {
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

// expire settles a queued message whose deadline has passed when its turn comes.
func (m *Machine) expire(now time.Time, c *cursor, off Offset) {
	m.out.Counters.Expired++
	if m.kill(now, c.b, off, off+1, true, DiscardExpired) == 0 { // another group has it out
		c.reach(off)
		m.settle(now, c, off, quota.Settlement{})
	}
}

// overdue is whether a message of the bucket is known to be past its deadline.
func (b *bucket) overdue(now time.Time, off Offset) bool {
	if b.due == 0 {
		return false
	}
	d := b.runs[b.runs.find(off)].deadline
	return d != 0 && d <= instant(now)
}

// sweepDeadlines settles what is past its deadline anywhere in the bucket. It is
// called when a cap is about to refuse an append, and looks at the queue only if a
// deadline has passed since it last did: a sender that hammers a full bucket does
// not buy a scan with each try.
func (m *Machine) sweepDeadlines(now time.Time, b *bucket) {
	if b.due == 0 || b.due > instant(now) {
		return
	}
	type stretch struct{ from, to Offset }
	var passed []stretch
	due := int64(math.MaxInt64)
	for i, r := range b.runs {
		switch {
		case r.deadline == 0:
		case r.deadline <= instant(now):
			passed = append(passed, stretch{r.start, b.runs.end(i, b.tail)})
		default:
			due = min(due, r.deadline)
		}
	}
	b.due = due
	for _, p := range passed {
		m.out.Counters.Expired += m.kill(now, b, p.from, p.to, true, DiscardExpired)
	}
}
