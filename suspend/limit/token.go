package limit

import (
	"fmt"
	"math"
	"time"
)

// TokenBucket is a bucket that goes into debt: it holds Capacity tokens, starts full and is refilled continuously at
// Rate. An ask passes if the balance is not negative, whatever it costs; its cost is then charged in full, also below
// zero, and all that follow wait until the refill has brought the balance back to zero:
//
//	wait = -balance / Rate
//
// This is the quota of Kafka's KIP-13 in the form that KIP-599 gave it (class TokenBucket; there 5/s with a capacity of
// 500 answer a burst of 560 with 60/5 = 12 s). Units: a token is what the caller charges by: a request, a model token, a byte.
//
// In any span of length d, all that passes but the last ask costs at most Capacity + d*Rate; of asks of cost 1,
// Capacity + 1 pass back to back from a full bucket.
//
// A change of Rate or Capacity at run time keeps the balance: debt stays debt, savings stay as far as Capacity allows,
// and a raised Capacity is filled by the refill, not given. The zero Rate is unlimited, as in KIP-13: nothing is counted.
type TokenBucket struct {
	Rate     Rate  // zero: unlimited
	Capacity int64 // tokens, at most MaxLimit; 0: one second's worth of Rate, at least 1
}

// TokenState is what a TokenBucket remembers of a bucket. The zero state is a full bucket.
type TokenState struct {
	// Tokens + Frac/Rate.Per is the balance at At. Invariant: 0 <= Frac < Rate.Per, or all of the state is zero.
	Tokens, Frac int64
	At           int64 // latest instant asked at, UnixNano
	Rate         Rate  // the rate of the refill since At; the zero Rate marks a bucket never charged
}

// Validate reports as ErrInvalid what is out of bounds.
func (l TokenBucket) Validate() error {
	if l.Rate != (Rate{}) {
		if err := l.Rate.Validate(); err != nil {
			return err
		}
	}
	if l.Capacity < 0 || l.Capacity > MaxLimit {
		return fmt.Errorf("%w: a burst of %d, it must be from 0 to %d", ErrInvalid, l.Capacity, int64(MaxLimit))
	}
	return nil
}

// Take asks for cost at now and charges it if it passes. The caller keeps the returned state whatever the decision: it
// also records the clock and the rate. An ask of cost 0 always passes. REQUIRES: l is valid.
func (l TokenBucket) Take(s TokenState, now time.Time, cost int64) (TokenState, Decision) {
	s, d := l.Peek(s, now, cost)
	if d.Allowed && cost > 0 {
		s = l.charge(s, cost)
		d.Remaining = l.remaining(s)
	}
	return s, d
}

// Peek is Take without the charge; the returned state is still to be kept.
func (l TokenBucket) Peek(s TokenState, now time.Time, cost int64) (TokenState, Decision) {
	s = l.at(s, nanos(now))
	switch remaining := l.remaining(s); {
	case cost < 0:
		return s, never(remaining)
	case cost == 0 || remaining > 0:
		return s, allowed(remaining)
	}
	return s, refused(l.reaches(s, 0), 0)
}

// Opens is the earliest instant from now on at which an ask passes; now itself if the balance is not negative.
func (l TokenBucket) Opens(s TokenState, now time.Time) time.Time {
	s = l.at(s, nanos(now))
	if l.remaining(s) > 0 {
		return now
	}
	return instant(l.reaches(s, 0))
}

// Charge takes cost from the balance, also below zero; a negative cost gives back, never above Capacity.
func (l TokenBucket) Charge(s TokenState, now time.Time, cost int64) TokenState {
	return l.charge(l.at(s, nanos(now)), cost)
}

// Rests is the instant from which the bucket is full: the state is then as good as the zero state.
func (l TokenBucket) Rests(s TokenState, now time.Time) time.Time {
	s = l.at(s, nanos(now))
	if l.unlimited() || s.Tokens >= l.capacity() {
		return now
	}
	return instant(l.reaches(s, l.capacity()))
}

// Balance is the number of whole tokens at now, rounded down; negative in debt. MaxInt64 if unlimited.
func (l TokenBucket) Balance(s TokenState, now time.Time) int64 {
	if l.unlimited() {
		return math.MaxInt64
	}
	return l.at(s, nanos(now)).Tokens
}

// Full is the balance of a full bucket: Capacity, or what stands for it if that is 0. MaxInt64 if unlimited.
func (l TokenBucket) Full() int64 {
	if l.unlimited() {
		return math.MaxInt64
	}
	return l.capacity()
}

func (l TokenBucket) unlimited() bool { return l.Rate.Events == 0 }

func (l TokenBucket) capacity() int64 {
	if l.Capacity > 0 {
		return l.Capacity
	}
	second, _ := mulDiv(l.Rate.Events, int64(time.Second), 0, int64(l.Rate.Per))
	return max(second, 1)
}

// at moves the state to an ask at now: refilled at the rate that was in force, then carried over to the present one. A clock
// that went back refills nothing and takes nothing.
func (l TokenBucket) at(s TokenState, now int64) TokenState {
	at, _ := settle(s.At, now)
	if l.unlimited() {
		return TokenState{At: at} // nothing is counted, and a limit that comes back begins full
	}
	if s.Rate.Events == 0 {
		return TokenState{Tokens: l.capacity(), At: at, Rate: l.Rate}
	}
	if elapsed := sub(at, s.At); elapsed > 0 {
		tokens, frac := mulDiv(elapsed, s.Rate.Events, s.Frac, int64(s.Rate.Per))
		s.Tokens, s.Frac = add(s.Tokens, tokens), frac
	}
	s.At = at
	if s.Rate != l.Rate {
		// The part of a token in the new denominator, rounded down: never early. Once per change, so it cannot add up.
		s.Frac, _ = mulDiv(s.Frac, int64(l.Rate.Per), 0, int64(s.Rate.Per))
		s.Rate = l.Rate
	}
	return l.capped(s)
}

// charge takes cost from a state that at has moved.
func (l TokenBucket) charge(s TokenState, cost int64) TokenState {
	if l.unlimited() {
		return s
	}
	s.Tokens = sub(s.Tokens, cost)
	return l.capped(s)
}

func (l TokenBucket) capped(s TokenState) TokenState {
	if c := l.capacity(); s.Tokens >= c {
		s.Tokens, s.Frac = c, 0
	}
	return s
}

// reaches is the first whole nanosecond at which the balance is level. REQUIRES: it is below, and l is not unlimited.
func (l TokenBucket) reaches(s TokenState, level int64) int64 {
	// (level-Tokens)*Per - Frac, written without a negative part, over Events and rounded up.
	short := sub(sub(level, 1), s.Tokens)
	wait, _ := mulDiv(short, int64(l.Rate.Per), add(int64(l.Rate.Per)-s.Frac, l.Rate.Events-1), l.Rate.Events)
	return add(s.At, wait)
}

// remaining is how many asks of cost 1 pass at s.At: one for each whole token, and the one that goes into debt.
func (l TokenBucket) remaining(s TokenState) int64 {
	if l.unlimited() {
		return math.MaxInt64
	}
	return max(add(s.Tokens, 1), 0)
}
