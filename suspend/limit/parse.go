package limit

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The text of a limit is its main figure, then "name value" for each option that is set: "5/s burst 200ms". A policy has
// keys of its own for most options; the whole text is what messages and explanations show.

// String is the limit as ParseLeakyBucket reads it, such as "5/s" or "5/s burst 200ms".
func (l LeakyBucket) String() string {
	return l.Rate.String() + option("burst", l.Burst != 0, short(l.Burst))
}

// ParseLeakyBucket reads RATE [burst DURATION]. Errors wrap ErrInvalid.
func ParseLeakyBucket(s string) (LeakyBucket, error) {
	var l LeakyBucket
	p := parseText(s, "burst")
	l.Rate = p.rate(ParseRate)
	l.Burst = p.duration("burst")
	return l, p.finish(l.Validate)
}

// String is the limit as ParseTokenBucket reads it, such as "5/s" or "5/s burst 500"; "unlimited" for the zero Rate.
func (l TokenBucket) String() string {
	if l.unlimited() {
		return "unlimited"
	}
	return l.Rate.String() + option("burst", l.Capacity != 0, strconv.FormatInt(l.Capacity, 10))
}

// ParseTokenBucket reads RATE [burst N], or "unlimited" or "0". Bytes may have a unit, "10MiB/s burst 50MiB": see
// ParseByteRate. Errors wrap ErrInvalid.
func ParseTokenBucket(s string) (TokenBucket, error) {
	var l TokenBucket
	p := parseText(s, "burst")
	if p.head != "0" && p.head != "unlimited" {
		l.Rate = p.rate(ParseByteRate)
	}
	l.Capacity = p.number("burst", parseBytes)
	return l, p.finish(l.Validate)
}

// String is the limit as ParseObservedRate reads it, such as "5/s samples 100 cap 1m"; the rate of zero is "0".
func (l ObservedRate) String() string {
	rate := "0"
	if l.Rate.Events != 0 {
		rate = l.Rate.String()
	}
	return rate + option("samples", l.Samples != 0, strconv.Itoa(l.Samples)) +
		option("size", l.Size != 0, short(l.Size)) + option("cap", l.Cap != 0, short(l.Cap))
}

// ParseObservedRate reads RATE [samples N] [size DURATION] [cap DURATION], with "0" for a rate of zero. Errors wrap
// ErrInvalid.
func ParseObservedRate(s string) (ObservedRate, error) {
	var l ObservedRate
	p := parseText(s, "samples", "size", "cap")
	if p.head != "0" {
		l.Rate = p.rate(ParseRate)
	}
	l.Samples = int(p.number("samples", parseWhole))
	l.Size, l.Cap = p.duration("size"), p.duration("cap")
	return l, p.finish(l.Validate)
}

// String is the limit as ParseTokenWindow reads it, such as "100000/1m".
func (l TokenWindow) String() string { return fmt.Sprintf("%d/%s", l.Limit, short(l.Window)) }

// ParseTokenWindow reads N/DURATION or N/UNIT: "100000/1m". Errors wrap ErrInvalid.
func ParseTokenWindow(s string) (TokenWindow, error) {
	n, per, err := parsePair(s, "tokens such as 100000/1m")
	if err != nil {
		return TokenWindow{}, err
	}
	l := TokenWindow{Limit: n, Window: per}
	return l, l.Validate()
}

// String is the limit as ParseConcurrency reads it, such as "8"; "unlimited" for 0.
func (l Concurrency) String() string {
	if l.Max == 0 {
		return "unlimited"
	}
	return strconv.FormatInt(l.Max, 10)
}

// ParseConcurrency reads a whole number, or "unlimited". Errors wrap ErrInvalid.
func ParseConcurrency(s string) (Concurrency, error) {
	if s == "unlimited" {
		return Concurrency{}, nil
	}
	n, err := parseWhole(s)
	if err != nil {
		return Concurrency{}, fmt.Errorf("%w: %q is neither a whole number nor unlimited", ErrInvalid, s)
	}
	l := Concurrency{Max: n}
	return l, l.Validate()
}

// String is the limit as ParseAdaptive reads it, such as "4..64 start 8 latency 2s".
func (l Adaptive) String() string {
	return fmt.Sprintf("%d..%d", l.Min, l.Max) + option("start", l.Start != 0, strconv.FormatInt(l.Start, 10)) +
		option("latency", l.Latency != 0, short(l.Latency)) + option("decrease", l.Decrease != 0, strconv.Itoa(l.Decrease)) +
		option("cooldown", l.Cooldown != 0, short(l.Cooldown))
}

// ParseAdaptive reads MIN..MAX [start N] [latency DURATION] [decrease PERMILLE] [cooldown DURATION]. Errors wrap
// ErrInvalid.
func ParseAdaptive(s string) (Adaptive, error) {
	var l Adaptive
	p := parseText(s, "start", "latency", "decrease", "cooldown")
	l.Min, l.Max = p.span()
	l.Start = p.number("start", parseWhole)
	l.Decrease = int(p.number("decrease", parseWhole))
	l.Latency, l.Cooldown = p.duration("latency"), p.duration("cooldown")
	return l, p.finish(l.Validate)
}

func option(name string, set bool, value string) string {
	if !set {
		return ""
	}
	return " " + name + " " + value
}

// text is a limit's text taken apart. It keeps the first fault, so that the parsers read top down.
type text struct {
	head    string
	options map[string]string
	err     error
}

func parseText(s string, known ...string) *text {
	p := &text{options: make(map[string]string)}
	words := strings.Fields(s)
	if len(words)%2 == 0 {
		p.fail("%q, want one figure and then pairs of a name and a value", s)
		return p
	}
	p.head = words[0]
	for pair := range slices.Chunk(words[1:], 2) {
		name := pair[0]
		if !slices.Contains(known, name) {
			p.fail("%q is not known here, want %s", name, strings.Join(known, ", "))
		}
		if _, twice := p.options[name]; twice {
			p.fail("%s is given twice", name)
		}
		p.options[name] = pair[1]
	}
	return p
}

func (p *text) fail(format string, args ...any) {
	if p.err == nil {
		p.err = fmt.Errorf("%w: "+format, append([]any{ErrInvalid}, args...)...)
	}
}

// rate is the figure as a rate.
func (p *text) rate(parse func(string) (Rate, error)) Rate {
	r, err := parse(p.head)
	if p.err == nil {
		p.err = err
	}
	return r
}

// span is the figure as a range.
func (p *text) span() (low, high int64) {
	from, to, _ := strings.Cut(p.head, "..")
	low, err := parseWhole(from)
	if err == nil {
		high, err = parseWhole(to)
	}
	if err != nil {
		p.fail("%q is not a range such as 4..64", p.head)
	}
	return low, high
}

// number is an option's value, 0 if it is not there. One that is there is not 0: that would stand for the default.
func (p *text) number(name string, parse func(string) (int64, error)) int64 {
	s, ok := p.options[name]
	if !ok {
		return 0
	}
	n, err := parse(s)
	switch {
	case err != nil:
		p.fail("%s %q is not a whole number", name, s)
	case n <= 0:
		p.fail("%s %s, it must be at least 1", name, s)
	}
	return n
}

// duration is an option's value, 0 if it is not there. One that is there is not 0: that would stand for the default.
func (p *text) duration(name string) time.Duration {
	s, ok := p.options[name]
	if !ok {
		return 0
	}
	d, err := time.ParseDuration(s)
	switch {
	case err != nil:
		p.fail("%s %q is not a duration such as 200ms", name, s)
	case d <= 0:
		p.fail("%s %s, it must be more than 0", name, s)
	}
	return d
}

// finish is the first fault, or that of validate.
func (p *text) finish(validate func() error) error {
	if p.err != nil {
		return p.err
	}
	return validate()
}

func parseWhole(s string) (int64, error) { return strconv.ParseInt(s, 10, 64) }
