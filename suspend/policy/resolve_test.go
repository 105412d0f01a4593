package policy

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/penstockmq/penstock/suspend/limit"
)

// allLevels has a rule at each level for user alice and model gpt, with as many events as the level's number.
const allLevels = `version: 1
limits:
  - {user: alice, model: gpt, rate: 1/s}
  - {user: alice, model: "*", rate: 2/s}
  - {user: alice, rate: 3/s}
  - {user: "*", model: gpt, rate: 4/s}
  - {user: "*", model: "*", rate: 5/s}
  - {user: "*", rate: 6/s}
  - {model: gpt, rate: 7/s}
  - {model: "*", rate: 8/s}
`

// TestPrecedence takes the winning rule away, again and again: the next level must take over each time.
func TestPrecedence(t *testing.T) {
	doc, err := Parse([]byte(allLevels))
	if err != nil {
		t.Fatal(err)
	}
	for level := UserModel; level <= DefaultModel; level++ {
		l := doc.Resolve("alice", "gpt")
		if l.Leaky == nil || l.Leaky.Rate.Events != int64(level) || l.From.Leaky != (Source{level, int(level) + 2}) {
			t.Fatalf("level %d: %+v from %+v", level, l.Leaky, l.From.Leaky)
		}
		for s, r := range doc.rules {
			if r.Level() == level {
				delete(doc.rules, s)
			}
		}
	}
	if l := doc.Resolve("alice", "gpt"); l != (Limits{}) {
		t.Errorf("without rules: %+v", l)
	}
}

// TestPrecedenceOfOthers: who shares only the user or only the model, or nothing, with the rules.
func TestPrecedenceOfOthers(t *testing.T) {
	doc, err := Parse([]byte(allLevels))
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		user, model string
		want        Level
	}{
		{"alice", "gpt", UserModel},
		{"alice", "phi", UserDefaultModel},
		{"alice", "", UserDefaultModel},
		{"bob", "gpt", DefaultUserModel},
		{"bob", "phi", DefaultUserDefaultModel},
		{"", "gpt", DefaultUserModel},
		{"", "", DefaultUserDefaultModel},
		{"Alice", "GPT", DefaultUserDefaultModel},
		{"*", "*", DefaultUserDefaultModel},
	} {
		if l := doc.Resolve(tc.user, tc.model); l.From.Leaky.Level != tc.want {
			t.Errorf("%q %q: %v, want %v", tc.user, tc.model, l.From.Leaky.Level, tc.want)
		}
	}
}

// TestKindsResolveOnTheirOwn: a rule that sets one kind leaves the others to the levels below; "unlimited" does not.
func TestKindsResolveOnTheirOwn(t *testing.T) {
	doc, err := Parse([]byte(`version: 1
limits:
  - {user: alice, model: gpt, depth: 7}
  - {user: alice, rate: unlimited}
  - {user: "*", model: gpt, window: 9/1m, window_at: release}
  - {user: "*", model: "*", rate: 5/s, burst: 1s, window: 3/1m}
  - {model: "*", depth: 1000, depth_bytes: 1MiB}
`))
	if err != nil {
		t.Fatal(err)
	}
	got := doc.Resolve("alice", "gpt")
	want := Limits{
		Window: got.Window, WindowAt: Release, Depth: 7, DepthBytes: 1 << 20,
		From: Sources{
			Leaky: Source{User, 4}, Window: Source{DefaultUserModel, 5}, Depth: Source{UserModel, 3}, DepthBytes: Source{DefaultModel, 7},
		},
	}
	if got != want || *got.Window != (limit.FixedWindow{Limit: 9, Window: time.Minute}) {
		t.Errorf("alice, gpt: %+v, want %+v", got, want)
	}
	if c := got.Release(); c.Leaky != nil || c.Window != got.Window {
		t.Errorf("asked at release: %+v", c)
	}
	if c := got.Admission(); c != (limit.Cell{}) {
		t.Errorf("asked at admission: %+v", c)
	}
	bob := doc.Resolve("bob", "phi")
	if c := bob.Release(); c.Leaky == nil || c.Leaky.Burst != time.Second || c.Window != nil {
		t.Errorf("bob, asked at release: %+v", c)
	}
	if c := bob.Admission(); c.Leaky != nil || c.Window == nil || c.Window.Limit != 3 {
		t.Errorf("bob, asked at admission: %+v", c)
	}
}

// TestResolveAgainstModel compares with a search through all rules for the lowest matching level of each kind.
func TestResolveAgainstModel(t *testing.T) {
	names := rapid.SampledFrom([]string{"", "*", "a", "b"})
	rapid.Check(t, func(t *rapid.T) {
		doc := &Document{rules: make(map[Selector]*Rule)}
		for range rapid.IntRange(0, 12).Draw(t, "rules") {
			r := drawRule(t, names)
			if r.Level() != NoLevel {
				doc.rules[r.Selector] = r
			}
		}
		sameAfterMarshal(t, doc)
		user := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "user")
		model := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "model")
		got := doc.Resolve(user, model)
		for kind, from := range map[Kinds]Source{
			Rate: got.From.Leaky, Window: got.From.Window, Depth: got.From.Depth, DepthBytes: got.From.DepthBytes,
		} {
			if want := winner(doc, kind, user, model); from.Level != want {
				t.Fatalf("kind %d of %s, %s: %v, want %v", kind, user, model, from.Level, want)
			}
		}
		r := doc.rules[winningSelector(got.From.Depth.Level, user, model)]
		if got.From.Depth.Level != NoLevel && got.Depth != r.Depth {
			t.Fatalf("depth %d, the rule says %d", got.Depth, r.Depth)
		}
	})
}

func drawRule(t *rapid.T, names *rapid.Generator[string]) *Rule {
	r := &Rule{
		Selector: Selector{User: names.Draw(t, "user"), Model: names.Draw(t, "model")},
		Sets:     Kinds(rapid.IntRange(1, int(allKinds)).Draw(t, "sets")),
	}
	if r.Sets.Has(Rate) && rapid.Bool().Draw(t, "limited") {
		r.Leaky = &limit.LeakyBucket{Rate: limit.Rate{Events: 1, Per: time.Second}, Burst: time.Duration(rapid.IntRange(0, 9).Draw(t, "burst"))}
	}
	if r.Sets.Has(Window) && rapid.Bool().Draw(t, "limited") {
		r.Window = &limit.FixedWindow{Limit: 1, Window: time.Second}
		r.WindowAt = Enforce(rapid.IntRange(0, 1).Draw(t, "at"))
	}
	if r.Sets.Has(Depth) {
		r.Depth = rapid.Int64Range(0, MaxDepth).Draw(t, "depth")
	}
	if r.Sets.Has(DepthBytes) {
		r.DepthBytes = rapid.Int64Range(0, MaxDepthBytes).Draw(t, "depth_bytes")
	}
	return r
}

func winner(doc *Document, kind Kinds, user, model string) Level {
	best := NoLevel
	for _, r := range doc.rules {
		matches := (r.User == "" || r.User == wildcard || r.User == user) && (r.Model == "" || r.Model == wildcard || r.Model == model)
		if matches && r.Sets.Has(kind) && (best == NoLevel || r.Level() < best) {
			best = r.Level()
		}
	}
	return best
}

func winningSelector(l Level, user, model string) Selector {
	for _, s := range precedence(user, model) {
		if s.Level() == l {
			return s
		}
	}
	return Selector{}
}

func BenchmarkResolve(b *testing.B) {
	doc := &Document{rules: make(map[Selector]*Rule)}
	for i := range MaxRules {
		s := Selector{User: fmt.Sprint("user-", i), Model: "gpt"}
		doc.rules[s] = &Rule{Selector: s, Sets: Depth, Depth: 1}
	}
	b.ReportAllocs()
	for b.Loop() {
		if l := doc.Resolve("user-4711", "gpt"); l.Depth != 1 {
			b.Fatal("not found")
		}
	}
}
