package readyset

import (
	"fmt"
	"math"
	"testing"

	"github.com/penstockmq/penstock/suspend"
	"pgregory.net/rapid"
)

// board is a Set with entries made on demand.
type board struct {
	*Set[string]
	t       testing.TB
	entries map[string]*Entry[string]
}

func newBoard(tb testing.TB, opts Options) *board {
	tb.Helper()
	return &board{Set: New[string](opts), t: tb, entries: map[string]*Entry[string]{}}
}

func (b *board) entry(name, model string, l Level) *Entry[string] {
	e := &Entry[string]{}
	b.Init(e, name, model, l)
	b.entries[name] = e
	return e
}

// serve takes n turns; each served entry is charged cost and becomes ready again.
func (b *board) serve(n int, cost int64) []string {
	b.t.Helper()
	var got []string
	for range n {
		e := b.Next()
		if e == nil {
			break
		}
		got = append(got, e.Value)
		b.Charge(e, cost)
		b.Add(e)
		if err := b.Check(); err != nil {
			b.t.Fatal(err)
		}
	}
	return got
}

func count(turns []string) map[string]int {
	n := map[string]int{}
	for _, v := range turns {
		n[v]++
	}
	return n
}

func TestColumnsTakeTurnsWhateverTheirSize(t *testing.T) {
	b := newBoard(t, Options{})
	for i := range 100 {
		b.Add(b.entry(fmt.Sprintf("crowd%d", i), "big", L1))
	}
	b.Add(b.entry("lone", "small", L1))
	if got := count(b.serve(20, 1))["lone"]; got != 10 {
		t.Fatalf("the column with one entry got %d of 20 turns, want 10", got)
	}
}

func TestRoundRobinInALevel(t *testing.T) {
	b := newBoard(t, Options{})
	for _, n := range []string{"a", "b", "c"} {
		b.Add(b.entry(n, "m", L1))
	}
	if got, want := fmt.Sprint(b.serve(7, 1)), "[a b c a b c a]"; got != want {
		t.Fatalf("got %s, want %s", got, want)
	}
}

func TestEntryIsInTheRingOnce(t *testing.T) {
	b := newBoard(t, Options{})
	e := b.entry("a", "m", L1)
	b.Add(e)
	b.Add(e)
	if b.Next() != e || b.Next() != nil {
		t.Fatal("an entry added twice must come once")
	}
}

func TestNewcomersDoNotStarveThoseWhoHadTheirTurn(t *testing.T) {
	b := newBoard(t, Options{})
	b.Add(b.entry("old", "m", L1))
	old := 0
	for i := range 100 {
		b.Add(b.entry(fmt.Sprint("new", 2*i), "m", L1))
		b.Add(b.entry(fmt.Sprint("new", 2*i+1), "m", L1))
		e := b.Next()
		if e.Value == "old" {
			old++
			b.Charge(e, 1)
			b.Add(e)
		}
	}
	// Two arrive for each that is served, so the queue before old grows all the time.
	if old < 4 {
		t.Fatalf("old got %d turns in 100, want at least 4", old)
	}
}

func TestLowerLevelsKeepAShare(t *testing.T) {
	b := newBoard(t, Options{Share: 10})
	for l := range Level(Levels) {
		b.Add(b.entry(fmt.Sprint("L", l), "m", l))
	}
	got := count(b.serve(1000, 1))
	for _, l := range []string{"L1", "L2", "L3"} {
		if got[l] < 1000/14 || got[l] > 100 {
			t.Errorf("%s got %d of 1000 turns, want about 1 in 10", l, got[l])
		}
	}
	if got["L0"] < 690 {
		t.Errorf("L0 got %d of 1000 turns, want the rest", got["L0"])
	}
}

func TestCostIsSharedByWeight(t *testing.T) {
	b := newBoard(t, Options{Quantum: 10})
	cost := map[string]int64{"cheap": 5, "dear": 900, "heavy": 10}
	for n := range cost {
		e := b.entry(n, "m", L1)
		if n == "heavy" {
			e.Weight = 3
		}
		b.Add(e)
	}
	spent := map[string]int64{}
	for range 100_000 {
		e := b.Next()
		spent[e.Value] += cost[e.Value]
		b.Charge(e, cost[e.Value])
		b.Add(e)
	}
	unit := float64(spent["dear"])
	if r := float64(spent["heavy"]) / unit; math.Abs(r-3) > 0.05 {
		t.Errorf("weight 3 spent %.3f times what weight 1 did, want 3", r)
	}
	// One message of a bucket in a turn, so a message below the quantum leaves room,
	// but the entry takes another turn in the round: it loses nothing.
	if r := float64(spent["cheap"]) / unit; math.Abs(r-1) > 0.05 {
		t.Errorf("cheap messages spent %.3f times what dear ones did, want 1", r)
	}
}

func TestDebtIsNotForgottenByComingAndGoing(t *testing.T) {
	b := newBoard(t, Options{})
	dear, other := b.entry("dear", "m", L1), b.entry("other", "m", L1)
	b.Add(dear)
	b.Add(other)
	if b.Next() != dear {
		t.Fatal("dear came first")
	}
	b.Charge(dear, 50)
	b.Add(dear)
	b.Remove(dear)
	b.Add(dear)
	turns := b.serve(60, 1)
	for i, v := range turns {
		if v == "dear" {
			if i < 45 {
				t.Fatalf("dear came again after %d rounds, want 50 to pay its debt", i)
			}
			return
		}
	}
	t.Fatal("dear never came again")
}

func TestAloneInDebtGoesAtOnce(t *testing.T) {
	b := newBoard(t, Options{})
	b.Add(b.entry("a", "m", L1))
	if got := len(b.serve(100, 1_000_000)); got != 100 {
		t.Fatalf("an entry nobody competes with got %d of 100 turns", got)
	}
}

func TestWideGates(t *testing.T) {
	b := newBoard(t, Options{})
	b.Add(b.entry("a", "m", L0))
	b.Add(b.entry("b", "n", L1))
	b.CloseColumn("m")
	if got := count(b.serve(4, 1)); got["a"] != 0 || got["b"] != 4 {
		t.Fatalf("column m closed: %v", got)
	}
	if b.Ready() != 1 || b.Parked() != 1 {
		t.Fatalf("ready %d parked %d, want 1 and 1", b.Ready(), b.Parked())
	}
	b.CloseLevel(L1)
	if e := b.Next(); e != nil {
		t.Fatalf("column and level closed, got %s", e.Value)
	}
	b.OpenColumn("m")
	if got := count(b.serve(4, 1)); got["a"] != 4 {
		t.Fatalf("column m open again: %v", got)
	}
	b.OpenLevel(L1)
	if got := count(b.serve(4, 1)); got["a"] != 2 || got["b"] != 2 {
		t.Fatalf("all open again: %v", got)
	}
	b.CloseAll()
	if b.Next() != nil || b.Ready() != 0 || b.Parked() != 2 {
		t.Fatal("everything is closed")
	}
	b.OpenAll()
	if b.Next() == nil {
		t.Fatal("everything is open")
	}
}

func TestParkedEntriesComeBackTogether(t *testing.T) {
	b := newBoard(t, Options{})
	row := suspend.Target{Scope: suspend.Row, Name: "alice"}
	cell := suspend.Target{Scope: suspend.Bucket, Name: "x"}
	for _, n := range []string{"x", "y", "z"} {
		b.Add(b.entry(n, "m", L1))
		b.Park(b.entries[n], row)
	}
	if b.Next() != nil || b.Parked() != 3 {
		t.Fatal("all three are parked")
	}
	b.Remove(b.entries["y"])
	openGate(b.Set, row, func(e *Entry[string]) {
		if e.Value == "x" {
			b.Park(e, cell)
			return
		}
		b.Add(e)
	})
	if b.Ready() != 1 || b.Parked() != 1 || b.Next().Value != "z" {
		t.Fatal("x waits for its own gate, y went away, z is ready")
	}
	openGate(b.Set, cell, func(e *Entry[string]) { b.Park(e, cell) })
	if got, _ := b.entries["x"].Gate(); got != cell || b.Parked() != 1 {
		t.Fatal("parking on the gate that just opened waits for its next opening")
	}
}

func TestNothingIsLeftBehind(t *testing.T) {
	b := newBoard(t, Options{})
	for i := range 1000 {
		e := b.entry(fmt.Sprint(i), fmt.Sprint("model", i), L1)
		b.Add(e)
		if i%3 == 0 {
			b.Park(e, suspend.Target{Name: fmt.Sprint(i)})
		}
	}
	for _, e := range b.entries {
		b.Drop(e)
	}
	if len(b.columns)+len(b.gates) != 0 || b.Ready()+b.Parked() != 0 {
		t.Fatalf("%d columns and %d gates are left", len(b.columns), len(b.gates))
	}
}

// TestModel compares a Set with a plain one that remembers what is where: nothing
// ready is ever missed, nothing closed ever goes, each entry goes once.
func TestModel(t *testing.T) {
	type state struct {
		ready bool
		gate  *suspend.Target
	}
	rapid.Check(t, func(t *rapid.T) {
		s := New[int](Options{Share: rapid.IntRange(1, 4).Draw(t, "share"), Quantum: rapid.Int64Range(1, 20).Draw(t, "quantum")})
		const n = 12
		models := []string{"m", "n", "o"}
		var entries [n]*Entry[int]
		var want [n]state
		closedColumn, closedLevel, closedAll := map[string]bool{}, map[Level]bool{}, false
		model := func(i int) string { return models[i%len(models)] }
		level := func(i int) Level { return Level(i / 3 % Levels) }
		for i := range n {
			entries[i] = &Entry[int]{Weight: uint16(i % 3)}
			s.Init(entries[i], i, model(i), level(i))
		}
		may := func(i int) bool {
			return want[i].ready && !closedColumn[model(i)] && !closedLevel[level(i)] && !closedAll
		}
		gates := []suspend.Target{{Scope: suspend.Row, Name: "u"}, {Scope: suspend.Bucket, Name: "b"}}
		pick := rapid.IntRange(0, n-1)
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				i := pick.Draw(t, "i")
				s.Add(entries[i])
				want[i] = state{ready: true}
			},
			"remove": func(t *rapid.T) {
				i := pick.Draw(t, "i")
				s.Remove(entries[i])
				want[i] = state{}
			},
			"drop": func(t *rapid.T) {
				i := pick.Draw(t, "i")
				s.Drop(entries[i])
				s.Init(entries[i], i, model(i), level(i))
				want[i] = state{}
			},
			"park": func(t *rapid.T) {
				i := pick.Draw(t, "i")
				g := rapid.SampledFrom(gates).Draw(t, "gate")
				s.Park(entries[i], g)
				want[i] = state{gate: &g}
			},
			"open": func(t *rapid.T) {
				g := rapid.SampledFrom(gates).Draw(t, "gate")
				openGate(s, g, func(e *Entry[int]) {
					if w := want[e.Value]; w.gate == nil || *w.gate != g {
						t.Fatalf("entry %d was not parked on %v", e.Value, g)
					}
					s.Add(e)
					want[e.Value] = state{ready: true}
				})
				for i, w := range want {
					if w.gate != nil && *w.gate == g {
						t.Fatalf("entry %d was forgotten on %v", i, g)
					}
				}
			},
			"charge": func(t *rapid.T) { s.Charge(entries[pick.Draw(t, "i")], rapid.Int64Range(-50, 200).Draw(t, "cost")) },
			"column": func(t *rapid.T) {
				m := rapid.SampledFrom(models).Draw(t, "model")
				if closedColumn[m] = !closedColumn[m]; closedColumn[m] {
					s.CloseColumn(m)
				} else {
					s.OpenColumn(m)
				}
			},
			"level": func(t *rapid.T) {
				l := Level(rapid.IntRange(0, Levels-1).Draw(t, "level"))
				if closedLevel[l] = !closedLevel[l]; closedLevel[l] {
					s.CloseLevel(l)
				} else {
					s.OpenLevel(l)
				}
			},
			"all": func(*rapid.T) {
				if closedAll = !closedAll; closedAll {
					s.CloseAll()
				} else {
					s.OpenAll()
				}
			},
			"next": func(t *rapid.T) {
				e := s.Next()
				if e == nil {
					for i := range n {
						if may(i) {
							t.Fatalf("entry %d may go and was not found", i)
						}
					}
					return
				}
				if !may(e.Value) {
					t.Fatalf("entry %d went though it may not", e.Value)
				}
				want[e.Value] = state{}
				s.Charge(e, 3)
			},
			"": func(t *rapid.T) {
				ready, parked := 0, 0
				for i, w := range want {
					if may(i) {
						ready++
					} else if w.ready || w.gate != nil {
						parked++
					}
				}
				if s.Ready() != ready || s.Parked() != parked {
					t.Fatalf("ready %d parked %d, want %d and %d", s.Ready(), s.Parked(), ready, parked)
				}
				if err := s.Check(); err != nil {
					t.Fatal(err)
				}
			},
		})
	})
}

// openGate hands every entry that waits for a gate, idle now, to back.
func openGate[T any](s *Set[T], gate suspend.Target, back func(*Entry[T])) {
	var waited []*Entry[T]
	for e := s.First(gate); e != nil; e = s.First(gate) {
		s.Remove(e)
		waited = append(waited, e)
	}
	for _, e := range waited {
		back(e)
	}
}
