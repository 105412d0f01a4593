package quota

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/penstockmq/penstock/suspend"
	"github.com/penstockmq/penstock/suspend/signal"
)

func TestExplainShowsCurrentValues(t *testing.T) {
	d := newDesk(document(t, `
limits: [{user: u, rate: 2/s}, {user: "*", in_flight: 3}]
rows: [{user: "*", quota: 10/s}]
columns: [{model: "*", tokens: 1000/1m}, {model: m, in_flight: 8}]
levels: [{level: 1, window: 100/1m}]
broker: {quota: 16/s}
`))
	p := place("u", "m", 1)
	d.try(Ask{Place: p, Cost: Cost{Requests: 1, Tokens: 300}})
	d.SetSignal(d.now, signal.Signal{Target: column, Source: "queue", Kind: signal.Poll, Permille: 800, Default: 500, At: d.now, Until: d.now.Add(time.Minute), Reason: "120 waiting"})
	d.tick()
	want := []Line{
		{Scope: "bucket", Name: "u__m", Limit: "rate", Value: "2/s", Used: 1, Max: 1, Opens: start.Add(500 * time.Millisecond), From: "user"},
		{Scope: "bucket", Name: "u__m", Limit: "in_flight", Value: "3", Used: 1, Max: 3, Open: true, From: "default user"},
		{Scope: "row", Name: "u", Limit: "quota", Value: "10/s", Used: 1, Max: 10, Open: true, From: "default row"},
		{Scope: "column", Name: "m", Limit: "in_flight", Value: "8", Used: 1, Max: 6, Open: true, Factor: 800, From: "column"},
		{Scope: "column", Name: "m", Limit: "tokens", Value: "1000/1m", Used: 300, Max: 800, Open: true, Factor: 800, From: "default column"},
		{Scope: "column", Name: "m", Limit: "signal", Value: "800‰", Used: 800, Max: 1000, Open: true, Factor: 800, From: "poll queue: 120 waiting"},
		{Scope: "level", Name: "1", Limit: "window", Value: "100/1m", Used: 1, Max: 100, Open: true, From: "level 1"},
		{Scope: "all", Limit: "quota", Value: "16/s", Used: 1, Max: 16, Open: true, From: "broker"},
	}
	got := d.Explain(d.now, p)
	if len(got) != len(want) {
		t.Fatalf("%d lines, want %d: %+v", len(got), len(want), got)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("line %d:\n got %+v\nwant %+v", i, got[i], want[i])
		}
	}
	if b, err := json.Marshal(got[0]); err != nil || !strings.Contains(string(b), `"opens":"2026-03-01T12:00:00.5Z"`) {
		t.Errorf("%s %v", b, err)
	}

	d.to(start.Add(2 * time.Minute)) // nobody reads the metric any more
	line := lineOf(t, d.Ledger, d.now, p, suspend.Column, "signal")
	if !line.Stale || line.Factor != 500 {
		t.Errorf("%+v, want a stale signal at its default of 500", line)
	}
	for _, line := range d.Explain(d.now, p) {
		if !line.Open {
			t.Errorf("closed after two minutes: %+v", line)
		}
	}
	before := d.Stats().Accounts
	if lines := d.Explain(d.now, place("nobody", "none", 2)); len(lines) == 0 || d.Stats().Accounts != before {
		t.Errorf("%d lines, and %d accounts after %d", len(lines), d.Stats().Accounts, before)
	}
}

func TestExplainSaysThatALevelGivesWay(t *testing.T) {
	d := newDesk(document(t, `broker: {quota: 16/s}`))
	p := place("u", "m", 3)
	for range 20 {
		d.try(one(p))
	}
	g, closed := d.Look(d.now, suspend.Target{Scope: suspend.Level, Name: "3"})
	if want := (suspend.Target{Scope: suspend.All}); !closed || g.Of != want || g.Limit != "quota" {
		t.Errorf("%+v %v, want the quota of the whole", g, closed)
	}
	found := false
	for _, line := range d.Explain(d.now, p) {
		found = found || line.Scope == "level" && line.Value == "floor 16/16s" && !line.Open && line.Opens.Equal(g.Until)
	}
	if !found {
		t.Errorf("no line says so: %+v", d.Explain(d.now, p))
	}
	for _, level := range []uint8{0, 1, 2} {
		if _, ok := d.try(one(place("v", "m", level))); !ok {
			t.Errorf("level %d is closed too", level)
		}
	}
}

// TestAClockThatGoesBackMovesTimers: what waited goes on to wait for what was left, not until the old time comes again.
func TestAClockThatGoesBackMovesTimers(t *testing.T) {
	d := newDesk(document(t, `
limits: [{user: u, model: m, rate: 1/10s}]
columns: [{model: m, quota: 1/10s}]
`))
	p := place("u", "m", 1)
	d.try(one(p))
	d.try(one(place("v", "m", 1))) // the column is in debt now
	d.Narrow(d.now, p)
	d.to(start.Add(4 * time.Second))
	back := start.Add(-time.Hour)
	d.now = back
	d.tick()
	for _, target := range []suspend.Target{{Scope: suspend.Bucket, Name: p.Bucket}, column} {
		if g, closed := d.Look(d.now, target); !closed || !g.Until.Equal(back.Add(6*time.Second)) {
			t.Errorf("%v: %v until %v after the step, want 6 s", target, closed, g.Until.Sub(back))
		}
	}
	d.to(back.Add(6*time.Second - 1))
	if !d.shut[column] {
		t.Error("the column opened early")
	}
	d.now = back.Add(6 * time.Second)
	got := map[suspend.Target]bool{}
	for target, ok := d.Due(d.now); ok; target, ok = d.Due(d.now) {
		got[target] = true
	}
	if len(got) != 2 {
		t.Errorf("due: %v, want the cell and the column", got)
	}
}
