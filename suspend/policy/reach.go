package policy

import "github.com/penstockmq/penstock/broker/lite"

// Reach is the cells for which a change of policy may mean something: their own limits, their row's, or their importance.
// What a change says of columns, levels and the broker is asked of those and not of their cells. Immutable.
type Reach struct {
	all           bool
	cells         map[lite.Cell]struct{}
	users, models map[string]struct{}
}

// ReachOf compares two documents. It takes time in proportion to their rules; Has does not.
func ReachOf(old, updated *Document) *Reach {
	r := &Reach{cells: map[lite.Cell]struct{}{}, users: map[string]struct{}{}, models: map[string]struct{}{}}
	if old.cost != updated.cost || old.defaultLevel() != updated.defaultLevel() {
		r.all = true
	}
	same := func(a, b *Rule) bool { return a.Sets == b.Sets && a.oneLine() == b.oneLine() }
	differing(old.enforced.cells, updated.enforced.cells, same, r.touch)
	differing(old.enforced.rows, updated.enforced.rows, same, func(user string) { r.touch(Selector{User: user}) })
	differing(old.importance, updated.importance, func(a, b Importance) bool { return a.Level == b.Level }, r.touch)
	return r
}

// differing calls touch for the keys of entries that only one of two maps has, or that are not the same in both.
func differing[K comparable, V any](old, updated map[K]V, same func(a, b V) bool, touch func(K)) {
	for k, a := range old {
		if b, ok := updated[k]; !ok || !same(a, b) {
			touch(k)
		}
	}
	for k := range updated {
		if _, ok := old[k]; !ok {
			touch(k)
		}
	}
}

func (r *Reach) touch(s Selector) {
	user, model := s.User != "" && s.User != wildcard, s.Model != "" && s.Model != wildcard
	switch {
	case user && model:
		r.cells[lite.Cell(s)] = struct{}{}
	case user:
		r.users[s.User] = struct{}{}
	case model:
		r.models[s.Model] = struct{}{}
	default:
		r.all = true
	}
}

// Has reports whether the change may mean something for a cell: at most three lookups.
func (r *Reach) Has(c lite.Cell) bool {
	if r.all {
		return true
	}
	if len(r.users) > 0 {
		if _, ok := r.users[c.User]; ok {
			return true
		}
	}
	if len(r.models) > 0 {
		if _, ok := r.models[c.Model]; ok {
			return true
		}
	}
	if len(r.cells) == 0 {
		return false
	}
	_, ok := r.cells[c]
	return ok
}
