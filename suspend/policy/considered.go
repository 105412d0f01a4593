package policy

// Considered is one kind of limit at one scope, with each rule that was asked for it.
type Considered struct {
	Section string `json:"section"` // "limits", "rows", "columns", "levels" or "broker"
	Limit   string `json:"limit"`   // "rate", "window", ...
	Shadow  bool   `json:"shadow,omitempty"`
	Value   string `json:"value"` // what holds: "5/s", "unlimited"
	From    string `json:"from"`  // the level that won; "none"
	Steps   []Step `json:"steps"` // in the order in which they were asked
}

// Step is one place at which a rule may stand.
type Step struct {
	Level string `json:"level"` // "user+model", "default row", ...
	Rule  string `json:"rule"`  // what the rule is for, such as `user "alice"`
	File  string `json:"file,omitempty"`
	Line  int    `json:"line,omitempty"`
	Value string `json:"value,omitempty"` // what the rule says of this kind
	Won   bool   `json:"won,omitempty"`
	Why   string `json:"why"`
}

// Considered lists what the limits of a cell come from: each place that was asked for each kind, which won and why.
func (d *Document) Considered(user, model string) []Considered { return nil }
