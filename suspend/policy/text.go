package policy

import (
	"bytes"
	"fmt"
	"strconv"

	"go.yaml.in/yaml/v3"
)

// Text is a rule, or the limits of a cell, in the words of a document; what is not set is empty. It is what Marshal writes
// and what the command line shows.
type Text struct {
	User       string `json:"user,omitempty" yaml:"user,omitempty"`
	Model      string `json:"model,omitempty" yaml:"model,omitempty"`
	Rate       string `json:"rate,omitempty" yaml:"rate,omitempty"`
	Burst      string `json:"burst,omitempty" yaml:"burst,omitempty"`
	Window     string `json:"window,omitempty" yaml:"window,omitempty"`
	WindowAt   string `json:"window_at,omitempty" yaml:"window_at,omitempty"`
	Depth      string `json:"depth,omitempty" yaml:"depth,omitempty"`
	DepthBytes string `json:"depth_bytes,omitempty" yaml:"depth_bytes,omitempty"`
}

// Text is the rule in the words of a document.
func (r Rule) Text() Text {
	l := Limits{Leaky: r.Leaky, Window: r.Window, WindowAt: r.WindowAt, Depth: r.Depth, DepthBytes: r.DepthBytes}
	t := l.text(r.Sets)
	t.User, t.Model = r.User, r.Model
	return t
}

// Text is the limits in the words of a document; "unlimited" where a rule says so or no rule says anything.
func (l Limits) Text() Text { return l.text(allKinds) }

func (l Limits) text(kinds Kinds) Text {
	t := Text{}
	if kinds.Has(Rate) {
		t.Rate = unlimited
		if l.Leaky != nil {
			t.Rate = l.Leaky.Rate.String()
		}
		if l.Leaky != nil && l.Leaky.Burst > 0 {
			t.Burst = l.Leaky.Burst.String()
		}
	}
	if kinds.Has(Window) {
		t.Window = unlimited
		if l.Window != nil {
			t.Window, t.WindowAt = l.Window.String(), l.WindowAt.String()
		}
	}
	if kinds.Has(Depth) {
		t.Depth = orUnlimited(l.Depth, func(n int64) string { return strconv.FormatInt(n, 10) })
	}
	if kinds.Has(DepthBytes) {
		t.DepthBytes = orUnlimited(l.DepthBytes, formatBytes)
	}
	return t
}

func orUnlimited(n int64, format func(int64) string) string {
	if n == 0 {
		return unlimited
	}
	return format(n)
}

// Line is one kind of limit of a cell with the rule that decided it.
type Line struct {
	Limit string `json:"limit"` // "rate", "window", "depth" or "depth_bytes"
	Value string `json:"value"` // "5/s", "100/1m", "unlimited"
	Level Level  `json:"-"`
	From  string `json:"from"`           // the level in words; "none" if no rule decided it
	Line  int    `json:"line,omitempty"` // of the rule
}

// Explain lists each kind of limit of a cell, what it is and which level won.
func (l Limits) Explain() []Line {
	t := l.Text()
	rate, window := t.Rate, t.Window
	if t.Burst != "" {
		rate += " burst " + t.Burst
	}
	if l.Window != nil {
		window += " at " + t.WindowAt
	}
	return []Line{
		line("rate", rate, l.From.Leaky),
		line("window", window, l.From.Window),
		line("depth", t.Depth, l.From.Depth),
		line("depth_bytes", t.DepthBytes, l.From.DepthBytes),
	}
}

func line(name, value string, from Source) Line {
	return Line{Limit: name, Value: value, Level: from.Level, From: from.Level.String(), Line: from.Line}
}

// Marshal writes the document in its canonical form: Parse of it gives the same rules, listed in the order of Rules.
func (d *Document) Marshal() ([]byte, error) {
	var list yaml.Node
	texts := make([]Text, 0, d.Len())
	for _, r := range d.Rules() {
		texts = append(texts, r.Text())
	}
	if err := list.Encode(texts); err != nil {
		return nil, fmt.Errorf("encode rules: %w", err)
	}
	list.Style = 0
	for _, entry := range list.Content {
		entry.Style = yaml.FlowStyle // one rule, one line
	}
	var out bytes.Buffer
	enc := yaml.NewEncoder(&out)
	enc.SetIndent(2)
	err := enc.Encode(struct {
		Version int       `yaml:"version"`
		Limits  yaml.Node `yaml:"limits"`
	}{Version, list})
	if err != nil {
		return nil, fmt.Errorf("encode document: %w", err)
	}
	return out.Bytes(), nil
}
