package suspend

import (
	"errors"
	"fmt"
	"time"
	"unicode"
	"unicode/utf8"
)

// Scope says how much a hold covers. The values are stored on disk: never renumber them, append only.
type Scope uint8

// The scopes, the narrowest first.
const (
	Bucket Scope = iota // one cell: the bucket of a user and a model, or any other lite topic
	Row                 // all buckets of a user
	Column              // all buckets of a model
	Level               // all buckets of an importance level
	All                 // every bucket of the group

	scopes = 5
)

var scopeNames = [scopes]string{Bucket: "bucket", Row: "row", Column: "column", Level: "level", All: "all"}

// levelNames are the names a Target of scope Level may have; the index is the level.
var levelNames = [...]string{"0", "1", "2", "3"}

// MaxNameBytes bounds the name of a target: the longest user or model, in bytes.
const MaxNameBytes = 128

var (
	// ErrScope is wrapped by every error about a scope that does not exist.
	ErrScope = errors.New("unknown suspend scope")
	// ErrTarget is wrapped by every error about a name that does not fit its scope.
	ErrTarget = errors.New("bad suspend target")
)

func (s Scope) String() string {
	if s < scopes {
		return scopeNames[s]
	}
	return fmt.Sprintf("scope(%d)", uint8(s))
}

// ParseScope is the inverse of String: "bucket", "row", "column", "level" or "all".
func ParseScope(s string) (Scope, error) {
	for i, name := range scopeNames {
		if s == name {
			return Scope(i), nil
		}
	}
	return 0, fmt.Errorf("%w %q: it is bucket, row, column, level or all", ErrScope, s)
}

// Target is what a hold covers.
type Target struct {
	Scope Scope
	Name  string // Bucket: the lite topic. Row: the user. Column: the model. Level: "0" to "3". All: empty
}

func (t Target) String() string {
	if t.Scope == All {
		return t.Scope.String()
	}
	return t.Scope.String() + " " + t.Name
}

// Validate reports, as ErrScope or ErrTarget, why nothing can be held under this target. That the named bucket, user or
// model exists is no condition: a hold may come before its first message.
func (t Target) Validate() error {
	switch t.Scope {
	case Bucket, Row, Column:
		return t.checkName()
	case Level:
		for _, name := range levelNames {
			if t.Name == name {
				return nil
			}
		}
		return fmt.Errorf("%w: level %q is none of 0, 1, 2, 3", ErrTarget, t.Name)
	case All:
		if t.Name != "" {
			return fmt.Errorf("%w: scope all takes no name, got %q", ErrTarget, t.Name)
		}
		return nil
	}
	return fmt.Errorf("%w %d", ErrScope, uint8(t.Scope))
}

// checkName refuses what can be no name at all. Which characters a lite topic or a user may have is the business of the
// edge that accepted it.
func (t Target) checkName() error {
	switch {
	case t.Name == "":
		return fmt.Errorf("%w: the %s has no name", ErrTarget, t.Scope)
	case len(t.Name) > MaxNameBytes:
		return fmt.Errorf("%w: the name of the %s has %d bytes, the limit is %d", ErrTarget, t.Scope, len(t.Name), MaxNameBytes)
	case !utf8.ValidString(t.Name):
		return fmt.Errorf("%w: the name of the %s is not UTF-8", ErrTarget, t.Scope)
	}
	for _, r := range t.Name {
		if unicode.IsControl(r) {
			return fmt.Errorf("%w: the name of the %s has the control character %U", ErrTarget, t.Scope, r)
		}
	}
	return nil
}

// Hold is a target that is held until an instant. Not before Until is anything under Target delivered.
type Hold struct {
	Target Target
	Until  time.Time
	By     string // who asked: a client id, or an operator's name; cut to MaxNoteBytes
	Reason string // why, for people; cut to MaxNoteBytes
}

// Place is where a bucket stands in the matrix: all that decides which holds cover it.
type Place struct {
	Bucket string
	User   string // row; empty: in no row
	Model  string // column; empty: in no column
	Level  uint8
}
