package mq_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v2 "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/penstockmq/penstock/broker/rpc/penstockv1"
	"github.com/penstockmq/penstock/consumer/mq"
)

// second is a Penstock service that answers as a test says, beside a fake.
type second struct {
	penstockv1.UnimplementedPenstockServer

	mu        sync.Mutex // guards the following fields
	features  []string
	gone      bool  // it is a broker of another kind by now
	holdFault error // answers Hold
	results   map[string]int32
	holds     []*penstockv1.HoldRequest
	settled   []*penstockv1.SettleEntry
	asked     int      // Describes
	renewed   []string // handles of Renew
	lose      int      // answers of Renew to be lost
}

func (s *second) Renew(ctx context.Context, r *penstockv1.RenewRequest) (*penstockv1.RenewResponse, error) {
	s.mu.Lock()
	s.lose--
	lost := s.lose >= 0
	out := &penstockv1.RenewResponse{}
	for _, e := range r.GetEntries() {
		s.renewed = append(s.renewed, e.GetReceiptHandle())
		code, odd := s.results[e.GetReceiptHandle()]
		if !odd {
			code = int32(v2.Code_OK)
		}
		out.Results = append(out.Results, &penstockv1.RenewResult{Code: code})
	}
	s.mu.Unlock()
	if lost {
		<-ctx.Done()
	}
	return out, nil
}

func (s *second) Describe(context.Context, *penstockv1.DescribeRequest) (*penstockv1.DescribeResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked++
	if s.gone {
		return nil, status.Error(codes.Unimplemented, "unknown service")
	}
	return &penstockv1.DescribeResponse{Version: "v9", Features: s.features}, nil
}

func (s *second) Hold(_ context.Context, r *penstockv1.HoldRequest) (*penstockv1.HoldResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.holdFault != nil {
		return nil, s.holdFault
	}
	s.holds = append(s.holds, r)
	return &penstockv1.HoldResponse{}, nil
}

func (s *second) Settle(_ context.Context, r *penstockv1.SettleRequest) (*penstockv1.SettleResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone {
		return nil, status.Error(codes.Unimplemented, "unknown service")
	}
	out := &penstockv1.SettleResponse{}
	for _, e := range r.GetEntries() {
		code, odd := s.results[e.GetReceiptHandle()]
		if !odd {
			code = int32(v2.Code_OK)
			s.settled = append(s.settled, e)
		}
		out.Results = append(out.Results, &penstockv1.SettleResult{Code: code})
	}
	return out, nil
}

// withSecond runs test in a bubble with a consumer of a fake that has a second service.
func withSecond(t *testing.T, f *fake, s *second, test func(t *testing.T, c *consumer)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f.batches, f.ended = make(chan []*v2.Message, 10), make(chan struct{})
		ln := bufconn.Listen(1 << 20)
		server := grpc.NewServer()
		v2.RegisterMessagingServiceServer(server, f)
		penstockv1.RegisterPenstockServer(server, s)
		go func() { _ = server.Serve(ln) }() // its error is the stop
		t.Cleanup(server.Stop)
		n := &node{t: t, address: "fake:1", dialer: func(ctx context.Context, _ string) (net.Conn, error) { return ln.DialContext(ctx) }}
		test(t, n.consume(mq.Stubs, func(o *mq.Options) { o.Invisible, o.Workers = 20*time.Second, 256 }))
	})
}

var all = []string{"limits", "settle", "holds", "scopes", "explain", "renew", "something new"}

func good(output int64) mq.Settlement {
	return mq.Settlement{Outcome: mq.OutcomeGood, InputTokens: 7, OutputTokens: output, BytesOut: 100, Latency: time.Second}
}

// Every verdict with a settlement goes over the second service, and one without by RocketMQ's calls.
func TestSettlementsAreTold(t *testing.T) {
	f, s := &fake{}, &second{features: all}
	withSecond(t, f, s, func(t *testing.T, c *consumer) {
		for body, v := range map[string]mq.Verdict{
			"acked": mq.Ack().With(good(3)), "suspended": mq.Suspend(time.Second).With(mq.Settlement{Outcome: mq.OutcomeOverload, InputTokens: -1, OutputTokens: -1}),
			"retried": mq.Retry(1500 * time.Microsecond).With(mq.Settlement{Outcome: mq.OutcomeTimeout, InputTokens: -1, OutputTokens: 5}),
			"refused": mq.Reject().With(mq.Settlement{Outcome: mq.OutcomeUnused, InputTokens: -1, OutputTokens: -1}),
			"plain":   mq.Ack(),
		} {
			f.batches <- []*v2.Message{message(body, body)}
			c.expect(body, 1).answer(v)
			synctest.Wait()
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		if !slices.Equal(f.acked, []string{"plain"}) || len(f.settled) != 0 {
			t.Errorf("RocketMQ's calls: acked %q, settled %q", f.acked, f.settled)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		got := map[string]*penstockv1.SettleEntry{}
		for _, e := range s.settled {
			got[e.GetReceiptHandle()] = e
		}
		if e := got["acked"]; e.GetAction() != penstockv1.Action_ACTION_ACK || e.GetOutcome() != penstockv1.Outcome_OUTCOME_GOOD ||
			e.GetUsage().GetInputTokens() != 7 || e.GetUsage().GetOutputTokens() != 3 || e.GetBytesOut() != 100 || e.GetLatency().AsDuration() != time.Second {
			t.Errorf("ack: %v", e)
		}
		if e := got["suspended"]; e.GetAction() != penstockv1.Action_ACTION_SUSPEND || e.GetDuration().AsDuration() != time.Second ||
			e.GetOutcome() != penstockv1.Outcome_OUTCOME_OVERLOAD || e.Usage.InputTokens != nil || e.Usage.OutputTokens != nil || e.Latency != nil {
			t.Errorf("suspend: %v", e)
		}
		if e := got["retried"]; e.GetAction() != penstockv1.Action_ACTION_RETRY || e.GetDuration().AsDuration() != 2*time.Millisecond ||
			e.GetOutcome() != penstockv1.Outcome_OUTCOME_TIMEOUT || e.Usage.InputTokens != nil || e.GetUsage().GetOutputTokens() != 5 {
			t.Errorf("retry: %v", e)
		}
		if e := got["refused"]; e.GetAction() != penstockv1.Action_ACTION_REJECT || e.GetOutcome() != penstockv1.Outcome_OUTCOME_UNUSED {
			t.Errorf("reject: %v", e)
		}
	})
}

// An entry that fails is tried again, and one whose handle is stale is not.
func TestSettlementsAreRepeated(t *testing.T) {
	f, s := &fake{}, &second{features: all, results: map[string]int32{
		"fails": int32(v2.Code_INTERNAL_SERVER_ERROR), "stale": int32(v2.Code_INVALID_RECEIPT_HANDLE),
	}}
	withSecond(t, f, s, func(t *testing.T, c *consumer) {
		for _, h := range []string{"fails", "stale", "good"} {
			f.batches <- []*v2.Message{message(h, h)}
			c.expect(h, 1).answer(mq.Ack().With(good(1)))
			synctest.Wait()
		}
		s.mu.Lock()
		delete(s.results, "fails")
		s.mu.Unlock()
		time.Sleep(5 * time.Second)
		s.mu.Lock()
		defer s.mu.Unlock()
		var handles []string
		for _, e := range s.settled {
			handles = append(handles, e.GetReceiptHandle())
		}
		if slices.Sort(handles); !slices.Equal(handles, []string{"fails", "good"}) {
			t.Errorf("settled %q", handles)
		}
	})
}

// A settlement that the broker refuses for good is left out: the message is settled the plain way, not again and again.
func TestARefusedSettlementIsLeftOut(t *testing.T) {
	for name, s := range map[string]*second{
		"of one": {features: all, results: map[string]int32{"a": int32(v2.Code_BAD_REQUEST), "b": int32(v2.Code_BAD_REQUEST)}},
		"of all": {features: all, gone: true},
	} {
		t.Run(name, func(t *testing.T) {
			f := &fake{}
			gone := s.gone
			s.gone = false
			withSecond(t, f, s, func(t *testing.T, c *consumer) {
				f.batches <- []*v2.Message{message("a", "a"), message("b", "b")}
				a, b := c.next(), c.next()
				s.mu.Lock()
				s.gone = gone
				s.mu.Unlock()
				a.answer(mq.Ack().With(good(1)))
				synctest.Wait()
				b.answer(mq.Suspend(time.Second).With(good(1)))
				synctest.Wait()
				f.mu.Lock()
				defer f.mu.Unlock()
				if len(f.acked) != 1 || len(f.suspends) != 1 || f.suspends[0] != time.Second {
					t.Errorf("acked %q, suspended %v", f.acked, f.suspends)
				}
			})
		})
	}
}

// A hold comes before the message goes back, else the message is out again first. Where it cannot be had the bucket waits as long.
func TestHolds(t *testing.T) {
	column := &mq.Hold{Scope: "column", Name: "gpt", For: 30*time.Second + time.Microsecond, Reason: "429"}
	for name, tt := range map[string]struct {
		features []string
		fault    error
		held     bool
	}{
		"held":           {all, nil, true},
		"no scopes":      {[]string{"settle", "holds"}, nil, false},
		"refused":        {all, status.Error(codes.InvalidArgument, "duration"), false},
		"another broker": {all, status.Error(codes.Unimplemented, "unknown service"), false},
	} {
		t.Run(name, func(t *testing.T) {
			f, s := &fake{}, &second{features: tt.features, holdFault: tt.fault}
			withSecond(t, f, s, func(t *testing.T, c *consumer) {
				f.batches <- []*v2.Message{message("h", "x")}
				v := mq.Suspend(0)
				v.Hold = column
				c.expect("x", 1).answer(v)
				synctest.Wait()
				f.mu.Lock()
				defer f.mu.Unlock()
				want := 30*time.Second + time.Millisecond
				if tt.held {
					want = 0
					if r := s.holds[0]; len(s.holds) != 1 || r.GetScope() != penstockv1.Scope_SCOPE_COLUMN || r.GetName() != "gpt" ||
						r.GetDuration().AsDuration() != 30*time.Second+time.Millisecond || r.GetReason() != "429" || r.GetTopic() != topic || r.GetGroup() != group {
						t.Errorf("holds %v", s.holds)
					}
				}
				if !slices.Equal(f.suspends, []time.Duration{want}) {
					t.Errorf("suspended %v, want %v", f.suspends, want)
				}
			})
		})
	}
}

// What the broker can do is known to the first handler, follows the broker, and is asked for again.
func TestFeatures(t *testing.T) {
	f, s := &fake{}, &second{features: all}
	withSecond(t, f, s, func(t *testing.T, c *consumer) {
		f.batches <- []*v2.Message{message("h", "x")}
		d := c.expect("x", 1)
		if got, want := c.features(), (mq.Features{Version: "v9", Limits: true, Settle: true, Holds: true, Scopes: true, Explain: true, Renew: true}); got != want {
			t.Errorf("in the first handler: %+v", got)
		}
		s.mu.Lock()
		s.gone = true
		s.mu.Unlock()
		// Its settlement finds a broker of another kind, and is acked as that one knows it.
		d.answer(mq.Ack().With(good(1)))
		time.Sleep(time.Second)
		if got := c.features(); got != (mq.Features{}) {
			t.Errorf("after the service has gone: %+v", got)
		}
		f.mu.Lock()
		if !slices.Equal(f.acked, []string{"h"}) {
			t.Errorf("acked %q", f.acked)
		}
		f.mu.Unlock()
		s.mu.Lock()
		s.gone, s.features = false, []string{"limits"}
		s.mu.Unlock()
		time.Sleep(time.Minute)
		if got := c.features(); got != (mq.Features{Version: "v9", Limits: true}) {
			t.Errorf("after another start: %+v", got)
		}
	})
}

// A broker of RocketMQ's has no features, and nothing is missed.
func TestABrokerWithoutTheService(t *testing.T) {
	f := &fake{}
	withFake(t, f, mq.Options{}, func(t *testing.T, c *consumer) {
		f.batches <- []*v2.Message{message("h", "x")}
		d := c.expect("x", 1)
		if got := c.features(); got != (mq.Features{}) {
			t.Errorf("features %+v", got)
		}
		d.answer(mq.Ack().With(good(1)))
		time.Sleep(time.Second)
		f.mu.Lock()
		defer f.mu.Unlock()
		if !slices.Equal(f.acked, []string{"h"}) {
			t.Errorf("acked %q", f.acked)
		}
	})
}

// A renewal whose answer is lost is repeated with the same handle, which settles the message in the end.
func TestARenewalWhoseAnswerIsLostIsRepeated(t *testing.T) {
	f, s := &fake{}, &second{features: all, lose: 1}
	withSecond(t, f, s, func(t *testing.T, c *consumer) {
		f.batches <- []*v2.Message{message("h", "x")}
		d := c.expect("x", 1)
		time.Sleep(12 * time.Second) // the lease is 20 s
		if d.ctx.Err() != nil {
			t.Fatalf("ended: %v", context.Cause(d.ctx))
		}
		d.answer(mq.Ack())
		time.Sleep(time.Second)
		f.mu.Lock()
		defer f.mu.Unlock()
		s.mu.Lock()
		defer s.mu.Unlock()
		if !slices.Equal(s.renewed, []string{"h", "h"}) || len(f.settled) != 0 || !slices.Equal(f.acked, []string{"h"}) {
			t.Errorf("renewed %q, RocketMQ's renewals %q, acked %q", s.renewed, f.settled, f.acked)
		}
	})
}

// A broker that says that the lease has ended is believed at once.
func TestAStaleRenewalEndsTheHandlersContext(t *testing.T) {
	f, s := &fake{}, &second{features: all, results: map[string]int32{"h": int32(v2.Code_INVALID_RECEIPT_HANDLE)}}
	withSecond(t, f, s, func(t *testing.T, c *consumer) {
		begin := time.Now()
		f.batches <- []*v2.Message{message("h", "x")}
		d := c.expect("x", 1)
		<-d.ctx.Done()
		if after := time.Since(begin); !errors.Is(context.Cause(d.ctx), mq.ErrLeaseLost) || after > 7*time.Second {
			t.Errorf("ended by %v after %v, want a lost lease at the first renewal", context.Cause(d.ctx), after)
		}
		d.answer(mq.Ack())
	})
}

// A broker of a version without Renew is asked by RocketMQ's call.
func TestRenewalByRocketMQsCall(t *testing.T) {
	f, s := &fake{}, &second{features: []string{"settle", "limits"}}
	withSecond(t, f, s, func(t *testing.T, c *consumer) {
		f.batches <- []*v2.Message{message("h", "x")}
		d := c.expect("x", 1)
		time.Sleep(7 * time.Second)
		d.answer(mq.Ack())
		time.Sleep(time.Second)
		f.mu.Lock()
		defer f.mu.Unlock()
		if !slices.Equal(f.settled, []string{"h renewed"}) || !slices.Equal(f.acked, []string{"h'"}) || len(s.renewed) != 0 {
			t.Errorf("renewals %q, acked %q, of Renew %q", f.settled, f.acked, s.renewed)
		}
	})
}

// A renewal that the broker does not answer holds up the end of its own lease only, and no longer than one call.
func TestSettlingDoesNotWaitForRenewalsOfOtherLeases(t *testing.T) {
	f, s := &fake{}, &second{features: all, lose: 1 << 20}
	withSecond(t, f, s, func(t *testing.T, c *consumer) {
		const n = 200
		ds := make([]*delivery, n)
		for i := range n {
			h := fmt.Sprint("h", i)
			f.batches <- []*v2.Message{message(h, h)}
			ds[i] = c.expect(h, 1)
		}
		time.Sleep(7 * time.Second) // all are due for renewal, 64 at a time
		begin := time.Now()
		for _, d := range ds {
			d.answer(mq.Ack())
		}
		acked := func() int {
			f.mu.Lock()
			defer f.mu.Unlock()
			return len(f.acked)
		}
		for acked() < n {
			time.Sleep(100 * time.Millisecond)
		}
		if took := time.Since(begin); took > 4*time.Second {
			t.Errorf("settled after %v, want no more than one call's time limit of 3s", took)
		}
	})
}

// Both adapters hold a column of a real broker for all buckets of it, and give the message back with its attempt.
func TestAHoldOfAColumn(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, kind mq.Kind, n *node) {
		// One worker: what comes next comes after what was said of the last.
		p, c := n.producer(kind), n.consume(kind, func(o *mq.Options) { o.Workers = 1 })
		const hold = 1500 * time.Millisecond
		send(t, p, "alice__gpt", "busy")
		d := c.expect("busy", 1)
		if f := c.features(); !f.Limits || !f.Scopes || !f.Settle {
			t.Errorf("features of a Penstock broker: %+v", f)
		}
		begin := time.Now()
		v := mq.Suspend(0).With(mq.Settlement{Outcome: mq.OutcomeOverload, InputTokens: -1, OutputTokens: -1})
		v.Hold = &mq.Hold{Scope: "column", Name: "gpt", For: hold, Reason: "the model answered 429"}
		d.answer(v)
		send(t, p, "bob__other", "free")
		c.expect("free", 1).answer(mq.Ack().With(good(1)))
		holds, err := n.broker.Holds(context.Background(), group, "gpt", 10)
		must(t, err)
		if len(holds) != 1 || !strings.Contains(holds[0].Reason, "429") {
			t.Errorf("holds %+v", holds)
		}
		send(t, p, "bob__gpt", "held too")
		for range 2 {
			d := c.next()
			if waited := time.Since(begin); waited < hold || d.Attempt != 1 {
				t.Errorf("%s came after %s, attempt %d", d.Body, waited, d.Attempt)
			}
			d.answer(mq.Ack().With(good(1)))
		}
		send(t, p, "bob__other", "bad")
		c.expect("bad", 1).answer(mq.Reject().With(mq.Settlement{Outcome: mq.OutcomeFailed, InputTokens: -1, OutputTokens: -1}))
		c.stop()
		settled(t, n)
		dead, err := n.broker.DeadLetters(context.Background(), group, 0, 10)
		must(t, err)
		if len(dead) != 1 {
			t.Errorf("%d dead letters", len(dead))
		}
	})
}
