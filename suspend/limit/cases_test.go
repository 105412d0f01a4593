package limit

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// TestC47_LeakyBucketNeverJumpsBackToFull: 3 per second, a hit every 100 ms for 10 s. A count that is reset once per
// period lets nearly twice the limit through.
func TestC47_LeakyBucketNeverJumpsBackToFull(t *testing.T) {
	rate := Rate{Events: 3, Per: time.Second}
	for _, tc := range []struct {
		name     string
		burst    time.Duration
		from, to int
	}{
		// 667 ms: two intervals, so three pass back to back.
		{"burst of 3", 667 * time.Millisecond, 30, 32},
		{"no burst", 0, 25, 30},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l := LeakyBucket{Rate: rate, Burst: tc.burst}
			var s LeakyState
			passed, before := 0, int64(0)
			for hit := range 100 {
				now := noon.Add(time.Duration(hit) * 100 * time.Millisecond)
				_, ask := l.Peek(s, now, 1)
				if hit > 0 && ask.Remaining > before+1 {
					t.Errorf("hit %d: remaining rose from %d to %d", hit, before, ask.Remaining)
				}
				var d Decision
				s, d = l.Take(s, now, 1)
				if d.Allowed {
					passed++
				}
				before = d.Remaining
			}
			if passed < tc.from || passed > tc.to {
				t.Errorf("%d of 100 passed, want %d to %d", passed, tc.from, tc.to)
			}
		})
	}
}

// TestC49_ReturnedWaitIsTheShortest: from any state, an ask repeated after the returned N ms passes, one repeated after
// N-1 ms does not; and to the nanosecond, the same of RetryAt.
func TestC49_ReturnedWaitIsTheShortest(t *testing.T) {
	rates := []Rate{
		{1, 2 * time.Second},
		{1, time.Second},
		{3, time.Second},
		{7, time.Second},
		{1000, time.Second},
		{MaxEvents, time.Millisecond},
		{999_999_937, MaxWindow},
		{1, MaxWindow},
	}
	for _, rate := range rates {
		for _, cost := range []int64{1, 42} {
			t.Run(fmt.Sprintf("leaky %v cost %d", rate, cost), func(t *testing.T) {
				rapid.Check(t, func(t *rapid.T) {
					l := LeakyBucket{Rate: rate, Burst: drawBurst(t, rate)}
					s, now := drawLeakyState(t, l)
					waitIsShortest(t, now, func(at time.Time) Decision {
						_, d := l.Take(s, at, cost)
						return d
					})
				})
			})
			t.Run(fmt.Sprintf("window %v cost %d", rate, cost), func(t *testing.T) {
				rapid.Check(t, func(t *rapid.T) {
					l := FixedWindow{Limit: rate.Events, Window: rate.Per}
					s, now := drawWindowState(t, l)
					waitIsShortest(t, now, func(at time.Time) Decision {
						_, d := l.Take(s, at, cost)
						return d
					})
				})
			})
		}
	}
}

func waitIsShortest(t *rapid.T, now time.Time, ask func(time.Time) Decision) {
	d := ask(now)
	if d.Allowed || d.Never {
		if d.Wait(now) != 0 || !d.RetryAt.IsZero() {
			t.Fatalf("%+v has a wait", d)
		}
		return
	}
	n := d.Wait(now)
	if n <= 0 || n%time.Millisecond != 0 {
		t.Fatalf("wait of %v", n)
	}
	for _, at := range []time.Time{now.Add(n), d.RetryAt, d.RetryAt.Add(time.Hour)} {
		if again := ask(at); !again.Allowed {
			t.Fatalf("wait %v: refused again after %v: %+v", n, at.Sub(now), again)
		}
	}
	for _, at := range []time.Time{now.Add(n - time.Millisecond), d.RetryAt.Add(-1)} {
		again := ask(at)
		if again.Allowed {
			t.Fatalf("wait %v: passed after %v already", n, at.Sub(now))
		}
		if !again.RetryAt.Equal(d.RetryAt) {
			t.Fatalf("after %v the answer changed from %v to %v", at.Sub(now), d.RetryAt, again.RetryAt)
		}
	}
}

// TestC50_OldWindowDoesNotLeakIntoTheNew: 5 per minute, asked around the boundary.
func TestC50_OldWindowDoesNotLeakIntoTheNew(t *testing.T) {
	l := FixedWindow{Limit: 5, Window: time.Minute}
	var s WindowState
	var d Decision
	hit := func(after time.Duration, want bool) {
		t.Helper()
		if s, d = l.Take(s, noon.Add(after), 1); d.Allowed != want {
			t.Errorf("hit at %v: allowed %v, want %v", after, d.Allowed, want)
		}
	}
	for range 5 {
		hit(58*time.Second+700*time.Millisecond, true)
	}
	hit(59*time.Second, false)
	for i := range 5 {
		hit(time.Minute+time.Duration(i)*120*time.Millisecond, true)
	}
	hit(time.Minute+600*time.Millisecond, false)
	if want := noon.Add(2 * time.Minute); !d.RetryAt.Equal(want) {
		t.Errorf("retry at %v, want %v", d.RetryAt, want)
	}
	hit(2*time.Minute-1, false)
	hit(2*time.Minute, true)
}

// TestC54_ChangedLimitGoesOn: a limit that is lowered must admit again, one that is raised must act at once, and windows
// must run at the speed of the clock.
func TestC54_ChangedLimitGoesOn(t *testing.T) {
	t.Run("window lowered", func(t *testing.T) {
		var s WindowState
		var d Decision
		for range 5 {
			s, d = FixedWindow{Limit: 5, Window: time.Minute}.Take(s, noon, 1)
		}
		low := FixedWindow{Limit: 1, Window: time.Minute}
		s, d = low.Take(s, noon.Add(time.Second), 1)
		if d.Allowed || !d.RetryAt.Equal(noon.Add(time.Minute)) {
			t.Errorf("after lowering: %+v", d)
		}
		for minute := 1; minute <= 3; minute++ {
			if s, d = low.Take(s, noon.Add(time.Duration(minute)*time.Minute), 1); !d.Allowed {
				t.Errorf("minute %d: refused", minute)
			}
		}
	})
	t.Run("rate raised", func(t *testing.T) {
		s, _ := LeakyBucket{Rate: Rate{1, time.Hour}}.Take(LeakyState{}, noon, 1)
		now := noon.Add(30 * time.Minute) // half an event is owed
		_, d := LeakyBucket{Rate: Rate{5, time.Second}}.Take(s, now, 1)
		if want := now.Add(100 * time.Millisecond); d.Allowed || !d.RetryAt.Equal(want) {
			t.Errorf("after raising: %+v, want a retry at %v", d, want)
		}
	})
	t.Run("rate lowered", func(t *testing.T) {
		s, _ := LeakyBucket{Rate: Rate{10, time.Second}}.Take(LeakyState{}, noon, 1)
		_, d := LeakyBucket{Rate: Rate{1, time.Second}}.Take(s, noon.Add(50*time.Millisecond), 1)
		if want := noon.Add(550 * time.Millisecond); d.Allowed || !d.RetryAt.Equal(want) {
			t.Errorf("after lowering: %+v, want a retry at %v", d, want)
		}
	})
	t.Run("window speed", func(t *testing.T) {
		l := FixedWindow{Limit: 1, Window: time.Second}
		var s WindowState
		var d Decision
		for i := range 100 {
			if s, d = l.Take(s, noon.Add(time.Duration(i)*time.Second), 1); !d.Allowed {
				t.Fatalf("second %d: refused", i)
			}
		}
	})
}
