package policy

import (
	"slices"

	"github.com/penstockmq/penstock/suspend/limit"
)

// Document is a set of rules, indexed by selector. Immutable.
type Document struct {
	rules map[Selector]*Rule
}

// Empty is the document without rules: every cell is unlimited.
func Empty() *Document { return &Document{} }

// Len is the number of rules.
func (d *Document) Len() int { return len(d.rules) }

// Rules is a copy of the rules, the most specific level first, by name within a level.
func (d *Document) Rules() []Rule {
	rules := make([]Rule, 0, len(d.rules))
	for _, r := range d.rules {
		rules = append(rules, *r)
	}
	slices.SortFunc(rules, func(a, b Rule) int { return a.compare(&b) })
	return rules
}

// Limits is what holds for one cell. The pointers are shared with the document: read only.
type Limits struct {
	Leaky      *limit.LeakyBucket // nil: no rate
	Window     *limit.FixedWindow // nil: no window
	WindowAt   Enforce
	Depth      int64 // most messages queued; 0: no such limit
	DepthBytes int64 // most bytes queued; 0: no such limit
	From       Sources
}

// Sources tells for each kind of limit which rule decided it.
type Sources struct {
	Leaky, Window, Depth, DepthBytes Source
}

// Source is the rule that decided a limit. The zero Source: no rule did, so there is no such limit.
type Source struct {
	Level Level
	Line  int // of the rule in the document's source
}

// Admission is what the gateway asks before it accepts a request for the cell.
func (l Limits) Admission() limit.Cell {
	if l.WindowAt == Admission {
		return limit.Cell{Window: l.Window}
	}
	return limit.Cell{}
}

// Release is what the pool asks before it forwards a request of the cell.
func (l Limits) Release() limit.Cell {
	c := limit.Cell{Leaky: l.Leaky}
	if l.WindowAt == Release {
		c.Window = l.Window
	}
	return c
}

// Resolve finds the limits of a cell: at most eight lookups, whatever the number of rules. A user or model without name is
// one that no rule names, so the defaults hold for it.
func (d *Document) Resolve(user, model string) Limits {
	var l Limits
	open := allKinds
	for _, s := range precedence(user, model) {
		r, ok := d.rules[s]
		if !ok {
			continue
		}
		l.take(r, open&r.Sets)
		if open &^= r.Sets; open == 0 {
			break
		}
	}
	return l
}

// precedence is the selectors that match a cell, the most specific first. A user called "*" or "" can have no rule of its
// own; its selectors then repeat those of a default, which changes nothing.
func precedence(user, model string) [levels - 1]Selector {
	if user == "" {
		user = wildcard
	}
	if model == "" {
		model = wildcard
	}
	return [...]Selector{
		{User: user, Model: model},
		{User: user, Model: wildcard},
		{User: user},
		{User: wildcard, Model: model},
		{User: wildcard, Model: wildcard},
		{User: wildcard},
		{Model: model},
		{Model: wildcard},
	}
}

func (l *Limits) take(r *Rule, kinds Kinds) {
	from := Source{Level: r.Level(), Line: r.Line}
	if kinds.Has(Rate) {
		l.Leaky, l.From.Leaky = r.Leaky, from
	}
	if kinds.Has(Window) {
		l.Window, l.WindowAt, l.From.Window = r.Window, r.WindowAt, from
	}
	if kinds.Has(Depth) {
		l.Depth, l.From.Depth = r.Depth, from
	}
	if kinds.Has(DepthBytes) {
		l.DepthBytes, l.From.DepthBytes = r.DepthBytes, from
	}
}
