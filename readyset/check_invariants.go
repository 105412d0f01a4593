//go:build invariants

package readyset

import (
	"errors"
	"fmt"
)

// Check walks the whole structure and reports what is inconsistent. O(n): it is
// compiled in under the build tag invariants only.
func (s *Set[T]) Check() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	var ready [Levels]int
	total, parked := 0, 0
	for name, c := range s.columns {
		n := 0
		for l, r := range c.levels {
			if r == nil {
				continue
			}
			if got := r.check(Level(l), c, bad); got != r.count {
				bad("column %q level %d: %d entries in rings, counted %d", name, l, got, r.count)
			}
			n += r.count
			if !c.closed {
				ready[l] += r.count
			}
		}
		total += n
		if n != c.ready {
			bad("column %q: %d ready, counted %d", name, n, c.ready)
		}
		if c.entries < c.ready || (c.entries == 0 && !c.closed) {
			bad("column %q: %d entries, %d ready, closed %v: should be gone", name, c.entries, c.ready, c.closed)
		}
		want := s.place(c)
		if c.where != want && (c.where != turning || want != dormant) { // it goes to sleep when its turn comes
			bad("column %q is in place %d, belongs in %d", name, c.where, want)
		}
	}
	for target, g := range s.gates {
		n := g.waiting.check(bad, func(e *Entry[T]) bool { return e.gate == g && e.slot == 0 && e.col != nil })
		if n == 0 || g.target != target {
			bad("gate %v: %d entries, target %v", target, n, g.target)
		}
		parked += n
	}
	if ready != s.ready || total != s.total || parked != s.parked {
		bad("counts: ready %v total %d parked %d, kept %v %d %d", ready, total, parked, s.ready, s.total, s.parked)
	}
	if e := s.taken.entry; e != nil && s.columns[e.col.name] != e.col {
		bad("entry %v was taken last and has been dropped", e.Value)
	}
	checkRing(&s.turning, turning, s.columns, bad)
	checkRing(&s.sleeping, dormant, s.columns, bad)
	return errors.Join(errs...)
}

func (r *rounds[T]) check(l Level, c *column[T], bad func(string, ...any)) int {
	n := 0
	for i := range r.list {
		got := r.list[i].check(bad, func(e *Entry[T]) bool {
			// Its round is not ahead of its level's: it would be granted a whole wrap.
			return e.slot == uint8(i+1) && e.gate == nil && e.level == l && e.col == c && r.round-e.round < 1<<31
		})
		if (got > 0) != (r.filled&(1<<i) != 0) {
			bad("slot %d: %d entries, filled bits %b", i, got, r.filled)
		}
		n += got
	}
	return n
}

func (l *list[T]) check(bad func(string, ...any), ok func(*Entry[T]) bool) int {
	n := 0
	for e := l.head; e != nil; {
		n++
		if !ok(e) || e.next.prev != e {
			bad("entry %v is in a list that it does not know of", e.Value)
		}
		if e = e.next; e == l.head {
			break
		}
	}
	return n
}

func checkRing[T any](r *ring[T], where whereabouts, columns map[string]*column[T], bad func(string, ...any)) {
	want := 0
	for _, c := range columns {
		if c.where == where {
			want++
		}
	}
	n := 0
	for c := r.head; c != nil; {
		n++
		if c.where != where || columns[c.name] != c || c.next.prev != c {
			bad("column %q is in a ring that it does not know of", c.name)
		}
		if c = c.next; c == r.head {
			break
		}
	}
	if n != want {
		bad("ring %d: %d columns, want %d", where, n, want)
	}
}
