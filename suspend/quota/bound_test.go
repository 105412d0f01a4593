package quota

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/penstockmq/penstock/suspend"
)

type event struct {
	at   time.Time
	cost int64
}

// TestNeverMoreThanTheLimits looks at every span of what went, under rules of all scopes, with timers that are late.
func TestNeverMoreThanTheLimits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		// In each scope 20/s or less as a pace, and a bucket and a window that are shorter than its demand.
		d := newDesk(documentOf(t, `
limits: [{user: "*", rate: 8/s}]
rows: [{user: "*", quota: 12/s, quota_burst: 5}]
columns: [{model: "*", rate: 20/s, burst: 100ms}]
levels: [{level: 1, window: 30/2s}]
broker: {quota: 25/s, in_flight: 4}
`))
		went := map[suspend.Target][]event{}
		type running struct {
			p suspend.Place
			t Ticket
		}
		var out []running
		since := map[string]time.Time{}
		for range rapid.IntRange(50, 400).Draw(t, "steps") {
			d.tick()
			p := rapid.SampledFrom(places()).Draw(t, "place")
			if since[p.Bucket].IsZero() {
				since[p.Bucket] = d.now
			}
			a := Ask{Place: p, Since: since[p.Bucket], Cost: Cost{Requests: rapid.Int64Range(1, 2).Draw(t, "cost")}}
			if ticket, ok := d.try(a); ok {
				delete(since, p.Bucket)
				out = append(out, running{p, ticket})
				for scope := range suspend.Scope(scopes) {
					target, _ := p.Target(scope)
					went[target] = append(went[target], event{d.now, a.Cost.Requests})
				}
				if len(out) > 4 {
					t.Fatal("more than 4 in flight")
				}
			}
			if len(out) > 0 && rapid.Bool().Draw(t, "ends") {
				d.free(out[0].p, out[0].t, Settlement{})
				out = out[1:]
			}
			if rapid.Bool().Draw(t, "time") {
				d.now = d.now.Add(time.Duration(rapid.SampledFrom([]int{1, 3, 20, 100, 300}).Draw(t, "ms")) * time.Millisecond)
			}
		}
		for target, events := range went {
			switch target.Scope {
			case suspend.Bucket:
				spans(t, target, events, 8, lateStep, 2) // one at once, and one that catches up
			case suspend.Row:
				spans(t, target, events, 12, 0, 5)
			case suspend.Column:
				spans(t, target, events, 20, 100*time.Millisecond+lateStep, 2)
			case suspend.Level:
				if target.Name == "1" {
					windows(t, events)
				}
			case suspend.All:
				spans(t, target, events, 25, 0, 25)
			}
		}
	})
}

// spans checks that in every span all but the last costs at most rate × (span + burst) + extra.
func spans(t *rapid.T, target suspend.Target, events []event, rate float64, burst time.Duration, extra float64) {
	for i := range events {
		cost := int64(0)
		for _, e := range events[i:] {
			if most := rate*(e.at.Sub(events[i].at)+burst).Seconds() + extra; float64(cost) > most {
				t.Fatalf("%v: %d in %v, want at most %.1f", target, cost, e.at.Sub(events[i].at), most)
			}
			cost += e.cost
		}
	}
}

// windows checks a fixed window of 30 in 2 s.
func windows(t *rapid.T, events []event) {
	used := map[int64]int64{}
	for _, e := range events {
		used[e.at.UnixNano()/int64(2*time.Second)] += e.cost
	}
	for _, n := range used {
		if n > 30 {
			t.Fatalf("%d in a window of 30", n)
		}
	}
}

// After a stall one message of a cell catches up with the schedule. Those behind it find the gate open by a stall of which they
// are no part, and go at the pace of now: ten intervals late, two go at once and not eleven.
func TestAStallIsCaughtUpWithByOne(t *testing.T) {
	d := newDesk(document(t, `limits: [{user: u, rate: 100/s}]`))
	p := place("u", "m", 1)
	if _, ok := d.try(one(p)); !ok {
		t.Fatal("the first does not go")
	}
	if _, ok := d.try(one(p)); ok {
		t.Fatal("the second does not wait")
	}
	d.now = d.now.Add(110 * time.Millisecond)
	d.tick()
	went := 0
	for range 20 {
		if _, ok := d.try(one(p)); !ok {
			break
		}
		went++
	}
	if went != 2 {
		t.Errorf("%d went at once after a stall of ten intervals, want 2", went)
	}
}
