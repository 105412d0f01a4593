package policy

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
	Section string `json:"section"` // the top-level key
	Name    string `json:"name"`    // the entry, such as `user "alice"`; empty for a single value
	Op      Op     `json:"op"`
	Shadow  bool   `json:"shadow,omitempty"`
	Old     string `json:"old,omitempty"` // in the words of a document
	New     string `json:"new,omitempty"`
}

// Effect is one limit of a cell, row, column, level or broker that is another under another document.
type Effect struct {
	Section string `json:"section"`
	Name    string `json:"name"` // as in Change; "*" stands for those that neither document names
	Limit   string `json:"limit"`
	Old     string `json:"old"`
	OldFrom string `json:"old_from"`
	New     string `json:"new"`
	NewFrom string `json:"new_from"`
}

// Diff lists in which entries two documents differ, in the order in which documents are listed. Two that list nothing say
// the same.
func Diff(old, updated *Document) []Change { return nil }

// Effects lists which enforced limits are others under the new document, of all that either document names, up to most of
// them; more reports that there are others.
func Effects(old, updated *Document, most int) (effects []Effect, more bool) { return nil, false }

// Equal reports whether two documents say the same, wherever and in whatever order they say it.
func (d *Document) Equal(o *Document) bool { return len(Diff(d, o)) == 0 }
