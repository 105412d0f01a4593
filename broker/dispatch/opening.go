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

// A row that opens puts only as many of its buckets into the rings as its limits have room
// for, in the order in which they came to its gate. If all came, the first would use up the
// room and each other bucket would be parked again at its turn: a user with 10,000 buckets
// would cost the loop 10,000 looks for each message.
//
// So a row has an opening while some of its buckets wait behind offered ones. When an
// offered bucket leaves its ring, for any reason, the next bucket is offered if the row is
// still open. An offered bucket that cannot be served, because its column or level is
// closed, takes no room: otherwise it would keep back buckets of other columns. Where
// clients subscribe to single names, all buckets are offered, as the next poll may be for
// any of them.

// opening is a row with some of its buckets offered.
type opening struct {
	target suspend.Target
	// ready is the number of offered buckets that are still in their rings and may be served.
	ready int
	// queued: it is in openings.again.
	queued bool
}

// offer is an offered bucket.
type offer struct {
	of *opening
	// units are its column and level, in the units' lists of offers.
	units [2]suspend.Target
	at    [2]*list.Element
}

// openings are the openings of a group. The zero value is ready for use.
type openings struct {
	open   map[suspend.Target]*opening
	offers map[*cursor]*offer
	// units are the offered buckets by column and by level, for a column or level that closes.
	units map[suspend.Target]*list.List
	// again are the rows that may offer their next bucket.
	again []*opening
}

// opens reports whether a coming event makes the machine look at the row again.
func (s *openings) opens(t suspend.Target) bool {
	o := s.open[t]
	return o != nil && (o.ready > 0 || o.queued)
}

// roomier lets a row offer its next bucket, if some wait behind offered ones: the row may
// have more room now.
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

// recall updates the opening when an offered bucket leaves its ring or cannot be served any more.
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

// recallUnit recalls all offered buckets of a column or level that closes.
func (s *openings) recallUnit(t suspend.Target) {
	for l := s.units[t]; l != nil && l.Len() > 0; {
		s.recall(l.Front().Value.(*cursor))
	}
}

// openAll offers all buckets that wait behind offered ones.
func (s *openings) openAll() {
	for _, o := range slices.SortedFunc(maps.Values(s.open), func(a, b *opening) int { return cmp.Compare(a.target.Name, b.target.Name) }) {
		s.lookAgain(o)
	}
}

// note counts an offered bucket against the room of its row, unless its column or level is
// closed.
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

// room returns how many buckets of a gate with little room may be offered at once.
func (g *group) room(now time.Time, t suspend.Target) int {
	if t.Scope != suspend.Row || len(g.links) > 0 {
		return math.MaxInt
	}
	return g.ledger.Room(now, t)
}

// openNarrow offers the buckets that wait for a gate with little room, as far as the room
// goes, and reports whether it finished within the turn's share. Some buckets may meet
// another closed gate. Among the offered, a bucket that lost its turn goes first, the one
// that lost it longest ago before the others, so it is resumed last, see readyset.
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

// openFreed reviews the buckets that waited for a freed gate, as far as the turn's share
// goes. The rest of a gate comes after the other gates.
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

// reopen makes the ready matrix agree with the ledger's state of a target.
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

// freedQueue holds the gates to be reviewed, the oldest first.
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

// drop removes the gates of a removed group.
func (q *freedQueue) drop(g *group) {
	q.list = slices.DeleteFunc(q.list[q.head:], func(f freed) bool { return f.group == g })
	q.head = 0
}

func (q *freedQueue) has(f freed) bool { return slices.Contains(q.list[q.head:], f) }
