package dispatch

import (
	"fmt"
	"testing"
	"time"

	"github.com/penstockmq/penstock/suspend"
	"github.com/penstockmq/penstock/suspend/policy"
	"github.com/penstockmq/penstock/suspend/signal"
)

// A dear message waits at its bucket's own gate for a window of its column. A change of the
// column reaches no bucket, but that one.
func TestAChangeOfAUnitReachesWhoWaitsForIt(t *testing.T) {
	r := newRig(t, TopicConfig{}, wild)
	r.apply("columns:\n  - {model: m, window: 3/24h}\n")
	r.cost.Requests = 2
	r.send("a__m", messages(2)...)
	r.ack(r.one(1, "c"))
	r.none(1, "c")
	old, updated := r.disk.policy, parse(t, "version: 1\ncolumns:\n  - {model: m, window: 30/24h}\n")
	r.m.ChangePolicy(r.now, updated, old, policy.ReachOf(old, updated))
	r.one(1, "c")
}

// TestAChangeReviewsWhatItReaches: a policy that changes one user's limit acts on that user's buckets, and one that the
// caller compared with the wrong document acts on all.
func TestAChangeReviewsWhatItReaches(t *testing.T) {
	parse := func(rate string) *policy.Document {
		return parse(t, fmt.Sprintf("version: 1\nlimits: [{user: '*', rate: 1/1h}, {user: alice, rate: %s}]\n", rate))
	}
	slow, fast := parse("1/1h"), parse("1/s")
	for _, c := range []struct {
		name string
		old  *policy.Document
		want map[string]bool
	}{
		{"compared with what is in force", slow, map[string]bool{"alice__m": true, "bob__m": false}},
		{"compared with another", fast, map[string]bool{"alice__m": true, "bob__m": false}},
	} {
		r := newRig(t, TopicConfig{}, wild)
		r.m.SetPolicy(r.now, slow)
		r.turn()
		for name := range c.want {
			r.send(name, messages(2)...)
			r.ack(r.one(1, "c"))
		}
		r.none(1, "c")
		r.m.ChangePolicy(r.now, fast, c.old, policy.ReachOf(c.old, fast))
		r.pass(2 * time.Second)
		got := map[string]bool{"alice__m": false, "bob__m": false}
		for _, it := range r.pull(1, "c", 10) {
			got[it.Name] = true
		}
		for name, want := range c.want {
			if got[name] != want {
				t.Errorf("%s: %s may go: %v, want %v", c.name, name, got[name], want)
			}
		}
	}
}

// TestSignalsThatAreOverAreDropped: each that comes looked through all others, so ten
// thousand of them took a hundred million looks.
func TestSignalsThatAreOverAreDropped(t *testing.T) {
	r := newRig(t, TopicConfig{}, wild)
	set := func(source string, d time.Duration) {
		r.m.SetSignal(r.now, signal.Signal{
			Target: suspend.Target{Scope: suspend.Column, Name: "m"}, Source: source, Kind: signal.Alarm, Permille: 500, At: r.now, Until: r.now.Add(d),
		})
	}
	for i := range 10_000 {
		set(fmt.Sprint("live", i%100), time.Hour)
		set(fmt.Sprint("short", i), time.Second)
		r.now = r.now.Add(100 * time.Millisecond)
		if n := len(r.m.signals); n > 2*(100+10)+2*signalsFloor {
			t.Fatalf("%d signals are kept, of which about 110 are in force", n)
		}
	}
	for i := range 100 {
		if _, ok := r.m.signals[signalKey{suspend.Target{Scope: suspend.Column, Name: "m"}, fmt.Sprint("live", i)}]; !ok {
			t.Fatalf("signal live%d is in force and was dropped", i)
		}
	}
}
