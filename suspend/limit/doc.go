// Package limit decides whether an ask passes a rate limit now, or at which instant it would.
//
// It owns the algorithms, each a value with pure methods: limit + state + now + cost → new state + decision. It never reads a
// clock, keeps a state or locks: the caller owns one state per bucket and passes it through. The gateway asks it for
// admission, the consumer pool before it forwards a message; values are safe to share, states belong to their caller.
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
