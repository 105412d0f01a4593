package policy

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/penstockmq/penstock/suspend/limit"
)

// TestParseReadsEveryKey holds the format of the package comment.
func TestParseReadsEveryKey(t *testing.T) {
	doc, err := Parse([]byte(`
version: 1
limits:
  - user: alice
    model: gpt-4o
    rate: 5/s
    burst: 200ms
    window: 100/1m
    window_at: release
    depth: 1000
    depth_bytes: 64MiB
  - {user: "*", rate: unlimited, window: unlimited, depth: unlimited, depth_bytes: unlimited}
`))
	if err != nil {
		t.Fatal(err)
	}
	rules := doc.Rules()
	if len(rules) != 2 || doc.Len() != 2 {
		t.Fatalf("%d rules", len(rules))
	}
	got := rules[0]
	leaky := limit.LeakyBucket{Rate: limit.Rate{Events: 5, Per: time.Second}, Burst: 200 * time.Millisecond}
	window := limit.FixedWindow{Limit: 100, Window: time.Minute}
	if got.Selector != (Selector{"alice", "gpt-4o"}) || got.Line != 4 || got.Sets != allKinds || *got.Leaky != leaky ||
		*got.Window != window || got.WindowAt != Release || got.Depth != 1000 || got.DepthBytes != 64<<20 {
		t.Errorf("read %+v", got)
	}
	got = rules[1]
	want := Rule{Selector: Selector{User: "*"}, Line: 12, Sets: allKinds}
	if got != want {
		t.Errorf("read %+v, want %+v", got, want)
	}
}

// TestParseRefuses: each fault names its line, its key and what is wrong.
func TestParseRefuses(t *testing.T) {
	const head = "version: 1\nlimits:\n"
	for _, tc := range []struct {
		name, text string
		want       []string // one per fault: "line|key|part of the reason"
	}{
		{"empty", "", []string{"0|document|is empty"}},
		{"comment only", "# nothing\n", []string{"0|document|is empty"}},
		{"null", "~", []string{"1|document|is empty"}},
		{"not YAML", "version: 1\nlimits:\n\t- x", []string{"0|document|line 3"}},
		{"open bracket", "version: 1\nlimits: [", []string{"0|document|is not YAML"}},
		{"list", "- version: 1", []string{"1|document|is a list"}},
		{"two documents", "version: 1\n---\nversion: 1\n", []string{"2|document|is followed by another"}},
		{"no version", "limits: []", []string{"1|version|is missing, want 1"}},
		{"wrong version", "version: 2", []string{`1|version|is "2", this program reads version 1`}},
		{"unknown key", "version: 1\nlimit: []\n", []string{"2|limit|unknown key"}},
		{"key twice", "version: 1\nversion: 1\n", []string{"2|version|is set already in line 1"}},
		{"no list", "version: 1\nlimits: {}\n", []string{"2|limits|is a mapping, want a list"}},
		{"scalar rule", head + "  - alice\n", []string{`3|limits[0]|is "alice"`}},
		{"key that is a list", head + "  - {[a]: b}\n", []string{"3|limits[0]|has a list for a key"}},
		{"alias", head + "  - &a {user: x, depth: 1}\n  - *a\n", []string{"4|limits[1]|is an alias"}},
		{"merge key", head + "  - &a {user: x, depth: 1}\n  - {<<: *a, user: y}\n", []string{"4|limits[1].<<|unknown key"}},
		{"unknown rule key", head + "  - {user: a, rat: 5/s}\n", []string{"3|limits[0].rat|unknown key, a rule has user, model, rate"}},
		{"rule key twice", head + "  - user: a\n    rate: 1/s\n    rate: 2/s\n", []string{"5|limits[0].rate|is set already in line 4"}},
		{"number for a user", head + "  - {user: 0123, rate: 1/s}\n", []string{`3|limits[0].user|is "0123", want text: put it in quotes`}},
		{"true for a model", head + "  - {model: true, rate: 1/s}\n", []string{"3|limits[0].model|put it in quotes"}},
		{"empty user", head + "  - {user: , rate: 1/s}\n", []string{"3|limits[0].user|is empty"}},
		{"empty text", head + "  - {user: '', rate: 1/s}\n", []string{"3|limits[0].user|128 bytes"}},
		{"long model", head + "  - {model: " + strings.Repeat("m", 129) + ", rate: 1/s}\n", []string{"3|limits[0].model|at most 128"}},
		{"no selector", head + "  - {rate: 1/s}\n", []string{"3|limits[0]|names neither a user nor a model"}},
		{"no limit", head + "  - {user: a}\n", []string{"3|limits[0]|sets no limit"}},
		{
			"selector twice", head + "  - {user: a, model: '*', rate: 1/s}\n  - {model: '*', user: a, depth: 1}\n",
			[]string{`4|limits[1]|user "a" model "*" has a rule already in line 3`},
		},
		{"rate without slash", head + "  - {user: a, rate: 5}\n", []string{"3|limits[0].rate|no slash, want a rate such as 5/s"}},
		{"rate of 0", head + "  - {user: a, rate: 0/s}\n", []string{"3|limits[0].rate|it must be from 1 to 1000000000"}},
		{"rate of a half", head + "  - {user: a, rate: 0.5/s}\n", []string{"3|limits[0].rate|\"0.5\" is not a whole number"}},
		{"rate in weeks", head + "  - {user: a, rate: 5/w}\n", []string{"3|limits[0].rate|neither a unit (ms, s, m, h)"}},
		{"rate is a list", head + "  - {user: a, rate: [5/s]}\n", []string{"3|limits[0].rate|is a list, want a value"}},
		{"rate is empty", head + "  - {user: a, rate: }\n", []string{"3|limits[0].rate|is empty, want a value"}},
		{"window too long", head + "  - {user: a, window: 1/745h}\n", []string{"3|limits[0].window|it must be from 1ms to 744h"}},
		{"burst alone", head + "  - {user: a, burst: 1s, depth: 1}\n", []string{"3|limits[0].burst|this rule sets none"}},
		{"burst of unlimited", head + "  - {user: a, rate: unlimited, burst: 1s}\n", []string{"3|limits[0].burst|this rule sets none"}},
		{"burst without unit", head + "  - {user: a, rate: 1/s, burst: 5}\n", []string{`3|limits[0].burst|"5" is not a duration`}},
		{"negative burst", head + "  - {user: a, rate: 1/s, burst: -1s}\n", []string{"3|limits[0].burst|it must be from 0 to 744h"}},
		{"burst is a list", head + "  - {user: a, rate: 1/s, burst: []}\n", []string{"3|limits[0].burst|is a list"}},
		{"window_at alone", head + "  - {user: a, rate: 1/s, window_at: release}\n", []string{"3|limits[0].window_at|this rule sets none"}},
		{
			"window_at nowhere", head + "  - {user: a, window: 1/s, window_at: gateway}\n",
			[]string{`3|limits[0].window_at|is "gateway", want admission or release`},
		},
		{"depth of 0", head + "  - {user: a, depth: 0}\n", []string{"3|limits[0].depth|is 0, it must be from 1 to 1000000000"}},
		{"huge depth", head + "  - {user: a, depth: 99999999999999999999}\n", []string{"3|limits[0].depth|it must be from 1"}},
		{"depth in words", head + "  - {user: a, depth: many}\n", []string{`3|limits[0].depth|"many" is not a whole number`}},
		{"bytes in words", head + "  - {user: a, depth_bytes: 1 MiX}\n", []string{`3|limits[0].depth_bytes|is not a size such as 64MiB`}},
		{"bytes that overflow", head + "  - {user: a, depth_bytes: 9223372036854775807TiB}\n", []string{"3|limits[0].depth_bytes|it must be from 1B to 1TiB"}},
		{
			"several", "version: 1\nlimits:\n  - {user: a, rate: 5}\n  - {user: b, rate: 1/s}\n  - {usr: c, depth: x}\nmore: 1\n",
			[]string{"3|limits[0].rate|no slash", "5|limits[2].usr|unknown key", "5|limits[2].depth|whole number", "6|more|unknown key"},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			doc, err := Parse([]byte(tc.text))
			if doc != nil || !errors.Is(err, ErrInvalid) {
				t.Fatalf("Parse = %v, %v", doc, err)
			}
			faults := faultsOf(err)
			if len(faults) != len(tc.want) {
				t.Fatalf("%d faults, want %d:\n%v", len(faults), len(tc.want), err)
			}
			for i, f := range faults {
				line, rest, _ := strings.Cut(tc.want[i], "|")
				key, reason, _ := strings.Cut(rest, "|")
				if fmt.Sprint(f.Line) != line || f.Key != key || !strings.Contains(f.Reason, reason) {
					t.Errorf("fault %d is %q, want %s", i, f, tc.want[i])
				}
			}
		})
	}
}

func faultsOf(err error) []*Fault {
	if f, ok := errors.AsType[*Fault](err); ok && f == err { //nolint:errorlint // is it the fault itself
		return []*Fault{f}
	}
	var faults []*Fault
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, e := range joined.Unwrap() {
			if f, ok := errors.AsType[*Fault](e); ok {
				faults = append(faults, f)
			}
		}
	}
	return faults
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

// FuzzParse: no input panics, and what is accepted survives Marshal.
func FuzzParse(f *testing.F) {
	f.Add([]byte("version: 1\nlimits: [{user: a, model: '*', rate: 5/s, burst: 1s, window: 9/1m, window_at: release, depth: 1, depth_bytes: 1KiB}]"))
	f.Add([]byte("version: 1\nlimits:\n  - {model: \"*\", rate: unlimited}\n"))
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
	want, got := doc.Rules(), again.Rules()
	if len(want) != len(got) {
		t.Fatalf("%d rules became %d:\n%s", len(want), len(got), text)
	}
	for i := range want {
		if want[i].Text() != got[i].Text() || want[i].Sets != got[i].Sets {
			t.Fatalf("rule %+v became %+v", want[i].Text(), got[i].Text())
		}
	}
}
