package policy

import (
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

const consideredDoc = `version: 1
default_level: 2
limits:
  - {user: alice, model: gpt, depth: 7}
  - {user: alice, rate: 20/s}
  - {user: "*", rate: unlimited}
  - {model: gpt, rate: 3/s, shadow: true}
rows:
  - {user: alice, in_flight: unlimited}
  - {user: "*", in_flight: 9, rate: 5/s}
columns:
  - {model: phi, rate: 5/s}
levels:
  - {level: 2, tokens: 9/1m}
  - {level: 1, rate: 9/1m}
broker: {bytes_out: 1MiB/s, shadow: true}
`

// transcript is one line for each step, as a table would show it.
func transcript(list []Considered, only string) string {
	var b strings.Builder
	for _, c := range list {
		if only != "" && c.Limit != only {
			continue
		}
		fmt.Fprintf(&b, "%s %s = %s from %s shadow %v\n", c.Section, c.Limit, c.Value, c.From, c.Shadow)
		for _, s := range c.Steps {
			fmt.Fprintf(&b, "  %s | %s | line %d | %s | %v | %s\n", s.Level, s.Rule, s.Line, s.Value, s.Won, s.Why)
		}
	}
	return b.String()
}

func TestConsideredNamesEachLevel(t *testing.T) {
	doc := mustParse(t, consideredDoc)
	want := `limits rate = 20/s from user shadow false
  user+model | user "alice" model "gpt" | line 4 |  | false | its rule sets no rate
  user+default model | user "alice" model "*" | line 0 |  | false | no rule
  user | user "alice" | line 5 | 20/s | true | the most specific rule that sets rate
  default user+model | user "*" model "gpt" | line 0 |  | false | no rule
  default user+default model | user "*" model "*" | line 0 |  | false | no rule
  default user | user "*" | line 6 | unlimited | false | user is more specific
  model | model "gpt" | line 0 |  | false | no rule
  default model | model "*" | line 0 |  | false | no rule
rows rate = 5/s from default row shadow false
  row | user "alice" | line 9 |  | false | its rule sets no rate
  default row | user "*" | line 10 | 5/s | true | the most specific rule that sets rate
limits rate = 3/s from model shadow true
  user+model | user "alice" model "gpt" | line 0 |  | false | no rule
  user+default model | user "alice" model "*" | line 0 |  | false | no rule
  user | user "alice" | line 0 |  | false | no rule
  default user+model | user "*" model "gpt" | line 0 |  | false | no rule
  default user+default model | user "*" model "*" | line 0 |  | false | no rule
  default user | user "*" | line 0 |  | false | no rule
  model | model "gpt" | line 7 | 3/s | true | the most specific rule that sets rate
  default model | model "*" | line 0 |  | false | no rule
`
	if got := transcript(doc.Considered("alice", "gpt"), "rate"); got != want {
		t.Errorf("rates of alice, gpt:\n%s\nwant:\n%s", got, want)
	}
	want = `limits in_flight = default from none shadow false
  default user+default model | user "*" model "*" | line 0 |  | false | no rule
  default user | user "*" | line 6 |  | false | its rule sets no in_flight
  default model | model "*" | line 0 |  | false | no rule
rows in_flight = 9 from default row shadow false
  default row | user "*" | line 10 | 9 | true | the most specific rule that sets in_flight
`
	// With no user and model, fewer places are different ones.
	got := transcript(doc.Considered("", ""), "in_flight")
	for line := range strings.SplitSeq(strings.TrimSpace(want), "\n") {
		if !strings.Contains(got, line+"\n") {
			t.Errorf("no line %q in\n%s", line, got)
		}
	}
	sections := make(map[string]string)
	for _, c := range doc.Considered("alice", "phi") {
		if c.Section != "limits" {
			sections[fmt.Sprint(c.Section, " ", c.Limit, " ", c.Shadow)] = c.Value
		}
	}
	for what, value := range map[string]string{
		"rows in_flight false": "unlimited", "rows rate false": "5/s", "columns rate false": "5/s",
		"levels tokens false": "9/1m", "broker bytes_out true": "1MiB/s",
	} {
		if sections[what] != value {
			t.Errorf("%s is %q, want %q", what, sections[what], value)
		}
	}
	if len(sections) != 5 {
		t.Errorf("aggregates of alice, phi: %v", sections)
	}
}

// TestConsideredAgreesWithResolve: what is said to have won is what holds.
func TestConsideredAgreesWithResolve(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		doc := drawDocument(t)
		user := rapid.SampledFrom([]string{"a", "c", "", "*"}).Draw(t, "user")
		model := rapid.SampledFrom([]string{"a", "c", "", "*"}).Draw(t, "model")
		level, _ := doc.Importance(user, model)
		for _, c := range doc.Considered(user, model) {
			var enforced, shadow Limits
			section := Cells
			switch c.Section {
			case "limits":
				enforced, shadow = doc.Resolve(user, model), doc.Shadow(user, model)
			case "rows":
				section = Rows
				enforced, shadow = doc.Row(user)
			case "columns":
				section = Columns
				enforced, shadow = doc.Column(model)
			case "levels":
				section = Levels
				enforced, shadow = doc.LevelOf(level)
			case "broker":
				section = Broker
				enforced, shadow = doc.Broker()
			}
			if c.Shadow {
				enforced = shadow
			}
			for kind := range allKinds.each {
				if kind.name() == c.Limit && (section.holds(&enforced, kind) != c.Value || enforced.From.of(kind).String() != c.From) {
					t.Fatalf("%+v, but %s from %v", c, section.holds(&enforced, kind), enforced.From.of(kind))
				}
			}
			won := 0
			for _, s := range c.Steps {
				if s.Won {
					won++
				}
			}
			if won > 1 || (won == 0) != (c.From == "none") {
				t.Fatalf("%d won in %+v", won, c)
			}
		}
	})
}
