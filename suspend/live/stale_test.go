package live

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstockmq/penstock/suspend"
	"github.com/penstockmq/penstock/suspend/policy"
	"github.com/penstockmq/penstock/suspend/signal"
)

// TestPollsThatNobodyMakesAnyMoreAreTakenBack: a signal that its poller published before it died, and that is in no policy
// when the next one starts, would hold its column at the default for ever.
func TestPollsThatNobodyMakesAnyMoreAreTakenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newMemory()
		now := time.Now()
		column := func(name string) suspend.Target { return suspend.Target{Scope: suspend.Column, Name: name} }
		put := func(target suspend.Target, source string, kind signal.Kind) {
			s := signal.Signal{
				Target: target, Source: source, Kind: kind, Permille: 500, Default: 500, At: now, Until: now.Add(time.Hour), Reason: "before",
			}
			if err := store.Publish(t.Context(), s); err != nil {
				t.Fatal(err)
			}
		}
		put(m1, "poll/removed", signal.Poll)
		put(column("m2"), "poll/waiting", signal.Poll) // the policy has it for m1 now
		put(m1, "poll/kv", signal.Poll)                // found by its label: it may be this one
		put(m1, "gpu-hot/1", signal.Alarm)
		b := joinBench(t, &vllm{waiting: map[string]float64{"m1": 0}}, store, waitingPolicy+
			`  - {name: kv, by: model_name, url: "http://vllm/metrics", series: "vllm:no_such", target: 10}`)
		has := func(want ...string) {
			t.Helper()
			synctest.Wait()
			var got []string
			for _, s := range store.All() {
				got = append(got, s.Target.Name+" "+s.Source)
			}
			if !slices.Equal(got, want) {
				t.Errorf("in force are %q, want %q", got, want)
			}
		}
		has("m1 gpu-hot/1", "m1 poll/kv", "m1 poll/waiting")
		b.policy.set(t, waitingPolicy)
		has("m1 gpu-hot/1", "m1 poll/waiting")
	})
}

// TestByLabelNeverReadIsReported: nothing names a column as long as no page was read, but somebody has to hear of it.
func TestByLabelNeverReadIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &vllm{waiting: map[string]float64{"m1": 0}, refuses: true}
		b := joinBench(t, v, newMemory(), `
columns: [{model: "*", rate: 100/s}]
signals: [{name: all, by: model_name, url: "http://vllm/metrics", series: "vllm:num_requests_waiting", target: 10}]
`)
		time.Sleep(2 * time.Second)
		b.wantStale(t, "refused")
		time.Sleep(time.Minute)
		b.wantStale(t, "refused")
		v.fault(false, false)
		time.Sleep(time.Second)
		synctest.Wait()
		if at := b.log.find("load signal is back"); len(at) != 1 {
			t.Errorf("its return was reported %d times", len(at))
		}
	})
}

// TestStaleTellsWhy: who reads the log can tell a server that is gone from a series that is misspelt.
func TestStaleTellsWhy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, waitingPolicy)
		time.Sleep(5 * time.Second)
		b.vllm.fault(true, false)
		time.Sleep(2 * time.Second)
		b.wantStale(t, "refused")
	})
}

// wantStale: it was reported once that the signal is stale, and why.
func (b *bench) wantStale(t *testing.T, why string) {
	t.Helper()
	synctest.Wait()
	b.log.mu.Lock()
	defer b.log.mu.Unlock()
	n := 0
	for _, l := range b.log.lines {
		if l.message == "load signal stale" {
			if n++; !strings.Contains(l.failure, why) {
				t.Errorf("stale for the error %q, want %q", l.failure, why)
			}
		}
	}
	if n != 1 {
		t.Errorf("reported %d times", n)
	}
}

// TestAggregatesAreFinite: a page cannot say +Inf, and neither can the sum of what it says.
func TestAggregatesAreFinite(t *testing.T) {
	samples := []signal.Sample{{Value: 1e308}, {Value: 1e308}}
	for _, how := range []policy.Aggregate{policy.Sum, policy.Avg} {
		got, err := readings(samples, policy.Signal{Aggregate: how, Of: policy.Scaled{Section: policy.Columns, Name: "m1"}})
		if err == nil {
			t.Errorf("%v: %v", how, got)
		}
	}
}
