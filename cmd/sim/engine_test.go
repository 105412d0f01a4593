package sim

import (
	"bytes"
	"context"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/penstockmq/penstock/suspend/policy"
)

func parse(t *testing.T, text string) *policy.Document {
	t.Helper()
	doc, err := policy.Parse([]byte("version: 1\n" + text))
	if err != nil {
		t.Fatal(err)
	}
	return doc
}

func at(d time.Duration) Instant { return Instant{time.Unix(0, 0).UTC().Add(d)} }

// atOnce is n requests of a cell at the beginning.
func atOnce(n int, user, model string, service time.Duration) []Request {
	out := make([]Request, n)
	for i := range out {
		out[i] = Request{Time: at(0), User: user, Model: model, ServiceTime: Span(service)}
	}
	return out
}

func run(t *testing.T, trace []Request, o Options) *Result {
	t.Helper()
	r, err := Run(t.Context(), trace, o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestARateSpacesRequests(t *testing.T) {
	r := run(t, atOnce(11, "alice", "m", 0), Options{Policy: parse(t, `limits: [{user: alice, rate: 5/s}]`)})
	for i, o := range r.Outcomes {
		if want := at(time.Duration(i) * 200 * time.Millisecond); !o.Started.Equal(want.Time) {
			t.Errorf("request %d starts at %v, want %v", i, o.Started, want)
		}
	}
	if r.Served != 11 || r.SpanS != 2 || r.Wait.Max != 2000 {
		t.Errorf("served %d in %v s, longest wait %v ms", r.Served, r.SpanS, r.Wait.Max)
	}
}

func TestAColumnBoundsWhatRuns(t *testing.T) {
	var trace []Request
	for _, user := range []string{"a", "b", "c", "d", "e"} {
		trace = append(trace, atOnce(4, user, "m", time.Second)...)
	}
	r := run(t, trace, Options{Policy: parse(t, `columns: [{model: m, in_flight: 2}]`)})
	m := r.Models[0]
	if m.Peak != 2 || m.Served != 20 || r.SpanS != 10 {
		t.Errorf("peak %d, served %d in %v s; want 2, 20, 10", m.Peak, m.Served, r.SpanS)
	}
	if m.Utilisation < 0.999 || m.Utilisation > 1 {
		t.Errorf("utilisation %v of a model that is never idle", m.Utilisation)
	}
}

func TestAFullBucketLimits(t *testing.T) {
	r := run(t, atOnce(10, "a", "m", time.Second), Options{Policy: parse(t, `limits: [{user: a, model: m, depth: 4}]`)})
	// All come at the same instant, before the first is handed out.
	if r.Limited != 6 || r.Served != 4 {
		t.Errorf("limited %d, served %d; want 6, 4", r.Limited, r.Served)
	}
}

func TestAnAdmissionWindowLimitsOnce(t *testing.T) {
	doc := parse(t, `
limits: [{user: "*", model: "*", window: 10/1m}]
columns: [{model: m, window: 15/1m, window_at: admission}]`)
	trace := append(atOnce(12, "a", "m", 0), atOnce(12, "b", "m", 0)...)
	r := run(t, trace, Options{Policy: doc})
	// a has ten of its own; b's own limit would give ten, the column has five left, and a's refusals were charged nowhere.
	if r.Users[0].Served != 10 || r.Users[1].Served != 5 {
		t.Errorf("a %d, b %d; want 10, 5", r.Users[0].Served, r.Users[1].Served)
	}
}

func TestAWindowOfALevelLimits(t *testing.T) {
	doc := parse(t, `
importance: [{user: a, level: 3}]
levels: [{level: 3, window: 4/1m, window_at: admission}]`)
	trace := append(atOnce(6, "a", "m", 0), atOnce(6, "b", "m", 0)...)
	for i := range trace[8:] {
		trace[8+i].Level = new(uint8(3)) // its key is less important than its user
	}
	r := run(t, trace, Options{Policy: doc})
	if r.Users[0].Served != 4 || r.Users[1].Served != 2 {
		t.Errorf("a %d, b %d; want 4, 2", r.Users[0].Served, r.Users[1].Served)
	}
}

func TestWhatCostsTooMuchIsDead(t *testing.T) {
	doc := parse(t, `limits: [{user: a, model: m, window: 5/1s, window_at: release}]`)
	trace := []Request{{Time: at(0), User: "a", Model: "m", Cost: 6}, {Time: at(0), User: "a", Model: "m", Cost: 5}}
	r := run(t, trace, Options{Policy: doc})
	if !r.Outcomes[0].Dead || r.Dead != 1 || r.Served != 1 {
		t.Errorf("dead %d, served %d: %+v", r.Dead, r.Served, r.Outcomes)
	}
}

func TestTheLimiterRefusesWhatBucketsLetWait(t *testing.T) {
	doc := parse(t, `limits: [{user: "*", model: "*", rate: 10/s, burst: 400ms}]`)
	trace, err := Generate(Load{Users: 5, Rate: 5, Burst: 20, For: time.Minute, Service: 10 * time.Millisecond, Seed: 7})
	if err != nil {
		t.Fatal(err)
	}
	buckets := run(t, trace, Options{Policy: doc})
	limited, err := RunLimiter(t.Context(), trace, Options{Policy: doc})
	if err != nil {
		t.Fatal(err)
	}
	if buckets.Limited != 0 || buckets.Served != len(trace) {
		t.Errorf("buckets: %d limited, %d of %d served", buckets.Limited, buckets.Served, len(trace))
	}
	if limited.Limited < len(trace)/2 || limited.Limited+limited.Served != len(trace) {
		t.Errorf("limiter: %d limited, %d served of %d", limited.Limited, limited.Served, len(trace))
	}
}

func TestTheLimiterFreesWhatIsDone(t *testing.T) {
	doc := parse(t, `columns: [{model: m, in_flight: 1}]`)
	trace := []Request{
		{Time: at(0), User: "a", Model: "m", ServiceTime: Span(time.Second)},
		{Time: at(500 * time.Millisecond), User: "b", Model: "m"},
		{Time: at(time.Second), User: "c", Model: "m"},
	}
	r, err := RunLimiter(t.Context(), trace, Options{Policy: doc})
	if err != nil {
		t.Fatal(err)
	}
	if got := []bool{r.Outcomes[0].Limited, r.Outcomes[1].Limited, r.Outcomes[2].Limited}; !reflect.DeepEqual(got, []bool{false, true, false}) {
		t.Errorf("limited: %v", got)
	}
}

func TestTwoRunsAreTheSame(t *testing.T) {
	doc := parse(t, `
limits: [{user: "*", model: "*", rate: 3/s}]
rows: [{user: "*", tokens: 20000/1m}]
columns: [{model: "*", in_flight: 4}]
importance: [{user: user-000, level: 0}, {user: user-001, level: 3}]`)
	trace, err := Generate(Load{Users: 8, Models: 2, Rate: 3, Burst: 3, For: 20 * time.Second, Tokens: 50, Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	first, second := run(t, trace, Options{Policy: doc}), run(t, trace, Options{Policy: doc})
	if !reflect.DeepEqual(first, second) {
		t.Error("two runs of one trace differ")
	}
	if first.Served != len(trace) {
		t.Errorf("%d of %d served", first.Served, len(trace))
	}
}

// TestLevelsGiveWayInOrder is C77 on virtual time: the capacity of a model is 100/s and four levels ask for 40/s each.
func TestLevelsGiveWayInOrder(t *testing.T) {
	doc := parse(t, `
columns: [{model: m, rate: 100/s}]
importance: [{user: u0, level: 0}, {user: u1, level: 1}, {user: u2, level: 2}, {user: u3, level: 3}]`)
	var trace []Request
	const seconds = 60
	for tick := range 40 * seconds {
		for _, user := range []string{"u0", "u1", "u2", "u3"} {
			trace = append(trace, Request{Time: at(time.Duration(tick) * 25 * time.Millisecond), User: user, Model: "m"})
		}
	}
	r := run(t, trace, Options{Policy: doc, InFlight: 8})
	started := map[string]float64{}
	for i, o := range r.Outcomes {
		if o.Started.Before(at(seconds * time.Second).Time) {
			started[trace[i].User] += 1.0 / seconds
		}
	}
	for user, want := range map[string]float64{"u0": 40, "u1": 40} {
		if got := started[user]; got < want-2 || got > want+2 {
			t.Errorf("%s: %.1f/s, want %v", user, got, want)
		}
	}
	if sum := started["u2"] + started["u3"]; sum < 15 || sum > 22 {
		t.Errorf("what is left for u2 and u3: %.1f/s, want about 20", sum)
	}
	if started["u3"] < 1 || started["u3"] >= started["u2"] {
		t.Errorf("u2 %.1f/s, u3 %.1f/s: the lowest has its floor and no more", started["u2"], started["u3"])
	}
}

func TestRunRefusesAnEmptyTrace(t *testing.T) {
	for _, f := range []func(context.Context, []Request, Options) (*Result, error){Run, RunLimiter} {
		if _, err := f(t.Context(), nil, Options{}); !errors.Is(err, ErrTrace) {
			t.Errorf("error is %v", err)
		}
	}
}

func TestRunEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Run(ctx, atOnce(1, "a", "m", 0), Options{}); !errors.Is(err, context.Canceled) {
		t.Errorf("error is %v", err)
	}
}

func TestJain(t *testing.T) {
	for _, c := range []struct {
		shares []float64
		want   float64
	}{{nil, 1}, {[]float64{0, 0}, 1}, {[]float64{3, 3, 3}, 1}, {[]float64{1, 0, 0, 0}, 0.25}} {
		if got := Jain(c.shares); got != c.want {
			t.Errorf("%v: %v, want %v", c.shares, got, c.want)
		}
	}
}

func TestPrint(t *testing.T) {
	r := run(t, atOnce(30, "alice", "m", 10*time.Millisecond), Options{Policy: parse(t, `limits: [{user: alice, model: m, depth: 10}]`)})
	var b bytes.Buffer
	if err := r.Print(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"30 requests", "10 served, 20 limited", "alice", "UTILISATION"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%q is missing in\n%s", want, b.String())
		}
	}
}
