package policy

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/penstockmq/penstock/broker/lite"
)

// full is a factor of 1, in permille.
const full = 1000

// entry reads the keys of one mapping. Each reader of a key returns a zero value, having noted a fault, when the value is a
// wrong one; so a caller reads all keys and asks then whether all was good.
type entry struct {
	*parser
	node   *yaml.Node
	path   string // "limits[3]"
	values map[string]*yaml.Node
	before int // faults noted before this entry
}

// entry reads n as a mapping with no other keys than those; what names it in a fault, as in "a signal".
func (p *parser) entry(n *yaml.Node, path, what string, keys []string) *entry {
	e := &entry{parser: p, node: n, path: path, values: make(map[string]*yaml.Node), before: p.count}
	p.mapping(n, path, path+".", func(name string, key, value *yaml.Node) {
		if !slices.Contains(keys, name) {
			p.fault(key, path+"."+name, "unknown key, %s has %s", what, list(keys))
			return
		}
		e.values[name] = value
	})
	return e
}

// list is names in words: "a, b and c".
func list(names []string) string {
	if len(names) < 2 {
		return strings.Join(names, "")
	}
	last := len(names) - 1
	return strings.Join(names[:last], ", ") + " and " + names[last]
}

// good reports whether nothing was wrong with the entry so far. What is about the whole of an entry is checked only then:
// it would otherwise repeat the faults of the parts.
func (e *entry) good() bool { return e.count == e.before }

func (e *entry) has(key string) bool { return e.values[key] != nil }

// wrong notes a fault of a key's value.
func (e *entry) wrong(key, format string, args ...any) {
	n := e.values[key]
	if n == nil {
		n = e.node
	}
	e.fault(n, e.at(key), format, args...)
}

// at is the path of a key. An entry without path stands for the document.
func (e *entry) at(key string) string {
	if e.path == "" {
		return key
	}
	return e.path + "." + key
}

// whole notes a fault of the entry as a whole.
func (e *entry) whole(format string, args ...any) { e.fault(e.node, e.path, format, args...) }

// scalar is the text of a key's value, whatever type YAML takes it for; false if the key is not there or has none.
func (e *entry) scalar(key string) (string, bool) {
	n := e.values[key]
	switch {
	case n == nil:
		return "", false
	case n.Kind != yaml.ScalarNode || isNull(n):
		e.wrong(key, "is %s, want a value", show(n))
		return "", false
	}
	return n.Value, true
}

// text is a value that has to be text. What YAML takes for something else, such as 0123 or true, would be a different
// name from the one that was meant, so it needs quotes.
func (e *entry) text(key string) (string, bool) {
	n := e.values[key]
	switch {
	case n == nil:
		return "", false
	case n.Kind != yaml.ScalarNode || n.Tag != "!!str":
		e.wrong(key, "is %s, want text: put it in quotes", show(n))
		return "", false
	}
	return n.Value, true
}

// name is a user, a model or a key, or the wildcard if that is allowed.
func (e *entry) name(key string, check func(string) error, orWildcard bool) string {
	s, ok := e.text(key)
	if !ok || orWildcard && s == wildcard {
		return s
	}
	if err := check(s); err != nil {
		e.wrong(key, "%v", err)
	}
	return s
}

func (e *entry) boolean(key string) bool {
	n := e.values[key]
	if n == nil {
		return false
	}
	if n.Kind == yaml.ScalarNode && n.Tag == "!!bool" {
		if v, err := strconv.ParseBool(strings.ToLower(n.Value)); err == nil {
			return v
		}
	}
	e.wrong(key, "is %s, want true or false", show(n))
	return false
}

func (e *entry) whole64(key string, least, most int64) int64 {
	s, ok := e.scalar(key)
	if !ok {
		return 0
	}
	n, err := parseWhole(s, least, most)
	if err != nil {
		e.wrong(key, "%v", err)
	}
	return n
}

func (e *entry) level(key string) uint8 {
	return uint8(e.whole64(key, 0, lite.MaxLevel))
}

// duration is a value from least to most; byDefault if the key is not there.
func (e *entry) duration(key string, least, most, byDefault time.Duration) time.Duration {
	if !e.has(key) {
		return byDefault
	}
	s, ok := e.scalar(key)
	if !ok {
		return 0
	}
	d, err := parseDuration(s, least, most)
	if err != nil {
		e.wrong(key, "%v", err)
	}
	return d
}

// fraction is a value from 0 to 1 in permille; byDefault if the key is not there.
func (e *entry) fraction(key string, byDefault int64) int64 {
	if !e.has(key) {
		return byDefault
	}
	s, ok := e.scalar(key)
	if !ok {
		return 0
	}
	permille, err := parseFraction(s)
	if err != nil {
		e.wrong(key, "%v", err)
	}
	return permille
}

// positive is a finite number over 0.
func (e *entry) positive(key string) float64 {
	s, ok := e.scalar(key)
	if !ok {
		return 0
	}
	v, err := strconv.ParseFloat(s, 64)
	switch {
	case err != nil || strings.ContainsAny(s, "xX_"):
		e.wrong(key, "%q is not a number", s)
	case !(v > 0) || math.IsInf(v, 0):
		e.wrong(key, "is %s, it must be a finite number over 0", s)
	default:
		return v
	}
	return 0
}

// oneOf is the index of the value among words; 0 if the key is not there.
func (e *entry) oneOf(key string, words []string) int {
	n := e.values[key]
	if n == nil {
		return 0
	}
	i := slices.Index(words, n.Value)
	if n.Kind != yaml.ScalarNode || i < 0 {
		e.wrong(key, "is %s, want %s", show(n), strings.Join(words, " or "))
		return 0
	}
	return i
}

// required notes as faults which of the keys are not there.
func (e *entry) required(keys ...string) {
	for _, key := range keys {
		if !e.has(key) {
			e.wrong(key, "is missing")
		}
	}
}

func parseDuration(s string, least, most time.Duration) (time.Duration, error) {
	d, err := time.ParseDuration(s)
	switch {
	case err != nil:
		return 0, fmt.Errorf("%q is not a duration such as 200ms", s)
	case d < least || d > most:
		return 0, fmt.Errorf("is %s, it must be from %s to %s", formatDuration(d), formatDuration(least), formatDuration(most))
	}
	return d, nil
}

// formatDuration is d without trailing zero parts, such as 1m for 1m0s.
func formatDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// parseFraction reads a number from 0 to 1 with up to three decimals as permille, exactly.
func parseFraction(s string) (int64, error) {
	units, decimals, _ := strings.Cut(s, ".")
	decimals = strings.TrimRight(decimals, "0")
	if len(units) == 1 && len(decimals) <= 3 {
		n, err := strconv.ParseUint(units+(decimals + "000")[:3], 10, 16)
		if err == nil && n <= full {
			return int64(n), nil
		}
	}
	return 0, fmt.Errorf("is %.64q, it must be from 0 to 1 with at most three decimals, such as 0.5", s)
}

// formatFraction is the inverse of parseFraction.
func formatFraction(permille int64) string {
	return strconv.FormatFloat(float64(permille)/full, 'f', -1, 64)
}
