package readyset

import "github.com/penstockmq/penstock/suspend"

// gate is the entries that wait for one narrow gate, a bucket's or a row's. It
// exists while an entry waits.
type gate[T any] struct {
	target  suspend.Target
	waiting list[T]
}

// Park makes e wait for the gate: it leaves its ring, or the gate it waited for.
func (s *Set[T]) Park(e *Entry[T], target suspend.Target) {
	if e.gate != nil && e.gate.target == target {
		return
	}
	s.Remove(e)
	g := s.gates[target]
	if g == nil {
		if s.gates == nil {
			s.gates = map[suspend.Target]*gate[T]{}
		}
		g = &gate[T]{target: target}
		s.gates[target] = g
	}
	g.waiting.push(e)
	e.gate = g
	s.parked++
}

// Gate is what e is parked on.
func (e *Entry[T]) Gate() (suspend.Target, bool) {
	if e.gate == nil {
		return suspend.Target{}, false
	}
	return e.gate.target, true
}

// First returns the entry that has waited for the gate longest; nil if none waits. The caller
// Adds it, Parks it elsewhere or Removes it; after that the next entry is the first.
func (s *Set[T]) First(target suspend.Target) *Entry[T] {
	g := s.gates[target]
	if g == nil {
		return nil
	}
	return g.waiting.head
}

func (s *Set[T]) unpark(e *Entry[T]) {
	g := e.gate
	if g == nil {
		return
	}
	g.waiting.remove(e)
	e.gate = nil
	s.parked--
	if g.waiting.empty() {
		delete(s.gates, g.target)
	}
}

// CloseColumn keeps everything in the column from going. Its entries stay in their
// rings: O(1), however many there are.
func (s *Set[T]) CloseColumn(model string) {
	c := s.column(model)
	if c.closed {
		return
	}
	s.countColumn(c, -1)
	c.closed = true
	s.move(c, away)
}

// OpenColumn undoes CloseColumn.
func (s *Set[T]) OpenColumn(model string) {
	c := s.columns[model]
	if c == nil || !c.closed {
		return
	}
	c.closed = false
	s.countColumn(c, +1)
	s.move(c, s.place(c))
	s.tidy(c)
}

// countColumn adds a column's ready entries to those of open columns, or takes them away.
func (s *Set[T]) countColumn(c *column[T], sign int) {
	for l, r := range c.levels {
		if r != nil {
			s.ready[l] += sign * r.count
		}
	}
}

// CloseLevel keeps every entry of the level from going. O(1): a column that has
// nothing else goes to sleep when its turn comes.
func (s *Set[T]) CloseLevel(l Level) { s.openLevels &^= 1 << min(l, L3) }

// OpenLevel undoes CloseLevel. It wakes the columns that went to sleep since then.
func (s *Set[T]) OpenLevel(l Level) {
	l = min(l, L3)
	if s.openLevels.has(l) {
		return
	}
	s.openLevels |= 1 << l
	for s.sleeping.head != nil {
		s.move(s.sleeping.head, turning)
	}
}

// CloseAll keeps everything from going, OpenAll undoes it.
func (s *Set[T]) CloseAll() { s.closed = true }

// OpenAll undoes CloseAll.
func (s *Set[T]) OpenAll() { s.closed = false }
