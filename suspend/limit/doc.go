// Package limit decides whether an ask passes a limit now, or at which instant it would.
//
// It owns the algorithms, each a value with pure methods: limit + state + now + cost → new state + decision. It never
// reads a clock, keeps a state or locks: the caller owns one state per bucket and passes it through. The broker's ledger
// asks it for every scope of the matrix, the gateway for admission, the consumer pool before it forwards a message;
// values are safe to share, states belong to their caller.
//
//	LeakyBucket   even release: one event per interval, with a tolerance
//	TokenBucket   continuous refill, saved up to a capacity, charged into debt
//	ObservedRate  a delay in proportion to what the observed rate is too high by
//	FixedWindow   a hard cap per window of the calendar
//	TokenWindow   model tokens per window: reserved, settled, carried over as debt
//	Concurrency   how many run at once
//	Adaptive      the same, found from the answers
//	Estimate      how many output tokens to reserve; not a limit
//
// # Gates
//
// All but FixedWindow are gates: open or closed at an instant, whatever the ask costs. What passes is charged in full, and
// what that exceeds is debt that keeps the gate closed. So an ask of any cost passes some time, and the state of a gate
// belongs to its scope and not to the message that is next. A FixedWindow refuses an ask that does not fit in.
//
// To ask several limits as one, Peek all and, if all pass, Charge all. Opens is the instant at which an ask of cost 1
// passes, Rests the one from which the state may be forgotten: both only look. Scaled is the limit at a fraction of what
// it gives, for signals.
//
// A limit may change under its state. What is owed stays owed, and the new figures count from the first Take, Peek or
// Charge whose state is kept; Charge with a cost of 0 does just that. Until then time counts at the old rate, so tell the
// states that matter when the policy changes.
//
// # Exactness
//
// All arithmetic is on integers (nanoseconds, and fractions of them as numerators over the rate), so nothing drifts after a
// billion asks, and RetryAt is exact: the same ask passes at RetryAt and at no earlier instant, unless something else
// is charged in between. Results beyond the reach of int64 nanoseconds (the year 2262) stay there; nothing wraps round.
//
// # Clocks
//
// Instants are wall clock. Each state remembers the latest instant it was asked at, so that a clock that goes back is seen:
//
//   - By at most ClockTolerance (goroutines that read the clock one after the other and ask in another order, a clock that
//     is slewed): the ask counts as made at the remembered instant. Nothing passes early.
//   - By more: the state moves back with the clock. What was left to wait is still left to wait, counted from the new
//     now, and what a window has used stays used in the window that is now current. So a cell waits twice at worst,
//     never until the old time comes round again.
//
// A clock that goes forward lets pass early what its step skips, and no more; it cannot be told from time that went by.
package limit

import "time"

// ClockTolerance is how far now may go back before it counts as a step of the clock.
const ClockTolerance = time.Second

// settle is the instant at which an ask at now counts, given the latest instant the state has seen, and how far the
// state must move back first.
func settle(last, now int64) (at, back int64) {
	switch {
	case now >= last:
		return now, 0
	case last-int64(ClockTolerance) <= now:
		return last, 0
	}
	return now, sub(last, now)
}
