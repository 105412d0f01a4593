package readyset

import "github.com/penstockmq/penstock/suspend"

// Options configure a Set. The zero value of a field takes its default.
type Options struct {
	// Share: a lower level that has waited for this many turns of its column is
	// served before the higher ones. Default 16; at most 65,535.
	Share int
	// Quantum is the cost an entry of weight 1 may cause in a round. Default 1. It
	// should be near the cost of a cheap message: far below, entries sit out many
	// rounds; far above, costs under it count as equal.
	Quantum int64
}

// Set is a ready matrix. Make one with New.
type Set[T any] struct {
	share   uint16 // immutable after New
	quantum int64  // immutable after New

	columns map[string]*column[T]
	// turning holds the columns that may have something to go, sleeping those with
	// nothing but closed levels. Invariant: a column that is open and has a ready
	// entry of an open level is in turning.
	turning, sleeping ring[T]

	openLevels mask
	closed     bool

	gates map[suspend.Target]*gate[T]

	// ready counts the ready entries of open columns by level, total all ready ones.
	ready  [Levels]int
	total  int
	parked int
	// round is where the rounds of a new column begin: not before any that an entry
	// may have seen, so that a debt is not paid off by a column's coming and going.
	round uint32
}

// New returns an empty Set with everything open.
func New[T any](opts Options) *Set[T] {
	s := &Set[T]{share: 16, quantum: 1, openLevels: 1<<Levels - 1, round: 1}
	if opts.Share > 0 {
		s.share = uint16(min(opts.Share, 1<<16-1))
	}
	if opts.Quantum > 0 {
		s.quantum = min(opts.Quantum, maxCost)
	}
	return s
}

// maxCost keeps the arithmetic of credits far from overflow.
const maxCost = 1 << 40

// Init makes e an idle entry of the set. REQUIRES: e is new or was dropped.
func (s *Set[T]) Init(e *Entry[T], value T, model string, level Level) {
	*e = Entry[T]{Value: value, Weight: e.Weight, level: min(level, L3), col: s.column(model)}
	e.col.entries++
}

// Drop ends an entry's membership, whatever its state.
func (s *Set[T]) Drop(e *Entry[T]) {
	s.Remove(e)
	c := e.col
	e.col = nil
	c.entries--
	s.tidy(c)
}

// Add makes e ready: it joins the next round of its level. No-op if it is ready.
func (s *Set[T]) Add(e *Entry[T]) {
	if e.Ready() {
		return
	}
	s.unpark(e)
	c := e.col
	r := c.levels[e.level]
	if r == nil {
		r = &rounds[T]{round: s.round}
		c.levels[e.level] = r
	}
	r.push(e, s.quantum)
	s.count(c, e.level, +1)
	if c.closed {
		return
	}
	if c.where == away || (c.where == dormant && s.openLevels.has(e.level)) {
		s.move(c, s.place(c))
	}
}

// Remove makes e idle.
func (s *Set[T]) Remove(e *Entry[T]) {
	s.unpark(e)
	if !e.Ready() {
		return
	}
	e.col.levels[e.level].remove(e)
	s.left(e)
}

// Next takes the entry whose turn it is; nil when nothing may go. The entry is idle
// then: the caller Adds it again, Parks it or leaves it.
func (s *Set[T]) Next() *Entry[T] {
	if s.closed {
		return nil
	}
	for s.turning.head != nil {
		c := s.turning.head
		l, ok := c.pick(s.openLevels, s.share)
		if !ok {
			s.move(c, dormant) // at most once for each time it was woken
			continue
		}
		s.turning.head = c.next
		e := c.levels[l].pop(s.quantum)
		s.left(e)
		return e
	}
	return nil
}

// Charge takes the cost of a message from e's credit, or gives some back if it is
// negative.
func (s *Set[T]) Charge(e *Entry[T], cost int64) {
	cost = min(max(cost, -maxCost), maxCost)
	e.credit = min(max(e.credit-cost, -maxCost), s.quantum*e.weight())
}

// Ready is the number of entries that may go now.
func (s *Set[T]) Ready() int {
	n := 0
	for l := range Level(Levels) {
		if !s.closed && s.openLevels.has(l) {
			n += s.ready[l]
		}
	}
	return n
}

// Parked is the number of entries that wait for a gate, their own or a wide one.
func (s *Set[T]) Parked() int { return s.parked + s.total - s.Ready() }

// left keeps the books after e, which was ready, has left its ring.
func (s *Set[T]) left(e *Entry[T]) {
	c := e.col
	s.count(c, e.level, -1)
	if c.ready == 0 {
		s.move(c, away)
	}
}

func (s *Set[T]) count(c *column[T], l Level, n int) {
	c.ready += n
	s.total += n
	if !c.closed {
		s.ready[l] += n
	}
}

// column returns the column of that name and makes it if need be.
func (s *Set[T]) column(name string) *column[T] {
	if c := s.columns[name]; c != nil {
		return c
	}
	if s.columns == nil {
		s.columns = map[string]*column[T]{}
	}
	c := &column[T]{name: name}
	s.columns[name] = c
	return c
}

// tidy drops a column that nobody needs.
func (s *Set[T]) tidy(c *column[T]) {
	if c.entries > 0 || c.closed {
		return
	}
	delete(s.columns, c.name)
	for _, r := range c.levels {
		if r != nil && r.round-s.round < 1<<31 { // later, also when rounds wrapped
			s.round = r.round
		}
	}
}

// place is where a column belongs.
func (s *Set[T]) place(c *column[T]) whereabouts {
	switch {
	case c.closed || c.ready == 0:
		return away
	case c.waiting()&s.openLevels == 0:
		return dormant
	default:
		return turning
	}
}

func (s *Set[T]) move(c *column[T], to whereabouts) {
	if c.where == to {
		return
	}
	switch c.where {
	case turning:
		s.turning.remove(c)
	case dormant:
		s.sleeping.remove(c)
	case away:
	}
	c.where = to
	switch to {
	case turning:
		s.turning.push(c)
	case dormant:
		s.sleeping.push(c)
	case away:
	}
}
