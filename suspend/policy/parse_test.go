package policy

import (
	"errors"
	"fmt"
	"os"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
	"pgregory.net/rapid"

	"github.com/penstockmq/penstock/suspend/limit"
)

// everything has each key of the format at least once.
const everything = `version: 1
cost: tokens
default_level: 2
limits:
  - user: alice
    model: gpt-4o
    rate: 5/s
    burst: 200ms
    window: 100/1m
    window_at: release
    quota: 7/s
    quota_burst: 70
    observed: 9/s
    samples: 100x250ms
    observed_cap: 1m
    in_flight: 4
    tokens: 100000/1m
    bytes_in: 1MiB/s
    bytes_out: 2000/s
    depth: 1000
    depth_bytes: 64MiB
    deadline: 1h30m
    weight: 3
  - {user: "*", rate: unlimited, window: unlimited, depth: unlimited, depth_bytes: unlimited, deadline: unlimited, in_flight: unlimited}
  - {user: alice, model: gpt-4o, rate: 1/s, window: 3/1s, shadow: true}
rows:
  - {user: alice, rate: 20/s, in_flight: 8}
  - {user: "*", quota: 10/s, shadow: true}
columns:
  - {model: gpt-4o, tokens: 9/1h, adaptive: {min: 2, max: 64, start: 8, latency: 2s, decrease: 0.5, cooldown: 3s}}
  - {model: "*", adaptive: unlimited, in_flight: 100}
levels:
  - {level: 3, rate: 1/s, window: 5/1s, window_at: release}
broker:
  - {bytes_out: 1GB/s, rate: 10000/s}
  - {rate: 5000/s, shadow: true}
importance:
  - {user: alice, level: 0}
  - {model: gpt-4o, level: 1}
  - {user: alice, model: phi, level: 3}
  - {key: batch, level: 3}
signals:
  - {name: vllm, column: gpt-4o, url: "http://10.0.0.1:8000/metrics", series: 'vllm:num_requests_waiting{engine="0"}', target: 5}
  - {name: kv, by: model_name, url: "https://h/m", series: kv, target: 0.9, interval: 250ms, stale_after: 2s, floor: 0.05, when_stale: 0.25, aggregate: max}
alarms:
  - {name: db, match: {alertname: DBSlow, severity: page}, level: 3, factor: 0.2}
  - {name: any, match: {alertname: Slow}, column_label: model, factor: 0, for: 1m, hold_down: 0s}
`

func mustParse(t fataler, text string) *Document {
	t.Helper()
	doc, err := Parse([]byte(text))
	if err != nil {
		t.Fatalf("Parse: %v", err)
	}
	return doc
}

// TestParseReadsEveryKey holds the format of the package comment.
func TestParseReadsEveryKey(t *testing.T) {
	doc := mustParse(t, everything)
	if doc.Len() != 10 || len(doc.Rules()) != 10 {
		t.Fatalf("%d rules", doc.Len())
	}
	l := doc.Resolve("alice", "gpt-4o")
	want := Limits{
		Leaky:  &limit.LeakyBucket{Rate: perSecond(5), Burst: 200 * time.Millisecond},
		Window: &limit.FixedWindow{Limit: 100, Window: time.Minute}, WindowAt: Release,
		Quota:    &limit.TokenBucket{Rate: perSecond(7), Capacity: 70},
		Observed: &limit.ObservedRate{Rate: perSecond(9), Samples: 100, Size: 250 * time.Millisecond, Cap: time.Minute},
		InFlight: 4,
		Tokens:   &limit.TokenWindow{Limit: 100_000, Window: time.Minute},
		BytesIn:  &limit.TokenBucket{Rate: perSecond(1 << 20)},
		BytesOut: &limit.TokenBucket{Rate: perSecond(2000)},
		Depth:    1000, DepthBytes: 64 << 20, Deadline: 90 * time.Minute, Weight: 3,
	}
	same(t, "alice, gpt-4o", l, want)
	if l.From.Weight.Line() != 5 || l.From.Tokens.Level() != UserModel {
		t.Errorf("weight from line %d, tokens from %v", l.From.Weight.Line(), l.From.Tokens.Level())
	}
	same(t, "its shadow", doc.Shadow("alice", "gpt-4o"), Limits{
		Leaky: &limit.LeakyBucket{Rate: perSecond(1)}, Window: &limit.FixedWindow{Limit: 3, Window: time.Second},
	})
	same(t, "unlimited", doc.Resolve("bob", "phi"), Limits{InFlight: MaxInFlight + 1})
}

func TestParseReadsAggregates(t *testing.T) {
	doc := mustParse(t, everything)
	l, shadow := doc.Row("alice")
	same(t, "row alice", l, Limits{Leaky: &limit.LeakyBucket{Rate: perSecond(20)}, InFlight: 8})
	same(t, "its shadow", shadow, Limits{Quota: &limit.TokenBucket{Rate: perSecond(10)}})
	l, _ = doc.Row("bob")
	same(t, "row bob", l, Limits{})
	l, _ = doc.Column("gpt-4o")
	same(t, "column gpt-4o", l, Limits{
		Tokens:   &limit.TokenWindow{Limit: 9, Window: time.Hour},
		Adaptive: &limit.Adaptive{Min: 2, Max: 64, Start: 8, Latency: 2 * time.Second, Decrease: 500, Cooldown: 3 * time.Second},
		InFlight: 100, // of the default
	})
	if l.From.InFlight.String() != "default column" || l.From.Tokens.String() != "column" {
		t.Errorf("in flight from %v, tokens from %v", l.From.InFlight, l.From.Tokens)
	}
	l, _ = doc.Column("phi")
	same(t, "column phi", l, Limits{InFlight: 100})
	l, _ = doc.LevelOf(3)
	same(t, "level 3", l, Limits{
		Leaky: &limit.LeakyBucket{Rate: perSecond(1)}, Window: &limit.FixedWindow{Limit: 5, Window: time.Second}, WindowAt: Release,
	})
	l, _ = doc.LevelOf(4)
	same(t, "level 4", l, Limits{})
	l, shadow = doc.Broker()
	same(t, "broker", l, Limits{Leaky: &limit.LeakyBucket{Rate: perSecond(10_000)}, BytesOut: &limit.TokenBucket{Rate: perSecond(1e9)}})
	same(t, "broker in shadow", shadow, Limits{Leaky: &limit.LeakyBucket{Rate: perSecond(5000)}})
}

func TestParseReadsImportanceAndSignals(t *testing.T) {
	doc := mustParse(t, everything)
	if doc.CostUnit() != Tokens {
		t.Errorf("cost is %v", doc.CostUnit())
	}
	for cell, want := range map[Selector]string{
		{"alice", "phi"}: "3 user+model", {"alice", "gpt-4o"}: "0 user", {"bob", "gpt-4o"}: "1 model", {"bob", "phi"}: "2 default_level",
		{"", ""}: "2 default_level", {"alice", ""}: "0 user", {"", "gpt-4o"}: "1 model",
	} {
		if level, from := doc.Importance(cell.User, cell.Model); fmt.Sprint(level, " ", from) != want {
			t.Errorf("%v: %d from %s, want %s", cell, level, from, want)
		}
	}
	if level, ok := doc.KeyLevel("batch"); level != 3 || !ok {
		t.Errorf("key batch: %d, %v", level, ok)
	}
	if _, ok := doc.KeyLevel("other"); ok {
		t.Error("key other has a level")
	}
	wantSignals := []Signal{
		{
			Name: "kv", Of: Scaled{Section: Columns, By: "model_name"}, URL: "https://h/m", Series: "kv", Target: 0.9,
			Interval: 250 * time.Millisecond, StaleAfter: 2 * time.Second, Floor: 50, WhenStale: 250, Aggregate: Max, Line: 44,
		},
		{
			Name: "vllm", Of: Scaled{Section: Columns, Name: "gpt-4o"}, URL: "http://10.0.0.1:8000/metrics",
			Series: `vllm:num_requests_waiting{engine="0"}`, Target: 5,
			Interval: time.Second, StaleAfter: 3 * time.Second, Floor: 100, WhenStale: 500, Line: 43,
		},
	}
	if got := doc.Signals(); !reflect.DeepEqual(got, wantSignals) {
		t.Errorf("signals %+v,\nwant %+v", got, wantSignals)
	}
	wantAlarms := []Alarm{
		{
			Name: "any", Match: map[string]string{"alertname": "Slow"}, Of: Scaled{Section: Columns, By: "model"},
			For: time.Minute, Line: 47,
		},
		{
			Name: "db", Match: map[string]string{"alertname": "DBSlow", "severity": "page"}, Of: Scaled{Section: Levels, Name: "3"},
			Factor: 200, For: 10 * time.Minute, HoldDown: 30 * time.Second, Line: 46,
		},
	}
	if got := doc.Alarms(); !reflect.DeepEqual(got, wantAlarms) {
		t.Errorf("alarms %+v,\nwant %+v", got, wantAlarms)
	}
}

func perSecond(n int64) limit.Rate { return limit.Rate{Events: n, Per: time.Second} }

// same compares limits by value, wherever they come from.
func same(t *testing.T, what string, got, want Limits) {
	t.Helper()
	got.From, want.From = Sources{}, Sources{}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%s: %+v, want %+v", what, got.Explain(), want.Explain())
	}
}

func TestParseBounds(t *testing.T) {
	if _, err := Parse(make([]byte, MaxBytes+1)); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "the limit is 16777216") {
		t.Errorf("too many bytes: %v", err)
	}
	rules := "version: 1\nlimits: [" + strings.Repeat("0,", MaxRules+1) + "]"
	if _, err := Parse([]byte(rules)); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "the limit is 100000") {
		t.Errorf("too many rules: %v", err)
	}
	faults := "version: 1\nlimits: [" + strings.Repeat("0,", 1000) + "]"
	if _, err := Parse([]byte(faults)); len(faultsOf(err)) != maxFaults {
		t.Errorf("%d faults named, want %d", len(faultsOf(err)), maxFaults)
	}
	if doc, err := Parse([]byte("version: 1\nlimits:\n")); err != nil || doc.Len() != 0 {
		t.Errorf("no rules: %v", err)
	}
}

func TestBytes(t *testing.T) {
	for in, want := range map[string]int64{
		"1": 1, "1B": 1, "10 kB": 10_000, "2KB": 2000, "3KiB": 3 << 10, "64MiB": 64 << 20, "5 MB": 5_000_000,
		"1GiB": 1 << 30, "2GB": 2_000_000_000, "1TiB": 1 << 40, "1TB": 1_000_000_000_000, "1099511627776": 1 << 40,
	} {
		got, err := parseBytes(in)
		if err != nil || got != want {
			t.Errorf("parseBytes(%q) = %d, %v; want %d", in, got, err, want)
		}
		if back, err := parseBytes(formatBytes(got)); err != nil || back != got {
			t.Errorf("%d is written %q and read %d, %v", got, formatBytes(got), back, err)
		}
	}
}

// TestMarshalIsReadBack: what is written is read as the same, names and labels of all kinds included.
func TestMarshalIsReadBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) { sameAfterMarshal(t, drawDocument(t)) })
}

// TestParseReadsJSON: with tabs, escapes and the lines of the text.
func TestParseReadsJSON(t *testing.T) {
	doc := mustParse(t, "\n{\t\"version\": 1,\n\"default_level\": 0,\n\t\"limits\": [\n{\"user\": \"a\\ud83d\\ude00\\/\", \"depth\": 7}],\n"+
		"\"columns\": [{\"model\": \"m\", \"adaptive\": {\"max\": 4, \"decrease\": 0.5}, \"shadow\": false}], \"rows\": null}")
	l := doc.Resolve("a\U0001F600/", "m")
	if l.Depth != 7 || l.From.Depth.Line() != 5 {
		t.Errorf("depth %d from line %d", l.Depth, l.From.Depth.Line())
	}
	if l, _ := doc.Column("m"); l.Adaptive == nil || *l.Adaptive != (limit.Adaptive{Max: 4, Decrease: 500}) {
		t.Errorf("column %+v", l.Adaptive)
	}
	_, err := Parse([]byte("{\"version\": 1,\n\"limits\": [{\"user\": \"a\",\n\"depth\": 1, \"depth\": 2}, {\"user\": 7,\n \"depth\": true, \"detph\": {}}]}"))
	want := []string{"3 limits[0].depth", "3 limits[1].user", "4 limits[1].detph", "4 limits[1].depth"}
	for i, f := range faultsOf(err) {
		if got := fmt.Sprint(f.Line, " ", f.Key); i >= len(want) || got != want[i] {
			t.Errorf("fault %d at %s: %v", i, got, f)
		}
	}
	if len(faultsOf(err)) != len(want) {
		t.Errorf("%v", err)
	}
}

// FuzzParse: no input panics, and what is accepted survives Marshal.
func FuzzParse(f *testing.F) {
	f.Add([]byte("version: 1\nlimits: [{user: a, model: '*', rate: 5/s, burst: 1s, window: 9/1m, window_at: release, depth: 1, depth_bytes: 1KiB}]"))
	f.Add([]byte("version: 1\nlimits:\n  - {model: \"*\", rate: unlimited}\n"))
	f.Add([]byte(everything))
	f.Add([]byte(`{"version": 1, "columns": [{"model": "m\\ud83d\\ude00", "in_flight": 3}]}`))
	f.Add([]byte("&a [*a, {<<: *a}]"))
	f.Add([]byte("\xff\xfe"))
	f.Add([]byte("version: 1\nlimits: [{user: \"a: b #c\\U0001F600\", depth: 1}]"))
	f.Fuzz(func(t *testing.T, data []byte) {
		doc, err := Parse(data)
		if err != nil {
			if !errors.Is(err, ErrInvalid) {
				t.Fatalf("no sentinel in %v", err)
			}
			return
		}
		sameAfterMarshal(t, doc)
	})
}

type fataler interface {
	Helper()
	Fatalf(format string, args ...any)
}

func sameAfterMarshal(t fataler, doc *Document) {
	t.Helper()
	text, err := doc.Marshal()
	if err != nil {
		t.Fatalf("Marshal: %v", err)
	}
	again, err := Parse(text)
	if err != nil {
		t.Fatalf("canonical form refused: %v\n%s", err, text)
	}
	if diff := Diff(doc, again); len(diff) > 0 {
		t.Fatalf("the canonical form differs: %+v\n%s", diff, text)
	}
	// Diff compares texts; what they leave out, this shows.
	if want, got := bare(doc), bare(again); !reflect.DeepEqual(want, got) {
		t.Fatalf("%+v became %+v\n%s", want, got, text)
	}
}

// bare is a document without the places where it stands.
func bare(doc *Document) *Document {
	d := *doc
	d.enforced, d.shadow = doc.enforced.bare(), doc.shadow.bare()
	d.importance, d.keys = bareImportance(doc.importance), bareImportance(doc.keys)
	d.signals, d.alarms = nil, nil
	for _, s := range doc.signals {
		s.File, s.Line = "", 0
		d.signals = append(d.signals, s)
	}
	for _, a := range doc.alarms {
		a.File, a.Line = "", 0
		d.alarms = append(d.alarms, a)
	}
	return &d
}

func (rs *rules) bare() rules {
	c := newRules()
	rs.each(func(r *Rule) {
		b := *r
		b.File, b.Line = "", 0
		c.put(&b)
	})
	return c
}

func bareImportance[K comparable](m map[K]Importance) map[K]Importance {
	c := make(map[K]Importance)
	for k, i := range m {
		i.File, i.Line = "", 0
		c[k] = i
	}
	return c
}

// TestPackageCommentIsValid: the example of the format is a document.
func TestPackageCommentIsValid(t *testing.T) {
	source, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(source), "left out:\n//\n")
	text, _, _ = strings.Cut(text, "\n//\n// The limits")
	text = strings.ReplaceAll(text, "//\t", "")
	doc := mustParse(t, text)
	for _, level := range doc.Considered("alice", "gpt-4o")[0].Steps {
		if level.Line == 0 {
			t.Errorf("the example has no rule at %s", level.Level)
		}
	}
	sameAfterMarshal(t, doc)
}

func TestAWindowIsAskedWhereItsRuleSays(t *testing.T) {
	doc, err := Parse([]byte(`version: 1
limits:
  - {user: a, window: 1/s}
  - {user: a, window: 2/s, shadow: true}
rows:
  - {user: a, window: 3/s}
columns:
  - {model: m, window: 4/s, window_at: admission}
`))
	if err != nil {
		t.Fatal(err)
	}
	row, _ := doc.Row("a")
	column, _ := doc.Column("m")
	for name, c := range map[string]struct{ got, want Enforce }{
		"cell":   {doc.Resolve("a", "m").WindowAt, Admission},
		"shadow": {doc.Shadow("a", "m").WindowAt, Admission},
		"row":    {row.WindowAt, Release},
		"column": {column.WindowAt, Admission},
	} {
		if c.got != c.want {
			t.Errorf("%s: asked at %v, want %v", name, c.got, c.want)
		}
	}
}

// TestATextOfTinyNodesIsRefusedBeforeItIsRead: 15 MiB of empty lists became 1.2 GiB.
func TestATextOfTinyNodesIsRefusedBeforeItIsRead(t *testing.T) {
	for name, text := range map[string]string{
		"lists":    "version: 1\nlimits: [" + strings.Repeat("[],", 5<<20) + "]",
		"dashes":   "version: 1\nlimits:\n" + strings.Repeat("-\n", 7<<20),
		"mappings": "version: 1\n" + strings.Repeat("a:\n", 5<<20),
		"JSON":     `{"version": 1, "limits": [` + strings.Repeat("[],", 5<<20) + "[]]}",
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := Parse([]byte(text))
		runtime.ReadMemStats(&after)
		if err == nil || !strings.Contains(err.Error(), "the limit is 3000000") {
			t.Errorf("%s: error %.200v, want that there are too many", name, err)
		}
		if grown := (after.TotalAlloc - before.TotalAlloc) >> 20; grown > 64 {
			t.Errorf("%s: %d MiB were allocated for a text of %d MiB", name, grown, len(text)>>20)
		}
	}
	var rules strings.Builder
	for i := range 100_000 {
		fmt.Fprintf(&rules, "  - {user: u%d, model: m, rate: 1/s, depth: 5, in_flight: 4, deadline: 5m}\n", i)
	}
	if n := nodesIn([]byte(rules.String())); n > MaxNodes {
		t.Errorf("100,000 rules of six keys count as %d nodes, which is over the limit", n)
	}
}

// TestNodesAreNotUndercounted: whatever the text, its tree has no more nodes than were counted.
func TestNodesAreNotUndercounted(t *testing.T) {
	piece := rapid.SampledFrom([]string{"a", "1", ": ", ":", ", ", ",", "[", "]", "{", "}", "- ", "-", "? ", "\n", "\n  ", " ", "'x'", "|\n ", "# c", "!t ", "~"})
	rapid.Check(t, func(t *rapid.T) {
		text := []byte(strings.Join(rapid.SliceOfN(piece, 0, 40).Draw(t, "pieces"), ""))
		root, fault := decode(text)
		if fault != nil {
			return
		}
		if got, most := treeSize(root), nodesIn(text); got > most {
			t.Fatalf("%q has %d nodes, counted as %d", text, got, most)
		}
	})
}

func treeSize(n *yaml.Node) int {
	size := 1
	for _, c := range n.Content {
		size += treeSize(c)
	}
	return size
}
