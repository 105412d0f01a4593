package readyset

// taken is the turn that Next gave last, as it was before.
type taken[T any] struct {
	entry *Entry[T]
	// passed is that of the entry's column.
	passed [Levels]uint16
}

// Next takes the entry whose turn it is; nil when nothing may go. The entry is idle
// then: the caller Adds it again, Parks it, leaves it, or puts it back.
func (s *Set[T]) Next() *Entry[T] {
	if s.closed {
		return nil
	}
	for s.turning.head != nil {
		c := s.turning.head
		passed := c.passed
		l, ok := c.pick(s.openLevels, s.share)
		if !ok {
			s.move(c, dormant) // at most once for each time it was woken
			continue
		}
		s.turning.head = c.next
		e := c.levels[l].pop(s.quantum)
		s.left(e)
		s.taken = taken[T]{entry: e, passed: passed}
		return e
	}
	return nil
}

// PutBack undoes the Next that returned e: e is the first of its round again, its
// column's turn is the next one, and its level has not been served. It is for a caller
// that finds that e may not go because of something that keeps others back too, and
// that closes a wide gate before the next Next. Of an entry that was not the last to
// be taken it is Resume. No-op if e is ready.
func (s *Set[T]) PutBack(e *Entry[T]) {
	if e.Ready() {
		return
	}
	last := s.taken
	s.Resume(e)
	if last.entry != e {
		return
	}
	s.taken = taken[T]{}
	e.col.passed = last.passed
}

// Charge takes the cost of a message from e's credit, or gives some back if it is
// negative: then e was charged too much before, and if that is why it sits out it comes
// back into this round.
func (s *Set[T]) Charge(e *Entry[T], cost int64) {
	cost = min(max(cost, -maxCost), maxCost)
	if cost >= 0 {
		e.credit = max(e.credit-cost, -maxCost)
		return
	}
	sitsOut := e.Ready() && e.credit <= 0
	if sitsOut {
		e.col.levels[e.level].grant(e, s.quantum)
	}
	e.credit = min(e.credit-cost, refundMax*s.quantum*e.weight())
	if sitsOut && e.credit > 0 {
		r := e.col.levels[e.level]
		r.unplace(e)
		r.place(e, 0)
	}
}

// SetLevel moves an entry to another level, whatever its state. A ready one joins the
// next round there; credit and debt go with it.
func (s *Set[T]) SetLevel(e *Entry[T], l Level) {
	if l = min(l, L3); l == e.level {
		return
	}
	c, from := e.col, e.level
	ready := e.Ready()
	if ready {
		c.levels[from].remove(e)
		s.count(c, from, -1)
	}
	to := s.rounds(c, l)
	e.level, e.round = l, to.round // rounds of another level pay off nothing
	if ready {
		to.join(e, s.quantum)
		s.count(c, l, +1)
		s.rouse(c, l)
	}
	if s.taken.entry == e {
		s.taken = taken[T]{}
	}
}

// SetWeight changes an entry's weight. It acts on the debt that the entry is paying
// off, and on each round from now on.
func (s *Set[T]) SetWeight(e *Entry[T], weight uint16) {
	if e.Weight == weight {
		return
	}
	e.Weight = weight
	if e.Ready() {
		e.col.levels[e.level].replace(e, s.quantum)
	}
}

// SetQuantum changes the cost that an entry of weight 1 may cause in a round. Entries
// that sit out a debt are looked at after slots rounds at the latest, as ever.
func (s *Set[T]) SetQuantum(quantum int64) { s.quantum = min(max(1, quantum), maxCost) }

// Forgive forgets e's debt and credit: it is as one that just came. It is for a change
// of what cost means.
func (s *Set[T]) Forgive(e *Entry[T]) {
	e.credit = s.quantum * e.weight()
	if r := e.col.levels[e.level]; e.Ready() {
		e.round = r.round
		r.unplace(e)
		r.place(e, 1)
	}
}
