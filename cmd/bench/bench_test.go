package bench

import (
	"bytes"
	"errors"
	"math"
	"strings"
	"testing"
	"time"
)

func TestPaceError(t *testing.T) {
	begin := time.Unix(1000, 0)
	at := func(offsets ...time.Duration) []time.Time {
		out := make([]time.Time, len(offsets))
		for i, d := range offsets {
			out[i] = begin.Add(d)
		}
		return out
	}
	for _, c := range []struct {
		name string
		at   []time.Time
		rate float64
		want float64
	}{
		{"exact", at(0, 200*time.Millisecond, 400*time.Millisecond), 5, 0},
		{"in any order", at(400*time.Millisecond, 0, 200*time.Millisecond), 5, 0},
		{"twice as fast", at(0, 100*time.Millisecond, 200*time.Millisecond), 5, 100},
		{"half as fast", at(0, 400*time.Millisecond), 5, 50},
		{"nothing to measure", at(0), 5, 100},
	} {
		if got := paceError(c.at, c.rate); got != c.want {
			t.Errorf("%s: %v %%, want %v %%", c.name, got, c.want)
		}
	}
}

func TestQuantile(t *testing.T) {
	d := make([]time.Duration, 100)
	for i := range d {
		d[len(d)-1-i] = time.Duration(i)
	}
	for q, want := range map[float64]time.Duration{0: 0, 0.5: 50, 0.99: 99, 1: 99} {
		if got := quantile(d, q); got != want {
			t.Errorf("quantile %v: %d, want %d", q, got, want)
		}
	}
	if quantile(nil, 0.5) != 0 {
		t.Error("a quantile of nothing")
	}
}

func TestSummaryJudges(t *testing.T) {
	good := DemoSummary{Sent: 10, Answered: 10, PaceErrorPct: 5}
	if !good.asExpected() {
		t.Errorf("%+v is not as expected", good)
	}
	for name, change := range map[string]func(*DemoSummary){
		"unanswered": func(s *DemoSummary) { s.Answered-- },
		"rejected":   func(s *DemoSummary) { s.Rejected++ },
		"lost":       func(s *DemoSummary) { s.Lost++ },
		"duplicated": func(s *DemoSummary) { s.Duplicated++ },
		"pace":       func(s *DemoSummary) { s.PaceErrorPct = 5.01 },
	} {
		bad := good
		change(&bad)
		if bad.asExpected() {
			t.Errorf("%s: %+v passes", name, bad)
		}
	}
}

func TestBucketsScenario(t *testing.T) {
	r, err := RunBuckets(t.Context(), BucketsOptions{Count: 500, Consumers: 2, BodyBytes: 10, Limit: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	for name, p := range map[string]BucketsPhase{"fresh": *r.Fresh, "backlog": r.Backlog} {
		if p.Sent != 500 || p.Delivered != 500 || p.Missing != 0 || p.Duplicated != 0 {
			t.Errorf("%s: %+v", name, p)
		}
	}
	var out bytes.Buffer
	if err := r.Print(&out); err != nil || !strings.Contains(out.String(), "500 buckets") {
		t.Errorf("printed %q, %v", out.String(), err)
	}
}

func TestScenariosRefuseBadOptions(t *testing.T) {
	if _, err := RunBuckets(t.Context(), BucketsOptions{Count: -1}); err == nil {
		t.Error("buckets: a negative count is taken")
	}
	if _, err := RunIsolation(t.Context(), IsolationOptions{Buckets: 5, Throttled: []int{5}}); err == nil {
		t.Error("isolation: no healthy bucket is left, and it is taken")
	}
	for name, run := range map[string]func() error{
		"pace":     func() error { _, err := RunPace(t.Context(), PaceOptions{Duration: time.Second}); return err },
		"levels":   func() error { _, err := RunLevels(t.Context(), LevelsOptions{Before: time.Second}); return err },
		"demand":   func() error { _, err := RunLevels(t.Context(), LevelsOptions{Demand: 60}); return err },
		"fairness": func() error { _, err := RunFairness(t.Context(), FairnessOptions{Capacity: 1}); return err },
		"ratio":    func() error { _, err := RunRatio(t.Context(), RatioOptions{Size: 100}); return err },
	} {
		if run() == nil {
			t.Errorf("%s: options out of bounds are taken", name)
		}
	}
	if err := Demo(t.Context(), DemoOptions{Duration: time.Millisecond}); err == nil {
		t.Error("demo: a millisecond is taken")
	}
}

func TestChecksJudge(t *testing.T) {
	var c Checks
	c.within("pace", 50.9, 50, 1)
	c.atMost("p99", 5, 5)
	c.atLeast("jain", 0.99, 0.99)
	if !c.OK || c.Err() != nil {
		t.Errorf("good figures: %+v, %v", c, c.Err())
	}
	c.within("pace", 51.1, 50, 1)
	if c.OK || !errors.Is(c.Err(), ErrChecks) || !strings.Contains(c.Err().Error(), "pace: 51.1, want 50 ± 1") {
		t.Errorf("a bad figure: %+v, %v", c, c.Err())
	}
	c.atMost("later", 1, 2) // does not make good what was bad
	if c.OK {
		t.Error("a good check hides a bad one")
	}
	c = Checks{}
	c.atLeast("nothing measured", math.NaN(), 1)
	if c.OK {
		t.Error("no figure passes")
	}
}

// TestPaceOnVirtualTime has the figures of KIP-599, of a debt, and of calls whose tokens are not known before.
func TestPaceOnVirtualTime(t *testing.T) {
	var p Pace
	if err := p.virtual(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := p.Err(); err != nil {
		t.Error(err)
	}
	if len(p.List) != 5 {
		t.Errorf("%d checks, want 5: %+v", len(p.List), p.List)
	}
}

func TestRatioCountsWhatCallersSee(t *testing.T) {
	r, err := RunRatio(t.Context(), RatioOptions{Users: 2, Bursts: 1, Size: 12, Every: 2 * time.Second, Rate: 10})
	if err != nil {
		t.Fatal(err)
	}
	if r.Buckets.Answered != 24 || r.Buckets.Limited != 0 || r.Limiter.Sent != 24 || r.Limiter.Limited+r.Limiter.Answered != 24 || r.Limiter.Failed != 0 {
		t.Errorf("limiter %+v, buckets %+v", r.Limiter, r.Buckets)
	}
}
