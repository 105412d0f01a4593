package bench

import (
	"strings"
	"testing"
)

// The timing depends on the machine; the scenario guarantees that all events are handled and the content of the table.
func TestTurnsScenario(t *testing.T) {
	out, err := RunTurns(t.Context(), TurnsOptions{Cells: 2000, Deadlines: 2000, Runs: 1})
	if err != nil {
		t.Fatal(err)
	}
	if len(out.Runs) != 2 {
		t.Fatalf("%d runs, want one of deadlines and one of windows", len(out.Runs))
	}
	for _, r := range out.Runs {
		if r.Due != 2000 || r.Done != r.Due || r.Turns < 2 || r.LongestMS <= 0 || r.Neighbours == 0 {
			t.Errorf("%+v", r)
		}
	}
	var b strings.Builder
	if err := out.Print(&b); err != nil || !strings.Contains(b.String(), "2000 windows") {
		t.Errorf("%v: %s", err, b.String())
	}
}

func TestTurnsAreJudgedByTheirBestRun(t *testing.T) {
	run := func(what string, done int, longest float64) TurnsRun {
		return TurnsRun{What: what, Due: 10, Done: done, LongestMS: longest}
	}
	for name, c := range map[string]struct {
		runs []TurnsRun
		ok   bool
	}{
		"good":             {[]TurnsRun{run("deadlines", 10, 4), run("windows", 10, 5)}, true},
		"one disturbed":    {[]TurnsRun{run("deadlines", 10, 4), run("windows", 10, 40), run("windows", 10, 3)}, true},
		"long":             {[]TurnsRun{run("deadlines", 10, 5.1), run("windows", 10, 5)}, false},
		"something undone": {[]TurnsRun{run("deadlines", 10, 1), run("windows", 9, 1)}, false},
	} {
		r := Turns{Runs: c.runs}
		if r.judge(); r.Passed() != c.ok {
			t.Errorf("%s: %+v", name, r.List)
		}
	}
	for _, o := range []TurnsOptions{{Cells: -1}, {Deadlines: 2_000_000}, {Runs: 11}} {
		if _, err := RunTurns(t.Context(), o); err == nil {
			t.Errorf("%+v was not refused", o)
		}
	}
}
