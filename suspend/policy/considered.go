package policy

import (
	"fmt"
	"slices"
)

// Considered is one kind of limit at one scope, with each place that was asked for it.
type Considered struct {
	Section string `json:"section"` // "limits", "rows", "columns", "levels" or "broker"
	Limit   string `json:"limit"`   // "rate", "window", ...
	Shadow  bool   `json:"shadow,omitempty"`
	Value   string `json:"value"` // what holds: "5/s", "unlimited"
	From    string `json:"from"`  // the level that won; "none"
	Steps   []Step `json:"steps"` // in the order in which they were asked
}

// Step is one place at which a rule may stand.
type Step struct {
	Level string `json:"level"` // "user+model", "default row", ...
	Rule  string `json:"rule"`  // what a rule there is for, such as `user "alice"`
	File  string `json:"file,omitempty"`
	Line  int    `json:"line,omitempty"`
	Value string `json:"value,omitempty"` // what the rule says of this kind
	Won   bool   `json:"won,omitempty"`
	Why   string `json:"why"`
}

// place is where a rule may stand. The rule is then at least a selector; its line is 0 if the document has none.
type place struct {
	at    *Rule // the selector
	found *Rule // nil: no rule there
}

// Considered lists what the limits of a cell come from: of each kind, each place that was asked, which won and why. First
// the cell's own limits, all kinds of them; then those of its row, its column, its importance level and the broker, and
// last the shadow rules: of these the kinds that some rule there sets.
func (d *Document) Considered(user, model string) []Considered {
	level, _ := d.Importance(user, model)
	list := consider(nil, d.enforced.cellPlaces(user, model), cellKinds, false)
	list = consider(list, d.shadow.cellPlaces(user, model), 0, true)
	for _, shadow := range []bool{false, true} {
		rs := &d.enforced
		if shadow {
			rs = &d.shadow
		}
		list = consider(list, rs.rowPlaces(user), 0, shadow)
		list = consider(list, rs.columnPlaces(model), 0, shadow)
		list = consider(list, []place{{&Rule{Section: Levels, Importance: level}, rs.levels[level]}}, 0, shadow)
		list = consider(list, []place{{&Rule{Section: Broker}, rs.broker}}, 0, shadow)
	}
	slices.SortStableFunc(list, func(a, b Considered) int { return compareBool(a.Shadow, b.Shadow) })
	return list
}

func (rs *rules) cellPlaces(user, model string) []place {
	places := make([]place, 0, levels)
	seen := make(map[Selector]bool)
	for _, s := range precedence(user, model) {
		if !seen[s] { // "*" or no name makes some of them the same
			seen[s] = true
			places = append(places, place{&Rule{Section: Cells, Selector: s}, rs.cells[s]})
		}
	}
	return places
}

func (rs *rules) rowPlaces(user string) []place {
	places := []place{{&Rule{Section: Rows, Selector: Selector{User: wildcard}}, rs.rows[wildcard]}}
	if user == "" || user == wildcard {
		return places
	}
	return append([]place{{&Rule{Section: Rows, Selector: Selector{User: user}}, rs.rows[user]}}, places...)
}

func (rs *rules) columnPlaces(model string) []place {
	places := []place{{&Rule{Section: Columns, Selector: Selector{Model: wildcard}}, rs.columns[wildcard]}}
	if model == "" || model == wildcard {
		return places
	}
	return append([]place{{&Rule{Section: Columns, Selector: Selector{Model: model}}, rs.columns[model]}}, places...)
}

// consider adds the given kinds, and those that some rule at the places sets.
func consider(list []Considered, places []place, always Kinds, shadow bool) []Considered {
	set := always
	for _, p := range places {
		if p.found != nil {
			set |= p.found.Sets
		}
	}
	for kind := range set.each {
		list = append(list, considerKind(places, kind, shadow))
	}
	return list
}

func considerKind(places []place, kind Kinds, shadow bool) Considered {
	c := Considered{
		Section: places[0].at.Section.String(), Limit: kind.name(), Shadow: shadow,
		Value: absent(kind), From: NoLevel.String(),
	}
	if kind == KindInFlight && places[0].at.Section != Cells {
		c.Value = unlimited
	}
	won := false
	for _, p := range places {
		s := Step{Level: Source{p.at}.String(), Rule: p.at.Name()}
		if p.found != nil {
			s.File, s.Line = p.found.File, p.found.Line
		}
		switch {
		case p.found == nil:
			s.Why = "no rule"
		case !p.found.Sets.Has(kind):
			s.Why = "its rule sets no " + c.Limit
		case won:
			s.Value = p.found.said(kind)
			s.Why = fmt.Sprintf("%s is more specific", c.From)
		default:
			won = true
			s.Value, s.Won = p.found.said(kind), true
			s.Why = "the most specific rule that sets " + c.Limit
			c.Value, c.From = s.Value, s.Level
		}
		c.Steps = append(c.Steps, s)
	}
	return c
}

// said is what the rule says of a kind that it sets.
func (r *Rule) said(kind Kinds) string {
	if !r.limits(kind) {
		return unlimited
	}
	return r.value(kind)
}
