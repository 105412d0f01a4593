package policy

import (
	"cmp"
	"fmt"

	"github.com/penstockmq/penstock/suspend/limit"
)

// Level is the place of a rule in the precedence, 1 (the most specific) to 8. 0 stands for no rule.
type Level uint8

// The levels in the order in which they are asked.
const (
	NoLevel Level = iota
	UserModel
	UserDefaultModel
	User
	DefaultUserModel
	DefaultUserDefaultModel
	DefaultUser
	Model
	DefaultModel

	levels = 9
)

var levelNames = [levels]string{
	"none", "user+model", "user+default model", "user", "default user+model", "default user+default model",
	"default user", "model", "default model",
}

func (l Level) String() string {
	if l < levels {
		return levelNames[l]
	}
	return fmt.Sprintf("level(%d)", uint8(l))
}

// Enforce says where a fixed window is asked.
type Enforce uint8

const (
	// Admission: the gateway asks before it accepts a request, and answers 429.
	Admission Enforce = iota
	// Release: the pool asks before it forwards a request; the request waits in its bucket.
	Release
)

func (e Enforce) String() string {
	if e == Release {
		return "release"
	}
	return "admission"
}

// wildcard in a selector stands for "any, unless there is a rule for the name".
const wildcard = "*"

// Selector is which cells a rule is for. An empty field is one the rule does not mention: {User: "alice"} and
// {User: "alice", Model: "*"} are different levels.
type Selector struct {
	User, Model string
}

// Level is the precedence of rules with this selector.
func (s Selector) Level() Level {
	switch named, byDefault := s.Model != "" && s.Model != wildcard, s.Model == wildcard; {
	case s.User == "" && named:
		return Model
	case s.User == "" && byDefault:
		return DefaultModel
	case s.User == "":
		return NoLevel
	case s.User == wildcard && named:
		return DefaultUserModel
	case s.User == wildcard && byDefault:
		return DefaultUserDefaultModel
	case s.User == wildcard:
		return DefaultUser
	case named:
		return UserModel
	case byDefault:
		return UserDefaultModel
	}
	return User
}

func (s Selector) String() string {
	switch {
	case s.Model == "":
		return fmt.Sprintf("user %q", s.User)
	case s.User == "":
		return fmt.Sprintf("model %q", s.Model)
	}
	return fmt.Sprintf("user %q model %q", s.User, s.Model)
}

// Rule is one entry of a document. Sets tells which kinds of limit it decides; of those, a nil or 0 value means unlimited.
type Rule struct {
	Selector
	Line int // in the source the document was parsed from

	Sets       Kinds
	Leaky      *limit.LeakyBucket
	Window     *limit.FixedWindow
	WindowAt   Enforce
	Depth      int64 // messages
	DepthBytes int64
}

// Kinds is a set of kinds of limit.
type Kinds uint8

// The kinds of limit, resolved each on its own.
const (
	Rate   Kinds = 1 << iota // with burst
	Window                   // with window_at
	Depth
	DepthBytes
)

const allKinds = Rate | Window | Depth | DepthBytes

// Has reports whether all of k are in the set.
func (ks Kinds) Has(k Kinds) bool { return ks&k == k }

// compare orders rules by level, then by name: the order in which a document is listed.
func (r *Rule) compare(o *Rule) int {
	return cmp.Or(cmp.Compare(r.Level(), o.Level()), cmp.Compare(r.User, o.User), cmp.Compare(r.Model, o.Model))
}
