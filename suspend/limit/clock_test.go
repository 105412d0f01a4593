package limit

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestClockStepsBack: after a step back by hours a cell waits what was left to wait, not until the old time comes again.
func TestClockStepsBack(t *testing.T) {
	const step = 5 * time.Hour
	t.Run("leaky", func(t *testing.T) {
		l := LeakyBucket{Rate: Rate{1, 10 * time.Second}}
		s, _ := l.Take(LeakyState{}, noon, 1)
		s, d := l.Take(s, noon.Add(4*time.Second), 1) // 6 s left
		if d.Allowed {
			t.Fatal("passed too early")
		}
		now := noon.Add(4*time.Second - step)
		s, d = l.Take(s, now, 1)
		if want := now.Add(6 * time.Second); d.Allowed || !d.RetryAt.Equal(want) {
			t.Errorf("after the step: %+v, want a retry at %v", d, want)
		}
		if s, d = l.Take(s, now.Add(6*time.Second-1), 1); d.Allowed {
			t.Error("passed too early after the step")
		}
		if _, d = l.Take(s, now.Add(6*time.Second), 1); !d.Allowed {
			t.Error("refused after the wait that was returned")
		}
	})
	t.Run("window", func(t *testing.T) {
		l := FixedWindow{Limit: 2, Window: time.Minute}
		s, _ := l.Take(WindowState{}, noon, 2)
		now := noon.Add(10*time.Second - step)
		s, d := l.Take(s, now, 1)
		if want := noon.Add(time.Minute - step); d.Allowed || !d.RetryAt.Equal(want) {
			t.Errorf("after the step: %+v, want a retry at %v", d, want)
		}
		if _, d = l.Take(s, d.RetryAt, 1); !d.Allowed {
			t.Error("refused in the next window")
		}
	})
}

// TestClockJitterReleasesNothingEarly: callers that read the clock in one order and ask in another must not get more
// through than callers in order.
func TestClockJitterReleasesNothingEarly(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := LeakyBucket{Rate: Rate{10, time.Second}}
		w := FixedWindow{Limit: 10, Window: time.Second}
		var ls LeakyState
		var ws WindowState
		clock, leaky, window := noon, 0, 0
		for range 200 {
			clock = clock.Add(time.Duration(rapid.Int64Range(0, int64(20*time.Millisecond)).Draw(t, "pause")))
			read := clock.Add(-time.Duration(rapid.Int64Range(0, int64(ClockTolerance)).Draw(t, "late")))
			var d Decision
			if ls, d = l.Take(ls, read, 1); d.Allowed {
				leaky++
			}
			if ws, d = w.Take(ws, read, 1); d.Allowed {
				window++
			}
		}
		span := clock.Sub(noon)
		// Reads may lie up to the tolerance before the first instant, so the first window may be one more.
		if most := int((span+ClockTolerance)/(100*time.Millisecond)) + 1; leaky > most {
			t.Fatalf("%d passed the leaky bucket in %v, at most %d may", leaky, span, most)
		}
		if most := 10 * (int(span/time.Second) + 3); window > most {
			t.Fatalf("%d passed the window in %v, at most %d may", window, span, most)
		}
	})
}

// TestAnyClockIsSurvived: whatever the clock does, RetryAt stays within one wait of now.
func TestAnyClockIsSurvived(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := LeakyBucket{Rate: Rate{1, time.Minute}}
		w := FixedWindow{Limit: 1, Window: time.Minute}
		var ls LeakyState
		var ws WindowState
		for range rapid.IntRange(1, 20).Draw(t, "asks") {
			now := time.Unix(0, rapid.Int64Range(-1<<61, 1<<61).Draw(t, "now")) // 73 years either way
			var ld, wd Decision
			ls, ld = l.Take(ls, now, 1)
			ws, wd = w.Take(ws, now, 1)
			for _, d := range []Decision{ld, wd} {
				if wait := d.Wait(now); wait > time.Minute+ClockTolerance+time.Millisecond {
					t.Fatalf("waits %v at %v", wait, now)
				}
			}
		}
	})
}
