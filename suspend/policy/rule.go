package policy

import (
	"cmp"
	"fmt"
	"strconv"
)

// Section is a part of a document with limits: what its rules count together.
type Section uint8

// The sections. What a rule of Cells says holds for each cell by itself, all others are aggregates over many.
const (
	Cells   Section = iota // "limits": a user and a model
	Rows                   // all cells of a user
	Columns                // all cells of a model
	Levels                 // all cells of an importance level
	Broker                 // everything a broker sends out

	sections = 5
)

var sectionNames = [sections]string{"limits", "rows", "columns", "levels", "broker"}

// String is the section's key in a document.
func (s Section) String() string {
	if s < sections {
		return sectionNames[s]
	}
	return fmt.Sprintf("section(%d)", uint8(s))
}

// Kinds is a set of kinds of limit.
type Kinds uint16

// The kinds of limit, resolved each on its own.
const (
	KindRate       Kinds = 1 << iota // with burst
	KindWindow                       // with window_at
	KindQuota                        // with quota_burst
	KindObserved                     // with samples and observed_cap
	KindInFlight                     //
	KindTokens                       //
	KindBytesIn                      //
	KindBytesOut                     //
	KindAdaptive                     // columns only
	KindDepth                        // cells only, as those below
	KindDepthBytes                   //
	KindDeadline                     //
	KindWeight                       //

	kinds = 13

	// gates are the kinds that hold messages back, so the ones a shadow rule can count and a signal can scale.
	gates = KindRate | KindWindow | KindQuota | KindObserved | KindInFlight | KindTokens | KindBytesIn | KindBytesOut | KindAdaptive
	// cellOnly are the kinds that make no sense for many cells together.
	cellOnly = KindDepth | KindDepthBytes | KindDeadline | KindWeight

	// neverShadow are those of them that refuse and hold nothing, so there is nothing to count.
	neverShadow = KindDeadline | KindWeight

	allKinds = gates | cellOnly
	// cellKinds are those that a cell may have.
	cellKinds = allKinds &^ KindAdaptive
)

// Has reports whether all of k are in the set.
func (ks Kinds) Has(k Kinds) bool { return ks&k == k }

// Rule is one entry of a document that sets limits. Sets tells which kinds it decides; of those, a nil or 0 value means
// unlimited. Its From is empty.
type Rule struct {
	Section    Section
	Selector          // Cells: user and model; Rows: the user; Columns: the model; else empty
	Importance uint8  // Levels: 0 to lite.MaxLevel
	Shadow     bool   // counted, not enforced
	File       string // that the rule was read from; empty if the document was not read from a directory
	Line       int    // in that file or document

	Sets Kinds
	Limits
}

// Name is what the rule is for, such as `user "alice"` or "level 2".
func (r *Rule) Name() string {
	switch r.Section {
	case Levels:
		return "level " + strconv.Itoa(int(r.Importance))
	case Broker:
		return "broker"
	case Cells, Rows, Columns:
	}
	return r.String()
}

// compare orders rules by section, level and name: the order in which a document is listed.
func (r *Rule) compare(o *Rule) int {
	return cmp.Or(
		cmp.Compare(r.Section, o.Section), cmp.Compare(r.Level(), o.Level()), cmp.Compare(r.User, o.User),
		cmp.Compare(r.Model, o.Model), cmp.Compare(r.Importance, o.Importance), compareBool(r.Shadow, o.Shadow),
	)
}

// compareBool has false before true.
func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}
