package dispatch

import (
	"github.com/penstockmq/penstock/readyset"
	"github.com/penstockmq/penstock/suspend"
)

// windowMax is how far a group may be ahead of its oldest unsettled message in one
// bucket, beside its in-flight limit. It bounds the memory and the record of a bucket
// whose head runs for hours while its other messages go by.
const windowMax = 1024

// maxInFlight bounds GroupConfig.InFlight and the policy's in_flight of a cell.
const maxInFlight = 1024

// placeState is what became of a delivered message.
type placeState uint8

const (
	// untouched: at or above next. Places of the window are never in this state.
	untouched placeState = iota
	// back: returned, to be delivered again.
	back
	// out: leased.
	out
	// settled: nothing more is to be done for it in this group.
	settled
)

// place is a message of the window.
type place struct {
	lease *lease // iff out
	// attempts is the number of deliveries that count, while back.
	attempts uint32
	state    placeState
}

// lostTo is what took a bucket's turn.
type lostTo uint8

const (
	nothing lostTo = iota
	// aGate of its own or its row.
	aGate
	// aUnit has a window without room for what the head costs, and others may go: the
	// bucket waits at its own gate.
	aUnit
)

// cursor is a group's state in a bucket.
//
//	floor                next
//	  │ out back settled │ untouched …
//	  └──── window ──────┘
//
// Invariant: the window is empty or its first place is not settled; leased and
// returned count its places that are out and back.
type cursor struct {
	b       *bucket
	g       *group
	sibling *cursor // the next group's in the same bucket

	floor            Offset
	window           []place
	leased, returned uint16
	// inFlight is how many may be out at once.
	inFlight uint16
	// pace and last measure how fast the bucket drains, see pace.go.
	pace uint16
	last uint32
	// queued: it is in dirtyCursors. changed: its record is not what it should be.
	// recorded: it has a record.
	queued, changed, recorded bool
	// lost: its turn came and a gate kept it, so it goes first when that opens.
	lost lostTo
	// since is when it began to wait for nothing but its gates and its turn; 0: it
	// waits for something else.
	since int64

	// link is who subscribed to the bucket's name; nil if nobody.
	link  *link
	entry readyset.Entry[*cursor]
}

func (c *cursor) next() Offset { return c.floor + Offset(len(c.window)) }

// deliverable is whether a message could go if every gate were open.
func (c *cursor) deliverable() bool {
	return c.leased < c.inFlight && c.waits()
}

// waits is whether there is a message that is not out.
func (c *cursor) waits() bool {
	return c.returned > 0 || (c.next() < c.b.durable() && len(c.window) < c.windowMax())
}

// windowMax is how long its window may become.
func (c *cursor) windowMax() int { return windowMax + int(c.inFlight) }

// pick is the offset to deliver: the lowest that came back, else the next. The search
// is over the window, which is one place long unless several messages are out.
func (c *cursor) pick() (Offset, bool) {
	if !c.deliverable() {
		return 0, false
	}
	if c.returned > 0 {
		for i := range c.window {
			if c.window[i].state == back {
				return c.floor + Offset(i), true
			}
		}
	}
	return c.next(), true
}

// at is the place of off in the window; nil if it is not in it.
func (c *cursor) at(off Offset) *place {
	if off < c.floor || off >= c.next() {
		return nil
	}
	return &c.window[off-c.floor]
}

func (c *cursor) stateAt(off Offset) placeState {
	switch p := c.at(off); {
	case p != nil:
		return p.state
	case off < c.floor:
		return settled
	default:
		return untouched
	}
}

// reach extends the window to include off. What it newly covers is dead, or back with
// no attempt that counts, which means as much as untouched.
func (c *cursor) reach(off Offset) {
	for next := c.next(); next <= off; next++ {
		state := back
		if c.b.isDead(next) {
			state = settled
		}
		c.window = append(c.window, place{state: state})
		c.tally(state, +1)
	}
	c.skipDead()
}

// set moves a place to another state and keeps the counts.
func (c *cursor) set(p *place, to placeState) {
	c.tally(p.state, -1)
	p.state = to
	c.tally(to, +1)
}

func (c *cursor) tally(s placeState, n int) {
	switch s {
	case back:
		c.returned = uint16(int(c.returned) + n)
		c.g.returned += n
	case out:
		c.leased = uint16(int(c.leased) + n)
		c.g.leases += n
	case untouched, settled:
	}
}

// advance moves the floor over what is settled or dead.
func (c *cursor) advance() {
	n := 0
	for n < len(c.window) && c.window[n].state == settled {
		n++
	}
	if n > 0 {
		c.floor += Offset(n)
		kept := copy(c.window, c.window[n:])
		clear(c.window[kept:])
		c.window = c.window[:kept]
	}
	c.skipDead()
}

// skipDead makes next a message that lives, or durable, or the window full.
func (c *cursor) skipDead() {
	if c.b.live == c.b.retained {
		return
	}
	durable := c.b.durable()
	for c.next() < durable {
		end := c.b.deadEnd(c.next(), durable)
		if end == c.next() {
			return
		}
		if len(c.window) == 0 {
			c.floor = end
			continue
		}
		for c.next() < end {
			if len(c.window) >= c.windowMax() {
				return
			}
			c.window = append(c.window, place{state: settled})
		}
	}
}

// where is what decides which holds and limits cover the bucket.
func (c *cursor) where() suspend.Place {
	return suspend.Place{Bucket: c.b.name, User: c.b.cell.User, Model: c.b.cell.Model, Level: c.b.level}
}

func (m *Machine) newCursor(b *bucket, g *group, floor Offset) *cursor {
	c := m.pool.cursor()
	c.b, c.g, c.floor = b, g, floor
	c.sibling, b.first = b.first, c
	c.inFlight, c.entry.Weight = g.terms(c.where())
	g.set.Init(&c.entry, c, b.cell.Model, readyset.Level(b.level))
	if len(g.links) > 0 {
		c.join(g.links[b.name])
	}
	return c
}

// join makes the subscribers of the bucket's name known to its cursor.
func (c *cursor) join(l *link) {
	if l == nil {
		return
	}
	c.link, l.cursor = l, c
	for s := l.first; s != nil; s = s.next {
		s.attach(c)
	}
}

// dropCursor lets go of a cursor. REQUIRES: nothing of it is out.
func (m *Machine) dropCursor(c *cursor) {
	if c.link != nil {
		for s := c.link.first; s != nil; s = s.next {
			s.detach()
		}
		c.link.cursor = nil
	}
	c.g.returned -= int(c.returned)
	c.g.recall(c)
	c.g.set.Drop(&c.entry)
	c.b = nil
	if !c.queued {
		m.pool.putCursor(c)
	}
}

func (m *Machine) touchCursor(c *cursor) {
	if !c.queued {
		c.queued = true
		m.dirtyCursors = append(m.dirtyCursors, c)
	}
}

// moved has the cursor's record written if it needs one.
func (m *Machine) moved(c *cursor) {
	c.changed = true
	m.touchCursor(c)
}
