package limit

import (
	"math"
	"math/big"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestScalePermille(t *testing.T) {
	for _, tc := range []struct {
		n, permille, want int64
		ok                bool
	}{
		{100, 1000, 100, true},
		{100, 5000, 100, true},
		{100, 999, 99, true},
		{100, 500, 50, true},
		{7, 500, 3, true},
		{7, 1, 1, true},
		{1, 1, 1, true},
		{7, 0, 7, false},
		{7, -1, 7, false},
		{MaxLimit, 999, 999_000_000_000, true},
		{math.MaxInt64, 999, 9214148664817921031, true},
	} {
		if got, ok := ScalePermille(tc.n, tc.permille); got != tc.want || ok != tc.ok {
			t.Errorf("%d at %d: %d, %v; want %d, %v", tc.n, tc.permille, got, ok, tc.want, tc.ok)
		}
	}
}

// TestScaledRateIsExact: the pair is just the fraction, and a scaled rate is a rate that the limits can work with.
func TestScaledRateIsExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := Rate{rapid.Int64Range(1, MaxEvents).Draw(t, "events"), time.Duration(rapid.Int64Range(int64(MinWindow), int64(MaxWindow)).Draw(t, "per"))}
		permille := rapid.Int64Range(1, 1000).Draw(t, "permille")
		got, ok := r.Scaled(permille)
		if !ok || got.Events < 1 || got.Per < 1 {
			t.Fatalf("%v at %d: %+v, %v", r, permille, got, ok)
		}
		want := new(big.Rat).Mul(big.NewRat(r.Events, int64(r.Per)), big.NewRat(permille, 1000))
		if big.NewRat(got.Events, int64(got.Per)).Cmp(want) != 0 {
			t.Fatalf("%v at %d: %+v, want %v", r, permille, got, want)
		}
		again := got // far beyond what a policy can say, it only ever gets slower
		for range 10 {
			slower, ok := again.Scaled(permille)
			before := big.NewRat(again.Events, int64(again.Per))
			if !ok || slower.Events < 1 || big.NewRat(slower.Events, int64(slower.Per)).Cmp(before) > 0 {
				t.Fatalf("%+v at %d: %+v", again, permille, slower)
			}
			again = slower
		}
	})
	if got, ok := (Rate{5, time.Second}).Scaled(900); !ok || got != (Rate{9, 2 * time.Second}) {
		t.Errorf("5/s at 900: %v, %v", got, ok)
	}
}

func TestScaledCapacity(t *testing.T) {
	l := TokenBucket{Rate: Rate{10, time.Second}, Capacity: 500}
	if got, ok := l.Scaled(300); !ok || got != (TokenBucket{Rate{3, time.Second}, 150}) {
		t.Errorf("%v at 300: %v, %v", l, got, ok)
	}
	l.Capacity = 0 // a second's worth, whatever the rate
	if got, ok := l.Scaled(300); !ok || got.Full() != 3 {
		t.Errorf("%v at 300: %v, %v", l, got, ok)
	}
}

func TestScaledUnlimited(t *testing.T) {
	if l, ok := (TokenBucket{}).Scaled(1); !ok || l != (TokenBucket{}) {
		t.Errorf("a token bucket: %v, %v", l, ok)
	}
	if l, ok := (Concurrency{}).Scaled(1); !ok || !l.Open(math.MaxInt64) {
		t.Errorf("concurrency: %v, %v", l, ok)
	}
	if _, ok := (Concurrency{}).Scaled(0); ok {
		t.Error("concurrency at 0 is not closed")
	}
	if _, ok := (TokenBucket{}).Scaled(0); ok {
		t.Error("a token bucket at 0 is not closed")
	}
}

func TestConcurrency(t *testing.T) {
	l := Concurrency{Max: 10}
	third, ok := l.Scaled(333)
	if !ok || third.Max != 3 {
		t.Fatalf("a third: %v, %v", third, ok)
	}
	for running := range int64(12) {
		if l.Open(running) != (running < 10) || third.Open(running) != (running < 3) {
			t.Errorf("%d running: %v, and %v at a third", running, l.Open(running), third.Open(running))
		}
	}
}
