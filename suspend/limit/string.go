package limit

import (
	"fmt"
	"strconv"
)

// The text of a limit is its main figure, then "name value" for each option that is set: "5/s burst 200ms". It is what
// messages and explanations show. A document has keys of its own for the options, and package policy reads those.

// String is the limit in words, such as "5/s" or "5/s burst 200ms".
func (l LeakyBucket) String() string {
	return l.Rate.String() + option("burst", l.Burst != 0, short(l.Burst))
}

// String is the limit in words, such as "5/s" or "5/s burst 500"; "unlimited" for the zero Rate.
func (l TokenBucket) String() string {
	if l.unlimited() {
		return "unlimited"
	}
	return l.Rate.String() + option("burst", l.Capacity != 0, strconv.FormatInt(l.Capacity, 10))
}

// String is the limit in words, such as "5/s samples 100 cap 1m"; the rate of zero is "0".
func (l ObservedRate) String() string {
	rate := "0"
	if l.Rate.Events != 0 {
		rate = l.Rate.String()
	}
	return rate + option("samples", l.Samples != 0, strconv.Itoa(l.Samples)) +
		option("size", l.Size != 0, short(l.Size)) + option("cap", l.Cap != 0, short(l.Cap))
}

// String is the limit as ParseFixedWindow reads it, such as "100/1m".
func (l FixedWindow) String() string { return fmt.Sprintf("%d/%s", l.Limit, short(l.Window)) }

// String is the limit as ParseTokenWindow reads it, such as "100000/1m".
func (l TokenWindow) String() string { return fmt.Sprintf("%d/%s", l.Limit, short(l.Window)) }

// String is the limit in words, such as "8"; "unlimited" for 0.
func (l Concurrency) String() string {
	if l.Max == 0 {
		return "unlimited"
	}
	return strconv.FormatInt(l.Max, 10)
}

// String is the limit in words, such as "4..64 start 8 latency 2s"; decrease is in permille.
func (l Adaptive) String() string {
	return fmt.Sprintf("%d..%d", l.Min, l.Max) + option("start", l.Start != 0, strconv.FormatInt(l.Start, 10)) +
		option("latency", l.Latency != 0, short(l.Latency)) + option("decrease", l.Decrease != 0, strconv.Itoa(l.Decrease)) +
		option("cooldown", l.Cooldown != 0, short(l.Cooldown))
}

func option(name string, set bool, value string) string {
	if !set {
		return ""
	}
	return " " + name + " " + value
}
