package limit

import (
	"math"
	"time"
)

// Decision is the answer to one ask.
type Decision struct {
	// Allowed: the ask passes. Take has charged it, Peek has not.
	Allowed bool
	// RetryAt is, for a refused ask, the earliest instant at which the same ask passes; zero if allowed or Never.
	RetryAt time.Time
	// Never: this ask passes at no time. It costs more than the limit ever gives, or a negative amount.
	Never bool
	// Remaining is how many asks of cost 1 would still pass at once after this decision.
	Remaining int64
}

// Wait is the time from now to RetryAt in whole milliseconds, rounded up: an ask repeated after it passes, one repeated a
// millisecond sooner does not. Zero if the ask was allowed or never will be.
func (d Decision) Wait(now time.Time) time.Duration {
	if d.Allowed || d.Never {
		return 0
	}
	wait := d.RetryAt.Sub(now)
	if rest := wait % time.Millisecond; rest > 0 && wait < math.MaxInt64-time.Millisecond {
		wait += time.Millisecond - rest
	}
	return max(wait, 0)
}

func allowed(remaining int64) Decision { return Decision{Allowed: true, Remaining: remaining} }

func refused(retryAt, remaining int64) Decision {
	return Decision{RetryAt: instant(retryAt), Remaining: remaining}
}

func never(remaining int64) Decision { return Decision{Never: true, Remaining: remaining} }
