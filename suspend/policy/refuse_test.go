package policy

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

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
		{"unknown rule key", head + "  - {user: a, rat: 5/s}\n", []string{"3|limits[0].rat|unknown key, a rule of limits has user, model, rate"}},
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
		{"negative burst", head + "  - {user: a, rate: 1/s, burst: -1s}\n", []string{"3|limits[0].burst|it must be from 0s to 744h"}},
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
		{"cost in euros", "version: 1\ncost: euros\n", []string{`2|cost|is "euros", want requests or tokens or bytes`}},
		{"default level of 4", "version: 1\ndefault_level: 4\n", []string{"2|default_level|is 4, it must be from 0 to 3"}},
		{"no default level", "version: 1\ndefault_level:\n", []string{"2|default_level|is empty"}},
		{"quota_burst alone", head + "  - {user: a, rate: 1/s, quota_burst: 5}\n", []string{"3|limits[0].quota_burst|is the capacity of a quota, and this rule sets none"}},
		{"samples alone", head + "  - {user: a, rate: 1/s, samples: 5}\n", []string{"3|limits[0].samples|this rule sets none"}},
		{"cap alone", head + "  - {user: a, observed: unlimited, observed_cap: 5s}\n", []string{"3|limits[0].observed_cap|this rule sets none"}},
		{"samples of what", head + "  - {user: a, observed: 1/s, samples: 5 x 1s}\n", []string{`3|limits[0].samples|"5 " is not a whole number, with the length`}},
		{"samples of years", head + "  - {user: a, observed: 1/s, samples: 100x700h}\n", []string{"3|limits[0].observed|together they must be at most 744h"}},
		{"bad rate with burst", head + "  - {user: a, quota: 0/s, quota_burst: 5}\n", []string{"3|limits[0].quota|it must be from 1"}},
		{"in flight of 0", head + "  - {user: a, in_flight: 0}\n", []string{"3|limits[0].in_flight|is 0, it must be from 1 to 1000000, or unlimited"}},
		{"tokens without time", head + "  - {user: a, tokens: 100}\n", []string{"3|limits[0].tokens|has no slash, want tokens such as"}},
		{"bytes in weeks", head + "  - {user: a, bytes_in: 1MiB/w}\n", []string{"3|limits[0].bytes_in|neither a unit (ms, s, m, h)"}},
		{"deadline of 0", head + "  - {user: a, deadline: 0}\n", []string{"3|limits[0].deadline|is 0s, it must be from 1ms to 744h"}},
		{"weight unlimited", head + "  - {user: a, weight: unlimited}\n", []string{`3|limits[0].weight|"unlimited" is not a whole number`}},
		{"weight of 1001", head + "  - {user: a, weight: 1001}\n", []string{"3|limits[0].weight|is 1001, it must be from 1 to 1000"}},
		{"shadow of maybe", head + "  - {user: a, rate: 1/s, shadow: maybe}\n", []string{`3|limits[0].shadow|is "maybe", want true or false`}},
		{"weight in shadow", head + "  - {user: a, weight: 1, shadow: true}\n", []string{"3|limits[0].weight|nothing to count in shadow"}},
		{
			"selector twice in shadow", head + "  - {user: a, rate: 1/s}\n  - {user: a, rate: 1/s, shadow: true}\n  - {user: a, rate: 2/s, shadow: true}\n",
			[]string{`5|limits[2]|user "a" has a rule in shadow already in line 4`},
		},
		{"adaptive of a cell", head + "  - {user: a, adaptive: {max: 4}}\n", []string{"3|limits[0].adaptive|unknown key"}},
		{"depth of a row", "version: 1\nrows: [{user: a, depth: 4}]\n", []string{"2|rows[0].depth|unknown key, a rule of rows has user, rate"}},
		{"model of a row", "version: 1\nrows: [{model: a, rate: 4/s}]\n", []string{"2|rows[0].model|unknown key"}},
		{"row of nobody", "version: 1\nrows: [{rate: 4/s}]\n", []string{"2|rows[0]|names no user"}},
		{"row twice", "version: 1\nrows:\n  - {user: a, rate: 4/s}\n  - {user: a, quota: 4/s}\n", []string{`4|rows[1]|user "a" has a rule already in line 3`}},
		{"column of nothing", "version: 1\ncolumns: [{rate: 4/s}]\n", []string{"2|columns[0]|names no model"}},
		{"level of nothing", "version: 1\nlevels: [{rate: 4/s}]\n", []string{"2|levels[0].level|is missing"}},
		{"level twice", "version: 1\nlevels: [{level: 1, rate: 4/s}, {level: 1, rate: 4/s}]\n", []string{"2|levels[1]|level 1 has a rule already in line 2"}},
		{"level in words", "version: 1\nlevels: [{level: L1, rate: 4/s}]\n", []string{`2|levels[0].level|"L1" is not a whole number`}},
		{"broker twice", "version: 1\nbroker: [{rate: 4/s}, {rate: 4/s}]\n", []string{"2|broker[1]|broker has a rule already in line 2"}},
		{"broker of a user", "version: 1\nbroker: {user: a, rate: 4/s}\n", []string{"2|broker.user|unknown key"}},
		{"adaptive scalar", "version: 1\ncolumns: [{model: a, adaptive: 5}]\n", []string{`2|columns[0].adaptive|is "5", want keys and values`}},
		{"adaptive without max", "version: 1\ncolumns: [{model: a, adaptive: {min: 5}}]\n", []string{"2|columns[0].adaptive.max|is missing"}},
		{"adaptive upside down", "version: 1\ncolumns: [{model: a, adaptive: {min: 5, max: 4}}]\n", []string{"2|columns[0].adaptive|a min of 5, it must be from 0 to max, which is 4"}},
		{"adaptive growing", "version: 1\ncolumns: [{model: a, adaptive: {max: 4, decrease: 1}}]\n", []string{"2|columns[0].adaptive.decrease|between 0 and 1"}},
		{"adaptive key", "version: 1\ncolumns: [{model: a, adaptive: {max: 4, mx: 1}}]\n", []string{"2|columns[0].adaptive.mx|unknown key, adaptive has min, max, start"}},
		{"adaptive start", "version: 1\ncolumns: [{model: a, adaptive: {max: 4, start: 5}}]\n", []string{"2|columns[0].adaptive|a start of 5"}},
		{"important nobody", "version: 1\nimportance: [{level: 1}]\n", []string{"2|importance[0]|names no user, model or key"}},
		{"important everybody", "version: 1\nimportance: [{user: '*', level: 1}]\n", []string{"2|importance[0].user|is the wildcard"}},
		{"important without level", "version: 1\nimportance: [{user: a}]\n", []string{"2|importance[0].level|is missing"}},
		{"important blank key", "version: 1\nimportance: [{key: ' ', level: 1}]\n", []string{`2|importance[0].key|" " is not the name of a key: 1 to 128 bytes`}},
		{"important key and user", "version: 1\nimportance: [{user: a, key: b, level: 1}]\n", []string{"2|importance[0]|names a key beside a user"}},
		{"important twice", "version: 1\nimportance:\n  - {user: a, level: 1}\n  - {user: a, level: 1}\n", []string{`4|importance[1]|user "a" is set already in line 3`}},
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

// TestParseRefusesSignals: the same of signals and alarms, which are given the columns a and b, where only a has a limit,
// and level 3 with one. Each case is line 6, one entry.
func TestParseRefusesSignals(t *testing.T) {
	const head = "version: 1\nlimits: []\ncolumns: [{model: a, in_flight: 5}, {model: b, in_flight: unlimited}]\nlevels: [{level: 3, rate: 1/s}]\n"
	const signal, alarm = "name: n, url: 'http://h', series: s, target: 1", "name: n, match: {a: b}, factor: 0.5"
	for _, tc := range []struct{ name, entry, want string }{
		{"signal", "signals: " + signal + ", column: a", ""},
		{"alarm", "alarms: " + alarm + ", level: 3", ""},
		{"unknown key", "signals: " + signal + ", column: a, topic: x", "topic|unknown key, a signal has name, column"},
		{"no target", "signals: name: n, url: 'http://h', series: s, column: a", "target|is missing"},
		{"nothing scaled", "signals: " + signal, "|scales nothing, want one of column, level and by"},
		{"two scaled", "signals: " + signal + ", column: a, level: 3", "|scales column and level, want one of"},
		{"all columns", "signals: " + signal + ", column: '*'", `column|is "*"; to scale the column that a label names, there is by`},
		{"level 4", "alarms: " + alarm + ", level: 4", "level|it must be from 0 to 3"},
		{"no limit in column", "signals: " + signal + ", column: b", `column|is "b", which has no limit, so there is nothing to scale: give it one in columns`},
		{"no such column", "signals: " + signal + ", column: c", `column|is "c", which has no limit`},
		{"no limit in level", "alarms: " + alarm + ", level: 2", "level|is 2, which has no limit, so there is nothing to scale: give it one in levels"},
		{"label", "signals: " + signal + ", by: 1a", `by|is "1a", want the name of a label`},
		{"name", "signals: name: n n, url: 'http://h', series: s, target: 1, column: a", `name|is "n n", want 1 to 64 letters`},
		{"scheme", "signals: name: n, url: 'ftp://h', series: s, target: 1, column: a", `url|has the scheme "ftp", want http or https`},
		{"host", "signals: name: n, url: 'http:///x', series: s, target: 1, column: a", "url|has no host"},
		{"password", "signals: name: n, url: 'http://u:p@h', series: s, target: 1, column: a", "url|has a user in it"},
		{"url", "signals: name: n, url: 'http://[', series: s, target: 1, column: a", "url|is no URL"},
		{"series", "signals: name: n, url: 'http://h', series: 's{a=1}', target: 1, column: a", "series|not in double quotes"},
		{"target of 0", "signals: name: n, url: 'http://h', series: s, target: 0, column: a", "target|is 0, it must be a finite number over 0"},
		{"target of NaN", "signals: name: n, url: 'http://h', series: s, target: nan, column: a", "target|must be a finite number over 0"},
		{"target without end", "signals: name: n, url: 'http://h', series: s, target: inf, column: a", "target|must be a finite number over 0"},
		{"interval", "signals: " + signal + ", column: a, interval: 1ms", "interval|is 1ms, it must be from 100ms to 1h"},
		{"stale at once", "signals: " + signal + ", column: a, stale_after: 500ms", "stale_after|is 500ms, it must be at least the interval of 1s"},
		{"floor", "signals: " + signal + ", column: a, floor: 1.1", `floor|is "1.1", it must be from 0 to 1`},
		{"fine floor", "signals: " + signal + ", column: a, floor: 0.1234", "floor|with at most three decimals"},
		{"negative", "signals: " + signal + ", column: a, when_stale: -0.5", "when_stale|it must be from 0 to 1"},
		{"aggregate", "signals: " + signal + ", column: a, aggregate: p99", `aggregate|is "p99", want sum or max or avg`},
		{"no match", "alarms: name: n, factor: 0.5, level: 3", "match|is missing"},
		{"match nothing", "alarms: name: n, match: {}, factor: 0.5, level: 3", "match|has 0 labels, it must be from 1 to 32"},
		{"match text", "alarms: name: n, match: x, factor: 0.5, level: 3", `match|is "x", want keys and values`},
		{"match number", "alarms: name: n, match: {a: 5}, factor: 0.5, level: 3", "match.a|put it in quotes"},
		{"match label", "alarms: name: n, match: {a-b: c}, factor: 0.5, level: 3", `match|"a-b" is not the name of a label`},
		{"factor of 2", "alarms: name: n, match: {a: b}, factor: 2, level: 3", `factor|is "2", it must be from 0 to 1`},
		{"for ever", "alarms: " + alarm + ", level: 3, for: 1000h", "for|is 1000h, it must be from 1s to 744h"},
		{"for no time", "alarms: " + alarm + ", level: 3, for: 0s", "for|is 0s, it must be from 1s"},
		{"hold down", "alarms: " + alarm + ", level: 3, hold_down: -1s", "hold_down|is -1s, it must be from 0s to 24h"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			section, entry, _ := strings.Cut(tc.entry, ": ")
			_, err := Parse([]byte(head + section + ":\n  - {" + entry + "}\n"))
			faults := faultsOf(err)
			if tc.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			key, reason, _ := strings.Cut(tc.want, "|")
			key = strings.TrimSuffix(section+"[0]."+key, ".")
			if len(faults) != 1 || faults[0].Line != 6 || faults[0].Key != key || !strings.Contains(faults[0].Reason, reason) {
				t.Errorf("%v, want line 6 %s %s", err, key, reason)
			}
		})
	}
	_, err := Parse([]byte(head + "signals:\n  - {" + signal + ", level: 3}\n  - {" + signal + ", column: a}\n"))
	if err == nil || !strings.Contains(err.Error(), `line 7: signals[1]: signal "n" is set already in line 6`) {
		t.Errorf("a name twice: %v", err)
	}
	if _, err := Parse([]byte("version: 1\nsignals: [{" + signal + ", by: x}]\n")); err == nil || !strings.Contains(err.Error(), "none has a limit") {
		t.Errorf("columns by label without any: %v", err)
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
