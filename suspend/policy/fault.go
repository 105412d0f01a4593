package policy

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
)

// ErrInvalid is wrapped by every error of Parse.
var ErrInvalid = errors.New("invalid policy")

// maxFaults is how many are named in one error; a wrong file would otherwise fill the log.
const maxFaults = 20

// Fault is one thing that is wrong with a document.
type Fault struct {
	File   string // of a document in several files; else empty
	Line   int    // 1-based; 0 if it is no single line
	Key    string // such as "limits[2].rate"
	Reason string // what is wrong, and what would be right
}

func (f *Fault) Error() string {
	if where := position(f.File, f.Line); where != "" {
		return fmt.Sprintf("policy %s: %s: %s", where, f.Key, f.Reason)
	}
	return fmt.Sprintf("policy: %s: %s", f.Key, f.Reason)
}

// Unwrap makes errors.Is(err, ErrInvalid) hold.
func (f *Fault) Unwrap() error { return ErrInvalid }

// position is a place in words: "line 4", "a.yaml line 4", "a.yaml", or nothing.
func position(file string, line int) string {
	switch {
	case line == 0:
		return file
	case file == "":
		return fmt.Sprintf("line %d", line)
	}
	return fmt.Sprintf("%s line %d", file, line)
}

// joinFaults is the faults as one error, by place; nil if there are none.
func joinFaults(faults []*Fault) error {
	slices.SortStableFunc(faults, func(a, b *Fault) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line))
	})
	errs := make([]error, len(faults))
	for i, f := range faults {
		errs[i] = f
	}
	return errors.Join(errs...)
}
