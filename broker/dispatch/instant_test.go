package dispatch

import (
	"math"
	"testing"
	"time"
)

// TestInstantsNeverWrap: the year 3000 is after the year 2262, not in the past.
func TestInstantsNeverWrap(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		at   time.Time
		want int64
	}{
		{time.Time{}, 0},
		{time.Unix(1, 1), 1_000_000_001},
		{time.Date(3000, 1, 1, 0, 0, 0, 0, time.UTC), math.MaxInt64},
		{time.UnixMilli(math.MaxInt64), math.MaxInt64},
		{time.Date(1, 1, 2, 0, 0, 0, 0, time.UTC), math.MinInt64},
		{time.Unix(0, math.MaxInt64), math.MaxInt64},
	} {
		if got := instant(c.at); got != c.want {
			t.Errorf("%v: got %d, want %d", c.at, got, c.want)
		}
	}
}
