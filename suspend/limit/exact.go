package limit

import (
	"math"
	"math/big"
	"math/bits"
	"time"
)

// add is a + b, or the nearest int64.
func add(a, b int64) int64 {
	c := a + b
	switch {
	case a > 0 && b > 0 && c < 0:
		return math.MaxInt64
	case a < 0 && b < 0 && c >= 0:
		return math.MinInt64
	}
	return c
}

// sub is a - b, or the nearest int64.
func sub(a, b int64) int64 {
	c := a - b
	switch {
	case a >= 0 && b < 0 && c < 0:
		return math.MaxInt64
	case a < 0 && b > 0 && c >= 0:
		return math.MinInt64
	}
	return c
}

// mulDiv is (a*b + c) / d with its remainder, computed in 128 bits; (MaxInt64, 0) if the quotient does not fit.
// REQUIRES: a, b, c >= 0 and d > 0.
func mulDiv(a, b, c, d int64) (quo, rem int64) {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	lo, carry := bits.Add64(lo, uint64(c), 0)
	hi += carry
	if hi >= uint64(d) {
		return math.MaxInt64, 0
	}
	q, r := bits.Div64(hi, lo, uint64(d))
	if q > math.MaxInt64 {
		return math.MaxInt64, 0
	}
	return int64(q), int64(r)
}

// rescale is the time at rate to that d takes at rate from, rounded up; MaxInt64 if it does not fit.
// The products need 160 bits; rates change seldom, so the price of big.Int does not matter. REQUIRES: d > 0, valid rates.
func rescale(d int64, from, to Rate) int64 {
	num := big.NewInt(d)
	num.Mul(num, big.NewInt(from.Events)).Mul(num, big.NewInt(int64(to.Per)))
	den := big.NewInt(int64(from.Per))
	den.Mul(den, big.NewInt(to.Events))
	num.Add(num, den).Sub(num, big.NewInt(1)).Quo(num, den)
	if !num.IsInt64() {
		return math.MaxInt64
	}
	return num.Int64()
}

// floorDiv is a / b rounded towards minus infinity, as instants before 1970 need it. REQUIRES: b > 0.
func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}

// ceilDiv is a / b rounded up, 0 for a negative a. REQUIRES: b > 0.
func ceilDiv(a, b int64) int64 {
	if a <= 0 {
		return 0
	}
	return (a-1)/b + 1
}

// begin is the instant at which the n-th span of a length after the epoch begins; MaxInt64 if that does not fit.
// REQUIRES: length > 0, and the n-th span is later than some instant, so it does not lie before all of them.
func begin(n, length int64) int64 {
	if n > math.MaxInt64/length {
		return math.MaxInt64
	}
	return n * length
}

// instant is the reverse of nanos.
func instant(at int64) time.Time { return time.Unix(0, at).UTC() }

// notBefore is the instant opens, or now if that has come by the instant at, at which an ask at now counts.
func notBefore(now time.Time, at, opens int64) time.Time {
	if opens <= at {
		return now
	}
	return instant(opens)
}

// nanos is t.UnixNano for every t: instants beyond int64 become the nearest it can express, the earliest being
// -MaxInt64, so that each is a distance from the epoch.
func nanos(t time.Time) int64 {
	const edge = math.MaxInt64 / int64(time.Second)
	switch s := t.Unix(); {
	case s >= edge:
		return math.MaxInt64
	case s <= -edge:
		return -math.MaxInt64
	}
	return t.UnixNano()
}
