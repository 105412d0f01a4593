package limit

import (
	"math"
	"math/big"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestObservedRateDelaysABurst is the example of KIP-599: a burst of 560 at 5/s over 100 samples of a second is 5.6/s, and
// (5.6 - 5)/5 * 100 s are 12 s. The delay is the one a TokenBucket gives; what follows is not, as the KIP objects.
func TestObservedRateDelaysABurst(t *testing.T) {
	l := ObservedRate{Rate: Rate{5, time.Second}, Samples: 100, Size: time.Second, Cap: time.Minute}
	s, d := l.Take(ObservedState{}, noon, 560)
	if !d.Allowed {
		t.Fatalf("nothing was observed: %+v", d)
	}
	want := noon.Add(12 * time.Second)
	if s, d = l.Take(s, noon, 1); d.Allowed || !d.RetryAt.Equal(want) {
		t.Fatalf("above the target: %+v, want a retry after 12 s", d)
	}
	if s, d = l.Take(s, want, 1); !d.Allowed {
		t.Fatalf("after the delay: %+v", d)
	}
	if got, again := l.Opens(s, want), want.Add(12*time.Second+200*time.Millisecond); !got.Equal(again) {
		t.Errorf("the burst is still observed: opens at %v, want %v", got, again)
	}
}

// A delay that is running is not cut short by a later charge that causes a shorter one: with 1 s in sight, the burst is out
// of it long before its delay ends.
func TestALaterChargeShortensNoDelay(t *testing.T) {
	l := ObservedRate{Rate: Rate{1, time.Second}, Samples: 1, Size: time.Second, Cap: time.Minute}
	s := l.Charge(ObservedState{}, noon, 40)
	ends := l.Opens(s, noon)
	if want := noon.Add(39 * time.Second); !ends.Equal(want) {
		t.Fatalf("the burst is waited for until %v, want %v", ends, want)
	}
	later := noon.Add(5 * time.Second)
	if s = l.Charge(s, later, 2); !l.Opens(s, later).Equal(ends) {
		t.Errorf("after another charge until %v, want %v", l.Opens(s, later), ends)
	}
}

// TestC62_ThrottleHasFloorAndCeiling: X = (O - T)/T * W is never negative, never above the cap, and T = 0 has its rule.
func TestC62_ThrottleHasFloorAndCeiling(t *testing.T) {
	ten := ObservedRate{Rate: Rate{10, time.Second}, Samples: 10, Size: time.Second}
	tiny := ObservedRate{Rate: Rate{1, time.Second}, Samples: 11, Size: time.Second, Cap: 20 * time.Second}
	zero := ObservedRate{Samples: 10, Size: time.Second}
	for _, tc := range []struct {
		name     string
		l        ObservedRate
		observed int64 // O * W
		want     time.Duration
	}{
		{"O 30, T 10, W 10 s", ten, 300, 20 * time.Second},
		{"O 10, T 10", ten, 100, 0},
		{"O 5, T 10", ten, 50, 0},
		{"one above", ten, 101, 100 * time.Millisecond},
		{"nothing", ten, 0, 0},
		{"less than nothing", ten, math.MinInt64, 0},
		{"O 10000, T 1, W 11 s", tiny, 110_000, 20 * time.Second},
		{"all there is", tiny, math.MaxInt64, 20 * time.Second},
		{"T 0", zero, 1, DefaultObservedCap},
		{"T 0, nothing", zero, 0, 0},
	} {
		if got := tc.l.Throttle(tc.observed); got != tc.want {
			t.Errorf("%s: %v, want %v", tc.name, got, tc.want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		l := drawObserved(t)
		if x := l.Throttle(rapid.Int64().Draw(t, "observed")); x < 0 || x > l.cap() {
			t.Fatalf("%v is throttled for %v", l, x)
		}
	})
}

// TestZeroTargetLetsOnePassPerCap.
func TestZeroTargetLetsOnePassPerCap(t *testing.T) {
	l := ObservedRate{Cap: 3 * time.Second}
	var s ObservedState
	passed := 0
	for ms := range 10_000 {
		var d Decision
		if s, d = l.Take(s, noon.Add(time.Duration(ms)*time.Millisecond), 1); d.Allowed {
			passed++
		}
	}
	if passed != 4 {
		t.Errorf("%d passed in 10 s, want one at 0, 3, 6 and 9 s", passed)
	}
}

// TestObservedRateAgainstModel compares with one that keeps every charge and works in rational numbers.
func TestObservedRateAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := drawObserved(t)
		slots, length := l.slots()
		var all []passed
		var s ObservedState
		now, until := noon.UnixNano(), int64(math.MinInt64)
		for range rapid.IntRange(1, 60).Draw(t, "asks") {
			cost := rapid.Int64Range(1, 200).Draw(t, "cost")
			var d Decision
			if s, d = l.Take(s, time.Unix(0, now), cost); d.Allowed != (until <= now) {
				t.Fatalf("closed until %d, at %d: %+v", until, now, d)
			}
			if d.Allowed || rapid.IntRange(0, 3).Draw(t, "charged unasked") == 0 {
				if !d.Allowed {
					s = l.Charge(s, time.Unix(0, now), cost)
				}
				all = append(all, passed{now, cost})
				sum := int64(0)
				for _, p := range all {
					if now/length-p.at/length < int64(slots) {
						sum += p.cost
					}
				}
				until = max(until, now+modelThrottle(l, sum))
				if got := l.Observed(s, time.Unix(0, now)); got != sum {
					t.Fatalf("%d observed, want %d", got, sum)
				}
			}
			if got := l.Opens(s, time.Unix(0, now)).UnixNano(); got != max(until, now) {
				t.Fatalf("opens at %d, want %d", got, max(until, now))
			}
			now += rapid.Int64Range(0, 2*length).Draw(t, "pause")
			if rapid.Bool().Draw(t, "on time") {
				now = max(now, until)
			}
		}
	})
}

// modelThrottle is (O - T)/T * W as it is written, in nanoseconds rounded up.
func modelThrottle(l ObservedRate, sum int64) int64 {
	if l.Rate.Events == 0 {
		return int64(l.cap())
	}
	w := new(big.Rat).SetInt64(int64(l.Span()))
	target := big.NewRat(l.Rate.Events, int64(l.Rate.Per))
	x := new(big.Rat).Quo(new(big.Rat).SetInt64(sum), w)
	x.Sub(x, target).Quo(x, target).Mul(x, w)
	up := new(big.Int).Add(x.Num(), new(big.Int).Sub(x.Denom(), big.NewInt(1)))
	return min(max(up.Div(up, x.Denom()).Int64(), 0), int64(l.cap()))
}

// TestObservedRateCountsToTheEnd: a slot counts no further than it can, and the delay is at least W then.
func TestObservedRateCountsToTheEnd(t *testing.T) {
	l := ObservedRate{Rate: Rate{MaxObserved / 1000, time.Second}, Samples: 1000, Cap: MaxWindow}
	if err := l.Validate(); err != nil {
		t.Fatal(err)
	}
	s := l.Charge(ObservedState{}, noon, 1<<33)
	if got := l.Observed(s, noon); got != math.MaxUint32 {
		t.Errorf("%d observed", got)
	}
	if wait := l.Opens(s, noon).Sub(noon); wait < l.Span() {
		t.Errorf("a delay of %v, want at least %v", wait, l.Span())
	}
}

// TestObservedRateGivesBack: what is given back is not observed any more, and does not delay.
func TestObservedRateGivesBack(t *testing.T) {
	l := ObservedRate{Rate: Rate{5, time.Second}, Samples: 10, Size: time.Second}
	s := l.Charge(ObservedState{}, noon, 40)
	s = l.Charge(s, noon.Add(time.Second), 60) // 50 too many: 10 s
	now := noon.Add(2 * time.Second)
	if got, want := l.Opens(s, now), noon.Add(11*time.Second); !got.Equal(want) {
		t.Fatalf("opens at %v, want %v", got, want)
	}
	s = l.Charge(s, now, -30)
	if got, want := l.Opens(s, now), noon.Add(5*time.Second); !got.Equal(want) || l.Observed(s, now) != 70 {
		t.Errorf("30 back: opens at %v, want %v; %d observed", got, want, l.Observed(s, now))
	}
	s = l.Charge(s, now, -50) // 30 of the second charge, 20 of the first
	if got := l.Opens(s, now); !got.Equal(now) || l.Observed(s, noon.Add(9*time.Second)) != 20 {
		t.Errorf("80 back: opens at %v, %d observed", got, l.Observed(s, noon.Add(9*time.Second)))
	}
	if got := l.Observed(s, noon.Add(10*time.Second)); got != 0 {
		t.Errorf("%d observed when the first sample is out of sight", got)
	}
}

// TestChangedSamplesGoOn: a limit with fewer samples forgets the oldest, and one observed long ago is not found again.
func TestChangedSamplesGoOn(t *testing.T) {
	l := ObservedRate{Rate: Rate{5, time.Second}, Samples: 10, Size: time.Second}
	s := l.Charge(ObservedState{}, noon, 7)
	s = l.Charge(s, noon.Add(4*time.Second), 3)
	fewer := ObservedRate{Rate: Rate{5, time.Second}, Samples: 3, Size: time.Second}
	if got := fewer.Observed(s, noon.Add(4*time.Second)); got != 3 {
		t.Errorf("%d observed, want 3", got)
	}
	hour := noon.Add(time.Hour)
	s, _ = l.Peek(s, hour, 1)
	strict := ObservedRate{Rate: Rate{1, time.Hour}, Cap: MaxWindow}
	if got := strict.Opens(s, hour); !got.Equal(hour) {
		t.Errorf("an hour later it opens at %v", got)
	}
}
