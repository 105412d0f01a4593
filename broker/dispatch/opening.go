package dispatch

import (
	"cmp"
	"container/list"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/penstockmq/penstock/suspend"
)

// A row that opens lets as many of its buckets into the rings as its limits have room
// for, in the order in which they came to its gate. If all of them came, the first would
// take the room and the others would come to their turns only to be parked again: a user
// with 10,000 buckets would cost the loop 10,000 looks for each message.
//
// So a row has an opening while some of its buckets wait behind others that were
// offered. When one of these leaves its ring, whatever the reason, the next is offered,
// if the row is still open. An offered bucket that cannot go, because its column or
// level is closed, takes no room: else it would keep back buckets of other columns. And
// where clients subscribe to single names, all are let in, as the next poll may be for
// any of them.

// opening is a row of which some buckets are offered.
type opening struct {
	target suspend.Target
	// ready is how many of those offered are still in their rings and may go.
	ready int
	// queued: it is in openings.again.
	queued bool
}

// offer is a bucket that was offered.
type offer struct {
	of *opening
	// units are its column and level, in the units' lists of offers.
	units [2]suspend.Target
	at    [2]*list.Element
}

// openings are those of a group. The zero value is ready.
type openings struct {
	open   map[suspend.Target]*opening
	offers map[*cursor]*offer
	// units are the offered buckets of a column or level, to be found when it closes.
	units map[suspend.Target]*list.List
	// again are rows of which the next bucket may be offered.
	again []*opening
}

// opens is whether something is to come that has the row looked at again.
func (s *openings) opens(t suspend.Target) bool {
	o := s.open[t]
	return o != nil && (o.ready > 0 || o.queued)
}

// roomier has the next bucket of a row offered, if some wait behind others: there may be
// room for more of them.
func (s *openings) roomier(user string) {
	if len(s.open) == 0 {
		return
	}
	if o := s.open[suspend.Target{Scope: suspend.Row, Name: user}]; o != nil {
		s.lookAgain(o)
	}
}

func (s *openings) lookAgain(o *opening) {
	if !o.queued {
		o.queued = true
		s.again = append(s.again, o)
	}
}

// recall takes note that a bucket leaves its ring, or cannot go any more.
func (s *openings) recall(c *cursor) {
	if len(s.offers) == 0 {
		return
	}
	x := s.offers[c]
	if x == nil {
		return
	}
	delete(s.offers, c)
	for i, t := range x.units {
		if l := s.units[t]; x.at[i] != nil {
			if l.Remove(x.at[i]); l.Len() == 0 {
				delete(s.units, t)
			}
		}
	}
	x.of.ready--
	s.lookAgain(x.of)
}

// recallUnit does so for all buckets of a column or level that closes.
func (s *openings) recallUnit(t suspend.Target) {
	for l := s.units[t]; l != nil && l.Len() > 0; {
		s.recall(l.Front().Value.(*cursor))
	}
}

// openAll has all buckets offered that wait behind others.
func (s *openings) openAll() {
	for _, o := range slices.SortedFunc(maps.Values(s.open), func(a, b *opening) int { return cmp.Compare(a.target.Name, b.target.Name) }) {
		s.lookAgain(o)
	}
}

// note has a bucket that was let into the rings take room of its row, unless its column
// or level is closed.
func (g *group) note(o *opening, c *cursor) {
	x := &offer{of: o, units: [2]suspend.Target{{Scope: suspend.Column, Name: c.b.cell.Model}, levelTarget(c.b.level)}}
	if g.shut[x.units[0]] != 0 || g.shut[x.units[1]] != 0 {
		return
	}
	if g.offers == nil {
		g.offers, g.units = map[*cursor]*offer{}, map[suspend.Target]*list.List{}
	}
	for i, t := range x.units {
		l := g.units[t]
		if l == nil {
			l = list.New()
			g.units[t] = l
		}
		x.at[i] = l.PushBack(c)
	}
	g.offers[c] = x
	o.ready++
}

// room is how many buckets of a narrow gate may be offered at once.
func (g *group) room(now time.Time, t suspend.Target) int {
	if t.Scope != suspend.Row || len(g.links) > 0 {
		return math.MaxInt
	}
	return g.ledger.Room(now, t)
}

// openNarrow lets those go that wait for a narrow gate, as far as there is room, and
// reports whether it was done: whether something was left of the turn's share. Some
// may find another gate closed. Of those offered, one that lost its turn is to be first,
// and the one that lost it longest ago the first of them, so it is resumed last, see
// readyset.
func (m *Machine) openNarrow(now time.Time, g *group, t suspend.Target) bool {
	lost, done := m.lost[:0], true
	o, room := g.open[t], g.room(now, t)
	for e := g.set.First(t); e != nil; e = g.set.First(t) {
		if !spend(&m.left.gates) {
			done = false
			break
		}
		c := e.Value
		if !c.deliverable() {
			c.withdraw()
			continue
		}
		target, closed := c.narrow(now)
		if closed && target != t {
			c.park(target)
			continue
		}
		if closed || o != nil && o.ready >= room {
			break
		}
		g.set.Remove(e)
		if room < math.MaxInt {
			if o == nil {
				o = g.newOpening(t)
			}
			g.note(o, c)
		}
		if c.lost != nothing {
			lost = append(lost, c)
		} else {
			m.offer(c)
		}
	}
	for _, c := range slices.Backward(lost) {
		m.offer(c)
	}
	clear(lost)
	m.lost = lost[:0]
	if o != nil && o.ready == 0 && !o.queued {
		delete(g.open, t)
	}
	return done
}

func (g *group) newOpening(t suspend.Target) *opening {
	o := &opening{target: t}
	if g.open == nil {
		g.open = map[suspend.Target]*opening{}
	}
	g.open[t] = o
	return o
}

// openFreed has what waited for something that ended look again, as far as something
// is left of the turn's share. What is left of a gate comes after the others.
func (m *Machine) openFreed(now time.Time) {
	for _, g := range m.groups {
		for _, o := range g.again {
			o.queued = false
			m.freed.push(freed{g, o.target})
		}
		clear(g.again)
		g.again = g.again[:0]
	}
	for n := m.freed.len(); n > 0 && m.left.gates > 0; n-- {
		f, before := m.freed.pop(), m.left.gates
		m.reopen(now, f.group, f.target)
		if m.left.gates == before {
			m.left.gates--
		}
	}
}

// reopen makes the ready matrix agree with what the ledger now says of a target.
func (m *Machine) reopen(now time.Time, g *group, t suspend.Target) {
	if t.Scope > suspend.Row {
		m.lookWide(now, g, t)
	} else if !m.openNarrow(now, g, t) {
		m.freed.push(freed{g, t})
	}
}

// levelTarget is the unit of a level.
func levelTarget(level uint8) suspend.Target {
	return suspend.Target{Scope: suspend.Level, Name: string(rune('0' + level))}
}

// freedQueue is gates to be looked at, the oldest first.
type freedQueue struct {
	list []freed
	head int
}

func (q *freedQueue) len() int { return len(q.list) - q.head }

func (q *freedQueue) push(f freed) {
	if q.head > 0 && len(q.list) == cap(q.list) {
		n := copy(q.list, q.list[q.head:])
		clear(q.list[n:])
		q.list, q.head = q.list[:n], 0
	}
	q.list = append(q.list, f)
}

func (q *freedQueue) pop() freed {
	f := q.list[q.head]
	q.list[q.head] = freed{}
	if q.head++; q.head == len(q.list) {
		q.list, q.head = q.list[:0], 0
	}
	return f
}

// drop takes a group out that is gone.
func (q *freedQueue) drop(g *group) {
	q.list = slices.DeleteFunc(q.list[q.head:], func(f freed) bool { return f.group == g })
	q.head = 0
}

func (q *freedQueue) has(f freed) bool { return slices.Contains(q.list[q.head:], f) }
