package limit

import (
	"math"
	"time"
)

// ScalePermille is n*permille/1000 rounded down, but at least 1: a limit that is scaled stays alive. A permille of 0 or
// less closes: n as it was, and false. One of 1000 or more changes nothing. REQUIRES: n >= 1.
func ScalePermille(n, permille int64) (scaled int64, ok bool) {
	switch {
	case permille <= 0:
		return n, false
	case permille >= 1000:
		return n, true
	}
	scaled, _ = mulDiv(n, permille, 0, 1000)
	return max(scaled, 1), true
}

// Scaled is the rate times permille/1000, exactly: 5/s at 900 is 9/2s. Either part may leave the bounds of Validate, by up
// to a factor of 1000; the limits of this package reckon with that. A permille of 0 or less closes: the rate as it was,
// and false. The zero Rate stays as it is.
func (r Rate) Scaled(permille int64) (scaled Rate, ok bool) {
	if permille <= 0 {
		return r, false
	}
	if permille >= 1000 || r == (Rate{}) {
		return r, true
	}
	if r.Events > math.MaxInt64/1000 || r.Per > math.MaxInt64/1000 { // scaled over and over
		return Rate{Events: 1, Per: math.MaxInt64}, true
	}
	events, per := r.Events*permille, int64(r.Per)*1000
	g := gcd(events, per)
	return Rate{Events: events / g, Per: time.Duration(per / g)}, true
}

// Scaled is the limit at permille/1000 of its rate; ok is false if that is closed. Burst is a time and stays: at a lower
// rate it lets through less.
func (l LeakyBucket) Scaled(permille int64) (scaled LeakyBucket, ok bool) {
	l.Rate, ok = l.Rate.Scaled(permille)
	return l, ok
}

// Scaled is the limit at permille/1000 of its events, at least 1; ok is false if that is closed.
func (l FixedWindow) Scaled(permille int64) (scaled FixedWindow, ok bool) {
	l.Limit, ok = ScalePermille(l.Limit, permille)
	return l, ok
}

// Scaled is the limit at permille/1000 of its rate and capacity; ok is false if that is closed. Unlimited stays so.
func (l TokenBucket) Scaled(permille int64) (scaled TokenBucket, ok bool) {
	l.Rate, ok = l.Rate.Scaled(permille)
	if ok && l.Capacity > 0 {
		l.Capacity, ok = ScalePermille(l.Capacity, permille)
	}
	return l, ok
}

// Scaled is the limit at permille/1000 of its rate; ok is false if that is closed.
func (l ObservedRate) Scaled(permille int64) (scaled ObservedRate, ok bool) {
	l.Rate, ok = l.Rate.Scaled(permille)
	return l, ok
}

// Scaled is the limit at permille/1000 of its tokens, at least 1; ok is false if that is closed.
func (l TokenWindow) Scaled(permille int64) (scaled TokenWindow, ok bool) {
	l.Limit, ok = ScalePermille(l.Limit, permille)
	return l, ok
}

// Scaled is the limit at permille/1000 of its number, at least 1; ok is false if that is closed. Unlimited stays so.
func (l Concurrency) Scaled(permille int64) (scaled Concurrency, ok bool) {
	if l.Max == 0 {
		return l, permille > 0
	}
	l.Max, ok = ScalePermille(l.Max, permille)
	return l, ok
}

// Scaled is the limit with bounds at permille/1000, at least 1; ok is false if that is closed. Window of the scaled limit is
// at most its Max; a state that only the limit itself has observed is back at its window when the scale ends.
func (l Adaptive) Scaled(permille int64) (scaled Adaptive, ok bool) {
	if l.Max, ok = ScalePermille(l.Max, permille); !ok {
		return l, false
	}
	l.Min, _ = ScalePermille(l.min(), permille)
	if l.Start > 0 {
		l.Start, _ = ScalePermille(l.Start, permille)
	}
	return l, true
}

func gcd(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}
