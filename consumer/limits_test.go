package consumer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstockmq/penstock/broker/lite"
	"github.com/penstockmq/penstock/consumer/forward"
	"github.com/penstockmq/penstock/consumer/mq"
	"github.com/penstockmq/penstock/consumer/reply"
	"github.com/penstockmq/penstock/suspend/policy"
	"github.com/penstockmq/penstock/suspend/quota"
)

func document(t *testing.T, text string) *policy.Document {
	t.Helper()
	doc, err := policy.Parse([]byte("version: 1\n" + text))
	if err != nil {
		t.Fatal(err)
	}
	return doc
}

// costing is a model that works for d and then says what each request cost, or, as a stream without usage does, leaves
// it to what was counted.
func costing(d time.Duration, output func(r forward.Request) int64) downstreamFunc {
	return func(ctx context.Context, r forward.Request, sink forward.Sink) forward.Outcome {
		o := takes(d)(ctx, r, sink)
		o.Spent = forward.Spent{Output: output(r)}
		return o
	}
}

// C55: five calls at once on a budget of 100 tokens a minute. What is under way counts, so they do not all see it free.
func TestC55ParallelRequestsShareTheirBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newMemory(8)
		costs := []int64{58, 80, 175, 175, 175}
		var mu sync.Mutex
		var inFirst, all int64
		begin := time.Now()
		done := 0
		_, stop := run(t, Options{
			Consumer: b, Policy: fixed(document(t, "rows:\n  - {user: alice, tokens: 100/1m}\n")),
			Downstream: downstreamFunc(func(ctx context.Context, r forward.Request, sink forward.Sink) forward.Outcome {
				n, _ := strconv.Atoi(string(r.Body))
				o := costing(2*time.Second, func(forward.Request) int64 { return costs[n] })(ctx, r, sink)
				mu.Lock()
				defer mu.Unlock()
				done++
				if all += costs[n]; time.Since(begin) < time.Minute {
					inFirst += costs[n]
				}
				return o
			}),
		})
		for i := range costs { // each in a bucket of its own
			cell := lite.Cell{User: "alice", Model: fmt.Sprint("m", i)}
			name, err := lite.Encode(cell)
			if err != nil {
				t.Fatal(err)
			}
			b.add(&mq.Message{Lite: name, Body: []byte(fmt.Sprint(i)), Attempt: 1, Born: begin, Properties: map[string]string{
				lite.PropertyUser: cell.User, lite.PropertyModel: cell.Model, lite.PropertyMaxTokens: "200",
			}})
		}
		time.Sleep(10 * time.Minute)
		b.drained(t)
		stop()
		if inFirst > 100+175 || inFirst < 100 {
			t.Errorf("%d tokens in the first minute, want 100 and at most the largest request more", inFirst)
		}
		if done != len(costs) || all != 58+80+3*175 {
			t.Errorf("%d requests of %d tokens in all", done, all)
		}
	})
}

// C70: a stream's tokens count as those of an answer in one piece do, so the same request is the first to be held.
func TestC70StreamsCount(t *testing.T) {
	held := map[string]int{}
	for _, mode := range []string{"whole", "stream"} {
		synctest.Test(t, func(t *testing.T) {
			b := newMemory(1)
			var at []time.Time
			_, stop := run(t, Options{
				Consumer: b, Policy: fixed(document(t, "limits:\n  - {user: alice, tokens: 1000/1m}\n")),
				Downstream: downstreamFunc(func(ctx context.Context, r forward.Request, sink forward.Sink) forward.Outcome {
					at = append(at, time.Now())
					if mode == "whole" {
						return costing(time.Second, func(forward.Request) int64 { return 300 })(ctx, r, sink)
					}
					if err := sink.Head(200, nil); err != nil {
						t.Error(err)
					}
					time.Sleep(time.Second)
					// Usage came in the last event, or was counted from what was sent: forward's tests.
					return forward.Outcome{Kind: forward.Done, Started: true, Status: 200, Spent: forward.Spent{Output: 300}}
				}),
			})
			for i := range 5 {
				b.put(t, alice, reply.Request{}, fmt.Sprint(i))
			}
			time.Sleep(10 * time.Minute)
			b.drained(t)
			stop()
			for i := range at {
				if at[i].Sub(at[0]) > 30*time.Second {
					held[mode] = i
					break
				}
			}
		})
	}
	if held["stream"] != held["whole"] || held["whole"] < 3 {
		t.Errorf("first held back, counted from 0: %v; want the fourth or fifth, the same in both", held)
	}
}

// C72 with limits in the pool: whatever way a request ends, its place in flight is free again.
func TestC72PlacesAreFreedOnEveryPath(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newMemory(40)
		ends := []forward.Outcome{
			{Kind: forward.Failed, Failure: reply.Failure{Code: forward.CodeTimeout}, Retry: true, Err: errors.New("time-out")},
			{Kind: forward.Failed, Started: true, Err: errors.New("reset in mid-stream")},
			{Kind: forward.Failed, Retry: true, Status: 502, Err: errors.New("502")},
			{Kind: forward.Busy, Status: 429, After: 70 * time.Millisecond},
			{Kind: forward.Cancelled, Err: errors.New("upstream closed")},
			{},
		}
		running, most := 0, 0
		var mu sync.Mutex
		p, stop := run(t, Options{
			Consumer: b, Policy: fixed(document(t, "rows:\n  - {user: alice, in_flight: 10}\n")), BackoffMin: 10 * time.Millisecond,
			Downstream: downstreamFunc(func(ctx context.Context, r forward.Request, sink forward.Sink) forward.Outcome {
				mu.Lock()
				running++
				most = max(most, running)
				mu.Unlock()
				defer func() { mu.Lock(); running--; mu.Unlock() }()
				if err := sleep(ctx, 100*time.Millisecond); err != nil {
					return forward.Outcome{Kind: forward.Cancelled, Err: err}
				}
				n, _ := strconv.Atoi(string(r.Body))
				if r.Attempt == 1 && n < 30 && time.Since(r.Accepted) < 900*time.Millisecond {
					if n%7 == 6 {
						panic("a downstream's fault")
					}
					return ends[n%len(ends)]
				}
				return takes(0)(ctx, r, sink)
			}),
		})
		for i := range 30 {
			b.put(t, lite.Cell{User: "alice", Model: fmt.Sprint("m", i)}, reply.Request{Accepted: time.Now()}, fmt.Sprint(i))
		}
		b.drained(t)
		synctest.Wait()
		if most != 10 {
			t.Errorf("up to %d ran at once, want 10", most)
		}
		p.limiter.mu.Lock()
		if n := p.limiter.ledger.Stats().InFlight; n != 0 {
			t.Errorf("%d in flight when nothing runs", n)
		}
		p.limiter.mu.Unlock()
		begin := time.Now()
		b.put(t, lite.Cell{User: "alice", Model: "next"}, reply.Request{Accepted: begin.Add(-time.Hour)}, "99")
		b.drained(t)
		if d := time.Since(begin); d != 100*time.Millisecond {
			t.Errorf("the next request took %s, want the model's time alone", d)
		}
		stop()
	})
}

// describing is a broker that can do more than RocketMQ's.
type describing struct {
	*memory

	can mq.Features
}

func (d describing) Features() mq.Features { return d.can }

// Where the broker asks the limits the pool has none: nothing is suspended, not even by the bound of a model.
func TestABrokerThatAsksTheLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newMemory(8)
		var metrics Metrics
		_, stop := run(t, Options{
			Consumer: describing{b, mq.Features{Limits: true}}, Metrics: &metrics, Downstream: takes(time.Second),
			Policy: fixed(mustPolicy(t, `  - {model: gpt, rate: 1/h}`)), Concurrency: func(string) int { return 1 }, SlotWait: time.Millisecond,
		})
		begin := time.Now()
		for i := range 8 {
			b.put(t, lite.Cell{User: fmt.Sprint("u", i), Model: "gpt"}, reply.Request{}, "x")
		}
		b.drained(t)
		if d := time.Since(begin); d != time.Second || metrics.Limited.Load()+metrics.Full.Load() != 0 {
			t.Errorf("took %s; %d limited, %d full", d, metrics.Limited.Load(), metrics.Full.Load())
		}
		stop()
		for _, turn := range b.turns {
			if s := turn.verdict.Settlement; s == nil || s.Outcome != mq.OutcomeGood {
				t.Errorf("settlement %+v", s)
			}
		}
	})
}

// C82: who is told the same wait does not come back in the same second, nor anybody early.
func TestC82HoldsAreSpread(t *testing.T) {
	const (
		base    = 30 * time.Second
		callers = 200 // a thousand at one instant of a bubble have crashed the race detector itself
	)
	for _, can := range []mq.Features{{}, {Limits: true, Settle: true, Holds: true, Scopes: true}} {
		synctest.Test(t, func(t *testing.T) {
			b := newMemory(callers)
			answers := map[string]int{}
			var mu sync.Mutex
			_, stop := run(t, Options{
				Consumer: describing{b, can},
				Downstream: downstreamFunc(func(ctx context.Context, r forward.Request, sink forward.Sink) forward.Outcome {
					time.Sleep(time.Second) // so that all are there before the first is refused
					mu.Lock()
					answers[r.User]++
					first := answers[r.User] == 1
					mu.Unlock()
					if first {
						return forward.Outcome{Kind: forward.Busy, Status: 429, After: base}
					}
					return takes(0)(ctx, r, sink)
				}),
			})
			for i := range callers {
				b.put(t, lite.Cell{User: fmt.Sprint("u", i), Model: "gpt"}, reply.Request{}, "x")
			}
			time.Sleep(time.Minute)
			b.drained(t)
			stop()
			seconds := map[int]int{}
			for _, turn := range b.turns {
				v := turn.verdict
				if v.Kind != mq.VerdictSuspend || v.Settlement.Outcome != mq.OutcomeOverload {
					continue
				}
				d := v.After
				if can.Scopes {
					if v.Hold == nil || v.Hold.Scope != "column" || v.Hold.Name != "gpt" || v.After != 0 {
						t.Fatalf("verdict %+v of a busy model", v)
					}
					d = v.Hold.For
				} else if v.Hold != nil {
					t.Fatalf("a hold for a broker that takes none: %+v", v.Hold)
				}
				if d < base || d > base+base/5 {
					t.Fatalf("hold of %s, want %s and up to a fifth more", d, base)
				}
				seconds[int(d/time.Second)]++
				if turn.m.Attempt != 1 {
					t.Errorf("attempt %d", turn.m.Attempt)
				}
			}
			if len(seconds) < 4 {
				t.Errorf("holds by whole seconds: %v", seconds)
			}
		})
	}
}

// A broker that holds no columns: the pool keeps every bucket of a busy model away from it by itself.
func TestABusyModelIsLeftAloneByThePool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newMemory(4)
		var mu sync.Mutex
		var at []time.Duration
		begin := time.Now()
		_, stop := run(t, Options{Consumer: b, Downstream: downstreamFunc(
			func(ctx context.Context, r forward.Request, sink forward.Sink) forward.Outcome {
				mu.Lock()
				at = append(at, time.Since(begin))
				first := len(at) == 1
				mu.Unlock()
				if first {
					return forward.Outcome{Kind: forward.Busy, Status: 429, After: 10 * time.Second}
				}
				return takes(0)(ctx, r, sink)
			})})
		b.put(t, lite.Cell{User: "first", Model: "gpt"}, reply.Request{}, "x")
		synctest.Wait()
		for i := range 5 {
			b.put(t, lite.Cell{User: fmt.Sprint("u", i), Model: "gpt"}, reply.Request{}, "x")
		}
		b.put(t, lite.Cell{User: "u", Model: "other"}, reply.Request{}, "x")
		b.drained(t)
		stop()
		slices.Sort(at)
		if at[1] != 0 || at[2] < 10*time.Second || at[6] > 14*time.Second {
			t.Errorf("calls at %v; want that of the other model at once, the rest after 10 s", at)
		}
	})
}

// C109: with very many cells no ask looks at all of them, and what owes nothing is forgotten in small steps.
func TestC109EvictionNeverScans(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const cells = 100_000
		l := newLimiter(fixed(mustPolicy(t, `  - {model: gpt, rate: 1/s}`)), time.Millisecond)
		base := l.accounts()
		for i := range cells {
			c := asking(lite.Cell{User: strconv.Itoa(i), Model: "gpt"}, 1)
			l.free(time.Now(), l.ask(time.Now(), c, true).permit, quota.Settlement{})
		}
		full := l.accounts()
		if full-base < cells {
			t.Fatalf("%d accounts of %d cells", full-base, cells)
		}
		time.Sleep(time.Minute) // all of them are as good as none
		if a := l.ask(time.Now(), asking(alice, 1), true); !a.ok {
			t.Fatal("refused")
		}
		if dropped := full - l.accounts(); dropped > 5_000 {
			t.Errorf("one ask has dropped %d accounts under its lock", dropped)
		}
		for most := 0; ; {
			before := l.accounts()
			done := l.sweepOnce(time.Now())
			if most = max(most, before-l.accounts()); most > 200_000 {
				t.Fatalf("one chunk of a sweep has dropped %d accounts", most)
			}
			if done {
				break
			}
		}
		if n := l.accounts() - base; n > 3 { // alice's cell, row and column
			t.Errorf("%d accounts are left", n)
		}
	})
}

// An ask with a great many cells waiting costs what one with few does.
func BenchmarkC109Ask(b *testing.B) {
	for _, cells := range []int{1_000, 100_000} {
		b.Run(fmt.Sprint(cells), func(b *testing.B) {
			doc, err := policy.Parse([]byte("version: 1\nlimits:\n  - {model: gpt, rate: 1/h}\n"))
			if err != nil {
				b.Fatal(err)
			}
			l := newLimiter(fixed(doc), time.Millisecond)
			claims := make([]claim, cells)
			for i := range claims {
				claims[i] = asking(lite.Cell{User: strconv.Itoa(i), Model: "gpt"}, 1)
				l.ask(time.Now(), claims[i], true)
			}
			for i := 0; b.Loop(); i++ {
				l.ask(time.Now(), claims[i%cells], true)
			}
		})
	}
}

// A message says by properties how it counts; what cannot be read counts as absent.
func TestClaims(t *testing.T) {
	m := &mq.Message{Lite: "alice__gpt", Body: []byte("12345"), Properties: map[string]string{
		lite.PropertyLevel: "3", lite.PropertyInputTokens: "40", lite.PropertyMaxTokens: "500", lite.PropertyCost: "7",
	}}
	c := claimOf(m, alice, requestsOf(m))
	if c.level != 3 || c.cost != (quota.Cost{Requests: 7, Tokens: 40, BytesIn: 5}) || c.maxOutput != 500 || c.place.Bucket != "alice__gpt" {
		t.Errorf("%+v", c)
	}
	maps.Copy(m.Properties, map[string]string{
		lite.PropertyLevel: "4", lite.PropertyInputTokens: "-1", lite.PropertyMaxTokens: "many", lite.PropertyCost: "0",
	})
	if c := claimOf(m, alice, requestsOf(m)); c.level != unstamped || c.cost != (quota.Cost{Requests: 1, BytesIn: 5}) || c.maxOutput != 0 {
		t.Errorf("faulty properties: %+v", c)
	}
	if c := claimOf(&mq.Message{}, alice, 1); c.level != unstamped {
		t.Errorf("level %d of a message without properties", c.level)
	}
}

func TestOutcomesBecomeSettlements(t *testing.T) {
	none := mq.Settlement{InputTokens: -1, OutputTokens: -1}
	with := func(o mq.Outcome, in, out, bytes int64) mq.Settlement {
		return mq.Settlement{Outcome: o, InputTokens: in, OutputTokens: out, BytesOut: bytes}
	}
	for _, tt := range []struct {
		name string
		out  forward.Outcome
		want mq.Settlement
		led  quota.Outcome
	}{
		{"done", forward.Outcome{Kind: forward.Done, Spent: forward.Spent{Input: 3, Output: 5, BytesOut: 9}}, with(mq.OutcomeGood, 3, 5, 9), quota.Used},
		{"done, nobody knows", forward.Outcome{Kind: forward.Done}, with(mq.OutcomeGood, -1, -1, 0), quota.Used},
		{"refused", forward.Outcome{Kind: forward.Refused, Status: 400}, with(mq.OutcomeGood, 0, 0, 0), quota.Used},
		{"busy", forward.Outcome{Kind: forward.Busy, Status: 429}, with(mq.OutcomeOverload, -1, -1, 0), quota.Unused},
		{"503", forward.Outcome{Kind: forward.Failed, Status: 503}, with(mq.OutcomeOverload, -1, -1, 0), quota.Unused},
		{"502", forward.Outcome{Kind: forward.Failed, Status: 502}, with(mq.OutcomeFailed, -1, -1, 0), quota.Unused},
		{"time-out", forward.Outcome{Kind: forward.Failed, Failure: reply.Failure{Code: forward.CodeTimeout}}, with(mq.OutcomeTimeout, -1, -1, 0), quota.Used},
		{"broke off", forward.Outcome{Kind: forward.Failed, Started: true, Spent: forward.Spent{Output: 4, BytesOut: 90}}, with(mq.OutcomeFailed, -1, 4, 90), quota.Used},
		{"cancelled", forward.Outcome{Kind: forward.Cancelled}, none, quota.Unknown},
		{"cancelled in mid-answer", forward.Outcome{Kind: forward.Cancelled, Started: true, Spent: forward.Spent{Output: 4}}, with(mq.OutcomeFailed, -1, 4, 0), quota.Used},
	} {
		got := settlementOf(tt.out)
		if got != tt.want || ledgered(got).Outcome != tt.led {
			t.Errorf("%s: %+v, to the ledger %d; want %+v, %d", tt.name, got, ledgered(got).Outcome, tt.want, tt.led)
		}
	}
	if q := ledgered(unused()); q.Outcome != quota.Unsent {
		t.Errorf("unused: %+v", q)
	}
}
