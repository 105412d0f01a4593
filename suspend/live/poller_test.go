package live

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstockmq/penstock/suspend"
	"github.com/penstockmq/penstock/suspend/policy"
	"github.com/penstockmq/penstock/suspend/signal"
)

// TestC79_StaleSignalIsReportedAndDoesNotHalt: the feed stops for 60 s, by refusing or by hanging, with and without load
// before, and comes back.
func TestC79_StaleSignalIsReportedAndDoesNotHalt(t *testing.T) {
	const interval = time.Second
	for _, tc := range []struct {
		name    string
		hangs   bool
		waiting float64
		before  int64
		after   time.Duration // of a poll, the feed stops
	}{
		{"refuses", false, 0, 1000, time.Millisecond},
		{"refuses under load", false, 50, 200, 999 * time.Millisecond},
		{"hangs", true, 0, 1000, time.Millisecond},
		{"hangs under load", true, 50, 200, 500 * time.Millisecond},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, waitingPolicy)
				b.vllm.set("m1", tc.waiting)
				time.Sleep(20*interval + tc.after)
				b.wantFactor(t, tc.before)
				overload := len(b.log.find("load over target"))

				stopped := time.Now()
				b.vllm.fault(!tc.hangs, tc.hangs)
				time.Sleep(2 * interval)
				if at := b.log.find("load signal stale"); len(at) != 1 || at[0].Sub(stopped) > 2*interval {
					t.Fatalf("reported at %v, the feed stopped at %v", at, stopped)
				}
				stats := b.poller.Stats()
				if len(stats) != 1 || !stats[0].Stale || stats[0].Failures == 0 {
					t.Errorf("stats: %+v", stats)
				}
				// The documented stance: it goes on with a cap. A column that was held harder is let go slowly.
				time.Sleep(58 * interval)
				b.wantFactor(t, 400)
				if states := b.store.board.Explain(time.Now(), m1); len(states) != 1 || !states[0].Stale || states[0].Permille != 400 {
					t.Errorf("explain: %+v", states)
				}
				if at := b.log.find("load signal stale"); len(at) != 1 {
					t.Errorf("reported %d times", len(at))
				}
				if n := len(b.log.find("load over target")); n != overload {
					t.Error("a stale signal was reported as overload")
				}

				b.vllm.set("m1", 50)
				b.vllm.fault(false, false)
				time.Sleep(interval)
				b.wantFactor(t, 200)
				if at := b.log.find("load signal is back"); len(at) != 1 {
					t.Errorf("its return was reported %d times", len(at))
				}
				if stats := b.poller.Stats(); stats[0].Stale || stats[0].Value != 50 {
					t.Errorf("stats: %+v", stats)
				}
			})
		})
	}
}

func TestPollerGradesAndReleases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, waitingPolicy)
		b.wantFactor(t, 1000)
		for _, step := range []struct {
			waiting float64
			want    int64
		}{{11, 1000}, {20, 500}, {21, 500}, {40, 250}, {1e6, 100}} {
			b.vllm.set("m1", step.waiting)
			time.Sleep(time.Second)
			b.wantFactor(t, step.want)
		}
		b.vllm.set("m1", 0)
		time.Sleep(time.Second)
		synctest.Wait()
		time.Sleep(time.Second)
		b.wantFactor(t, 200) // gradually: a tenth in a second
		time.Sleep(10 * time.Second)
		b.wantFactor(t, 1000)
		if over, within := b.log.find("load over target"), b.log.find("load within target"); len(over) != 1 || len(within) != 1 {
			t.Errorf("over target %d times, within %d times", len(over), len(within))
		}
	})
}

// TestPollersAgree: three processes poll the same signal; one write an interval keeps it, and what one cannot read is not
// stale while another can.
func TestPollersAgree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newBench(t, waitingPolicy)
		time.Sleep(500 * time.Millisecond)
		blind := joinBench(t, &vllm{refuses: true}, a.store, waitingPolicy)
		c := joinBench(t, a.vllm, a.store, waitingPolicy)
		a.vllm.set("m1", 20)
		time.Sleep(5 * time.Second)
		a.wantFactor(t, 500)
		before := a.store.count()
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if n := a.store.count() - before; n < 9 || n > 11 {
			t.Errorf("%d writes in ten intervals", n)
		}
		for _, b := range []*bench{a, blind, c} {
			if at := b.log.find("load signal stale"); len(at) != 0 {
				t.Errorf("stale at %v", at)
			}
		}
		a.vllm.fault(true, false)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		for i, b := range []*bench{a, blind, c} {
			if at := b.log.find("load signal stale"); len(at) != 1 {
				t.Errorf("process %d reported it at %v", i, at)
			}
		}
		a.vllm.fault(false, false)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if at := blind.log.find("load signal is back, another process reads it"); len(at) != 1 {
			t.Errorf("the blind one heard of its return at %v", at)
		}
	})
}

func TestNeverReadIsStaleToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &vllm{waiting: map[string]float64{"other": 0}}
		b := joinBench(t, v, newMemory(), waitingPolicy)
		time.Sleep(2 * time.Second)
		b.wantFactor(t, 400)
		if at := b.log.find("load signal stale"); len(at) != 1 {
			t.Errorf("reported at %v", at)
		}
		time.Sleep(time.Minute)
		b.wantFactor(t, 400)
		v.set("m1", 0)
		time.Sleep(7 * time.Second)
		b.wantFactor(t, 1000)
	})
}

func TestPollerFollowsThePolicy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, waitingPolicy)
		b.vllm.set("m1", 100)
		time.Sleep(time.Second)
		b.wantFactor(t, 100)
		// A comment moves it to another line: nothing is to happen.
		asked := b.vllm.asked
		b.policy.set(t, "# moved\n"+waitingPolicy)
		synctest.Wait()
		if b.vllm.asked != asked {
			t.Error("polled anew for a comment")
		}
		b.policy.set(t, strings.Replace(waitingPolicy, "target: 10", "target: 50", 1))
		time.Sleep(6 * time.Second)
		b.wantFactor(t, 500)
		b.policy.set(t, "")
		time.Sleep(6 * time.Second)
		b.wantFactor(t, 1000)
		if len(b.poller.Stats()) != 0 || len(b.store.signals) != 0 {
			t.Error("a signal outlived its place in the policy")
		}
	})
}

func TestPollerByLabel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, `
columns: [{model: "*", rate: 100/s}]
signals: [{name: all, by: model_name, url: "http://vllm/metrics", series: "vllm:num_requests_waiting", target: 10}]
`)
		b.vllm.set("m1", 20)
		b.vllm.set("m2", 40)
		b.vllm.set("*", 40) // no model can have that name
		time.Sleep(time.Second)
		b.wantFactor(t, 500)
		if got := b.store.factor(suspend.Target{Scope: suspend.Column, Name: "m2"}); got != 250 {
			t.Errorf("m2 is at %d", got)
		}
		if stats := b.poller.Stats(); len(stats) != 2 || stats[0].Target != m1 || stats[1].Value != 40 {
			t.Errorf("%+v", stats)
		}
	})
}

func TestPollerWithoutNATS(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, waitingPolicy)
		b.store.mu.Lock()
		b.store.away = true
		b.store.mu.Unlock()
		time.Sleep(20 * time.Second)
		b.wantFactor(t, 400)
		if at := b.log.find("load signal not published"); len(at) != 1 {
			t.Errorf("logged %d times", len(at))
		}
		b.store.mu.Lock()
		b.store.away = false
		b.store.mu.Unlock()
		time.Sleep(7 * time.Second)
		b.wantFactor(t, 1000)
	})
}

func TestAggregates(t *testing.T) {
	samples := []signal.Sample{{Value: 1}, {Value: 5}, {Value: 3}}
	for how, want := range map[policy.Aggregate]float64{policy.Sum: 9, policy.Max: 5, policy.Avg: 3} {
		got, err := readings(samples, policy.Signal{Aggregate: how, Of: policy.Scaled{Section: policy.Levels, Name: "2"}})
		if err != nil || got[suspend.Target{Scope: suspend.Level, Name: "2"}] != want {
			t.Errorf("%v: %v, %v", how, got, err)
		}
	}
}

func TestReaderRefuses(t *testing.T) {
	mux := http.NewServeMux()
	mux.HandleFunc("/gone", http.NotFound)
	mux.Handle("/moved", http.RedirectHandler("/metrics", http.StatusFound))
	mux.Handle("/metrics", &vllm{waiting: map[string]float64{"m1": 7}})
	server := httptest.NewServer(mux)
	defer server.Close()
	client := NewPoller(PollerOptions{}).opts.Client
	defer client.CloseIdleConnections()
	for path, want := range map[string]string{"/gone": "404", "/moved": "redirect", "/metrics": ""} {
		r, err := newReader(client, policy.Signal{
			URL: server.URL + path, Series: "vllm:num_requests_waiting", Interval: time.Minute,
			Of: policy.Scaled{Section: policy.Columns, Name: "m1"},
		})
		if err != nil {
			t.Fatal(err)
		}
		values, err := r.read(t.Context())
		if want == "" {
			if err != nil || values[m1] != 7 {
				t.Errorf("%s: %v, %v", path, values, err)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", path, err, want)
		}
	}
}
