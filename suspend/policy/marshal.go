package policy

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"go.yaml.in/yaml/v3"
)

// Marshal writes the document in its canonical form: Parse of it gives an equal document. Entries are listed in the order
// of Rules, signals and alarms by name.
func (d *Document) Marshal() ([]byte, error) {
	doc := &yaml.Node{Kind: yaml.MappingNode}
	add(doc, "version", plain(strconv.Itoa(Version)))
	if d.cost != Requests {
		add(doc, "cost", plain(d.cost.String()))
	}
	if d.levelSet {
		add(doc, "default_level", plain(levelName(d.level)))
	}
	lists := make(map[Section]*yaml.Node)
	for _, r := range d.sorted() {
		if lists[r.Section] == nil {
			lists[r.Section] = &yaml.Node{Kind: yaml.SequenceNode}
		}
		lists[r.Section].Content = append(lists[r.Section].Content, r.node())
	}
	if lists[Cells] == nil {
		lists[Cells] = &yaml.Node{Kind: yaml.SequenceNode, Style: yaml.FlowStyle}
	}
	for _, s := range slices.Sorted(maps.Keys(lists)) {
		add(doc, s.String(), lists[s])
	}
	addList(doc, "importance", d.Importances(), Importance.node)
	addList(doc, "signals", d.signals, Signal.node)
	addList(doc, "alarms", d.alarms, Alarm.node)

	var out bytes.Buffer
	enc := yaml.NewEncoder(&out)
	enc.SetIndent(2)
	if err := enc.Encode(doc); err != nil {
		return nil, fmt.Errorf("encode document: %w", err)
	}
	return out.Bytes(), nil
}

// One entry is one line.

func (r *Rule) node() *yaml.Node {
	n := r.selector()
	r.words(r.Sets, func(key, value string) { add(n, key, plain(value)) })
	if r.Sets.Has(KindAdaptive) {
		add(n, adaptiveKey, r.adaptive())
	}
	if r.Shadow {
		add(n, "shadow", plain("true"))
	}
	return n
}

func (r *Rule) selector() *yaml.Node {
	n := entryNode()
	addText(n, "user", r.User)
	addText(n, "model", r.Model)
	if r.Section == Levels {
		add(n, "level", plain(levelName(r.Importance)))
	}
	return n
}

func (r *Rule) adaptive() *yaml.Node {
	a := r.Adaptive
	if a == nil {
		return plain(unlimited)
	}
	n := entryNode()
	for _, v := range [...]struct {
		key string
		n   int64
	}{{"min", a.Min}, {"max", a.Max}, {"start", a.Start}} {
		if v.n != 0 {
			add(n, v.key, plain(strconv.FormatInt(v.n, 10)))
		}
	}
	addPlain(n, "latency", orEmpty(a.Latency))
	if a.Decrease != 0 {
		add(n, "decrease", plain(formatFraction(int64(a.Decrease))))
	}
	addPlain(n, "cooldown", orEmpty(a.Cooldown))
	return n
}

func (i Importance) node() *yaml.Node {
	n := entryNode()
	addText(n, "user", i.User)
	addText(n, "model", i.Model)
	addText(n, "key", i.Key)
	add(n, "level", plain(levelName(i.Level)))
	return n
}

func (s Signal) node() *yaml.Node {
	n := entryNode()
	addText(n, "name", s.Name)
	s.Of.add(n, "by")
	addText(n, "url", s.URL)
	addText(n, "series", s.Series)
	add(n, "target", plain(strconv.FormatFloat(s.Target, 'g', -1, 64)))
	add(n, "interval", plain(formatDuration(s.Interval)))
	add(n, "stale_after", plain(formatDuration(s.StaleAfter)))
	add(n, "floor", plain(formatFraction(s.Floor)))
	add(n, "when_stale", plain(formatFraction(s.WhenStale)))
	add(n, "aggregate", plain(s.Aggregate.String()))
	return n
}

func (a Alarm) node() *yaml.Node {
	n := entryNode()
	addText(n, "name", a.Name)
	match := entryNode()
	for _, label := range slices.Sorted(maps.Keys(a.Match)) {
		match.Content = append(match.Content, quoted(label), quoted(a.Match[label]))
	}
	add(n, "match", match)
	a.Of.add(n, "column_label")
	add(n, "factor", plain(formatFraction(a.Factor)))
	add(n, "for", plain(formatDuration(a.For)))
	add(n, "hold_down", plain(formatDuration(a.HoldDown)))
	return n
}

func (s Scaled) add(n *yaml.Node, label string) {
	switch {
	case s.By != "":
		addText(n, label, s.By)
	case s.Section == Levels:
		add(n, "level", plain(s.Name))
	default:
		addText(n, "column", s.Name)
	}
}

func entryNode() *yaml.Node { return &yaml.Node{Kind: yaml.MappingNode, Style: yaml.FlowStyle} }

// plain is a value as it stands. REQUIRES: it is a word, a number or the like.
func plain(s string) *yaml.Node { return &yaml.Node{Kind: yaml.ScalarNode, Value: s} }

func add(n *yaml.Node, key string, value *yaml.Node) {
	n.Content = append(n.Content, plain(key), value)
}

func addPlain(n *yaml.Node, key, value string) {
	if value != "" {
		add(n, key, plain(value))
	}
}

// addText adds text, unless it is empty.
func addText(n *yaml.Node, key, value string) {
	if value != "" {
		add(n, key, quoted(value))
	}
}

// quoted is text, in quotes where YAML would take it for something else.
func quoted(s string) *yaml.Node {
	n := &yaml.Node{}
	n.SetString(s)
	if n.Style == yaml.LiteralStyle {
		n.Style = yaml.DoubleQuotedStyle // a line break has no place in a line
	}
	return n
}

func addList[E any](n *yaml.Node, key string, entries []E, node func(E) *yaml.Node) {
	if len(entries) == 0 {
		return
	}
	l := &yaml.Node{Kind: yaml.SequenceNode}
	for _, e := range entries {
		l.Content = append(l.Content, node(e))
	}
	add(n, key, l)
}
