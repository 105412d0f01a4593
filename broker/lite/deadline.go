package lite

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"
)

// ErrDeadline: the value of PropertyDeadline is not an instant.
var ErrDeadline = errors.New("invalid deadline")

// NoDeadlineMillis is the smallest value of PropertyDeadline that means no deadline: the
// last millisecond that fits into 64 bits of nanoseconds, in the year 2262. Clients write
// "never" as the largest number of their language, such as Java's Long.MAX_VALUE.
const NoDeadlineMillis = math.MaxInt64 / int64(time.Millisecond)

// ParseDeadline reads the value of PropertyDeadline. The zero time means no deadline: the
// value is empty, or at least NoDeadlineMillis. Errors wrap ErrDeadline and name the
// property, the value and the accepted form.
func ParseDeadline(value string) (time.Time, error) {
	if value == "" {
		return time.Time{}, nil
	}
	ms, err := strconv.ParseInt(value, 10, 64)
	if err != nil || ms <= 0 {
		return time.Time{}, fmt.Errorf("%w: property %s: invalid value %.64q: want Unix milliseconds from 1 to %d; %d or more is no deadline",
			ErrDeadline, PropertyDeadline, value, int64(math.MaxInt64), NoDeadlineMillis)
	}
	if ms >= NoDeadlineMillis {
		return time.Time{}, nil
	}
	return time.UnixMilli(ms), nil
}
