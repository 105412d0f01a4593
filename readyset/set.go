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
	quantum int64

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
	// taken is what Next did last, for PutBack.
	taken taken[T]
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
		s.SetQuantum(opts.Quantum)
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
	if s.taken.entry == e {
		s.taken = taken[T]{}
	}
	c := e.col
	e.col = nil
	c.entries--
	s.tidy(c)
}

// Add makes e ready: it joins the next round of its level. No-op if it is ready.
func (s *Set[T]) Add(e *Entry[T]) { s.enter(e, (*rounds[T]).push) }

// Resume makes e ready and gives it back a turn that it lost: it is the first of the
// current round, its level is due, and its column is next. It is for an entry whose
// turn came and that only a gate kept: with Add it would wait for another turn, find
// the gate closed by others again, and never go. Of several, the one resumed last goes
// first. Without credit in this round e sits out as with Add. No-op if it is ready.
func (s *Set[T]) Resume(e *Entry[T]) {
	if e.Ready() {
		return
	}
	s.enter(e, (*rounds[T]).resume)
	c := e.col
	if e.credit <= 0 {
		return
	}
	c.passed[e.level] = max(c.passed[e.level], s.share)
	if c.where == turning {
		s.turning.remove(c)
		s.turning.push(c)
		s.turning.head = c
	}
}

// enter makes e ready, where place puts it in the rounds of its level.
func (s *Set[T]) enter(e *Entry[T], place func(*rounds[T], *Entry[T], int64)) {
	if e.Ready() {
		return
	}
	s.unpark(e)
	c := e.col
	place(s.rounds(c, e.level), e, s.quantum)
	s.count(c, e.level, +1)
	s.rouse(c, e.level)
}

// rouse lets a column turn in which an entry of the level became ready.
func (s *Set[T]) rouse(c *column[T], l Level) {
	if c.where == away || (c.where == dormant && s.openLevels.has(l)) {
		s.move(c, s.place(c))
	}
}

// rounds are those of a level of a column, made when first needed.
func (s *Set[T]) rounds(c *column[T], l Level) *rounds[T] {
	if c.levels[l] == nil {
		c.levels[l] = &rounds[T]{round: s.round}
	}
	return c.levels[l]
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
