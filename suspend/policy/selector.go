package policy

import (
	"fmt"
)

// Level is the place of a cell's rule in the precedence, 1 (the most specific) to 8. 0 stands for no rule of a cell.
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
