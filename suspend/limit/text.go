package limit

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// units are the durations that may be written without a number, as the s in "5/s".
var units = [...]struct {
	name string
	d    time.Duration
}{
	{"ms", time.Millisecond},
	{"s", time.Second},
	{"m", time.Minute},
	{"h", time.Hour},
}

// ParseRate reads N/UNIT or N/DURATION with N a whole number: "5/s", "30/1m", "1/2s" for one in two seconds.
// Errors wrap ErrInvalid.
func ParseRate(s string) (Rate, error) {
	n, per, err := parsePair(s, "a rate such as 5/s or 30/1m")
	if err != nil {
		return Rate{}, err
	}
	r := Rate{Events: n, Per: per}
	return r, r.Validate()
}

// ParseFixedWindow reads N/DURATION or N/UNIT: "100/1m". Errors wrap ErrInvalid.
func ParseFixedWindow(s string) (FixedWindow, error) {
	n, per, err := parsePair(s, "a window such as 100/1m")
	if err != nil {
		return FixedWindow{}, err
	}
	l := FixedWindow{Limit: n, Window: per}
	return l, l.Validate()
}

// ParseTokenWindow reads N/DURATION or N/UNIT: "100000/1m". Errors wrap ErrInvalid.
func ParseTokenWindow(s string) (TokenWindow, error) {
	n, per, err := parsePair(s, "tokens such as 100000/1m")
	if err != nil {
		return TokenWindow{}, err
	}
	l := TokenWindow{Limit: n, Window: per}
	return l, l.Validate()
}

func parsePair(s, want string) (int64, time.Duration, error) {
	count, span, ok := strings.Cut(s, "/")
	if !ok {
		return 0, 0, fmt.Errorf("%w: %q has no slash, want %s", ErrInvalid, s, want)
	}
	n, err := strconv.ParseInt(count, 10, 64)
	if err != nil {
		return 0, 0, fmt.Errorf("%w: %q is not a whole number, want %s", ErrInvalid, count, want)
	}
	d, err := parseSpan(span)
	if err != nil {
		return 0, 0, fmt.Errorf("%w: %q is neither a unit (ms, s, m, h) nor a duration, want %s", ErrInvalid, span, want)
	}
	return n, d, nil
}

func parseSpan(s string) (time.Duration, error) {
	for _, u := range units {
		if s == u.name {
			return u.d, nil
		}
	}
	return time.ParseDuration(s)
}

// unit is a duration as parseSpan reads it, without the number if that is 1.
func unit(d time.Duration) string {
	for _, u := range units {
		if d == u.d {
			return u.name
		}
	}
	return short(d)
}

// short is d.String without trailing zero parts: "1m", not "1m0s".
func short(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}
