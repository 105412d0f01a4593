package consumer_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/penstockmq/penstock/broker"
	"github.com/penstockmq/penstock/broker/lite"
	"github.com/penstockmq/penstock/broker/rpc"
	"github.com/penstockmq/penstock/consumer"
	"github.com/penstockmq/penstock/consumer/forward"
	"github.com/penstockmq/penstock/consumer/mq"
	"github.com/penstockmq/penstock/consumer/reply"
	"github.com/penstockmq/penstock/suspend/policy"
)

// The pool with a real broker, through both adapters.

const patience = time.Minute

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "rocketmq-log")
	if err != nil {
		panic(err)
	}
	if err := mq.SetUpOfficial(mq.OfficialProcess{LogDir: dir, LogLevel: "error"}); err != nil {
		panic(err)
	}
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

func both(t *testing.T, test func(t *testing.T, r *rig)) {
	t.Helper()
	bothIn(t, broker.GroupConfig{}, test)
}

// bothIn is both with a group of its own settings.
func bothIn(t *testing.T, group broker.GroupConfig, test func(t *testing.T, r *rig)) {
	t.Helper()
	for _, kind := range []mq.Kind{mq.Stubs, mq.Official} {
		t.Run(string(kind), func(t *testing.T) {
			if kind == mq.Official && raceDetector {
				t.Skip("the official client has data races of its own; see TestOfficialWithoutTheRaceDetector")
			}
			t.Parallel()
			test(t, newRig(t, kind, group))
		})
	}
}

// rig is a broker with the parent topic "requests" and the group "pool", and one producer.
type rig struct {
	t        *testing.T
	kind     mq.Kind
	endpoint string
	broker   *broker.Broker
	producer mq.Producer
}

func newRig(t *testing.T, kind mq.Kind, group broker.GroupConfig) *rig {
	t.Helper()
	group.Name, group.Topic, group.Wildcard = "pool", "requests", true
	log := slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	b, err := broker.Open(broker.Options{
		Dir: "data", FS: vfs.NewMem(), Logger: log,
		Topics: []broker.TopicConfig{{Name: "requests"}},
		Groups: []broker.GroupConfig{group},
	})
	must(t, err)
	t.Cleanup(func() { _ = b.Close() }) // what matters was checked by then
	s, err := rpc.New(rpc.Options{Broker: b, Logger: log})
	must(t, err)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = s.Run(ctx, ln) }()
	t.Cleanup(func() { cancel(); <-ended })
	r := &rig{t: t, kind: kind, endpoint: ln.Addr().String(), broker: b}
	r.producer, err = mq.NewProducer(mq.Stubs, mq.Options{Endpoint: r.endpoint})
	must(t, err)
	t.Cleanup(func() { _ = r.producer.Close() })
	return r
}

// pool runs a pool until the test ends, or stop.
func (r *rig) pool(workers int, opts consumer.Options) (stop func()) {
	r.t.Helper()
	c, err := mq.NewConsumer(r.kind, mq.Options{
		Endpoint: r.endpoint, Topic: "requests", Group: "pool", Workers: workers, Grace: time.Second,
		Logger: slog.New(slog.NewTextHandler(r.t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	must(r.t, err)
	opts.Consumer = c
	p, err := consumer.New(opts)
	must(r.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			r.t.Errorf("Run: %v", err)
		}
	})
	r.t.Cleanup(stop)
	return stop
}

func (r *rig) send(c lite.Cell, body string) {
	r.t.Helper()
	name, err := lite.Encode(c)
	must(r.t, err)
	_, err = r.producer.Send(r.t.Context(), mq.Outgoing{
		Topic: "requests", Lite: name, Body: []byte(body), Properties: reply.Request{User: c.User, Model: c.Model}.Properties(),
	})
	must(r.t, err)
}

func (r *rig) queued() int {
	r.t.Helper()
	buckets, err := r.broker.Buckets(context.Background(), "requests", "", "", 1000)
	must(r.t, err)
	n := 0
	for _, b := range buckets {
		n += b.Queued
	}
	return n
}

// model is a downstream in a function.
type model func(r forward.Request, sink forward.Sink) forward.Outcome

func (m model) Forward(_ context.Context, r forward.Request, sink forward.Sink) forward.Outcome {
	return m(r, sink)
}

func answer(sink forward.Sink) forward.Outcome {
	if err := sink.Answer(http.StatusOK, nil, []byte("{}"), reply.Usage{}); err != nil {
		return forward.Outcome{Kind: forward.Failed, Err: err}
	}
	return forward.Outcome{Kind: forward.Done, Status: http.StatusOK}
}

// C09, short: throttled buckets have more messages than they may send, and the free ones are done all the same. The broker
// asks the limits, so nothing is delivered just to be suspended.
func TestC09WithABroker(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, r *rig) { throttledAndFree(t, r, false) })
}

// The same of a group that the broker exempts: there the pool asks, and suspends.
func TestC09WhereThePoolAsks(t *testing.T) {
	t.Parallel()
	bothIn(t, broker.GroupConfig{Unlimited: true}, func(t *testing.T, r *rig) { throttledAndFree(t, r, true) })
}

func throttledAndFree(t *testing.T, r *rig, poolAsks bool) {
	t.Helper()
	const throttled, free, messages, workers = 16, 4, 10, 4
	doc, err := policy.Parse([]byte("version: 1\nlimits:\n  - {model: slow, rate: 1/3s}\n"))
	must(t, err)
	must(t, r.broker.SetPolicy(t.Context(), doc))
	var mu sync.Mutex
	taken := map[string][]time.Time{}
	var left atomic.Int64
	left.Store(free * messages)
	done := make(chan struct{})
	var metrics consumer.Metrics
	stop := r.pool(workers, consumer.Options{
		Policy: func() *policy.Document { return doc }, Metrics: &metrics,
		Downstream: model(func(q forward.Request, sink forward.Sink) forward.Outcome {
			mu.Lock()
			taken[q.User] = append(taken[q.User], time.Now())
			mu.Unlock()
			if q.Model == "fast" && left.Add(-1) == 0 {
				close(done)
			}
			return answer(sink)
		}),
	})
	for i := range messages {
		for b := range throttled {
			r.send(lite.Cell{User: fmt.Sprint("slow-", b), Model: "slow"}, fmt.Sprint(i))
		}
		for b := range free {
			r.send(lite.Cell{User: fmt.Sprint("fast-", b), Model: "fast"}, fmt.Sprint(i))
		}
	}
	select {
	case <-done:
	case <-time.After(patience):
		t.Fatalf("free buckets wait: %d messages left", left.Load())
	}
	waiting := r.queued()
	stop()
	if waiting == 0 {
		t.Error("nothing was throttled any more when the free buckets were done")
	}
	if (metrics.Limited.Load() > 0) != poolAsks || metrics.Retried.Load()+metrics.Dead.Load() != 0 {
		t.Errorf("%d suspended, %d retried, %d dead", metrics.Limited.Load(), metrics.Retried.Load(), metrics.Dead.Load())
	}
	for user, at := range taken {
		if n := len(at); user[:4] == "slow" && n > 1 {
			// The policy is asked a moment before the model; the sum over many gaps forgives that moment once.
			if span := at[n-1].Sub(at[0]); span < time.Duration(n-1)*3*time.Second-200*time.Millisecond {
				t.Errorf("%s: %d forwarded within %s", user, n, span)
			}
		}
	}
}

// C29 with a broker: what fails does not block its bucket, and every message is tried as often as it should.
func TestC29WithABroker(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, r *rig) {
		var mu sync.Mutex
		var calls []string
		done := make(chan struct{})
		stop := r.pool(8, consumer.Options{
			Attempts: 2, BackoffMin: 50 * time.Millisecond,
			Downstream: model(func(q forward.Request, sink forward.Sink) forward.Outcome {
				mu.Lock()
				defer mu.Unlock()
				body := string(q.Body)
				calls = append(calls, fmt.Sprint(body, "/", q.Attempt))
				switch body {
				case "refused":
					return forward.Outcome{Kind: forward.Refused, Status: 400}
				case "broken":
					return forward.Outcome{Kind: forward.Failed, Failure: reply.Failure{Status: 502}}
				case "unavailable":
					return forward.Outcome{Kind: forward.Failed, Retry: true, Failure: reply.Failure{Status: 503}}
				case "busy":
					if !slices.Contains(calls[:len(calls)-1], "busy/1") {
						return forward.Outcome{Kind: forward.Busy, After: 60 * time.Millisecond}
					}
				case "last":
					close(done)
				}
				return answer(sink)
			}),
		})
		bodies := []string{"refused", "broken", "unavailable", "busy", "good", "last"}
		for _, body := range bodies {
			r.send(lite.Cell{User: "u", Model: "m"}, body)
		}
		select {
		case <-done:
		case <-time.After(patience):
			t.Fatalf("the bucket is blocked after %q", calls)
		}
		stop()
		want := []string{"refused/1", "broken/1", "unavailable/1", "unavailable/2", "busy/1", "busy/1", "good/1", "last/1"}
		if !slices.Equal(calls, want) {
			t.Errorf("calls %q, want %q", calls, want)
		}
		if n := r.queued(); n != 0 {
			t.Errorf("%d messages are left", n)
		}
		dead, err := r.broker.DeadLetters(context.Background(), "pool", 0, 10)
		must(t, err)
		var got []string
		for _, d := range dead {
			got = append(got, string(d.Message.Body))
		}
		if !slices.Equal(got, []string{"broken", "unavailable"}) {
			t.Errorf("dead letters %q", got)
		}
	})
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
