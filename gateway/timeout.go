package gateway

import (
	"math"
	"strconv"
	"strings"
	"time"
)

const (
	headerTimeout = "X-Request-Timeout"

	// minTimeout is the shortest deadline; below a millisecond the broker's clock cannot tell it from none.
	minTimeout = time.Millisecond
)

// parseTimeout reads X-Request-Timeout: seconds ("2", "0.5") or a Go duration ("1500ms"), from 1 ms to most. Empty means
// fallback.
func parseTimeout(value string, fallback, most time.Duration) (time.Duration, error) {
	value = strings.TrimSpace(value)
	if value == "" {
		return fallback, nil
	}
	d, ok := parseDuration(value)
	if !ok {
		return 0, refuse(errTimeoutValue, headerTimeout, "%s is neither seconds nor a duration such as 1500ms", headerTimeout)
	}
	if d < minTimeout || d > most {
		return 0, refuse(errTimeoutValue, headerTimeout, "%s must be from %s to %s", headerTimeout, minTimeout, most)
	}
	return d, nil
}

// parseDuration returns MaxInt64 for what is longer than a Duration can hold, so that the error names the limit.
func parseDuration(value string) (time.Duration, bool) {
	seconds, err := strconv.ParseFloat(value, 64)
	if err != nil {
		d, err := time.ParseDuration(value)
		return d, err == nil
	}
	switch {
	case math.IsNaN(seconds), math.IsInf(seconds, 0):
		return 0, false
	case seconds >= math.MaxInt64/float64(time.Second):
		return math.MaxInt64, true
	case seconds < 0:
		return 0, true
	}
	return time.Duration(seconds * float64(time.Second)), true
}
