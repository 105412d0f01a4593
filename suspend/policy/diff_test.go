package policy

import (
	"fmt"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestDiffNamesEachEntry(t *testing.T) {
	old := mustParse(t, `version: 1
limits:
  - {user: alice, rate: 5/s}
  - {user: bob, rate: 5/s, depth: 3}
  - {user: carol, rate: 5/s}
  - {user: carol, rate: 9/s, shadow: true}
columns: [{model: gpt, adaptive: {max: 8}, in_flight: 4}]
levels: [{level: 3, rate: 1/s}]
importance: [{user: alice, level: 0}, {key: k, level: 1}]
signals: [{name: s, column: gpt, url: "http://h", series: a, target: 1}]
alarms: [{name: x, level: 3, match: {a: b}, factor: 0}]
`)
	updated := mustParse(t, `version: 1
cost: bytes
default_level: 1
limits:
  - {user: carol, rate: 5/s}
  - {user: bob, rate: 6/s, burst: 1s, depth: unlimited}
  - {model: "*", depth: 9}
columns: [{model: gpt, adaptive: unlimited, in_flight: 4}]
levels: [{level: 3, rate: 1/s}]
importance: [{user: alice, level: 0}, {key: k, level: 2}]
signals: [{name: s, column: gpt, url: "http://h", series: a, target: 2}]
`)
	want := []Change{
		{Section: "cost", Op: Changed, Old: "requests", New: "bytes"},
		{Section: "limits", Name: `user "alice"`, Op: Removed, Old: "rate: 5/s"},
		{Section: "limits", Name: `user "bob"`, Op: Changed, Old: "rate: 5/s, depth: 3", New: "rate: 6/s, burst: 1s, depth: unlimited"},
		{Section: "limits", Name: `user "carol"`, Op: Removed, Shadow: true, Old: "rate: 9/s"},
		{Section: "limits", Name: `model "*"`, Op: Added, New: "depth: 9"},
		{Section: "columns", Name: `model "gpt"`, Op: Changed, Old: "in_flight: 4, adaptive: 0..8", New: "in_flight: 4, adaptive: unlimited"},
		{Section: "importance", Name: `key "k"`, Op: Changed, Old: "level: 1", New: "level: 2"},
		{
			Section: "signals", Name: "s", Op: Changed,
			Old: "{name: s, column: gpt, url: 'http://h', series: a, target: 1, interval: 1s, stale_after: 3s, floor: 0.1, when_stale: 0.5, aggregate: sum}",
			New: "{name: s, column: gpt, url: 'http://h', series: a, target: 2, interval: 1s, stale_after: 3s, floor: 0.1, when_stale: 0.5, aggregate: sum}",
		},
		{Section: "alarms", Name: "x", Op: Removed, Old: "{name: x, match: {a: b}, level: 3, factor: 0, for: 10m, hold_down: 30s}"},
	}
	got := Diff(old, updated)
	for i := range max(len(got), len(want)) {
		switch {
		case i >= len(got):
			t.Errorf("missing %+v", want[i])
		case i >= len(want):
			t.Errorf("beyond %+v", got[i])
		case got[i] != want[i]:
			t.Errorf("change %d is %+v,\nwant %+v", i, got[i], want[i])
		}
	}
}

// TestDiffIsSymmetric: to go back takes the opposite of each change, and to stay takes none.
func TestDiffIsSymmetric(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := drawDocument(t), drawDocument(t)
		there, back := Diff(a, b), Diff(b, a)
		opposite := map[Op]Op{Added: Removed, Removed: Added, Changed: Changed}
		for i := range back {
			back[i].Op, back[i].Old, back[i].New = opposite[back[i].Op], back[i].New, back[i].Old
		}
		if !reflect.DeepEqual(there, back) {
			t.Fatalf("there %+v\nand back %+v", there, back)
		}
		if len(Diff(a, bare(a))) > 0 {
			t.Fatal("a document differs from itself")
		}
	})
}

// TestEffectsAgainstModel compares with a look at each cell that can be named.
func TestEffectsAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := drawDocument(t), drawDocument(t)
		list, more := Effects(a, b, 1e6)
		if more {
			t.Fatal("there is more")
		}
		got := make(map[string]int)
		for _, e := range list {
			got[e.Section+" "+e.Name+" "+e.Limit+" "+e.Old+" "+e.New]++
		}
		want := make(map[string]int)
		x := &effects{old: a, updated: b}
		users, models := x.names()
		for _, user := range users {
			for _, model := range models {
				s := Selector{User: user, Model: model}
				before, after := a.Resolve(user, model), b.Resolve(user, model)
				for kind := range cellKinds.each {
					if before.value(kind) != after.value(kind) {
						want[fmt.Sprint("limits ", s, " ", kind.name(), " ", before.value(kind), " ", after.value(kind))]++
					}
				}
				was, _ := a.Importance(user, model)
				is, _ := b.Importance(user, model)
				if was != is {
					want[fmt.Sprint("limits ", s, " importance ", was, " ", is)]++
				}
			}
		}
		for key := range got {
			if key[:7] != "limits " {
				delete(got, key)
			}
		}
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("effects %v\nwant %v", got, want)
		}
		if same, more := Effects(a, bare(a), 1e6); len(same) > 0 || more {
			t.Fatalf("a document has effects against itself: %+v", same)
		}
	})
}

func TestEffectsOfAggregates(t *testing.T) {
	old := mustParse(t, "version: 1\nrows: [{user: a, in_flight: 5}, {user: '*', rate: 3/s}]\nbroker: {rate: 5/s}\n")
	updated := mustParse(t, "version: 1\nrows: [{user: '*', rate: 4/s, in_flight: 5}]\nlevels: [{level: 2, rate: 1/s}]\ncolumns: [{model: m, adaptive: {max: 4}}]\n"+
		"limits: [{user: u, weight: 2}, {user: u, rate: 1/s, shadow: true}]\n")
	want := []Effect{
		{"limits", `user "u" model "*"`, "weight", "1", "none", "2", "user"},
		{"rows", `user "a"`, "rate", "3/s", "default row", "4/s", "default row"},
		{"rows", `user "*"`, "rate", "3/s", "default row", "4/s", "default row"},
		{"rows", `user "*"`, "in_flight", "unlimited", "none", "5", "default row"},
		{"columns", `model "m"`, "adaptive", "unlimited", "none", "0..4", "column"},
		{"levels", "level 2", "rate", "unlimited", "none", "1/s", "level 2"},
		{"broker", "broker", "rate", "5/s", "broker", "unlimited", "none"},
	}
	if got, more := Effects(old, updated, 100); more || !slices.Equal(got, want) {
		t.Errorf("%v %+v,\nwant %+v", more, got, want)
	}
	if got, more := Effects(old, updated, 3); !more || len(got) != 3 {
		t.Errorf("at most 3: %v %+v", more, got)
	}
	if got, more := Effects(old, updated, len(want)); more || len(got) != len(want) {
		t.Errorf("at most as many as there are: %v %+v", more, got)
	}
}

// TestEffectsAreBounded: a default that changes for very many cells ends the search.
func TestEffectsAreBounded(t *testing.T) {
	old, updated := &Document{enforced: newRules()}, &Document{enforced: newRules()}
	for i := range 1000 {
		for _, d := range []*Document{old, updated} {
			r := &Rule{Selector: Selector{User: fmt.Sprint("u", i), Model: fmt.Sprint("m", i)}, Sets: KindDepth}
			r.Depth = 1
			d.enforced.put(r)
		}
	}
	r := &Rule{Selector: Selector{Model: wildcard}, Sets: KindDepth}
	r.Depth = 2
	updated.enforced.put(r)
	list, more := Effects(old, updated, 10)
	if len(list) != 10 || !more {
		t.Errorf("%d effects, more %v", len(list), more)
	}
	delete(updated.enforced.cells, r.Selector)
	r = &Rule{Selector: Selector{User: "u1"}, Sets: KindDepth} // decides nothing for m1, and something for 1,000 others
	r.Depth = 2
	updated.enforced.put(r)
	if list, more := Effects(old, updated, 5000); len(list) != 1000 || more {
		t.Errorf("%d effects, more %v", len(list), more)
	}
}
