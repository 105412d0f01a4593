package limit

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// answers lets n answers come, each while the whole window is running.
func answers(l Adaptive, s AdaptiveState, now time.Time, o Outcome, n int) AdaptiveState {
	for range n {
		s = l.Observe(s, now, o, 0, l.Window(s))
	}
	return s
}

func TestAdaptiveGrowsByOnePerWindow(t *testing.T) {
	l := Adaptive{Min: 2, Max: 5, Start: 3}
	var s AdaptiveState
	for _, step := range []struct {
		answers int
		want    int64
	}{{0, 3}, {2, 3}, {1, 4}, {3, 4}, {1, 5}, {50, 5}} {
		if s = answers(l, s, noon, Good, step.answers); l.Window(s) != step.want {
			t.Fatalf("%d answers later: a window of %d, want %d", step.answers, l.Window(s), step.want)
		}
	}
}

// TestAdaptiveStartsOverAfterADecrease: good answers from before it do not count towards the next increase.
func TestAdaptiveStartsOverAfterADecrease(t *testing.T) {
	l := Adaptive{Max: 20, Start: 10}
	s := answers(l, AdaptiveState{}, noon, Good, 9)
	s = answers(l, s, noon, Overload, 1)
	if s = answers(l, s, noon, Good, 6); l.Window(s) != 7 {
		t.Errorf("a window of %d after 6 good answers, want 7", l.Window(s))
	}
	if s = answers(l, s, noon, Good, 1); l.Window(s) != 8 {
		t.Errorf("a window of %d after 7 good answers, want 8", l.Window(s))
	}
}

// TestAdaptiveDoesNotGrowUnused: answers that came while less than the window was running say nothing about more of it.
func TestAdaptiveDoesNotGrowUnused(t *testing.T) {
	l := Adaptive{Min: 4, Max: 64}
	var s AdaptiveState
	for range 1000 {
		s = l.Observe(s, noon, Good, 0, 3)
	}
	if got := l.Window(s); got != 4 {
		t.Errorf("a window of %d, want 4", got)
	}
}

func TestAdaptiveShrinksOncePerCooldown(t *testing.T) {
	l := Adaptive{Min: 4, Max: 100, Start: 100}
	s := answers(l, AdaptiveState{}, noon, Overload, 30) // all that were under way
	if got := l.Window(s); got != 70 {
		t.Fatalf("a window of %d, want 70", got)
	}
	if s = answers(l, s, noon.Add(DefaultCooldown-1), Timeout, 1); l.Window(s) != 70 {
		t.Errorf("a window of %d within the cooldown, want 70", l.Window(s))
	}
	if s = answers(l, s, noon.Add(DefaultCooldown), Timeout, 1); l.Window(s) != 49 {
		t.Errorf("a window of %d after it, want 49", l.Window(s))
	}
	for i := range 20 {
		s = answers(l, s, noon.Add(time.Duration(i+2)*DefaultCooldown), Overload, 1)
	}
	if got := l.Window(s); got != 4 {
		t.Errorf("a window of %d in the end, want the min of 4", got)
	}
}

// TestAdaptiveShrinksByAtLeastOne: rounding must not keep a small window where it is.
func TestAdaptiveShrinksByAtLeastOne(t *testing.T) {
	l := Adaptive{Max: 3, Start: 3, Decrease: 999}
	var s AdaptiveState
	for i, want := range []int64{2, 1, 1} {
		if s = answers(l, s, noon.Add(time.Duration(i)*DefaultCooldown), Overload, 1); l.Window(s) != want {
			t.Errorf("overload %d: a window of %d, want %d", i, l.Window(s), want)
		}
	}
}

func TestAdaptiveTakesSlowAnswersForOverload(t *testing.T) {
	l := Adaptive{Max: 10, Start: 10, Latency: time.Second}
	s := l.Observe(AdaptiveState{}, noon, Good, time.Second, 10)
	if got := l.Window(s); got != 10 {
		t.Errorf("in time: a window of %d", got)
	}
	if s = l.Observe(s, noon, Good, time.Second+1, 10); l.Window(s) != 7 {
		t.Errorf("too slow: a window of %d, want 7", l.Window(s))
	}
	if s = l.Observe(s, noon.Add(time.Hour), NoFeedback, time.Hour, 10); l.Window(s) != 7 {
		t.Errorf("no feedback: a window of %d, want 7", l.Window(s))
	}
}

// TestAdaptiveFindsTheCapacity: a model that refuses what is more than it can run at once. The window comes up to that from
// below and swings between it and what a decrease leaves; when the capacity changes, it follows.
func TestAdaptiveFindsTheCapacity(t *testing.T) {
	l := Adaptive{Min: 1, Max: 200}
	var s AdaptiveState
	now := noon
	swing := func(capacity int64, seconds int) (low, high, refused int64) {
		low = math.MaxInt64
		for range seconds { // every answer takes a second, and the window is full all the time
			now = now.Add(time.Second)
			window := l.Window(s)
			for i := range window {
				o := Good
				if i >= capacity {
					o, refused = Overload, refused+1
				}
				s = l.Observe(s, now, o, time.Second, window)
			}
			low, high = min(low, l.Window(s)), max(high, l.Window(s))
		}
		return low, high, refused
	}
	for _, capacity := range []int64{40, 10, 80} {
		swing(capacity, 120)
		low, high, refused := swing(capacity, 60)
		if high > capacity+1 || low < capacity*7/10 {
			t.Errorf("capacity %d: the window swings from %d to %d", capacity, low, high)
		}
		if refused > 20 {
			t.Errorf("capacity %d: %d refused in a minute", capacity, refused)
		}
	}
}

// TestAdaptiveShares: two who share a capacity end with equal windows, whatever they start with (Chiu & Jain 1989).
func TestAdaptiveShares(t *testing.T) {
	const capacity = 60
	l := Adaptive{Min: 1, Max: 100}
	a, b := AdaptiveState{Size: 55}, AdaptiveState{Size: 5}
	for second := range 300 {
		now := noon.Add(time.Duration(second) * time.Second)
		o := Good
		if l.Window(a)+l.Window(b) > capacity {
			o = Overload
		}
		a, b = answers(l, a, now, o, int(l.Window(a))), answers(l, b, now, o, int(l.Window(b)))
	}
	if d := l.Window(a) - l.Window(b); d < -2 || d > 2 {
		t.Errorf("windows of %d and %d", l.Window(a), l.Window(b))
	}
}

// TestAdaptiveAnyAnswers: whatever is answered and whatever the clock does, the window stays within its bounds, takes one
// step at a time up, and goes down once per cooldown.
func TestAdaptiveAnyAnswers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := Adaptive{
			Min:      rapid.Int64Range(0, 10).Draw(t, "min"),
			Decrease: rapid.IntRange(0, 999).Draw(t, "decrease"),
			Latency:  time.Duration(rapid.Int64Range(0, 2).Draw(t, "latency")) * time.Second,
		}
		l.Max = l.min() + rapid.Int64Range(0, 20).Draw(t, "max")
		if err := l.Validate(); err != nil {
			t.Fatal(err)
		}
		var s AdaptiveState
		now, shrunk := noon, noon.Add(-time.Hour)
		for range rapid.IntRange(1, 100).Draw(t, "answers") {
			before := l.Window(s)
			o := rapid.SampledFrom([]Outcome{NoFeedback, Good, Good, Good, Overload, Timeout}).Draw(t, "outcome")
			running := rapid.Int64Range(0, 40).Draw(t, "running")
			s = l.Observe(s, now, o, time.Duration(rapid.Int64Range(0, 3).Draw(t, "took"))*time.Second, running)
			after := l.Window(s)
			switch {
			case after < l.min() || after > l.Max || s.Size != after:
				t.Fatalf("a window of %d", after)
			case after > before+1, after > before && (o != Good || running < before):
				t.Fatalf("%v while %d of %d were running: a window of %d", o, running, before, after)
			case after < before:
				if now.Sub(shrunk) < DefaultCooldown {
					t.Fatalf("shrunk at %v and at %v", shrunk, now)
				}
				shrunk = now
			}
			now = now.Add(time.Duration(rapid.Int64Range(0, int64(time.Second)).Draw(t, "pause")))
		}
	})
}

// TestAdaptiveClockStepsBack: a cooldown is a cooldown, also if the clock went back by hours in it.
func TestAdaptiveClockStepsBack(t *testing.T) {
	l := Adaptive{Max: 100, Start: 100}
	s := answers(l, AdaptiveState{}, noon, Overload, 1)
	s = answers(l, s, noon.Add(DefaultCooldown/2), Overload, 1)
	then := noon.Add(-5 * time.Hour)
	s = answers(l, s, then, Overload, 1)
	if s = answers(l, s, then.Add(DefaultCooldown/2-1), Overload, 1); l.Window(s) != 70 {
		t.Errorf("a window of %d within the cooldown, want 70", l.Window(s))
	}
	if s = answers(l, s, then.Add(DefaultCooldown/2), Overload, 1); l.Window(s) != 49 {
		t.Errorf("a window of %d after it, want 49", l.Window(s))
	}
}

// TestAdaptiveBoundsChangeLive: bounds that have changed hold at once, a scale is gone with its end.
func TestAdaptiveBoundsChangeLive(t *testing.T) {
	l := Adaptive{Min: 10, Max: 100, Start: 50}
	s := l.Observe(AdaptiveState{}, noon, Good, 0, 50)
	half, ok := l.Scaled(500)
	if !ok || half.Window(s) != 50 || half.Max != 50 || half.Min != 5 {
		t.Errorf("half: %+v, %v, a window of %d", half, ok, half.Window(s))
	}
	tenth, ok := l.Scaled(100)
	if !ok || tenth.Window(s) != 10 || !tenth.Open(s, 9) || tenth.Open(s, 10) {
		t.Errorf("a tenth: %+v, %v, a window of %d", tenth, ok, tenth.Window(s))
	}
	if got := l.Window(s); got != 50 {
		t.Errorf("after the scale: a window of %d, want 50", got)
	}
	if got := (Adaptive{Min: 60, Max: 100}).Window(s); got != 60 {
		t.Errorf("a raised min: a window of %d, want 60", got)
	}
}

func TestOutcomeString(t *testing.T) {
	for o, want := range map[Outcome]string{
		NoFeedback: "no feedback", Good: "good", Overload: "overload", Timeout: "timeout", 9: "outcome(9)",
	} {
		if got := o.String(); got != want {
			t.Errorf("%d is %q, want %q", o, got, want)
		}
	}
}
