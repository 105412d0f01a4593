package policy

import (
	"cmp"
	"slices"
	"strconv"
)

// CostUnit is what a turn costs: what is shared fairly among the cells of a level.
type CostUnit uint8

// The cost units.
const (
	Requests CostUnit = iota // a message is a message, or as many requests as its sender says
	Tokens                   // of the prompt, and those expected of the answer
	Bytes                    // of the body
)

var costNames = [...]string{"requests", "tokens", "bytes"}

func (c CostUnit) String() string {
	if int(c) < len(costNames) {
		return costNames[c]
	}
	return "cost?"
}

// DefaultLevel is the importance of what no entry names, unless default_level says otherwise.
const DefaultLevel = 1

// Importance is one entry of importance. Either Key is set, or User, Model or both.
type Importance struct {
	Selector        // no wildcards
	Key      string // name of an API key
	Level    uint8  // 0, the most important, to lite.MaxLevel
	File     string
	Line     int
}

// CostUnit is what a turn costs.
func (d *Document) CostUnit() CostUnit { return d.cost }

// Importance is the level of a cell, and where it comes from: "user+model", "user", "model" or "default_level". The key of
// a request may make it another one, see KeyLevel.
func (d *Document) Importance(user, model string) (level uint8, from string) {
	if e, ok := d.importance[Selector{User: user, Model: model}]; ok {
		return e.Level, e.Selector.Level().String()
	}
	if e, ok := d.importance[Selector{User: user}]; ok {
		return e.Level, User.String()
	}
	if e, ok := d.importance[Selector{Model: model}]; ok {
		return e.Level, Model.String()
	}
	return d.defaultLevel(), "default_level"
}

// KeyLevel is the importance of what is sent with an API key of this name; false if the document says nothing about it.
// It comes before what the cell has.
func (d *Document) KeyLevel(key string) (uint8, bool) {
	e, ok := d.keys[key]
	return e.Level, ok
}

func (d *Document) defaultLevel() uint8 {
	if d.levelSet {
		return d.level
	}
	return DefaultLevel
}

// importanceKeys are the keys of an entry.
var importanceKeys = [...]string{"user", "model", "key", "level"}

// Name is what the entry is for, such as `key "batch"`.
func (i Importance) Name() string {
	if i.Key != "" {
		return "key " + strconv.Quote(i.Key)
	}
	return i.String()
}

func (d *Document) addImportance(i Importance) {
	if i.Key != "" {
		d.keys[i.Key] = i
		return
	}
	d.importance[i.Selector] = i
}

// Importances are the entries of importance: users and models by precedence and name, then keys.
func (d *Document) Importances() []Importance {
	entries := make([]Importance, 0, len(d.importance)+len(d.keys))
	for _, e := range d.importance {
		entries = append(entries, e)
	}
	for _, e := range d.keys {
		entries = append(entries, e)
	}
	slices.SortFunc(entries, Importance.compare)
	return entries
}

func (i Importance) compare(o Importance) int {
	return cmp.Or(
		cmp.Compare(i.Key, o.Key), cmp.Compare(i.Selector.Level(), o.Selector.Level()),
		cmp.Compare(i.User, o.User), cmp.Compare(i.Model, o.Model),
	)
}

// levelName is an importance level as a document has it.
func levelName(level uint8) string { return strconv.Itoa(int(level)) }
