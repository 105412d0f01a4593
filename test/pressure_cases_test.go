package test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstockmq/penstock/broker/admin"
	"github.com/penstockmq/penstock/broker/lite"
	"github.com/penstockmq/penstock/cmd/mockmodel"
	"github.com/penstockmq/penstock/consumer/mq"
)

// TestC77_LevelsGiveWayInOrder offers 20/s of each level where 50/s may go in all, and
// then 100/s: the case's rates halved, its times shortened.
func TestC77_LevelsGiveWayInOrder(t *testing.T) {
	t.Parallel()
	const (
		levels, offered, users = 4, 20, 4
		capacity               = 50
		warm, measured         = 3 * time.Second, 5 * time.Second
		back                   = 5 * time.Second
	)
	rules := "importance:\n"
	for level := range levels {
		for u := range users {
			rules += fmt.Sprintf("  - {user: l%d-%d, level: %d}\n", level, u, level)
		}
	}
	quota := func(n int) string { return fmt.Sprintf("broker: {quota: %d/s}\n", n) + rules }
	f := startFleet(t, quota(capacity), "--in-flight", "8", "--flush", "async")
	var mu sync.Mutex // guards the following field
	var came [levels][]time.Time
	f.consume(2, mq.Options{Workers: 16}, func(_ context.Context, m *mq.Message) mq.Verdict {
		mu.Lock()
		defer mu.Unlock()
		level := m.Lite[1] - '0'
		came[level] = append(came[level], time.Now())
		return mq.Ack()
	})
	p := f.producer()
	begin := time.Now()
	for level := range levels {
		n := 0 // of this feeder alone
		feeding(t, offered, func(ctx context.Context) error {
			n++
			return sendTo(ctx, p, fmt.Sprintf("l%d-%d", level, n%users), model, "load")
		})
	}
	rates := func(from time.Time, d time.Duration) (rates [levels]float64) {
		until(t, from.Add(d))
		mu.Lock()
		defer mu.Unlock()
		for level, at := range came {
			for _, a := range at {
				if !a.Before(from) && a.Before(from.Add(d)) {
					rates[level] += 1 / d.Seconds()
				}
			}
		}
		return rates
	}
	const floor = capacity / 16.0
	short := rates(begin.Add(warm), measured)
	t.Logf("%d/s: %.1f", capacity, short)
	for level, want := range [levels]float64{offered, offered, capacity - 2*offered - floor, floor} {
		if short[level] < want-2.5 || short[level] > want+2.5 {
			t.Errorf("L%d has %.1f/s of %d, want %.1f", level, short[level], capacity, want)
		}
	}
	if sum := short[0] + short[1] + short[2] + short[3]; sum > capacity*1.05 || sum < capacity*0.9 {
		t.Errorf("%.1f/s in all, the capacity is %d", sum, capacity)
	}
	f.apply(quota(2 * capacity))
	ample := rates(time.Now().Add(back), measured/2)
	t.Logf("%d/s: %.1f", 2*capacity, ample)
	for level, rate := range ample { // some have a backlog beside
		if rate < offered-2.5 {
			t.Errorf("L%d has %.1f/s when there is enough, want %d", level, rate, offered)
		}
	}
}

// feedPage is a page of metrics that can be gone.
type feedPage struct {
	t    *testing.T
	addr string
	mu   sync.Mutex // guards the following fields
	page string
	stop func()
}

func newFeedPage(t *testing.T, page string) *feedPage {
	t.Helper()
	f := &feedPage{t: t, addr: freeAddr(t), page: page}
	f.start()
	t.Cleanup(func() { f.stop() })
	return f
}

func (f *feedPage) start() {
	f.t.Helper()
	ln, err := new(net.ListenConfig).Listen(f.t.Context(), "tcp", f.addr)
	must(f.t, err)
	server := &http.Server{ReadHeaderTimeout: enough, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		f.mu.Lock()
		defer f.mu.Unlock()
		_, _ = io.WriteString(w, f.page)
	})}
	served := make(chan error, 1)
	go func() { served <- server.Serve(ln) }()
	f.stop = func() { // again: does nothing
		_ = server.Close()
		if err, ok := <-served; ok && !errors.Is(err, http.ErrServerClosed) {
			f.t.Error(err)
		}
		close(served)
		f.stop = func() {}
	}
}

func (f *feedPage) say(page string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.page = page
}

// TestC79_StaleSignalIsToldAndDoesNotHalt takes the metrics away while 100 requests are
// queued, and brings them back. The documented stance is when_stale: go on at half.
func TestC79_StaleSignalIsToldAndDoesNotHalt(t *testing.T) {
	t.Parallel()
	const (
		perSecond = 20
		interval  = time.Second
		staleFor  = 4 * time.Second         // measured; a minute in the case
		stale     = "penstock_signal_stale" // of the only one
	)
	page := newFeedPage(t, "waiting 1\n")
	s := up(t, setup{
		live: fmt.Sprintf("columns: [{model: m, rate: %d/s}]\nsignals:\n"+
			"  - {name: load, column: m, url: \"http://%s/metrics\", series: waiting, target: 5, interval: %v, stale_after: %v, when_stale: 0.5}\n",
			perSecond, page.addr, interval, interval),
		args: []string{"--in-flight", "16"},
	})
	watch(t, enough, func() bool {
		var list admin.Signals
		s.query("signals", &list)
		return len(list.Signals) == 1 && list.Signals[0].Permille == 1000
	}, func() string { return "the signal is not read" })
	p := s.producerOf()
	queue(t, p, "u", model, 150)
	factor := func() (permille int64, stale bool) {
		for _, l := range s.explain("u", model).Limits {
			if l.Limit == "rate" && l.Scope == "column" || l.Limit == "signal" {
				if l.Factor > 0 {
					permille = l.Factor
				}
				stale = stale || l.Stale
			}
		}
		return permille, stale
	}
	page.stop()
	stopped := time.Now()
	s.waitMetric(stale, 1)
	if after := time.Since(stopped); after > 2*interval+slack {
		t.Errorf("it is told %v after the end of the feed, want within two intervals of %v", after, interval)
	}
	// The factor falls when the signal's own time is over.
	watch(t, 2*interval+soon, func() bool { p, st := factor(); return st && p == 500 }, func() string {
		return fmt.Sprintf("explain does not say that the signal is stale and halves the column: %+v", s.explain("u", model).Limits)
	})
	from := time.Now()
	until(t, from.Add(staleFor))
	if got, want := s.stub.between(from, from.Add(staleFor), nil), perSecond*staleFor.Seconds()/2; !near(got, want, want/5) {
		t.Errorf("%d calls in %v without the signal, want %.0f: half of the limit", got, staleFor, want)
	}
	log := s.log.String()
	if strings.Count(log, `msg="load signal stale"`) != 1 || strings.Contains(log, "load over target") {
		t.Errorf("want one warning of the stale signal, and none of an overload:\n%s", tail(log, 2000))
	}
	page.start()
	started := time.Now()
	s.waitMetric(stale, 0)
	if after := time.Since(started); after > interval+slack {
		t.Errorf("it is back %v after the feed, want within %v", after, interval)
	}
	s.stub.wait("the rest", func(st mockmodel.Stats) bool { return st.Answered == 150 })
	// An overload is another thing, and told as such.
	page.say("waiting 10\n")
	watch(t, enough, func() bool { return strings.Contains(s.log.String(), "load over target") }, func() string {
		return "no word of the overload:\n" + tail(s.log.String(), 2000)
	})
	s.metrics(map[string]float64{stale: 0, "penstock_signal_factor": 0.5})
}

// alarm posts an alert as Alertmanager does.
func (p *process) alarm(status string) admin.AlarmReport {
	p.t.Helper()
	now := time.Now().UTC()
	alert := map[string]any{
		"status": status, "labels": map[string]string{"alertname": "GpuHot"}, "annotations": map[string]string{"summary": "too hot"},
		"startsAt": now.Format(time.RFC3339Nano), "endsAt": "0001-01-01T00:00:00Z", "fingerprint": "c83c83c83c83c83c",
	}
	if status == "resolved" {
		alert["endsAt"] = now.Format(time.RFC3339Nano)
	}
	body, err := json.Marshal(map[string]any{"version": "4", "status": status, "alerts": []any{alert}})
	must(p.t, err)
	code, text := p.request(http.MethodPost, "/v1/alarms", string(body))
	var report admin.AlarmReport
	if code != http.StatusOK {
		p.t.Fatalf("alarm: %d %s", code, text)
	}
	must(p.t, json.Unmarshal([]byte(text), &report))
	return report
}

// TestC83_LateComersSeeThePause pauses a column by an alarm; then a pool is added, another
// is killed and starts again, so does the broker, and a bucket appears.
func TestC83_LateComersSeeThePause(t *testing.T) {
	t.Parallel()
	const paused = 2 * time.Second
	f := startFleet(t, "columns: [{model: m, in_flight: 1000}]\n"+
		"alarms: [{name: gpu, match: {alertname: GpuHot}, column: m, factor: 0, for: 10m, hold_down: 0s}]\n")
	pool := f.pools(1)[0]
	p := f.producerOf()
	queue(t, p, "u1", model, 1)
	f.stub.wait("a call before the alarm", func(st mockmodel.Stats) bool { return st.Answered == 1 })

	if r := f.alarm("firing"); r.Raised != 1 {
		t.Fatalf("%+v", r)
	}
	column := func() bool {
		var list admin.Signals
		f.query("signals", &list)
		return slices.ContainsFunc(list.Signals, func(s admin.Signal) bool { return s.Scope == "column" && s.Name == model && s.Permille == 0 })
	}
	watch(t, slack, column, func() string { return "the signal is not listed" })
	until(t, time.Now().Add(slack)) // within which it is in force everywhere
	queue(t, p, "u1", model, 3)
	f.pools(1)
	pool.kill()
	f.pools(1)
	f.kill()
	f.restart()
	queue(t, f.producerOf(), "u77", model, 10)
	queue(t, f.producerOf(), "u77", "other", 1) // another column goes on
	f.stub.wait("the other column", func(st mockmodel.Stats) bool { return st.Models["other"] == 1 })
	until(t, time.Now().Add(paused))
	if n := f.stub.Stats().Models[model]; n != 1 {
		t.Fatalf("%d calls while the column is paused", n-1)
	}
	if e := f.explain("u77", model); e.Gate == nil || e.Gate.Scope != "column" {
		t.Errorf("what waits is explained as %+v", e)
	}

	if r := f.alarm("resolved"); r.Resolved != 1 {
		t.Fatalf("%+v", r)
	}
	cleared := time.Now()
	f.stub.wait("all that waited", func(st mockmodel.Stats) bool { return st.Models[model] == 14 })
	if took := time.Since(cleared); took > time.Second+slack {
		t.Errorf("all came %v after the end of the alarm", took)
	}
	if r := f.alarm("firing"); r.Raised != 1 { // again at once
		t.Fatalf("%+v", r)
	}
	until(t, time.Now().Add(slack))
	queue(t, f.producerOf(), "u78", model, 3)
	until(t, time.Now().Add(paused))
	if n := f.stub.Stats().Models[model]; n != 14 {
		t.Errorf("%d calls during the second pause", n-14)
	}
	f.alarm("resolved")
	f.stub.wait("the rest", func(st mockmodel.Stats) bool { return st.Models[model] == 17 })
	name, err := lite.Encode(lite.Cell{User: "u78", Model: model})
	must(t, err)
	f.waitMetric("penstock_broker_messages", 0)
	var b admin.Bucket
	f.query("topics/"+topic+"/buckets/"+name, &b)
	if b.Status != admin.BucketActive {
		t.Errorf("the bucket's status is %s", b.Status)
	}
}
