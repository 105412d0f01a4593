package readyset

import (
	"cmp"
	"slices"
	"testing"

	"github.com/penstockmq/penstock/suspend"
	"pgregory.net/rapid"
)

// The naive matrix: slices, absolute round numbers and a search for every question.
// TestOrder holds a Set to its order, entry by entry.
type (
	naive struct {
		share, quantum int64
		turning        []*naiveColumn // whose turn it is first
		asleep         []*naiveColumn
		closedLevel    [Levels]bool
		closed         bool
		sequence       int64
		last           *naiveEntry
		lastPassed     [Levels]int64
	}
	naiveColumn struct {
		closed bool
		passed [Levels]int64
		round  [Levels]int64
		all    []*naiveEntry
	}
	naiveEntry struct {
		col        *naiveColumn
		level      Level
		weight     int64
		ready      bool
		due, place int64 // the round it lies in, and where there
		granted    int64
		credit     int64
	}
)

func (n *naive) grant(e *naiveEntry) bool {
	now, full := e.col.round[e.level], n.quantum*max(1, e.weight)
	fresh := now != e.granted
	if fresh && e.credit < full {
		e.credit = min(full, e.credit+(now-e.granted)*full)
	} else if fresh {
		e.credit = min(2*full, e.credit)
	}
	e.granted = now
	return fresh
}

func (n *naive) put(e *naiveEntry, ahead int64) {
	n.sequence++
	e.ready, e.due, e.place = true, e.col.round[e.level]+ahead, n.sequence
}

func (n *naive) sitOut(e *naiveEntry) int64 {
	return min(slots-1, -e.credit/(n.quantum*max(1, e.weight))+1)
}

func (n *naive) enter(e *naiveEntry, resumed bool) {
	if e.ready {
		return
	}
	fresh := n.grant(e)
	switch {
	case e.credit <= 0:
		n.put(e, n.sitOut(e))
	case resumed:
		n.put(e, 0)
		e.place = -n.sequence
	case fresh:
		n.put(e, 1)
	default:
		n.put(e, 0)
	}
	n.rouse(e.col, e.level)
	if resumed && e.credit > 0 {
		e.col.passed[e.level] = max(e.col.passed[e.level], n.share)
		if i := slices.Index(n.turning, e.col); i >= 0 {
			n.turning = append([]*naiveColumn{e.col}, slices.Delete(n.turning, i, i+1)...)
		}
	}
}

func (n *naive) remove(e *naiveEntry) {
	e.ready = false
	if !slices.ContainsFunc(e.col.all, func(x *naiveEntry) bool { return x.ready }) {
		n.quiet(e.col)
	}
}

func (n *naive) quiet(c *naiveColumn) {
	is := func(x *naiveColumn) bool { return x == c }
	n.turning = slices.DeleteFunc(n.turning, is)
	n.asleep = slices.DeleteFunc(n.asleep, is)
}

func (n *naive) rouse(c *naiveColumn, l Level) {
	if c.closed || slices.Contains(n.turning, c) {
		return
	}
	sleeps := slices.Contains(n.asleep, c)
	if sleeps && n.closedLevel[l] {
		return
	}
	n.quiet(c)
	if n.servable(c, nil) {
		n.turning = append(n.turning, c)
	} else {
		n.asleep = append(n.asleep, c)
	}
}

func (n *naive) servable(c *naiveColumn, levels *[Levels]bool) bool {
	found := false
	for _, e := range c.all {
		if e.ready && !n.closedLevel[e.level] {
			found = true
			if levels != nil {
				levels[e.level] = true
			}
		}
	}
	return found
}

func (n *naive) next() *naiveEntry {
	for !n.closed && len(n.turning) > 0 {
		c := n.turning[0]
		var may [Levels]bool
		if !n.servable(c, &may) {
			n.turning = n.turning[1:]
			n.asleep = append(n.asleep, c)
			continue
		}
		n.lastPassed = c.passed
		n.turning = append(n.turning[1:], c)
		n.last = n.pop(c, n.pick(c, may))
		return n.last
	}
	return nil
}

func (n *naive) pick(c *naiveColumn, may [Levels]bool) Level {
	chosen := -1
	for l := range Levels {
		if may[l] && c.passed[l] >= n.share {
			chosen = l
			break
		}
	}
	if chosen < 0 {
		chosen = slices.Index(may[:], true)
	}
	for l := chosen + 1; l < Levels; l++ {
		if may[l] && c.passed[l] < n.share {
			c.passed[l]++
		}
	}
	c.passed[chosen] = 0
	return Level(chosen)
}

func (n *naive) pop(c *naiveColumn, l Level) *naiveEntry {
	for {
		var first *naiveEntry
		for _, e := range c.all {
			if e.ready && e.level == l && (first == nil || cmp.Or(cmp.Compare(e.due, first.due), cmp.Compare(e.place, first.place)) < 0) {
				first = e
			}
		}
		c.round[l] = first.due
		n.grant(first)
		if first.credit > 0 {
			n.remove(first)
			return first
		}
		n.put(first, n.sitOut(first))
	}
}

func (n *naive) putBack(e *naiveEntry) {
	was := n.last == e && !e.ready
	n.enter(e, true)
	if !was {
		return
	}
	e.col.passed = n.lastPassed
	n.last = nil
}

func (n *naive) setLevel(e *naiveEntry, l Level) {
	if e.level == l {
		return
	}
	if n.last == e {
		n.last = nil
	}
	e.level = l
	e.granted = e.col.round[l]
	if !e.ready {
		return
	}
	ahead := int64(1)
	if e.credit <= 0 {
		ahead = n.sitOut(e)
	}
	n.put(e, ahead)
	n.rouse(e.col, l)
}

func (n *naive) setWeight(e *naiveEntry, w int64) {
	if e.weight == w {
		return
	}
	e.weight = w
	if !e.ready {
		return
	}
	if n.grant(e); e.credit <= 0 {
		n.put(e, n.sitOut(e))
	}
}

func (n *naive) charge(e *naiveEntry, cost int64) {
	if cost >= 0 {
		e.credit -= cost
		return
	}
	sitsOut := e.ready && e.credit <= 0
	if sitsOut {
		n.grant(e)
	}
	e.credit = min(e.credit-cost, 2*n.quantum*max(1, e.weight))
	if sitsOut && e.credit > 0 {
		n.put(e, 0)
	}
}

func (n *naive) openLevel(l Level) {
	if n.closedLevel[l] {
		n.closedLevel[l] = false
		n.turning = append(n.turning, n.asleep...)
		n.asleep = nil
	}
}

func (n *naive) openColumn(c *naiveColumn) {
	c.closed = false
	if slices.ContainsFunc(c.all, func(e *naiveEntry) bool { return e.ready }) {
		if n.servable(c, nil) {
			n.turning = append(n.turning, c)
		} else {
			n.asleep = append(n.asleep, c)
		}
	}
}

// TestOrder: whatever happens, a Set serves entry by entry what the naive matrix does.
func TestOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		share, quantum := rapid.IntRange(1, 5).Draw(t, "share"), rapid.Int64Range(1, 12).Draw(t, "quantum")
		s, n := New[int](Options{Share: share, Quantum: quantum}), &naive{share: int64(share), quantum: quantum}
		const size = 14
		models := []string{"m", "n", "o"}
		columns := []*naiveColumn{{}, {}, {}}
		for _, c := range columns {
			c.round = [Levels]int64{1, 1, 1, 1}
		}
		entries, mirror := make([]*Entry[int], size), make([]*naiveEntry, size)
		for i := range size {
			entries[i] = &Entry[int]{Weight: uint16(i % 4)}
			s.Init(entries[i], i, models[i%3], Level(i/3%Levels))
			mirror[i] = &naiveEntry{col: columns[i%3], level: Level(i / 3 % Levels), weight: int64(i % 4)}
			columns[i%3].all = append(columns[i%3].all, mirror[i])
			s.Add(entries[i])
			n.enter(mirror[i], false)
		}
		pick, level := rapid.IntRange(0, size-1), rapid.IntRange(0, Levels-1)
		next := func(t *rapid.T) *Entry[int] {
			e, want := s.Next(), n.next()
			if (e == nil) != (want == nil) || e != nil && mirror[e.Value] != want {
				t.Fatalf("got %v, want entry %d", e, slices.Index(mirror, want))
			}
			return e
		}
		charge := func(e *Entry[int], cost int64) {
			s.Charge(e, cost)
			n.charge(mirror[e.Value], cost)
		}
		t.Repeat(map[string]func(*rapid.T){
			"serve": func(t *rapid.T) {
				for range rapid.IntRange(1, 8).Draw(t, "turns") {
					e := next(t)
					if e == nil {
						return
					}
					charge(e, rapid.Int64Range(0, 60).Draw(t, "cost"))
					s.Add(e)
					n.enter(mirror[e.Value], false)
				}
			},
			"take": func(t *rapid.T) { next(t) },
			"put back": func(t *rapid.T) {
				if e := next(t); e != nil {
					if rapid.Bool().Draw(t, "closed") {
						s.CloseColumn(models[e.Value%3])
						if c := mirror[e.Value].col; !c.closed {
							c.closed = true
							n.quiet(c)
						}
					}
					s.PutBack(e)
					n.putBack(mirror[e.Value])
				}
			},
			"put back any": func(t *rapid.T) {
				i := pick.Draw(t, "i")
				s.PutBack(entries[i])
				n.putBack(mirror[i])
			},
			"add": func(t *rapid.T) {
				i := pick.Draw(t, "i")
				s.Add(entries[i])
				n.enter(mirror[i], false)
			},
			"resume": func(t *rapid.T) {
				i := pick.Draw(t, "i")
				s.Resume(entries[i])
				n.enter(mirror[i], true)
			},
			"remove": func(t *rapid.T) {
				i := pick.Draw(t, "i")
				s.Remove(entries[i])
				n.remove(mirror[i])
			},
			"park": func(t *rapid.T) {
				i := pick.Draw(t, "i")
				s.Park(entries[i], suspend.Target{Scope: suspend.Row, Name: "u"})
				n.remove(mirror[i])
			},
			"settle": func(t *rapid.T) { charge(entries[pick.Draw(t, "i")], rapid.Int64Range(-40, 200).Draw(t, "cost")) },
			"level": func(t *rapid.T) {
				i, l := pick.Draw(t, "i"), Level(level.Draw(t, "level"))
				s.SetLevel(entries[i], l)
				n.setLevel(mirror[i], l)
			},
			"weight": func(t *rapid.T) {
				i, w := pick.Draw(t, "i"), rapid.IntRange(0, 6).Draw(t, "weight")
				s.SetWeight(entries[i], uint16(w))
				n.setWeight(mirror[i], int64(w))
			},
			"quantum": func(t *rapid.T) {
				n.quantum = rapid.Int64Range(1, 30).Draw(t, "quantum")
				s.SetQuantum(n.quantum)
			},
			"column": func(t *rapid.T) {
				i := rapid.IntRange(0, 2).Draw(t, "column")
				if c := columns[i]; c.closed {
					s.OpenColumn(models[i])
					n.openColumn(c)
				} else {
					s.CloseColumn(models[i])
					c.closed = true
					n.quiet(c)
				}
			},
			"shut level": func(t *rapid.T) {
				l := Level(level.Draw(t, "level"))
				if n.closedLevel[l] {
					s.OpenLevel(l)
					n.openLevel(l)
				} else {
					s.CloseLevel(l)
					n.closedLevel[l] = true
				}
			},
			"all": func(*rapid.T) {
				if n.closed = !n.closed; n.closed {
					s.CloseAll()
				} else {
					s.OpenAll()
				}
			},
			"": func(t *rapid.T) {
				if err := s.Check(); err != nil {
					t.Fatal(err)
				}
			},
		})
	})
}
