package suspend

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/penstockmq/penstock/broker/lite"
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
var levelNames = [lite.MaxLevel + 1]string{"0", "1", "2", "3"}

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
	var err error
	switch t.Scope {
	case Bucket:
		err = lite.CheckName(t.Name)
	case Row:
		err = lite.CheckUser(t.Name)
	case Column:
		err = lite.CheckModel(t.Name)
	case Level:
		if !slices.Contains(levelNames[:], t.Name) {
			err = fmt.Errorf("level %q is none of 0, 1, 2, 3", t.Name)
		}
	case All:
		if t.Name != "" {
			err = fmt.Errorf("scope all takes no name, got %q", t.Name)
		}
	default:
		return fmt.Errorf("%w %d", ErrScope, uint8(t.Scope))
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrTarget, err)
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
	Level  uint8  // beyond lite.MaxLevel: as that
}

// Target is what covers the place at a scope; false if nothing does, as a lite topic that is no cell is in no row and in
// no column.
func (p Place) Target(scope Scope) (Target, bool) {
	t := Target{Scope: scope}
	switch scope {
	case Bucket:
		t.Name = p.Bucket
	case Row:
		t.Name = p.User
	case Column:
		t.Name = p.Model
	case Level:
		t.Name = levelNames[min(p.Level, lite.MaxLevel)]
	case All:
		return t, true
	}
	return t, t.Name != ""
}
