package limit

import (
	"math"
	"testing"

	"pgregory.net/rapid"
)

func TestEstimateWithoutAPast(t *testing.T) {
	for _, tc := range []struct{ ceiling, want int64 }{
		{0, DefaultOutput}, {-1, DefaultOutput}, {1, 1}, {4096, 4096},
	} {
		if got := (Estimate{}).Expect(tc.ceiling); got != tc.want {
			t.Errorf("a ceiling of %d: %d, want %d", tc.ceiling, got, tc.want)
		}
	}
}

func TestEstimateFollowsTheAnswers(t *testing.T) {
	e := Estimate{}.Observe(100)
	if got := e.Expect(0); got != 100 {
		t.Fatalf("after the first: %d, want 100", got)
	}
	if got := e.Expect(40); got != 40 {
		t.Errorf("with a ceiling of 40: %d", got)
	}
	e = e.Observe(900) // an eighth of the way
	if got := e.Expect(0); got != 200 {
		t.Errorf("after the second: %d, want 200", got)
	}
	e = e.Observe(0)
	if got := e.Expect(0); got != 175 {
		t.Errorf("after an empty one: %d, want 175", got)
	}
	if got := (Estimate{}).Observe(0).Expect(4096); got != 0 {
		t.Errorf("of one that answers nothing: %d, want 0", got)
	}
}

// TestEstimateComesToRest: answers of one size lead to just that, from above and from below; nothing overflows.
func TestEstimateComesToRest(t *testing.T) {
	sizes := rapid.OneOf(rapid.Int64Range(0, 100_000), rapid.Int64())
	rapid.Check(t, func(t *rapid.T) {
		e := Estimate{}.Observe(sizes.Draw(t, "first"))
		n := sizes.Draw(t, "size")
		want := min(max(n, 0), MaxOutput)
		before := e.Expect(0)
		for range 400 {
			e = e.Observe(n)
			got := e.Expect(0)
			if got < min(before, want) || got > max(before, want) {
				t.Fatalf("on the way from %d to %d: %d", before, want, got)
			}
			before = got
		}
		if before != want {
			t.Fatalf("%d, want %d", before, want)
		}
	})
	if got := (Estimate{Mean: math.MaxInt64}).Observe(5).Expect(0); got < 5 || got > MaxOutput {
		t.Errorf("of a mean out of bounds: %d", got)
	}
}

// TestEstimateIsUnbiased: over many answers, what is reserved is what is used, to within a few percent.
func TestEstimateIsUnbiased(t *testing.T) {
	sizes := []int64{20, 400, 90, 1500, 10, 250, 700, 60}
	e, reserved, used := Estimate{}.Observe(300), int64(0), int64(0)
	for i := range 800 {
		n := sizes[i*5%len(sizes)]
		reserved += e.Expect(0)
		used += n
		e = e.Observe(n)
	}
	if diff := reserved - used; diff > used/20 || diff < -used/20 {
		t.Errorf("reserved %d, used %d", reserved, used)
	}
}
