package consumer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstockmq/penstock/broker/lite"
	"github.com/penstockmq/penstock/consumer/forward"
	"github.com/penstockmq/penstock/consumer/mq"
	"github.com/penstockmq/penstock/consumer/reply"
)

// C09: one throttled head must not stall everybody behind it.
func TestC09ThrottledBucketsKeepNobodyWaiting(t *testing.T) {
	const (
		buckets, throttled, workers = 50, 40, 50
		interval, length            = 200 * time.Millisecond, 20 * time.Second
	)
	// load feeds every bucket 5 messages a second and returns the delays from write to forwarding of the free buckets, and
	// the instants at which each throttled one was forwarded.
	load := func(t *testing.T, policyText string) (free []time.Duration, slow map[string][]time.Time) {
		t.Helper()
		b := newMemory(workers)
		slow = map[string][]time.Time{}
		var mu sync.Mutex
		born := map[string]time.Time{}
		model := func(ctx context.Context, r forward.Request, sink forward.Sink) forward.Outcome {
			now := time.Now()
			mu.Lock()
			if r.User >= "user40" {
				free = append(free, now.Sub(born[r.User+string(r.Body)]))
			} else {
				slow[r.User] = append(slow[r.User], now)
			}
			mu.Unlock()
			return takes(20*time.Millisecond)(ctx, r, sink)
		}
		_, stop := run(t, Options{Consumer: b, Downstream: downstreamFunc(model), Policy: fixed(mustPolicy(t, policyText))})
		for n := range int(length / interval) {
			for i := range buckets {
				c := lite.Cell{User: fmt.Sprintf("user%02d", i), Model: "gpt"}
				mu.Lock()
				born[c.User+fmt.Sprint(n)] = time.Now()
				mu.Unlock()
				b.put(t, c, reply.Request{}, fmt.Sprint(n))
			}
			time.Sleep(interval)
		}
		b.mu.Lock()
		for name, bucket := range b.buckets {
			cell, _ := lite.Decode(name)
			if n := len(bucket.queue); cell.User >= "user40" && n > 0 {
				t.Errorf("%d messages of a free bucket are pending", n)
			}
		}
		b.mu.Unlock()
		stop()
		return free, slow
	}
	p99 := func(d []time.Duration) time.Duration {
		slices.Sort(d)
		return d[len(d)*99/100]
	}
	synctest.Test(t, func(t *testing.T) {
		var rules strings.Builder
		for i := range throttled {
			fmt.Fprintf(&rules, "  - {user: user%02d, rate: 1/300ms}\n", i)
		}
		none, _ := load(t, `  - {user: nobody, rate: 1/s}`)
		free, slow := load(t, rules.String())
		if len(free) != (buckets-throttled)*int(length/interval) {
			t.Fatalf("%d messages of free buckets were forwarded", len(free))
		}
		if base, got := p99(none), p99(free); got > base+20*time.Millisecond {
			t.Errorf("p99 delay of free buckets %s, %s with none throttled", got, base)
		}
		if len(slow) != throttled {
			t.Fatalf("%d throttled buckets were forwarded", len(slow))
		}
		for user, at := range slow {
			if n := len(at); n < 60 || n > 67 {
				t.Errorf("%s: %d forwarded in 20 s at 1/300ms", user, n)
			}
			for i := 1; i < len(at); i++ {
				if gap := at[i].Sub(at[i-1]); gap < 300*time.Millisecond {
					t.Fatalf("%s: forwarded %s apart", user, gap)
				}
			}
		}
	})
}

// C72: the in-flight gauge falls with every way a request can end.
func TestC72InFlightNeverLeaks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newMemory(30)
		var metrics Metrics
		ends := []forward.Outcome{
			{Kind: forward.Failed, Retry: true, Err: errors.New("time-out")},
			{Kind: forward.Failed, Started: true, Err: errors.New("reset in mid-stream")},
			{Kind: forward.Failed, Retry: true, Status: 502, Err: errors.New("502")},
			{Kind: forward.Busy, After: 70 * time.Millisecond},
			{Kind: forward.Cancelled, Err: errors.New("upstream closed")},
			{},
		}
		model := func(ctx context.Context, r forward.Request, sink forward.Sink) forward.Outcome {
			if err := sleep(ctx, 100*time.Millisecond); err != nil {
				return forward.Outcome{Kind: forward.Cancelled, Err: err}
			}
			if string(r.Body) == "panic" && r.Attempt == 1 {
				panic("a downstream's fault")
			}
			var n int
			if _, err := fmt.Sscanf(string(r.Body), "fault %d", &n); err == nil && r.Attempt == 1 && time.Since(r.Accepted) < 150*time.Millisecond {
				return ends[n%len(ends)]
			}
			return takes(0)(ctx, r, sink)
		}
		p, stop := run(t, Options{
			Consumer: b, Downstream: downstreamFunc(model), Metrics: &metrics,
			Concurrency: func(string) int { return 10 }, BackoffMin: 10 * time.Millisecond,
		})
		for i := range 30 {
			b.put(t, lite.Cell{User: fmt.Sprint("user", i), Model: "gpt"}, reply.Request{Accepted: time.Now()}, fmt.Sprint("fault ", i))
		}
		b.put(t, lite.Cell{User: "panic", Model: "gpt"}, reply.Request{}, "panic")
		b.drained(t)
		synctest.Wait()
		if n := metrics.InFlight.Load(); n != 0 {
			t.Errorf("in-flight gauge is %d", n)
		}
		if n := metrics.Handling.Load() + metrics.Waiting.Load(); n != 0 {
			t.Errorf("handling and waiting gauges sum up to %d", n)
		}
		if n := p.slots.running(); n != 0 {
			t.Errorf("%d slots of the model are taken", n)
		}
		if n := metrics.Panics.Load(); n != 1 {
			t.Errorf("%d panics counted", n)
		}
		begin := time.Now()
		b.put(t, lite.Cell{User: "next", Model: "gpt"}, reply.Request{}, "next")
		b.drained(t)
		if d := time.Since(begin); d != 100*time.Millisecond {
			t.Errorf("the next request took %s, want the model's time alone", d)
		}
		stop()
		sum := metrics.Answered.Load() + metrics.Refused.Load() + metrics.Limited.Load() + metrics.Full.Load() + metrics.Busy.Load() +
			metrics.Returned.Load() + metrics.Retried.Load() + metrics.Dead.Load() + metrics.Cancelled.Load() + metrics.Expired.Load() +
			metrics.Lost.Load()
		if received := metrics.Received.Load(); sum != received {
			t.Errorf("%d deliveries received, %d ends counted", received, sum)
		}
	})
}

func TestOutcomesBecomeVerdicts(t *testing.T) {
	failed := reply.Failure{Status: 502, Code: "x", Message: "x"}
	for _, c := range []struct {
		name string
		out  forward.Outcome
		want []mq.VerdictKind // until it is settled
		fail bool             // whether the outcome repeats for ever
	}{
		{"done", forward.Outcome{Kind: forward.Done}, []mq.VerdictKind{mq.VerdictAck}, false},
		{"refused", forward.Outcome{Kind: forward.Refused, Status: 400}, []mq.VerdictKind{mq.VerdictAck}, false},
		{"busy", forward.Outcome{Kind: forward.Busy, After: time.Second}, []mq.VerdictKind{mq.VerdictSuspend, mq.VerdictAck}, false},
		{"failed once", forward.Outcome{Kind: forward.Failed, Retry: true, Failure: failed}, []mq.VerdictKind{mq.VerdictRetry, mq.VerdictAck}, false},
		{
			"failed for ever",
			forward.Outcome{Kind: forward.Failed, Retry: true, Failure: failed},
			[]mq.VerdictKind{mq.VerdictRetry, mq.VerdictRetry, mq.VerdictReject},
			true,
		},
		{"failed for good", forward.Outcome{Kind: forward.Failed, Failure: failed}, []mq.VerdictKind{mq.VerdictReject}, false},
		{
			"failed in mid-answer",
			forward.Outcome{Kind: forward.Failed, Retry: true, Started: true, Failure: failed},
			[]mq.VerdictKind{mq.VerdictReject},
			false,
		},
		{"of no kind", forward.Outcome{}, []mq.VerdictKind{mq.VerdictReject}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newMemory(1)
				calls := 0
				model := func(ctx context.Context, r forward.Request, sink forward.Sink) forward.Outcome {
					if calls++; calls == 1 || c.fail {
						return c.out
					}
					return takes(0)(ctx, r, sink)
				}
				_, stop := run(t, Options{Consumer: b, Downstream: downstreamFunc(model)})
				b.put(t, alice, reply.Request{}, "x")
				b.drained(t)
				stop()
				if got := b.verdicts("x"); !slices.Equal(got, c.want) {
					t.Errorf("verdicts %v, want %v", got, c.want)
				}
				for i, turn := range b.turns {
					if c.want[i] == mq.VerdictSuspend && b.turns[i+1].m.Attempt != turn.m.Attempt {
						t.Error("a suspend counted as an attempt")
					}
				}
			})
		})
	}
}

func TestBackoffDoublesUpToItsBound(t *testing.T) {
	p, err := New(Options{Consumer: newMemory(1), Downstream: takes(0), BackoffMin: 100 * time.Millisecond, BackoffMax: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	for attempt, most := range map[int]time.Duration{
		1: 100 * time.Millisecond, 2: 200 * time.Millisecond, 4: 800 * time.Millisecond, 5: time.Second, 40: time.Second, 1 << 30: time.Second,
	} {
		for range 100 {
			if d := p.backoff(attempt); d < most/2 || d > most {
				t.Fatalf("back-off of attempt %d is %s, want %s to %s", attempt, d, most/2, most)
			}
		}
	}
}

func TestAMessageWhoseWorkersDiedIsNotTriedForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newMemory(1)
		_, stop := run(t, Options{Consumer: b, Attempts: 3, Downstream: downstreamFunc(
			func(context.Context, forward.Request, forward.Sink) forward.Outcome {
				t.Error("forwarded")
				return forward.Outcome{Kind: forward.Done}
			})})
		b.put(t, alice, reply.Request{}, "poison").Attempt = 4
		b.drained(t)
		stop()
		if len(b.dead) != 1 {
			t.Error("no dead letter")
		}
	})
}

func TestWhatIsNoRequestIsADeadLetter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newMemory(1)
		_, stop := run(t, Options{Consumer: b, Downstream: takes(0)})
		name, _ := lite.Encode(alice)
		b.add(&mq.Message{Lite: name, Body: []byte("deadline"), Attempt: 1, Properties: map[string]string{reply.PropertyDeadline: "soon"}})
		b.add(&mq.Message{Lite: name, Body: []byte("another's cell"), Attempt: 1, Properties: map[string]string{
			reply.PropertyUser: "bob", reply.PropertyModel: "gpt",
		}})
		b.add(&mq.Message{Lite: "plain-client", Body: []byte("of a plain client"), Attempt: 1})
		b.drained(t)
		stop()
		if len(b.dead) != 2 {
			t.Errorf("%d dead letters, want 2", len(b.dead))
		}
		if got := b.verdicts("of a plain client"); !slices.Equal(got, []mq.VerdictKind{mq.VerdictAck}) {
			t.Errorf("verdicts of a message without properties: %v", got)
		}
	})
}

func TestStopReturnsWhatWaitsAndFinishesWhatRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newMemory(8)
		b.grace = 5 * time.Second
		var metrics Metrics
		_, stop := run(t, Options{
			Consumer: b, Metrics: &metrics, SlotWait: time.Hour, Concurrency: func(string) int { return 1 },
			Downstream: takes(3 * time.Second),
		})
		b.put(t, lite.Cell{User: "a", Model: "gpt"}, reply.Request{}, "runs")
		synctest.Wait()
		b.put(t, lite.Cell{User: "b", Model: "gpt"}, reply.Request{}, "waits")
		synctest.Wait()
		begin := time.Now()
		stop()
		if d := time.Since(begin); d != 3*time.Second {
			t.Errorf("stop took %s, want the rest of the running request", d)
		}
		if got := b.verdicts("runs"); !slices.Equal(got, []mq.VerdictKind{mq.VerdictAck}) {
			t.Errorf("running request: %v", got)
		}
		if got := b.verdicts("waits"); !slices.Equal(got, []mq.VerdictKind{mq.VerdictSuspend}) {
			t.Errorf("waiting request: %v", got)
		}
		if end := b.turns[0].end; end != begin {
			t.Errorf("the waiting request was given back %s after the stop", end.Sub(begin))
		}
	})
}

func TestWhatOutlastsTheGraceIsReturned(t *testing.T) {
	for _, begun := range []bool{false, true} {
		t.Run(fmt.Sprint("begun ", begun), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newMemory(1)
				b.grace = time.Second
				_, stop := run(t, Options{Consumer: b, Downstream: downstreamFunc(
					func(ctx context.Context, _ forward.Request, sink forward.Sink) forward.Outcome {
						if begun {
							if err := sink.Head(200, nil); err != nil {
								t.Error(err)
							}
						}
						<-ctx.Done()
						return forward.Outcome{Kind: forward.Cancelled, Started: begun, Err: context.Cause(ctx)}
					})})
				b.put(t, alice, reply.Request{}, "x")
				synctest.Wait()
				begin := time.Now()
				stop()
				if d := time.Since(begin); d != time.Second {
					t.Errorf("stop took %s, want the grace", d)
				}
				want := mq.VerdictSuspend
				if begun { // the caller has bytes of it: a second run would not fit them
					want = mq.VerdictReject
				}
				if got := b.verdicts("x"); !slices.Equal(got, []mq.VerdictKind{want}) {
					t.Errorf("verdicts %v, want %v", got, want)
				}
			})
		})
	}
}

// The pace of a cell is its policy's, with workers to spare and the slots of the model in the way.
func TestAMillisecondStepKeepsThePace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newMemory(4)
		var at []time.Time
		var mu sync.Mutex
		_, stop := run(t, Options{
			Consumer: b, Policy: fixed(mustPolicy(t, `  - {user: alice, rate: 20/s}`)), Concurrency: func(string) int { return 2 },
			Downstream: downstreamFunc(func(ctx context.Context, r forward.Request, sink forward.Sink) forward.Outcome {
				mu.Lock()
				at = append(at, time.Now())
				mu.Unlock()
				return takes(time.Millisecond)(ctx, r, sink)
			}),
		})
		for i := range 101 {
			b.put(t, alice, reply.Request{}, fmt.Sprint(i))
		}
		b.drained(t)
		stop()
		if d := at[100].Sub(at[0]); d != 5*time.Second {
			t.Errorf("100 intervals at 20/s took %s", d)
		}
	})
}

func TestOptionsNameWhatIsWrong(t *testing.T) {
	_, err := New(Options{Attempts: -1, SlotWait: -1, BackoffMin: time.Minute, BackoffMax: time.Second})
	for _, key := range []string{"consumer:", "downstream:", "attempts:", "slot_wait:", "backoff_max:"} {
		if err == nil || !strings.Contains(err.Error(), key) {
			t.Errorf("error %v does not name %s", err, key)
		}
	}
}
