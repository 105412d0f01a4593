package policy

import (
	"cmp"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Op is what happened to an entry.
type Op string

// The changes an entry can undergo.
const (
	Added   Op = "added"
	Removed Op = "removed"
	Changed Op = "changed"
)

// Change is one entry in which two documents differ.
type Change struct {
	Section string `json:"section"`        // the top-level key
	Name    string `json:"name,omitempty"` // the entry, such as `user "alice"`; empty for a single value
	Op      Op     `json:"op"`
	Shadow  bool   `json:"shadow,omitempty"`
	Old     string `json:"old,omitempty"` // in the words of a document
	New     string `json:"new,omitempty"`
}

// Diff lists in which entries two documents differ, in the order in which a document is written. Two that list nothing say
// the same, wherever and in whatever order they say it.
func Diff(old, updated *Document) []Change {
	var list []Change
	single := func(key, before, after string) {
		if before != after {
			list = append(list, Change{Section: key, Op: Changed, Old: before, New: after})
		}
	}
	single("cost", old.cost.String(), updated.cost.String())
	single("default_level", levelName(old.defaultLevel()), levelName(updated.defaultLevel()))
	list = diffSorted(list, old.sorted(), updated.sorted(), (*Rule).compare, (*Rule).change)
	list = diffSorted(list, old.Importances(), updated.Importances(), Importance.compare, Importance.change)
	list = diffSorted(list, old.signals, updated.signals,
		func(a, b Signal) int { return cmp.Compare(a.Name, b.Name) },
		func(s Signal) (Change, string) { return Change{Section: "signals", Name: s.Name}, oneLine(s.node()) })
	return diffSorted(list, old.alarms, updated.alarms,
		func(a, b Alarm) int { return cmp.Compare(a.Name, b.Name) },
		func(a Alarm) (Change, string) { return Change{Section: "alarms", Name: a.Name}, oneLine(a.node()) })
}

// diffSorted walks through two sorted lists side by side. describe names an entry and gives its text.
func diffSorted[E any](list []Change, old, updated []E, compare func(a, b E) int, describe func(E) (Change, string)) []Change {
	for len(old) > 0 || len(updated) > 0 {
		switch order := front(old, updated, compare); {
		case order < 0:
			c, text := describe(old[0])
			c.Op, c.Old = Removed, text
			list, old = append(list, c), old[1:]
		case order > 0:
			c, text := describe(updated[0])
			c.Op, c.New = Added, text
			list, updated = append(list, c), updated[1:]
		default:
			c, after := describe(updated[0])
			_, before := describe(old[0])
			c.Op, c.Old, c.New = Changed, before, after
			if before != after {
				list = append(list, c)
			}
			old, updated = old[1:], updated[1:]
		}
	}
	return list
}

// front tells which list's first entry comes first: below 0 the first list's, above 0 the second's, 0 if they are for the
// same. REQUIRES: one has an entry.
func front[E any](a, b []E, compare func(a, b E) int) int {
	switch {
	case len(a) == 0:
		return 1
	case len(b) == 0:
		return -1
	}
	return compare(a[0], b[0])
}

func (r *Rule) change() (Change, string) {
	return Change{Section: r.Section.String(), Name: r.Name(), Shadow: r.Shadow}, r.oneLine()
}

// oneLine is what the rule sets, without whom it is for.
func (r *Rule) oneLine() string {
	var b strings.Builder
	say := func(key, value string) {
		if b.Len() > 0 {
			b.WriteString(", ")
		}
		b.WriteString(key + ": " + value)
	}
	r.words(r.Sets, say)
	if r.Sets.Has(KindAdaptive) {
		say(adaptiveKey, r.said(KindAdaptive))
	}
	return b.String()
}

func (i Importance) change() (Change, string) {
	return Change{Section: "importance", Name: i.Name()}, "level: " + levelName(i.Level)
}

// oneLine is an entry as a document has it.
func oneLine(n *yaml.Node) string {
	text, err := yaml.Marshal(n)
	if err != nil {
		return err.Error() // never: the node is one that Marshal writes
	}
	return strings.TrimSpace(string(text))
}
