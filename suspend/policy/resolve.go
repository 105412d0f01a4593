package policy

import "github.com/penstockmq/penstock/broker/lite"

import "slices"

// Document is a set of rules, indexed by what they are for. Immutable.
type Document struct {
	enforced, shadow rules

	cost     CostUnit
	level    uint8 // of what importance does not name; see defaultLevel
	levelSet bool

	importance map[Selector]Importance
	keys       map[string]Importance
	signals    []Signal // by name
	alarms     []Alarm  // by name
}

// rules is the enforced or the shadow half of a document's limits.
type rules struct {
	cells   map[Selector]*Rule
	rows    map[string]*Rule // by user
	columns map[string]*Rule // by model
	levels  [lite.MaxLevel + 1]*Rule
	broker  *Rule
	sets    Kinds // what any rule of cells sets: other kinds need no search
}

func newRules() rules {
	return rules{cells: make(map[Selector]*Rule), rows: make(map[string]*Rule), columns: make(map[string]*Rule)}
}

// put adds a rule, unless there is one for the same already, which it returns.
func (rs *rules) put(r *Rule) (first *Rule) {
	switch r.Section {
	case Cells:
		if first = rs.cells[r.Selector]; first == nil {
			rs.cells[r.Selector] = r
			rs.sets |= r.Sets
		}
	case Rows:
		if first = rs.rows[r.User]; first == nil {
			rs.rows[r.User] = r
		}
	case Columns:
		if first = rs.columns[r.Model]; first == nil {
			rs.columns[r.Model] = r
		}
	case Levels:
		if first = rs.levels[r.Importance]; first == nil {
			rs.levels[r.Importance] = r
		}
	case Broker:
		if first = rs.broker; first == nil {
			rs.broker = r
		}
	}
	return first
}

// Empty is the document without rules: every cell is unlimited.
func Empty() *Document { return &Document{} }

// Len is the number of rules that set limits, shadow ones too.
func (d *Document) Len() int { return d.enforced.len() + d.shadow.len() }

func (rs *rules) len() int {
	n := 0
	rs.each(func(*Rule) { n++ })
	return n
}

// each calls f for each rule, in no order.
func (rs *rules) each(f func(*Rule)) {
	for _, r := range rs.cells {
		f(r)
	}
	for _, r := range rs.rows {
		f(r)
	}
	for _, r := range rs.columns {
		f(r)
	}
	for _, r := range rs.levels {
		if r != nil {
			f(r)
		}
	}
	if rs.broker != nil {
		f(rs.broker)
	}
}

// Rules is a copy of the rules that set limits: by section, the most specific level first, by name within a level.
func (d *Document) Rules() []Rule {
	list := make([]Rule, 0, d.Len())
	for _, r := range d.sorted() {
		list = append(list, *r)
	}
	return list
}

func (d *Document) sorted() []*Rule {
	list := make([]*Rule, 0, d.Len())
	for _, rs := range [...]*rules{&d.enforced, &d.shadow} {
		rs.each(func(r *Rule) { list = append(list, r) })
	}
	slices.SortFunc(list, (*Rule).compare)
	return list
}

// Resolve finds the enforced limits of a cell: at most eight lookups, whatever the number of rules. A user or model without
// name is one that no rule names, so the defaults hold for it.
func (d *Document) Resolve(user, model string) Limits { return d.enforced.resolve(user, model) }

// Shadow is Resolve among the shadow rules: what would hold beside.
func (d *Document) Shadow(user, model string) Limits { return d.shadow.resolve(user, model) }

// Caps returns the depth and depth_bytes of a cell; 0: no bound. It is called for each message that is sent, so a document
// without such rules answers at once.
func (d *Document) Caps(user, model string) (depth, depthBytes int64) {
	if d.enforced.sets&(KindDepth|KindDepthBytes) == 0 {
		return 0, 0
	}
	l := d.enforced.resolve(user, model)
	return l.Depth, l.DepthBytes
}

func (rs *rules) resolve(user, model string) Limits {
	var l Limits
	open := rs.sets
	for _, s := range precedence(user, model) {
		if open == 0 {
			break
		}
		if r, ok := rs.cells[s]; ok {
			l.take(r, open&r.Sets)
			open &^= r.Sets
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

// Row is what holds for all cells of a user together: for each kind what the user's own entry says, else the default's.
func (d *Document) Row(user string) (enforced, shadow Limits) {
	return named(d.enforced.rows, user), named(d.shadow.rows, user)
}

// Column is Row for a model.
func (d *Document) Column(model string) (enforced, shadow Limits) {
	return named(d.enforced.columns, model), named(d.shadow.columns, model)
}

// LevelOf is what holds for all cells of an importance level together. Beyond lite.MaxLevel there is nothing.
func (d *Document) LevelOf(level uint8) (enforced, shadow Limits) {
	if level > lite.MaxLevel {
		return Limits{}, Limits{}
	}
	return only(d.enforced.levels[level]), only(d.shadow.levels[level])
}

// Broker is what holds for everything that a broker sends out.
func (d *Document) Broker() (enforced, shadow Limits) {
	return only(d.enforced.broker), only(d.shadow.broker)
}

func named(entries map[string]*Rule, name string) Limits {
	var l Limits
	open := allKinds
	for _, key := range [...]string{name, wildcard} {
		if r, ok := entries[key]; ok {
			l.take(r, open&r.Sets)
			open &^= r.Sets
		}
	}
	return l
}

func only(r *Rule) Limits {
	var l Limits
	if r != nil {
		l.take(r, r.Sets)
	}
	return l
}
