package policy

import (
	"cmp"
	"net/url"
	"slices"
	"strconv"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/penstockmq/penstock/broker/lite"
)

// Bounds of signals and alarms.
const (
	MinInterval = 100 * time.Millisecond
	MaxInterval = time.Hour
	MinFor      = time.Second
	MaxFor      = 31 * 24 * time.Hour
	MaxHoldDown = 24 * time.Hour
	maxName     = 64
	maxLabels   = 32
)

// Defaults of signals and alarms.
const (
	defaultInterval  = time.Second
	staleIntervals   = 3
	defaultFloor     = 100 // permille
	defaultWhenStale = 500 // permille
	defaultFor       = 10 * time.Minute
	defaultHoldDown  = 30 * time.Second
)

var (
	signalKeys = [...]string{
		"name", "column", "level", "by", "url", "series", "target", "interval", "stale_after", "floor", "when_stale", "aggregate",
	}
	alarmKeys = [...]string{"name", "match", "column", "column_label", "level", "factor", "for", "hold_down"}
)

func (p *parser) signal(n *yaml.Node, path string) {
	e := p.entry(n, path, "a signal", signalKeys[:])
	if n.Kind != yaml.MappingNode {
		return
	}
	e.required("name", "url", "series", "target")
	s := Signal{
		Name: e.identifier("name"), Of: e.scaledBy("by"), URL: e.url("url"), Series: e.series("series"),
		Target:    e.positive("target"),
		Interval:  e.duration("interval", MinInterval, MaxInterval, defaultInterval),
		Floor:     e.fraction("floor", defaultFloor),
		WhenStale: e.fraction("when_stale", defaultWhenStale),
		Aggregate: Aggregate(e.oneOf("aggregate", aggregateNames[:])),
		File:      p.file, Line: n.Line,
	}
	s.StaleAfter = e.duration("stale_after", MinInterval, MaxFor, staleIntervals*s.Interval)
	if e.good() && s.StaleAfter < s.Interval {
		e.wrong("stale_after", "is %s, it must be at least the interval of %s", formatDuration(s.StaleAfter), formatDuration(s.Interval))
	}
	if !e.good() || !p.once(n, "signal "+s.Name, path, "signal "+strconv.Quote(s.Name)+" ") {
		return
	}
	p.doc.signals = append(p.doc.signals, s)
	e.scales(s.Of)
}

func (p *parser) alarm(n *yaml.Node, path string) {
	e := p.entry(n, path, "an alarm", alarmKeys[:])
	if n.Kind != yaml.MappingNode {
		return
	}
	e.required("name", "match", "factor")
	a := Alarm{
		Name: e.identifier("name"), Match: e.labels("match"), Of: e.scaledBy("column_label"),
		Factor:   e.fraction("factor", 0),
		For:      e.duration("for", MinFor, MaxFor, defaultFor),
		HoldDown: e.duration("hold_down", 0, MaxHoldDown, defaultHoldDown),
		File:     p.file, Line: n.Line,
	}
	if !e.good() || !p.once(n, "alarm "+a.Name, path, "alarm "+strconv.Quote(a.Name)+" ") {
		return
	}
	p.doc.alarms = append(p.doc.alarms, a)
	e.scales(a.Of)
}

// identifier is a name that others use as a key: letters, digits, '.', '_' and '-'.
func (e *entry) identifier(key string) string {
	s, ok := e.text(key)
	if !ok {
		return ""
	}
	good := s != "" && len(s) <= maxName
	for _, c := range []byte(s) {
		good = good && (isWord(c) || c >= '0' && c <= '9' || c == '.' || c == '-')
	}
	if !good {
		e.wrong(key, "is %.64q, want 1 to %d letters, digits, '.', '_' and '-'", s, maxName)
	}
	return s
}

func isWord(c byte) bool { return c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' }

// scaledBy reads what a signal or alarm scales: exactly one of column, level and a label that names the column.
func (e *entry) scaledBy(label string) Scaled {
	given := make([]string, 0, 3)
	for _, key := range [...]string{"column", "level", label} {
		if e.has(key) {
			given = append(given, key)
		}
	}
	if len(given) != 1 {
		e.whole("scales %s, want one of column, level and %s", cmp.Or(list(given), "nothing"), label)
		return Scaled{}
	}
	switch given[0] {
	case "column":
		if s, ok := e.text("column"); ok && s == wildcard {
			e.wrong("column", "is \"*\"; to scale the column that a label names, there is %s", label)
			return Scaled{}
		}
		return Scaled{Section: Columns, Name: e.name("column", lite.CheckModel, false)}
	case "level":
		return Scaled{Section: Levels, Name: strconv.Itoa(int(e.level("level")))}
	}
	s, ok := e.text(label)
	if ok && !isLabel(s) {
		e.wrong(label, "is %.64q, want the name of a label", s)
	}
	return Scaled{Section: Columns, By: s}
}

// scales checks, once all of the document is read, that there is a limit to scale.
func (e *entry) scales(of Scaled) {
	file := e.file
	e.scaled = append(e.scaled, func() {
		e.file = file
		if e.doc.scalable(of) {
			return
		}
		switch {
		case of.Section == Levels:
			e.wrong("level", "is %s, which has no limit, so there is nothing to scale: give it one in levels", of.Name)
		case of.By != "":
			e.whole("scales columns, and none has a limit, so there is nothing to scale: give them one in columns")
		default:
			e.wrong("column", "is %q, which has no limit, so there is nothing to scale: give it one in columns", of.Name)
		}
	})
}

// scalable reports whether a factor has a limit to act on.
func (d *Document) scalable(of Scaled) bool {
	var l Limits
	switch {
	case of.By != "":
		for name := range d.enforced.columns {
			if l, _ := d.Column(name); l.any(gates) {
				return true
			}
		}
		return false
	case of.Section == Levels:
		l, _ = d.LevelOf(of.Name[0] - '0')
	default:
		l, _ = d.Column(of.Name)
	}
	return l.any(gates)
}

// any reports whether there is a limit of any of the kinds.
func (l *Limits) any(of Kinds) bool {
	for kind := range of.each {
		if l.limits(kind) {
			return true
		}
	}
	return false
}

func (e *entry) url(key string) string {
	s, ok := e.text(key)
	if !ok {
		return ""
	}
	switch u, err := url.Parse(s); {
	case err != nil:
		e.wrong(key, "is no URL: %v", err)
	case u.Scheme != "http" && u.Scheme != "https":
		e.wrong(key, "has the scheme %q, want http or https", u.Scheme)
	case u.Host == "":
		e.wrong(key, "has no host")
	case u.User != nil:
		e.wrong(key, "has a user in it, and a policy is shown to many")
	}
	return s
}

func (e *entry) series(key string) string {
	s, ok := e.text(key)
	if !ok {
		return ""
	}
	name, labels, err := ParseSeries(s)
	if err != nil {
		e.wrong(key, "%v", err)
	}
	return formatSeries(name, labels)
}

// labels reads a mapping of label names to values.
func (e *entry) labels(key string) map[string]string {
	n := e.values[key]
	if n == nil {
		return nil
	}
	labels := make(map[string]string, len(n.Content)/2)
	path := e.at(key)
	e.mapping(n, path, path+".", func(name string, k, value *yaml.Node) {
		switch {
		case !isLabel(name):
			e.fault(k, path, "%.64q is not the name of a label", name)
		case value.Kind != yaml.ScalarNode || value.Tag != "!!str":
			e.fault(value, path+"."+name, "is %s, want text: put it in quotes", show(value))
		case value.Value == "" || len(value.Value) > maxLabelValue:
			e.fault(value, path+"."+name, "has %d bytes, it must be from 1 to %d", len(value.Value), maxLabelValue)
		default:
			labels[name] = value.Value
		}
	})
	if n.Kind == yaml.MappingNode && (len(n.Content) == 0 || len(n.Content)/2 > maxLabels) {
		e.wrong(key, "has %d labels, it must be from 1 to %d", len(n.Content)/2, maxLabels)
	}
	return labels
}

func (d *Document) sortSignals() {
	slices.SortFunc(d.signals, func(a, b Signal) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortFunc(d.alarms, func(a, b Alarm) int { return cmp.Compare(a.Name, b.Name) })
}
