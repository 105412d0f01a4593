package limit

import (
	"math"
	"math/big"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// saturated is x as an int64, or the nearest.
func saturated(x *big.Int) int64 {
	switch {
	case x.IsInt64():
		return x.Int64()
	case x.Sign() < 0:
		return math.MinInt64
	}
	return math.MaxInt64
}

func TestArithmeticAgainstBigIntegers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := rapid.Int64().Draw(t, "a"), rapid.Int64().Draw(t, "b")
		x, y := big.NewInt(a), big.NewInt(b)
		if got, want := add(a, b), saturated(new(big.Int).Add(x, y)); got != want {
			t.Fatalf("add(%d, %d) = %d, want %d", a, b, got, want)
		}
		if got, want := sub(a, b), saturated(new(big.Int).Sub(x, y)); got != want {
			t.Fatalf("sub(%d, %d) = %d, want %d", a, b, got, want)
		}
		if b > 0 {
			want := new(big.Int).Div(x, y) // Euclidean: towards minus infinity for y > 0
			if got := floorDiv(a, b); got != want.Int64() {
				t.Fatalf("floorDiv(%d, %d) = %d, want %d", a, b, got, want)
			}
		}
	})
}

func TestMulDivAgainstBigIntegers(t *testing.T) {
	natural := rapid.OneOf(rapid.Int64Range(0, math.MaxInt64), rapid.Int64Range(0, 1000), rapid.Int64Range(1<<61, math.MaxInt64))
	rapid.Check(t, func(t *rapid.T) {
		a, b, c := natural.Draw(t, "a"), natural.Draw(t, "b"), natural.Draw(t, "c")
		d := max(natural.Draw(t, "d"), 1)
		sum := new(big.Int).Mul(big.NewInt(a), big.NewInt(b))
		wantQuo, wantRem := sum.Add(sum, big.NewInt(c)).QuoRem(sum, big.NewInt(d), new(big.Int))
		quo, rem := mulDiv(a, b, c, d)
		if !wantQuo.IsInt64() {
			wantQuo.SetInt64(math.MaxInt64)
			wantRem.SetInt64(0)
		}
		if quo != wantQuo.Int64() || rem != wantRem.Int64() {
			t.Fatalf("(%d*%d + %d) / %d = %d rest %d, want %d rest %d", a, b, c, d, quo, rem, wantQuo, wantRem)
		}
	})
}

// TestChangeOfRateIsNeverEarly: what is owed under the new rate is what was owed under the old, rounded up by at most
// the time of one nanosecond at the old rate and one more.
func TestChangeOfRateIsNeverEarly(t *testing.T) {
	draw := func(t *rapid.T, label string) Rate {
		return Rate{rapid.Int64Range(1, 50).Draw(t, label+" events"), time.Duration(rapid.Int64Range(1, 1000).Draw(t, label+" per"))}
	}
	rapid.Check(t, func(t *rapid.T) {
		from, to := draw(t, "from"), draw(t, "to")
		cost := rapid.Int64Range(1, 20).Draw(t, "cost")
		old, _ := LeakyBucket{Rate: from}.Take(LeakyState{}, noon, cost)
		now, _ := LeakyBucket{Rate: to}.Peek(old, noon, 1)

		exact := big.NewRat(cost*int64(to.Per), to.Events)
		owed := new(big.Rat).SetInt64(now.TAT - now.At)
		owed.Add(owed, big.NewRat(now.Frac, to.Events)) // zero unless both rates are the same
		latest := new(big.Rat).Mul(big.NewRat(from.Events, int64(from.Per)), big.NewRat(int64(to.Per), to.Events))
		latest.Add(latest, exact).Add(latest, big.NewRat(1, 1))
		if owed.Cmp(exact) < 0 || owed.Cmp(latest) > 0 {
			t.Fatalf("%d events at %v owe %v at %v, want %v to %v", cost, from, owed, to, exact, latest)
		}
	})
}
