package policy

import (
	"cmp"
	"maps"
	"slices"

	"github.com/penstockmq/penstock/broker/lite"
)

// Effect is one limit that is another under another document.
type Effect struct {
	Section string `json:"section"`
	Name    string `json:"name"`  // as in Change; "*" in it stands for those that neither document names
	Limit   string `json:"limit"` // the kind, or "importance"
	Old     string `json:"old"`
	OldFrom string `json:"old_from"`
	New     string `json:"new"`
	NewFrom string `json:"new_from"`
}

// maxExamined bounds the pairs of a user and a model that Effects looks at.
const maxExamined = 200_000

// Effects lists which enforced limits are others under the updated document, of all cells, rows, columns and levels whose user
// and model either document names, and of those that none names. It stops after most of them, or when it has looked at
// 200,000 cells; more then reports that there may be others.
func Effects(old, updated *Document, most int) (list []Effect, more bool) {
	x := &effects{old: old, updated: updated, most: most, seen: make(map[Selector]bool)}
	x.users, x.models = x.names()
	x.aggregates() // first: they are few, and each is about many cells
	x.cells()
	slices.SortStableFunc(x.list, func(a, b Effect) int { return cmp.Compare(sectionIndex(a.Section), sectionIndex(b.Section)) })
	return x.list, x.more
}

func sectionIndex(name string) int { return slices.Index(sectionNames[:], name) }

type effects struct {
	old, updated  *Document
	users, models []string // named in either, sorted, and the wildcard last
	most          int

	seen map[Selector]bool
	list []Effect
	more bool
}

// names are all users and models that a cell's limits or importance are told for.
func (x *effects) names() (users, models []string) {
	u, m := make(map[string]bool), make(map[string]bool)
	for _, d := range [...]*Document{x.old, x.updated} {
		for s := range d.enforced.cells {
			u[s.User], m[s.Model] = true, true
		}
		for s := range d.importance {
			u[s.User], m[s.Model] = true, true
		}
	}
	return sortedNames(u), sortedNames(m)
}

func sortedNames(set map[string]bool) []string {
	delete(set, "")
	delete(set, wildcard)
	return append(slices.Sorted(maps.Keys(set)), wildcard)
}

// cells looks at those that a changed entry may be about: all other cells resolve as before.
func (x *effects) cells() {
	for _, s := range x.changed() {
		for _, user := range matching(s.User, x.users) {
			for _, model := range matching(s.Model, x.models) {
				if !x.cell(Selector{User: user, Model: model}) {
					return
				}
			}
		}
	}
}

// changed is whom the changed entries of limits and importance are for. An empty field of importance matches all.
func (x *effects) changed() []Selector {
	var list []Selector
	note := func(s Selector) { list = append(list, s) }
	for s, r := range x.old.enforced.cells {
		if o := x.updated.enforced.cells[s]; o == nil || o.oneLine() != r.oneLine() {
			note(s)
		}
	}
	for s := range x.updated.enforced.cells {
		if x.old.enforced.cells[s] == nil {
			note(s)
		}
	}
	for s, i := range x.old.importance {
		if o, ok := x.updated.importance[s]; !ok || o.Level != i.Level {
			note(s)
		}
	}
	for s := range x.updated.importance {
		if _, ok := x.old.importance[s]; !ok {
			note(s)
		}
	}
	if x.old.defaultLevel() != x.updated.defaultLevel() {
		note(Selector{})
	}
	slices.SortFunc(list, func(a, b Selector) int { return cmp.Or(cmp.Compare(a.User, b.User), cmp.Compare(a.Model, b.Model)) })
	return slices.Compact(list)
}

func matching(name string, all []string) []string {
	if name == "" || name == wildcard {
		return all
	}
	return []string{name}
}

// cell compares one cell and reports whether to go on.
func (x *effects) cell(s Selector) bool {
	if x.seen[s] {
		return true
	}
	if len(x.seen) == maxExamined {
		x.more = true
		return false
	}
	x.seen[s] = true
	before, after := x.old.Resolve(s.User, s.Model), x.updated.Resolve(s.User, s.Model)
	x.compare(Cells, s.String(), &before, &after)
	oldLevel, oldFrom := x.old.Importance(s.User, s.Model)
	newLevel, newFrom := x.updated.Importance(s.User, s.Model)
	if oldLevel != newLevel {
		x.add(Effect{
			Section: Cells.String(), Name: s.String(), Limit: "importance",
			Old: levelName(oldLevel), OldFrom: oldFrom, New: levelName(newLevel), NewFrom: newFrom,
		})
	}
	return !x.more
}

func (x *effects) aggregates() {
	for _, user := range namesOf(x.old.enforced.rows, x.updated.enforced.rows) {
		before, _ := x.old.Row(user)
		after, _ := x.updated.Row(user)
		x.compare(Rows, Selector{User: user}.String(), &before, &after)
	}
	for _, model := range namesOf(x.old.enforced.columns, x.updated.enforced.columns) {
		before, _ := x.old.Column(model)
		after, _ := x.updated.Column(model)
		x.compare(Columns, Selector{Model: model}.String(), &before, &after)
	}
	for level := range uint8(lite.MaxLevel + 1) {
		before, _ := x.old.LevelOf(level)
		after, _ := x.updated.LevelOf(level)
		x.compare(Levels, "level "+levelName(level), &before, &after)
	}
	before, _ := x.old.Broker()
	after, _ := x.updated.Broker()
	x.compare(Broker, "broker", &before, &after)
}

func namesOf(a, b map[string]*Rule) []string {
	set := make(map[string]bool)
	for name := range a {
		set[name] = true
	}
	for name := range b {
		set[name] = true
	}
	return sortedNames(set)
}

func (x *effects) compare(section Section, name string, before, after *Limits) {
	for kind := range section.allowed(false).each {
		if !before.limits(kind) && !after.limits(kind) {
			continue
		}
		e := Effect{
			Section: section.String(), Name: name, Limit: kind.name(),
			Old: section.holds(before, kind), OldFrom: before.From.of(kind).String(),
			New: section.holds(after, kind), NewFrom: after.From.of(kind).String(),
		}
		if e.Old != e.New {
			x.add(e)
		}
	}
}

func (x *effects) add(e Effect) {
	if len(x.list) >= x.most {
		x.more = true
		return
	}
	x.list = append(x.list, e)
}

// holds is what holds of one kind for a member of the section. Only for a cell is no limit of the messages in flight
// something else than any number of them.
func (s Section) holds(l *Limits, kind Kinds) string {
	if kind == KindInFlight && s != Cells && l.InFlight == 0 {
		return unlimited
	}
	return l.value(kind)
}
