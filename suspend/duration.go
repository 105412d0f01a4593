package suspend

import (
	"errors"
	"fmt"
	"math"
	"time"
)

const (
	// Step is the finest duration of a suspend. A shorter one that is not zero counts as one step: never shorter than asked.
	Step = time.Millisecond
	// DefaultMax is the longest suspend unless the owner of a Table says otherwise.
	DefaultMax = 24 * time.Hour
)

var (
	// ErrNegative is wrapped by the error for a suspend of less than nothing.
	ErrNegative = errors.New("suspend is negative")
	// ErrTooLong is wrapped by the error for a suspend beyond the maximum, which the error names.
	ErrTooLong = errors.New("suspend is too long")
)

// CheckDuration reports, as ErrNegative or ErrTooLong, why d is no duration for a suspend. Zero is one: it gives the
// bucket back at once. A longest of zero means DefaultMax.
func CheckDuration(d, longest time.Duration) error {
	longest = orDefault(longest)
	switch {
	case d < 0:
		return fmt.Errorf("%w: %v, it must be from 0 to %v", ErrNegative, d, longest)
	case d > longest:
		return fmt.Errorf("%w: %v, the limit is %v", ErrTooLong, d, longest)
	}
	return nil
}

// RoundUp is d raised to a whole number of steps, for d that passed CheckDuration.
func RoundUp(d time.Duration) time.Duration {
	if rest := d % Step; rest > 0 {
		return d - rest + Step
	}
	return d
}

// Milliseconds is ms as a Duration. What a Duration cannot express becomes the longest one (or the most negative), so
// that CheckDuration refuses it; a plain multiplication would wrap round and turn centuries into "now".
func Milliseconds(ms int64) time.Duration {
	switch limit := int64(math.MaxInt64 / time.Millisecond); {
	case ms > limit:
		return math.MaxInt64
	case ms < -limit:
		return math.MinInt64
	}
	return time.Duration(ms) * time.Millisecond
}

func orDefault(longest time.Duration) time.Duration {
	if longest <= 0 {
		return DefaultMax
	}
	return longest
}

// ClampDuration is CheckDuration for a worker, which passes on the pause that a model asked for: a duration over longest counts
// as longest, since a refusal would hold nothing. It returns d in whole steps. Errors: ErrNegative; ErrTooLong for more than
// both longest and DefaultMax, which no model means.
func ClampDuration(d, longest time.Duration) (time.Duration, error) {
	longest = orDefault(longest)
	if err := CheckDuration(d, max(longest, DefaultMax)); err != nil {
		return 0, err
	}
	return min(RoundUp(d), longest), nil
}
