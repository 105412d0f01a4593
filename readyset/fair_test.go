package readyset

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/penstockmq/penstock/suspend"
)

// jain is Jain's fairness index: 1 if all are equal, 1/n if one has all.
func jain(shares map[string]float64) float64 {
	var sum, squares float64
	for _, x := range shares {
		sum += x
		squares += x * x
	}
	return sum * sum / (float64(len(shares)) * squares)
}

// spend serves n turns; each entry is charged what its next message costs.
func (b *board) spend(n int, cost func(name string) int64) map[string]float64 {
	b.t.Helper()
	spent := map[string]float64{}
	for range n {
		e := b.Next()
		if e == nil {
			b.t.Fatal("nothing may go")
		}
		c := cost(e.Value)
		spent[e.Value] += float64(c)
		b.Charge(e, c)
		b.Add(e)
	}
	return spent
}

// Fifty tenants whose messages differ in size by a factor of 200, in tokens: what
// each may spend is the same, not how often each goes.
func TestUnequalCostsAreShared(t *testing.T) {
	b := newBoard(t, Options{Quantum: 1024})
	random := rand.New(rand.NewPCG(1, 2))
	mean := map[string]int64{}
	for i := range 50 {
		name := fmt.Sprint("tenant", i)
		mean[name] = 40 + int64(i*i)*3
		b.Add(b.entry(name, "m", L1))
	}
	spent := b.spend(200_000, func(name string) int64 { return 1 + random.Int64N(2*mean[name]) })
	if j := jain(spent); j < 0.99 {
		t.Fatalf("Jain's index of the cost is %.4f, want at least 0.99: %v", j, spent)
	}
	if turns := b.spend(1000, func(string) int64 { return 1 }); jain(turns) < 0.99 {
		t.Fatalf("equal costs from then on: %v", turns)
	}
}

// What is charged at first is a guess, and put right when the message has ended: the
// share is of the true cost.
func TestCorrectedCostsAreShared(t *testing.T) {
	b := newBoard(t, Options{Quantum: 512})
	truth := map[string]int64{"modest": 100, "liar": 2000, "honest": 700}
	for name := range truth {
		b.Add(b.entry(name, "m", L1))
	}
	spent := map[string]float64{}
	for range 30_000 {
		e := b.Next()
		b.Charge(e, 500)
		b.Add(e)
		b.Charge(e, truth[e.Value]-500) // while it is ready again
		spent[e.Value] += float64(truth[e.Value])
	}
	if j := jain(spent); j < 0.99 {
		t.Fatalf("Jain's index of the true cost is %.4f, want at least 0.99: %v", j, spent)
	}
}

func TestWeightsOneTwoFour(t *testing.T) {
	for _, quantum := range []int64{1, 64} {
		b := newBoard(t, Options{Quantum: quantum})
		for name, w := range map[string]uint16{"one": 1, "two": 2, "four": 4} {
			b.entry(name, "m", L1).Weight = w
			b.Add(b.entries[name])
		}
		cost := map[string]int64{"one": 3, "two": 50, "four": 11}
		spent := b.spend(70_000, func(n string) int64 { return cost[n] })
		for name, w := range map[string]float64{"two": 2, "four": 4} {
			if r := spent[name] / spent["one"] / w; r < 0.97 || r > 1.03 {
				t.Errorf("quantum %d: %s spent %.3f of its share, want 1", quantum, name, r)
			}
		}
		// Weights change while all three are queued, one of them deep in debt.
		b.Charge(b.entries["one"], 500)
		b.SetWeight(b.entries["one"], 4)
		b.SetWeight(b.entries["four"], 1)
		b.spend(2_000, func(n string) int64 { return cost[n] })
		spent = b.spend(70_000, func(n string) int64 { return cost[n] })
		if r := spent["one"] / spent["four"]; r < 3.88 || r > 4.12 {
			t.Errorf("quantum %d: weight 4 spent %.3f times what weight 1 did, want 4", quantum, r)
		}
	}
}

// A tenant with 100,000 queued takes one turn in a round, however many it waits with.
func TestQuietEntryIsNotDelayedByACrowdedOne(t *testing.T) {
	b := newBoard(t, Options{})
	crowded, quiet := b.entry("crowded", "m", L1), b.entry("quiet", "m", L1)
	queued := 100_000
	b.Add(crowded)
	for i := 0; queued > 0; i++ {
		if i%100 == 0 {
			b.Add(quiet)
		}
		e := b.Next()
		b.Charge(e, 1)
		if e == crowded {
			if queued--; queued > 0 {
				b.Add(crowded)
			}
		} else if i%100 > 1 {
			t.Fatalf("the quiet one waited %d turns behind the crowded one, want 1 at most", i%100)
		}
	}
}

// A hundred columns are busy. A user whose row opens for one message at a time has a
// bucket in ten of them: each time the row opens one of the ten goes, and none waits
// for ever, although each is always found closed by the time its turn comes round.
func TestRowGateStarvesNone(t *testing.T) {
	b := newBoard(t, Options{})
	row := suspend.Target{Scope: suspend.Row, Name: "alice"}
	thin := map[string]bool{}
	for i := range 100 {
		model := fmt.Sprint("model", i)
		for j := range 20 {
			b.Add(b.entry(fmt.Sprint("busy", i, "/", j), model, L1))
		}
		if i < 10 {
			name := fmt.Sprint("alice/", i)
			thin[name] = true
			b.Add(b.entry(name, model, L1))
		}
	}
	opened, closed, got := 0, false, map[string]int{}
	for turn := range 100_000 {
		if turn%150 == 0 {
			closed = false
			opened++
			openGate(b.Set, row, b.Resume)
		}
		e := b.Next()
		if thin[e.Value] {
			if closed {
				b.Park(e, row)
				continue
			}
			closed = true
			got[e.Value]++
		}
		b.Charge(e, 1)
		b.Add(e)
	}
	for name := range thin {
		if got[name] < opened/10/2 {
			t.Errorf("%s went %d times of %d openings, want about a tenth: %v", name, got[name], opened, got)
		}
	}
}

// The same with Add starves: the test above would not see it if it could not.
func TestRowGateWithoutResumeStarves(t *testing.T) {
	b := newBoard(t, Options{})
	row := suspend.Target{Scope: suspend.Row, Name: "alice"}
	resumed := func(back func(*Entry[string])) int {
		thin := b.entry("thin", "m", L1)
		for j := range 223 {
			b.Add(b.entry(fmt.Sprint("busy", j), "m", L1))
		}
		b.Park(thin, row)
		went, open := 0, false
		for turn := range 20_000 {
			switch turn % 50 { // it opens for two turns in fifty
			case 0:
				open = true
				openGate(b.Set, row, back)
			case 2:
				open = false
			}
			e := b.Next()
			if e == thin && !open {
				b.Park(e, row)
				continue
			}
			if e == thin {
				went++
			}
			b.Charge(e, 1)
			b.Add(e)
		}
		for _, e := range b.entries {
			b.Drop(e)
		}
		clear(b.entries)
		return went
	}
	if added, kept := resumed(b.Add), resumed(b.Resume); added > 10 || kept < 60 {
		t.Fatalf("with Add it went %d times, with Resume %d: want none to speak of, and its share", added, kept)
	}
}

// Turns that are given back were lost before: a column whose entries are resumed all the time
// takes no more than its turn beside one whose entries wait for no gate.
func TestResumingTakesNobodysTurns(t *testing.T) {
	b := newBoard(t, Options{})
	random := rand.New(rand.NewPCG(3, 4))
	gates := make([]suspend.Target, 200)
	for i := range gates {
		gates[i] = suspend.Target{Scope: suspend.Row, Name: fmt.Sprint("user", i)}
		b.Add(b.entry(gates[i].Name, "gated", L1))
	}
	b.Add(b.entry("open", "open", L1))
	served := map[string]int{}
	for range 50_000 {
		for range 3 { // more rows open than messages can go
			openGate(b.Set, gates[random.IntN(len(gates))], b.Resume)
		}
		e := b.Next()
		for e != nil && e.Value != "open" && random.IntN(3) > 0 {
			b.Park(e, suspend.Target{Scope: suspend.Row, Name: e.Value})
			e = b.Next()
		}
		if e == nil {
			continue
		}
		served[e.col.name]++
		b.Charge(e, 1)
		b.Add(e)
	}
	if served["open"] < served["gated"]*95/100 {
		t.Fatalf("served %v, want as many of the open column", served)
	}
}

// A dear message at the head finds that the column has not enough left for it, and is
// put back while the column is closed. The cheap ones behind it, which would fit, do
// not overtake it for ever.
func TestPutBackKeepsItsTurn(t *testing.T) {
	b := newBoard(t, Options{})
	cost := map[string]int64{"dear": 8}
	b.Add(b.entry("dear", "m", L1))
	for i := range 50 {
		name := fmt.Sprint("cheap", i)
		cost[name] = 1
		b.Add(b.entry(name, "m", L1))
	}
	left, dear := int64(0), 0
	for window := range 2_000 {
		left = 10
		b.OpenColumn("m")
		for e := b.Next(); e != nil; e = b.Next() {
			if cost[e.Value] > left {
				b.CloseColumn("m")
				b.PutBack(e)
				continue
			}
			left -= cost[e.Value]
			if e.Value == "dear" {
				dear++
			}
			b.Charge(e, cost[e.Value])
			b.Add(e)
			if left == 0 {
				b.CloseColumn("m")
			}
		}
		if err := b.Check(); err != nil {
			t.Fatalf("window %d: %v", window, err)
		}
	}
	// Equal in cost: 51 entries share 10 a window, so the dear one goes every 41 windows.
	if want := 2_000 / 41; dear < want*8/10 || dear > want*12/10 {
		t.Fatalf("the dear one went %d times in 2000 windows, want about %d", dear, want)
	}
}

// PutBack gives the level its turn back, too: the floor of the lower levels counts
// turns that were taken.
func TestPutBackRestoresTheLevelsTurn(t *testing.T) {
	b := newBoard(t, Options{Share: 4})
	high, low := b.entry("high", "m", L0), b.entry("low", "m", L2)
	b.Add(high)
	b.Add(low)
	for range 100 { // a hundred turns that nobody took
		b.PutBack(b.Next())
	}
	if got := b.serve(5, 1); fmt.Sprint(got) != "[high high high high low]" {
		t.Fatalf("got %v, want four turns of L0 before that of L2", got)
	}
}

// A change of level acts on what is ready, at the floor and above it.
func TestSetLevelMovesWhatIsQueued(t *testing.T) {
	b := newBoard(t, Options{Share: 10})
	b.Add(b.entry("a", "m", L1))
	b.Add(b.entry("b", "m", L1))
	b.SetLevel(b.entries["b"], L3)
	b.SetLevel(b.entries["a"], L0)
	got := count(b.serve(110, 1))
	if got["b"] != 10 || b.entries["b"].Level() != L3 {
		t.Fatalf("got %v, want 10 of 110 turns for L3", got)
	}
	b.CloseLevel(L3)
	if b.Ready() != 1 || b.Parked() != 1 {
		t.Fatalf("ready %d parked %d, want one of each", b.Ready(), b.Parked())
	}
	b.SetLevel(b.entries["b"], L2)
	if got := count(b.serve(110, 1)); b.Ready() != 2 || got["b"] != 10 {
		t.Fatalf("out of the closed level: ready %d, %v", b.Ready(), got)
	}
}

// A debt in tokens is not paid off in requests.
func TestForgiveBeginsAnew(t *testing.T) {
	b := newBoard(t, Options{Quantum: 1000})
	b.Add(b.entry("a", "m", L1))
	b.Add(b.entry("b", "m", L1))
	b.spend(1, func(string) int64 { return 50_000 })
	b.SetQuantum(1)
	for _, e := range b.entries {
		b.Forgive(e)
	}
	if got := count(b.serve(20, 1)); got["a"] != 10 || got["b"] != 10 {
		t.Fatalf("got %v, want ten each", got)
	}
}
