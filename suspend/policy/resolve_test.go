package policy

import (
	"fmt"
	"strings"
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
		if l.Leaky == nil || l.Leaky.Rate.Events != int64(level) || l.From.Leaky.Level() != level || l.From.Leaky.Line() != int(level)+2 {
			t.Fatalf("level %d: %+v from %+v", level, l.Leaky, l.From.Leaky)
		}
		for s, r := range doc.enforced.cells {
			if r.Level() == level {
				delete(doc.enforced.cells, s)
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
		if l := doc.Resolve(tc.user, tc.model); l.From.Leaky.Level() != tc.want {
			t.Errorf("%q %q: %v, want %v", tc.user, tc.model, l.From.Leaky.Level(), tc.want)
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
	same(t, "alice, gpt", got, Limits{
		Window: &limit.FixedWindow{Limit: 9, Window: time.Minute}, WindowAt: Release, Depth: 7, DepthBytes: 1 << 20,
	})
	for from, want := range map[Source]string{
		got.From.Leaky: "user line 4", got.From.Window: "default user+model line 5", got.From.Depth: "user+model line 3",
		got.From.DepthBytes: "default model line 7", got.From.Quota: "none line 0",
	} {
		if s := fmt.Sprintf("%v line %d", from, from.Line()); s != want {
			t.Errorf("from %s, want %s", s, want)
		}
	}
	if w := got.AtAdmission(); w != nil {
		t.Errorf("asked at admission: %v", w)
	}
	bob := doc.Resolve("bob", "phi")
	if bob.Leaky == nil || bob.Leaky.Burst != time.Second {
		t.Errorf("bob: %+v", bob)
	}
	if w := bob.AtAdmission(); w == nil || w.Limit != 3 {
		t.Errorf("bob, asked at admission: %v", w)
	}
}

// TestResolveAgainstModel compares with a search through all rules for the lowest matching level of each kind.
func TestResolveAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		doc := drawDocument(t)
		user := rapid.SampledFrom([]string{"a", "b", "c", ""}).Draw(t, "user")
		model := rapid.SampledFrom([]string{"a", "b", "c", ""}).Draw(t, "model")
		for _, shadow := range []bool{false, true} {
			got := doc.Resolve(user, model)
			if shadow {
				got = doc.Shadow(user, model)
			}
			for kind := range cellKinds.each {
				r := winner(doc, shadow, kind, user, model)
				from := got.From.of(kind)
				if from.rule == nil && r == nil {
					if got.limits(kind) {
						t.Fatalf("%s of %q %q from nowhere", kind.name(), user, model)
					}
					continue
				}
				if from.rule == nil || r == nil || from.Level() != r.Level() || r.said(kind) != from.rule.said(kind) || got.value(kind) != r.value(kind) {
					t.Fatalf("%s of %q %q: %v, want %+v", kind.name(), user, model, from, r)
				}
			}
		}
	})
}

// winner is the rule that decides, by its definition.
func winner(doc *Document, shadow bool, kind Kinds, user, model string) *Rule {
	var best *Rule
	for _, r := range doc.Rules() {
		matches := (r.User == "" || r.User == wildcard || r.User == user) && (r.Model == "" || r.Model == wildcard || r.Model == model)
		if r.Section == Cells && r.Shadow == shadow && matches && r.Sets.Has(kind) && (best == nil || r.Level() < best.Level()) {
			best = &r
		}
	}
	return best
}

// TestC59_RemovingAnOverride: with each override that goes, the next one down holds; without any there is no limit. A cell
// without a user has the defaults, as long as there are any.
func TestC59_RemovingAnOverride(t *testing.T) {
	entries := []string{
		"  - {user: u1, model: m1, rate: 1/s}\n",
		"  - {user: '*', rate: 5/s}\n",
		"  - {model: '*', rate: 10/s}\n",
	}
	for removed, want := range []int64{1, 5, 10, 0} {
		doc := mustParse(t, "version: 1\nlimits:\n"+strings.Join(entries[removed:], ""))
		l := doc.Resolve("u1", "m1")
		if got := events(l); got != want {
			t.Errorf("%d overrides removed: %d/s, want %d", removed, got, want)
		}
		if want == 1 {
			want = 5 // of the default user
		}
		for _, nobody := range []Selector{{"", "m1"}, {"", ""}, {"u2", ""}} {
			if got := events(doc.Resolve(nobody.User, nobody.Model)); got != want {
				t.Errorf("%d overrides removed: %q %q has %d/s, want %d", removed, nobody.User, nobody.Model, got, want)
			}
		}
	}
}

func events(l Limits) int64 {
	if l.Leaky == nil {
		return 0
	}
	return l.Leaky.Rate.Events
}

// TestC18_SameDocumentIsEqual: a document that is read again, or written anew in another order, changes nothing.
func TestC18_SameDocumentIsEqual(t *testing.T) {
	doc := mustParse(t, everything)
	if diff := Diff(doc, mustParse(t, everything)); len(diff) > 0 {
		t.Errorf("read again, it differs: %+v", diff)
	}
	text, err := doc.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	if diff := Diff(doc, mustParse(t, string(text))); len(diff) > 0 {
		t.Errorf("written anew, it differs: %+v", diff)
	}
	if len(Diff(doc, mustParse(t, strings.Replace(everything, "rate: 5/s", "rate: 6/s", 1)))) == 0 {
		t.Error("a changed rate is equal")
	}
}

func BenchmarkResolve(b *testing.B) {
	doc := &Document{enforced: newRules()}
	for i := range MaxRules {
		r := &Rule{Selector: Selector{User: fmt.Sprint("user-", i), Model: "gpt"}, Sets: KindDepth}
		r.Depth = 1
		doc.enforced.put(r)
	}
	last := &Rule{Selector: Selector{Model: wildcard}, Sets: KindRate, Limits: Limits{Leaky: &limit.LeakyBucket{}}}
	doc.enforced.put(last)
	b.ReportAllocs()
	for b.Loop() {
		if l := doc.Resolve("user-4711", "gpt"); l.Depth != 1 || l.Leaky == nil {
			b.Fatal("not found")
		}
	}
}

func TestResolveDoesNotAllocate(t *testing.T) {
	doc := mustParse(t, everything)
	var l Limits
	if n := testing.AllocsPerRun(100, func() {
		l = doc.Resolve("alice", "gpt-4o")
		l, _ = doc.Row("alice")
		l, _ = doc.Column("gpt-4o")
		l, _ = doc.LevelOf(3)
		_, _ = doc.Importance("alice", "gpt-4o")
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
	_ = l
}

// TestCapsAreThoseOfResolve: the short way to the depths of a cell finds the same.
func TestCapsAreThoseOfResolve(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"limits: [{user: \"*\", model: \"*\", rate: 1/s}]",
		"limits:\n  - {user: \"*\", model: \"*\", depth: 10, depth_bytes: 1MiB}\n  - {user: a, model: \"*\", depth: 5}\n  - {user: a, model: m, depth_bytes: 7B}\n",
	} {
		doc, err := Parse([]byte("version: 1\n" + text))
		if err != nil {
			t.Fatal(err)
		}
		for _, user := range []string{"a", "b", ""} {
			for _, model := range []string{"m", "n"} {
				depth, bytes := doc.Caps(user, model)
				if l := doc.Resolve(user, model); depth != l.Depth || bytes != l.DepthBytes {
					t.Errorf("%s, %s: caps %d and %d, Resolve %d and %d", user, model, depth, bytes, l.Depth, l.DepthBytes)
				}
			}
		}
	}
}
