package signal

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/penstockmq/penstock/suspend"
)

var (
	noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	m1   = suspend.Target{Scope: suspend.Column, Name: "m1"}
	l2   = suspend.Target{Scope: suspend.Level, Name: "2"}
)

func alarm(source string, permille int64, at time.Time, lasts time.Duration) Signal {
	return Signal{Target: m1, Source: source, Permille: permille, At: at, Until: at.Add(lasts), Kind: Alarm}
}

func poll(source string, permille, def int64, at time.Time, lasts time.Duration) Signal {
	return Signal{Target: m1, Source: source, Permille: permille, Default: def, At: at, Until: at.Add(lasts), Kind: Poll}
}

func wantFactor(t *testing.T, b *Board, now time.Time, want int64, next time.Time) {
	t.Helper()
	got, gotNext := b.Factor(now, m1)
	if got != want || !gotNext.Equal(next) {
		t.Errorf("at +%v: factor %d, next +%v; want %d, +%v", now.Sub(noon), got, gotNext.Sub(noon), want, next.Sub(noon))
	}
}

func TestFactorFallsAtOnceAndRisesGradually(t *testing.T) {
	var b Board
	wantFactor(t, &b, noon, Full, time.Time{})
	end := noon.Add(10 * time.Second)
	b.Put(noon, alarm("a", 500, noon, 10*time.Second))
	wantFactor(t, &b, noon, 500, end)
	wantFactor(t, &b, end.Add(-1), 500, end)
	wantFactor(t, &b, end, 500, end.Add(RiseStep))
	wantFactor(t, &b, end.Add(RiseStep-1), 500, end.Add(RiseStep))
	wantFactor(t, &b, end.Add(RiseStep), 510, end.Add(2*RiseStep))
	wantFactor(t, &b, end.Add(time.Second), 600, end.Add(time.Second+RiseStep))
	wantFactor(t, &b, end.Add(5*time.Second-1), 990, end.Add(5*time.Second))
	wantFactor(t, &b, end.Add(5*time.Second), Full, time.Time{})
	if len(b.targets) != 0 {
		t.Error("a target at rest is kept")
	}
}

func TestFactorIsTheLowestOfAllSources(t *testing.T) {
	var b Board
	b.Put(noon, alarm("a", 500, noon, time.Minute))
	b.Put(noon, alarm("b", 200, noon, 2*time.Second))
	b.Put(noon, alarm("c", 800, noon, time.Hour))
	wantFactor(t, &b, noon, 200, noon.Add(2*time.Second))
	// b ends, and the factor stops at what a asks for.
	wantFactor(t, &b, noon.Add(5*time.Second), 500, noon.Add(time.Minute))
	b.Drop(noon.Add(5*time.Second), m1, "a")
	wantFactor(t, &b, noon.Add(6*time.Second), 600, noon.Add(6*time.Second+RiseStep))
	// A fall in the middle of a rise.
	b.Put(noon.Add(6*time.Second), alarm("b", 0, noon.Add(6*time.Second), time.Second))
	wantFactor(t, &b, noon.Add(6*time.Second), 0, noon.Add(7*time.Second))
	// The others are not touched.
	if got, _ := b.Factor(noon, l2); got != Full {
		t.Errorf("level 2 is at %d", got)
	}
}

func TestStalePollDecaysToItsDefault(t *testing.T) {
	for _, tc := range []struct {
		name           string
		permille, want int64
		after          time.Duration // from the moment it is stale
	}{
		{"falls at once", 1000, 600, 0},
		{"rises gradually", 300, 400, time.Second},
		{"and stays there", 300, 600, time.Hour},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var b Board
			b.Put(noon, poll("p", tc.permille, 600, noon, 3*time.Second))
			before := b.Explain(noon, m1)
			if len(before) != 1 || before[0].Stale || before[0].Permille != tc.permille {
				t.Fatalf("fresh: %+v", before)
			}
			now := noon.Add(3*time.Second + tc.after)
			if got, _ := b.Factor(now, m1); got != tc.want {
				t.Errorf("factor %d, want %d", got, tc.want)
			}
			states := b.Explain(now, m1)
			if len(states) != 1 || !states[0].Stale || states[0].Permille != 600 {
				t.Errorf("stale: %+v", states)
			}
			// It comes back and is itself again.
			b.Put(now, poll("p", 100, 600, now, 3*time.Second))
			if got, _ := b.Factor(now, m1); got != 100 {
				t.Errorf("back: %d, want 100", got)
			}
		})
	}
}

func TestManualSignalHasNoEnd(t *testing.T) {
	var b Board
	b.Put(noon, Signal{Target: m1, Source: "operator", Permille: 0, At: noon, Kind: Manual})
	wantFactor(t, &b, noon.Add(1000*time.Hour), 0, time.Time{})
	b.Drop(noon.Add(1000*time.Hour), m1, "operator")
	if got, _ := b.Factor(noon.Add(1000*time.Hour+20*time.Second), m1); got != Full || len(b.targets) != 0 {
		t.Errorf("dropped: %d", got)
	}
}

func TestEndedSignalLeavesNothing(t *testing.T) {
	var b Board
	b.Put(noon, alarm("late", 0, noon.Add(-time.Hour), time.Minute))
	if got, _ := b.Factor(noon, m1); got != Full || len(b.targets) != 0 {
		t.Errorf("factor %d, %d targets", got, len(b.targets))
	}
	b.Drop(noon, m1, "never was")
}

func TestTargetsInOrder(t *testing.T) {
	var b Board
	for _, target := range []suspend.Target{l2, {Scope: suspend.Column, Name: "z"}, m1} {
		s := alarm("a", 500, noon, time.Minute)
		s.Target = target
		b.Put(noon, s)
	}
	if got := fmt.Sprint(b.Targets(noon)); got != "[column m1 column z level 2]" {
		t.Error(got)
	}
	if got := b.Targets(noon.Add(time.Hour)); len(got) != 0 {
		t.Errorf("after all have ended: %v", got)
	}
}

func TestSourcesAreBounded(t *testing.T) {
	var b Board
	for i := range MaxSources + 50 {
		b.Put(noon, alarm(fmt.Sprintf("a%03d", i), 900, noon, time.Hour))
	}
	b.Put(noon, alarm("low", 100, noon, time.Hour))
	b.Put(noon, alarm("zzz", 950, noon, time.Hour))
	states := b.Explain(noon, m1)
	if len(states) != MaxSources || states[0].Signal.Source != "low" || states[1].Signal.Source != "a000" {
		t.Errorf("%d sources, first %+v", len(states), states[0])
	}
}

func TestClockSetBackDrawsSignalsIn(t *testing.T) {
	var b Board
	ahead := noon.Add(time.Hour)
	b.Put(ahead, alarm("a", 100, ahead, time.Minute))
	wantFactor(t, &b, noon, 100, noon.Add(time.Minute))
	wantFactor(t, &b, noon.Add(time.Minute+2*time.Second), 300, noon.Add(time.Minute+2*time.Second+RiseStep))
	// Turns that are a little out of order are no step: nothing moves.
	wantFactor(t, &b, noon.Add(time.Minute+1500*time.Millisecond), 300, noon.Add(time.Minute+2*time.Second+RiseStep))
	// A sender whose clock is ahead.
	b.Put(noon, alarm("a", 100, ahead, time.Minute))
	if _, next := b.Factor(noon, m1); next.After(noon.Add(time.Minute)) {
		t.Errorf("lasts until +%v", next.Sub(noon))
	}
}

// A rise that is under way when the clock is set back goes on from there, and does not wait until the old time has come.
func TestClockSetBackDoesNotStopARise(t *testing.T) {
	var b Board
	b.Put(noon, alarm("a", 0, noon, time.Hour))
	b.Drop(noon, m1, "a")
	if got, _ := b.Factor(noon.Add(2*time.Second), m1); got != 200 {
		t.Fatalf("factor %d after 2 s, want 200", got)
	}
	back := noon.Add(-time.Hour)
	if got, _ := b.Factor(back, m1); got != 200 {
		t.Errorf("factor %d when the clock goes back, want 200", got)
	}
	if got, _ := b.Factor(back.Add(3*time.Second), m1); got != 500 {
		t.Errorf("factor %d after another 3 s, want 500", got)
	}
}

// TestBoardProperties: what the factor is depends on signals and time alone, it is never above what a source asks for, it
// rises no faster than it may, and next is never later than a change.
func TestBoardProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var lazy, eager Board
		now := noon
		for range rapid.IntRange(1, 40).Draw(t, "events") {
			source := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "source")
			switch rapid.IntRange(0, 3).Draw(t, "event") {
			case 0:
				s := alarm(source, rapid.Int64Range(0, 1000).Draw(t, "permille"), now, durations(t))
				lazy.Put(now, s)
				eager.Put(now, s)
			case 1:
				s := poll(source, rapid.Int64Range(0, 1000).Draw(t, "permille"), rapid.Int64Range(0, 1000).Draw(t, "default"), now, durations(t))
				lazy.Put(now, s)
				eager.Put(now, s)
			case 2:
				lazy.Drop(now, m1, source)
				eager.Drop(now, m1, source)
			}
			last, _ := eager.Factor(now, m1)
			until := now.Add(durations(t))
			for now.Before(until) {
				was, next := eager.Factor(now, m1)
				step := min(time.Duration(rapid.Int64Range(1, int64(time.Second)).Draw(t, "step")), until.Sub(now))
				now = now.Add(step)
				got, _ := eager.Factor(now, m1)
				if got != was && (next.IsZero() || now.Before(next)) {
					t.Fatalf("changed from %d to %d before %v", was, got, next)
				}
				if rise := got - last; rise > perStep*int64(step/RiseStep+1) {
					t.Fatalf("rose by %d in %v", rise, step)
				}
				for _, s := range eager.Explain(now, m1) {
					if got > s.Permille {
						t.Fatalf("factor %d, but %s asks for %d", got, s.Signal.Source, s.Permille)
					}
				}
				last = got
			}
			if a, _ := lazy.Factor(now, m1); a != last {
				t.Fatalf("asked once: %d, asked often: %d", a, last)
			}
		}
		now = now.Add(time.Hour)
		for _, source := range []string{"a", "b", "c"} {
			eager.Drop(now, m1, source)
		}
		if got, next := eager.Factor(now.Add(10*time.Second), m1); got != Full || !next.IsZero() || len(eager.targets) != 0 {
			t.Fatalf("ten seconds after the last: %d, %v, %d targets", got, next, len(eager.targets))
		}
	})
}

func durations(t *rapid.T) time.Duration {
	return time.Duration(rapid.Int64Range(1, int64(15*time.Second)).Draw(t, "duration"))
}

func BenchmarkFactor(b *testing.B) {
	var board Board
	board.Put(noon, alarm("a", 500, noon, time.Hour))
	for b.Loop() {
		board.Factor(noon, m1)
	}
}
