package suspend

import (
	"errors"
	"math"
	"testing"
	"time"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func bucket(name string) Target { return Target{Scope: Bucket, Name: name} }

// TestC11_HugeDelayDoesNotWrapRound: an enormous suspend is refused, never taken for "now". Inputs are milliseconds, or
// what a protobuf Duration becomes: AsDuration stops at the ends of int64 nanoseconds.
func TestC11_HugeDelayDoesNotWrapRound(t *testing.T) {
	for _, tc := range []struct {
		name string
		d    time.Duration
		want error         // nil: accepted
		hold time.Duration // how long the bucket is then held
	}{
		{"2^63-1 ms", Milliseconds(math.MaxInt64), ErrTooLong, 0},
		{"2^31 ms", Milliseconds(1 << 31), ErrTooLong, 0},
		{"315,576,000,000.999999999 s", math.MaxInt64, ErrTooLong, 0},
		{"one step over the maximum", DefaultMax + Step, ErrTooLong, 0},
		{"1 ns over the maximum", DefaultMax + 1, ErrTooLong, 0},
		{"the maximum", DefaultMax, nil, DefaultMax},
		{"-1 ms", Milliseconds(-1), ErrNegative, 0},
		{"-2^63 ms", Milliseconds(math.MinInt64), ErrNegative, 0},
		{"nanos -1", -1, ErrNegative, 0},
		{"-315,576,000,000 s", math.MinInt64, ErrNegative, 0},
		{"0", 0, nil, 0},
		{"1 ns", 1, nil, Step},
		{"1 ms", Milliseconds(1), nil, time.Millisecond},
		{"1 ms and 1 ns", Step + 1, nil, 2 * time.Millisecond},
		{"29 ms", Milliseconds(29), nil, 29 * time.Millisecond},
		{"30 ms", Milliseconds(30), nil, 30 * time.Millisecond},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := CheckDuration(tc.d, 0)
			if !errors.Is(err, tc.want) {
				t.Fatalf("CheckDuration(%v) = %v, want %v", tc.d, err, tc.want)
			}
			table := New(0)
			if err != nil {
				// A caller that forgot to check is refused all the same if too long, and changes nothing if negative.
				_, changed, _ := table.Extend(noon, Hold{Target: bucket("b"), Until: noon.Add(tc.d)})
				if changed || table.Len() != 0 {
					t.Error("a refused duration changed the table")
				}
				return
			}
			until := noon.Add(RoundUp(tc.d))
			_, changed, err := table.Extend(noon, Hold{Target: bucket("b"), Until: until})
			if err != nil || changed != (tc.hold > 0) {
				t.Fatalf("Extend: changed %v, %v", changed, err)
			}
			wantHeldFor(t, table, tc.hold)
		})
	}
}

// wantHeldFor checks that bucket b is held at noon for exactly d.
func wantHeldFor(t *testing.T, table *Table, d time.Duration) {
	t.Helper()
	h, held := table.Blocking(noon, Place{Bucket: "b"})
	if held != (d > 0) {
		t.Fatalf("held %v: %+v", held, h)
	}
	if !held {
		return
	}
	if !h.Until.Equal(noon.Add(d)) {
		t.Errorf("held for %v, want %v", h.Until.Sub(noon), d)
	}
	if _, due := table.PopDue(noon.Add(d - 1)); due {
		t.Error("opened early")
	}
	if _, due := table.PopDue(noon.Add(d)); !due {
		t.Error("not open on time")
	}
}

// TestC13_ShortSuspendDoesNotCancelLonger: two workers suspend one bucket, 5 s at 0 s and 100 ms at 1 s.
func TestC13_ShortSuspendDoesNotCancelLonger(t *testing.T) {
	setup := func(t *testing.T) *Table {
		t.Helper()
		table := New(0)
		first := Hold{Target: bucket("b"), Until: noon.Add(5 * time.Second), By: "worker 1", Reason: "rate"}
		if h, changed, err := table.Extend(noon, first); err != nil || !changed || h != first {
			t.Fatalf("first worker: %+v %v %v", h, changed, err)
		}
		at := noon.Add(time.Second)
		h, changed, err := table.Extend(at, Hold{Target: bucket("b"), Until: at.Add(100 * time.Millisecond), By: "worker 2"})
		if err != nil || changed || h != first {
			t.Fatalf("second worker: %+v %v %v, want the first hold unchanged", h, changed, err)
		}
		return table
	}
	t.Run("worker", func(t *testing.T) { wantHeldFor(t, setup(t), 5*time.Second) })
	t.Run("operator lifts", func(t *testing.T) {
		table, at := setup(t), noon.Add(2*time.Second)
		if h, ok := table.Lift(bucket("b")); !ok || h.By != "worker 1" {
			t.Errorf("lifted %+v %v", h, ok)
		}
		if h, held := table.Blocking(at, Place{Bucket: "b"}); held || table.Len() != 0 {
			t.Errorf("still held: %+v", h)
		}
	})
	t.Run("operator shortens", func(t *testing.T) {
		table, at := setup(t), noon.Add(2*time.Second)
		if err := table.Set(at, Hold{Target: bucket("b"), Until: at.Add(time.Millisecond), By: "operator"}); err != nil {
			t.Fatal(err)
		}
		wantHeldFor(t, table, 2*time.Second+time.Millisecond)
	})
	t.Run("operator sets the past", func(t *testing.T) {
		table, at := setup(t), noon.Add(2*time.Second)
		if err := table.Set(at, Hold{Target: bucket("b"), Until: at}); err != nil || table.Len() != 0 {
			t.Errorf("an until that has come lifts: %v, %d holds", err, table.Len())
		}
	})
}
