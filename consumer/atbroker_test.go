package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstockmq/penstock/broker"
	"github.com/penstockmq/penstock/broker/lite"
	"github.com/penstockmq/penstock/consumer"
	"github.com/penstockmq/penstock/consumer/forward"
	"github.com/penstockmq/penstock/consumer/mq"
	"github.com/penstockmq/penstock/consumer/reply"
	"github.com/penstockmq/penstock/suspend"
	"github.com/penstockmq/penstock/suspend/policy"
)

// What the pool learns reaches the accounts of a broker that asks the limits itself.

func (r *rig) limits(rules string) {
	r.t.Helper()
	doc, err := policy.Parse([]byte("version: 1\n" + rules))
	must(r.t, err)
	must(r.t, r.broker.SetPolicy(r.t.Context(), doc))
}

// ended waits for n ends of requests; only a broken test waits long.
func ended(t *testing.T, ends <-chan struct{}, n int) {
	t.Helper()
	late := time.After(patience)
	for range n {
		select {
		case <-ends:
		case <-late:
			t.Fatal("a request does not end")
		}
	}
}

// C72 at the broker: time-outs, resets, 502s and panics leave nothing in flight, and the next request goes at once.
func TestC72AtTheBroker(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, r *rig) {
		const places = 10
		r.limits("rows:\n  - {user: alice, in_flight: 10}\n")
		ends := []forward.Outcome{
			{Kind: forward.Failed, Failure: reply.Failure{Status: 504, Code: forward.CodeTimeout}, Err: errors.New("time-out")},
			{Kind: forward.Failed, Started: true, Failure: reply.Failure{Status: 502}, Err: errors.New("reset in mid-stream")},
			{Kind: forward.Failed, Status: 502, Failure: reply.Failure{Status: 502}, Err: errors.New("502")},
		}
		var mu sync.Mutex
		running, most := 0, 0
		over, together := make(chan struct{}, 100), make(chan struct{})
		r.pool(40, consumer.Options{Attempts: 1, Downstream: model(func(q forward.Request, sink forward.Sink) forward.Outcome {
			mu.Lock()
			running++
			most = max(most, running)
			all := running == places
			mu.Unlock()
			defer func() {
				mu.Lock()
				running--
				mu.Unlock()
				over <- struct{}{}
			}()
			var n int
			if _, err := fmt.Sscan(string(q.Body), &n); err != nil {
				t.Error(err)
			}
			if n >= 30 { // these wait until as many run as may
				if all {
					close(together)
				}
				select {
				case <-together:
				case <-time.After(patience):
					t.Error("a place in flight was not free")
				}
				return answer(sink)
			}
			if n%4 == 3 {
				panic("a downstream's fault")
			}
			return ends[n%4]
		})})
		for i := range 30 {
			r.send(lite.Cell{User: "alice", Model: fmt.Sprint("m", i)}, fmt.Sprint(i))
		}
		ended(t, over, 30)
		for i := range places {
			r.send(lite.Cell{User: "alice", Model: fmt.Sprint("n", i)}, fmt.Sprint(30+i))
		}
		ended(t, over, places)
		if most != places {
			t.Errorf("up to %d ran at once, want %d", most, places)
		}
	})
}

// C70 at the broker: the reservation becomes what was used, for streams and for answers in one piece alike.
func TestC70AtTheBroker(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, r *rig) {
		r.limits("rows:\n  - {user: \"*\", tokens: 1000/1h}\n")
		over := make(chan struct{}, 10)
		var refused atomic.Bool
		stop := r.pool(4, consumer.Options{Downstream: model(func(q forward.Request, sink forward.Sink) forward.Outcome {
			spent := forward.Spent{Input: 100, Output: 200, BytesOut: 12}
			switch q.User {
			case "stream":
				over <- struct{}{}
				if err := sink.Head(http.StatusOK, nil); err != nil {
					t.Error(err)
				}
				return forward.Outcome{Kind: forward.Done, Started: true, Status: http.StatusOK, Spent: spent}
			case "busy":
				if !refused.Swap(true) {
					return forward.Outcome{Kind: forward.Busy, Status: http.StatusTooManyRequests, After: 50 * time.Millisecond}
				}
			}
			over <- struct{}{}
			o := answer(sink)
			o.Spent = spent
			return o
		})})
		users := []string{"whole", "stream", "busy"}
		for _, user := range users {
			name, err := lite.Encode(lite.Cell{User: user, Model: "model-of-" + user})
			must(t, err)
			p := reply.Request{User: user, Model: "model-of-" + user, Accepted: time.Now()}.Properties()
			p[lite.PropertyInputTokens], p[lite.PropertyMaxTokens] = "90", "800"
			_, err = r.producer.Send(t.Context(), mq.Outgoing{Topic: "requests", Lite: name, Body: []byte("x"), Properties: p})
			must(t, err)
		}
		ended(t, over, len(users))
		stop()                       // what it settles has reached the broker
		for _, user := range users { // something has to wait, to be explained
			target := suspend.Target{Scope: suspend.Row, Name: user}
			must(t, r.broker.SetHold(t.Context(), "pool", suspend.Hold{Target: target, Until: time.Now().Add(time.Hour)}))
			r.send(lite.Cell{User: user, Model: "model-of-" + user}, "waits")
		}
		for _, user := range users {
			if used := r.tokensOf(user); used != 300 {
				t.Errorf("%s: %d tokens are charged, want 300", user, used)
			}
		}
	})
}

// tokensOf is what a user's row has used of its tokens.
func (r *rig) tokensOf(user string) int64 {
	r.t.Helper()
	name, err := lite.Encode(lite.Cell{User: user, Model: "model-of-" + user})
	must(r.t, err)
	x, err := r.broker.Explain(context.Background(), "requests", "pool", name, broker.NextMessage)
	must(r.t, err)
	for _, l := range x.Lines {
		if l.Scope == "row" && l.Limit == "tokens" {
			return l.Used
		}
	}
	r.t.Errorf("no line for the tokens of row %s: %+v", user, x.Lines)
	return -1
}
