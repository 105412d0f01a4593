package limit

import (
	"math"
	"math/big"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// drawBurst draws a tolerance of none, some or many intervals.
func drawBurst(t *rapid.T, r Rate) time.Duration {
	longest := min(3*int64(r.Per), int64(MaxWindow))
	return time.Duration(rapid.OneOf(rapid.Just(int64(0)), rapid.Int64Range(0, longest)).Draw(t, "burst"))
}

// drawLeakyState draws a state as asks leave it, and an instant at which it may be asked next.
func drawLeakyState(t *rapid.T, l LeakyBucket) (LeakyState, time.Time) {
	var s LeakyState
	now := noon.Add(time.Duration(rapid.Int64Range(0, int64(time.Second)).Draw(t, "start")))
	for range rapid.IntRange(0, 6).Draw(t, "asks") {
		s, _ = l.Take(s, now, rapid.Int64Range(0, 50).Draw(t, "cost"))
		now = now.Add(drawPause(t, l.Rate))
	}
	return s, now
}

func drawWindowState(t *rapid.T, l FixedWindow) (WindowState, time.Time) {
	var s WindowState
	now := noon.Add(time.Duration(rapid.Int64Range(0, int64(l.Window)).Draw(t, "start")))
	for range rapid.IntRange(0, 6).Draw(t, "asks") {
		s, _ = l.Take(s, now, rapid.Int64Range(0, 50).Draw(t, "cost"))
		now = now.Add(drawPause(t, Rate{l.Limit, l.Window}))
	}
	return s, now
}

// drawPause draws a time around the interval of the rate, sometimes none, sometimes a little backward.
func drawPause(t *rapid.T, r Rate) time.Duration {
	interval := max(int64(r.Per)/r.Events, 1)
	return time.Duration(rapid.OneOf(
		rapid.Just(int64(0)),
		rapid.Int64Range(-int64(time.Millisecond), 0),
		rapid.Int64Range(0, min(2*interval, int64(MaxWindow))),
		rapid.Int64Range(0, int64(time.Second)),
	).Draw(t, "pause"))
}

// TestLeakyBucketAgainstModel compares with the definition in rational numbers, over many asks: no drift, not by a
// nanosecond.
func TestLeakyBucketAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := LeakyBucket{Rate: Rate{rapid.Int64Range(1, 1000).Draw(t, "events"), drawPer(t)}}
		l.Burst = drawBurst(t, l.Rate)
		interval := big.NewRat(int64(l.Rate.Per), l.Rate.Events)
		tat := new(big.Rat)
		var s LeakyState
		now := noon.UnixNano()
		for range rapid.IntRange(1, 60).Draw(t, "asks") {
			cost := rapid.Int64Range(0, 5).Draw(t, "cost")
			var d Decision
			s, d = l.Take(s, time.Unix(0, now), cost)

			at := new(big.Rat).SetInt64(now)
			opens := new(big.Rat).Sub(tat, new(big.Rat).SetInt64(int64(l.Burst)))
			want := cost == 0 || opens.Cmp(at) <= 0
			if d.Allowed != want {
				t.Fatalf("at %d cost %d: allowed %v, TAT %v", now, cost, d.Allowed, tat.FloatString(3))
			}
			if want && cost > 0 {
				if tat.Cmp(at) < 0 {
					tat.Set(at)
				}
				tat.Add(tat, new(big.Rat).Mul(interval, new(big.Rat).SetInt64(cost)))
			}
			if got := remainingByAsking(l, s, now); got != d.Remaining {
				t.Fatalf("remaining %d, but %d pass", d.Remaining, got)
			}
			now += rapid.Int64Range(0, 2*int64(l.Rate.Per)/l.Rate.Events).Draw(t, "pause")
			if !d.Allowed && rapid.Bool().Draw(t, "on time") {
				now = d.RetryAt.UnixNano()
			}
		}
	})
}

// drawPer draws durations below MinWindow, too: with few nanoseconds per event, fractions of them decide.
func drawPer(t *rapid.T) time.Duration {
	return rapid.SampledFrom([]time.Duration{10, 3 * time.Microsecond, time.Millisecond, time.Second, 7 * time.Second, time.Minute}).Draw(t, "per")
}

func remainingByAsking(l LeakyBucket, s LeakyState, now int64) int64 {
	for n := int64(0); ; n++ {
		var d Decision
		if s, d = l.Take(s, time.Unix(0, now), 1); !d.Allowed {
			return n
		}
	}
}

// TestFixedWindowAgainstModel compares with a count per window.
func TestFixedWindowAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := FixedWindow{
			Limit:  rapid.Int64Range(1, 10).Draw(t, "limit"),
			Window: time.Duration(rapid.Int64Range(1, 3000).Draw(t, "window ms")) * time.Millisecond,
		}
		used := make(map[int64]int64)
		var s WindowState
		now := noon.UnixNano()
		for range rapid.IntRange(1, 60).Draw(t, "asks") {
			cost := rapid.Int64Range(0, l.Limit+1).Draw(t, "cost")
			var d Decision
			s, d = l.Take(s, time.Unix(0, now), cost)
			index := now / int64(l.Window)
			if want := used[index]+cost <= l.Limit; d.Allowed != want || d.Never != (cost > l.Limit) {
				t.Fatalf("%d used, cost %d of %d: %+v", used[index], cost, l.Limit, d)
			}
			if d.Allowed {
				used[index] += cost
			}
			if d.Remaining != l.Limit-used[index] {
				t.Fatalf("remaining %d, %d of %d used", d.Remaining, used[index], l.Limit)
			}
			now += rapid.Int64Range(0, int64(l.Window)).Draw(t, "pause")
		}
	})
}

// TestNothingWrapsRound: no input leads to an earlier instant than a smaller one would.
func TestNothingWrapsRound(t *testing.T) {
	huge := []int64{1, 42, 1 << 31, 1 << 53, math.MaxInt64 - 1, math.MaxInt64}
	for _, rate := range []Rate{{1, time.Millisecond}, {1, MaxWindow}, {MaxEvents, time.Millisecond}, {MaxEvents, MaxWindow}} {
		l := LeakyBucket{Rate: rate}
		last := time.Time{}
		for _, cost := range huge {
			s, d := l.Take(LeakyState{}, noon, cost)
			if !d.Allowed {
				t.Fatalf("%v cost %d: first ask refused", rate, cost)
			}
			_, d = l.Take(s, noon, cost)
			if d.Allowed || d.RetryAt.Before(last) || !d.RetryAt.After(noon) {
				t.Errorf("%v cost %d: %+v after %v", rate, cost, d, last)
			}
			last = d.RetryAt
			if d.Wait(noon) <= 0 {
				t.Errorf("%v cost %d: wait %v", rate, cost, d.Wait(noon))
			}
		}
	}
	for _, cost := range []int64{-1, math.MinInt64} {
		if s, d := (LeakyBucket{Rate: Rate{1, time.Second}}).Take(LeakyState{}, noon, cost); !d.Never || s.TAT > s.At {
			t.Errorf("cost %d on a leaky bucket: %+v %+v", cost, s, d)
		}
		if s, d := (FixedWindow{Limit: 1, Window: time.Second}).Take(WindowState{}, noon, cost); !d.Never || s.Used != 0 {
			t.Errorf("cost %d on a window: %+v %+v", cost, s, d)
		}
	}
	if _, d := (FixedWindow{Limit: 5, Window: time.Second}).Take(WindowState{}, noon, math.MaxInt64); !d.Never {
		t.Errorf("more than a window ever has: %+v", d)
	}
}
