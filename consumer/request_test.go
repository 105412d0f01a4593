package consumer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/penstockmq/penstock/broker/lite"
	"github.com/penstockmq/penstock/consumer/forward"
	"github.com/penstockmq/penstock/consumer/mq"
	"github.com/penstockmq/penstock/consumer/reply"
)

// stub is a model server whose answers a test decides; it notes the bodies of its requests.
type stub struct {
	*httptest.Server

	mu    sync.Mutex // guards the following field
	calls []string
}

func newStub(t *testing.T, answer func(w http.ResponseWriter, r *http.Request, body string)) *stub {
	t.Helper()
	s := &stub{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		s.mu.Lock()
		s.calls = append(s.calls, string(body))
		s.mu.Unlock()
		answer(w, r, string(body))
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *stub) count(body string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, c := range s.calls {
		if c == body {
			n++
		}
	}
	return n
}

func upstream(t *testing.T, s *stub) *forward.HTTP {
	t.Helper()
	d, err := forward.NewHTTP(forward.HTTPOptions{URL: s.URL})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	return d
}

// caller is a gateway's side: it opens a stream for each request it puts.
type caller struct {
	inbox *reply.Inbox
	b     *memory
}

func newCaller(t *testing.T, nc *nats.Conn, b *memory) *caller {
	t.Helper()
	inbox, err := reply.NewInbox(nc, reply.InboxOptions{Gateway: "gw"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = inbox.Close() })
	return &caller{inbox: inbox, b: b}
}

func (c *caller) put(t *testing.T, cell lite.Cell, id, body string, deadline time.Time) *reply.Stream {
	t.Helper()
	s, err := c.inbox.Open(id)
	if err != nil {
		t.Fatal(err)
	}
	c.b.put(t, cell, reply.Request{
		ID: id, Path: "/v1/chat/completions", Reply: c.inbox.Subject(id), Window: s.Window(), Deadline: deadline, Accepted: time.Now(),
	}, body)
	return s
}

// result is the status of an answer, and whether it was whole.
func result(t *testing.T, s *reply.Stream) (status int, whole bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		f, err := s.Next(ctx)
		if err != nil {
			t.Fatalf("no end of the answer: %v", err)
		}
		switch f.Kind {
		case reply.Head:
			status = f.Status
		case reply.End:
			return status, true
		case reply.Error:
			return f.Failure.Status, false
		case reply.Started, reply.Chunk:
		}
	}
}

// C29: bad messages and bad answers must not block their bucket.
func TestC29BadMessagesDoNotBlockTheirBucket(t *testing.T) {
	nc, b := natsServer(t, ""), newMemory(4)
	s := newStub(t, func(w http.ResponseWriter, _ *http.Request, body string) {
		w.Header().Set("Content-Type", "application/json")
		switch body {
		case "bad request":
			w.WriteHeader(http.StatusBadRequest)
			fmt.Fprint(w, `{"error":{"message":"no","type":"invalid_request_error"}}`)
		case "bad json":
			fmt.Fprint(w, `{"choices": [`)
		case "unavailable":
			w.WriteHeader(http.StatusServiceUnavailable)
		default:
			fmt.Fprint(w, `{"choices": []}`)
		}
	})
	_, stop := run(t, Options{
		Consumer: b, Downstream: upstream(t, s), NATS: nc, Attempts: 3, BackoffMin: 100 * time.Millisecond, BackoffMax: 100 * time.Millisecond,
	})
	c := newCaller(t, nc, b)
	bodies := []string{"bad request", "bad json", "unavailable"}
	for i := range 10 {
		bodies = append(bodies, fmt.Sprint("good ", i))
	}
	begin := time.Now()
	streams := map[string]*reply.Stream{}
	for i, body := range bodies {
		streams[body] = c.put(t, alice, fmt.Sprint("r", i), body, time.Time{})
	}
	for _, body := range bodies {
		want, wantCalls, wantWhole := 200, 1, true
		switch body {
		case "bad request":
			want = 400
		case "bad json":
			want, wantWhole = 502, false
		case "unavailable":
			want, wantCalls, wantWhole = 503, 3, false
		}
		if status, whole := result(t, streams[body]); status != want || whole != wantWhole {
			t.Errorf("%s: caller got %d (whole: %t), want %d", body, status, whole, want)
		}
		if n := s.count(body); n != wantCalls {
			t.Errorf("%s: %d calls, want %d", body, n, wantCalls)
		}
	}
	if d := time.Since(begin); d > 3*time.Second {
		t.Errorf("took %s, want under 3s", d)
	}
	b.drained(t)
	stop()
	var dead []string
	for _, m := range b.dead {
		dead = append(dead, string(m.Body))
	}
	if !slices.Equal(dead, []string{"bad json", "unavailable"}) {
		t.Errorf("dead letters %q", dead)
	}
}

// C64: a caller that leaves before the first token frees the model.
func TestC64ACancelReachesTheModel(t *testing.T) {
	for _, streams := range []bool{false, true} {
		t.Run(fmt.Sprint("stream ", streams), func(t *testing.T) {
			nc, b := natsServer(t, ""), newMemory(1)
			arrived, closed := make(chan struct{}), make(chan struct{})
			s := newStub(t, func(w http.ResponseWriter, r *http.Request, body string) {
				if body != "leaves" {
					fmt.Fprint(w, `{}`)
					return
				}
				close(arrived)
				<-r.Context().Done()
				close(closed)
			})
			var metrics Metrics
			_, stop := run(t, Options{Consumer: b, Downstream: upstream(t, s), NATS: nc, Metrics: &metrics})
			c := newCaller(t, nc, b)
			if _, err := c.inbox.Open("r1"); err != nil {
				t.Fatal(err)
			}
			b.put(t, alice, reply.Request{ID: "r1", Path: "/v1/completions", Reply: c.inbox.Subject("r1"), Stream: streams}, "leaves")
			<-arrived
			running, err := reply.NewCanceller(nc, time.Second).Cancel(t.Context(), "r1")
			if err != nil || !running {
				t.Fatalf("cancel: running %t, error %v", running, err)
			}
			select {
			case <-closed:
			case <-time.After(patience):
				t.Fatal("the model works on")
			}
			b.put(t, alice, reply.Request{}, "next") // takes the slot
			b.drained(t)
			stop()
			if got := b.verdicts("leaves"); !slices.Equal(got, []mq.VerdictKind{mq.VerdictAck}) {
				t.Errorf("verdicts %v: want no second delivery", got)
			}
			if c, d := metrics.Cancelled.Load(), metrics.Dead.Load()+metrics.Retried.Load(); c != 1 || d != 0 {
				t.Errorf("%d cancelled, %d failed", c, d)
			}
			if n := metrics.InFlight.Load(); n != 0 {
				t.Errorf("in-flight gauge is %d", n)
			}
		})
	}
}

// A cancel that comes before its request is kept for it.
func TestACancelMayOvertakeItsRequest(t *testing.T) {
	nc, b := natsServer(t, ""), newMemory(1)
	s := newStub(t, func(w http.ResponseWriter, _ *http.Request, _ string) { fmt.Fprint(w, `{}`) })
	var metrics Metrics
	run(t, Options{Consumer: b, Downstream: upstream(t, s), NATS: nc, Metrics: &metrics})
	b.put(t, alice, reply.Request{}, "first")
	b.drained(t) // the pool listens
	if running, err := reply.NewCanceller(nc, 50*time.Millisecond).Cancel(t.Context(), "r1"); running || err != nil {
		t.Fatal(running, err)
	}
	b.put(t, alice, reply.Request{ID: "r1", Path: "/v1/completions"}, "late")
	b.drained(t)
	if n := s.count("late"); n != 0 || metrics.Cancelled.Load() != 1 {
		t.Errorf("%d calls, %d cancelled", n, metrics.Cancelled.Load())
	}
}

// C73: the deadline is watched while a request waits for its model's slot, and while it waits for its limits.
func TestC73TheDeadlineIsWatchedWhileWaiting(t *testing.T) {
	const deadline = 400 * time.Millisecond
	for _, wait := range []struct {
		name     string
		slotWait time.Duration
		rules    string
		step     time.Duration
	}{
		{"in a slot's queue", time.Hour, `  - {user: nobody, rate: 1/s}`, time.Millisecond},
		{"given back by a full model", 30 * time.Millisecond, `  - {user: nobody, rate: 1/s}`, time.Millisecond},
		{"asleep for a limit", time.Hour, `  - {user: late, rate: 1/1h}`, 2 * time.Hour},
		{"suspended by a limit", time.Hour, `  - {user: late, rate: 1/1h}`, time.Millisecond},
	} {
		t.Run(wait.name, func(t *testing.T) {
			nc, b := natsServer(t, ""), newMemory(8)
			b.step = wait.step
			held, release := make(chan struct{}), make(chan struct{})
			s := newStub(t, func(w http.ResponseWriter, _ *http.Request, body string) {
				if body == "holds" {
					close(held)
					<-release
				}
				fmt.Fprint(w, `{}`)
			})
			var metrics Metrics
			_, stop := run(t, Options{
				Consumer: b, Downstream: upstream(t, s), NATS: nc, Metrics: &metrics, SlotWait: wait.slotWait,
				Concurrency: func(string) int { return 1 }, Policy: fixed(mustPolicy(t, wait.rules)),
			})
			c := newCaller(t, nc, b)
			late := lite.Cell{User: "late", Model: "gpt"}
			c.put(t, late, "first", "first", time.Time{}) // uses up the limit, if there is one
			b.drained(t)
			c.put(t, alice, "holds", "holds", time.Time{})
			<-held
			begin := time.Now()
			status, whole := result(t, c.put(t, late, "late", "late", begin.Add(deadline)))
			d := time.Since(begin)
			if status != http.StatusGatewayTimeout || whole {
				t.Errorf("caller got %d", status)
			}
			if d < deadline || d > deadline+2*time.Second {
				t.Errorf("after %s, want %s", d, deadline)
			}
			close(release)
			b.drained(t)
			stop()
			if n := s.count("late"); n != 0 {
				t.Errorf("the model has seen it %d times", n)
			}
			if n := metrics.Expired.Load(); n != 1 {
				t.Errorf("%d expired", n)
			}
			if got := b.verdicts("late"); got[len(got)-1] != mq.VerdictAck || slices.Contains(got, mq.VerdictRetry) {
				t.Errorf("verdicts %v", got)
			}
		})
	}
}

// A deadline bounds the wait for an answer, not the answer.
func TestTheDeadlineEndsASlowModelButNoAnswer(t *testing.T) {
	nc, b := natsServer(t, ""), newMemory(2)
	gone := make(chan struct{})
	s := newStub(t, func(w http.ResponseWriter, r *http.Request, body string) {
		if body == "slow" {
			<-r.Context().Done()
			close(gone)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(w, "data: {}\n\n")
		w.(http.Flusher).Flush()
		<-gone // later than the deadline of both
		fmt.Fprint(w, "data: [DONE]\n\n")
	})
	run(t, Options{Consumer: b, Downstream: upstream(t, s), NATS: nc})
	c := newCaller(t, nc, b)
	deadline := time.Now().Add(300 * time.Millisecond)
	talks := c.put(t, lite.Cell{User: "talks", Model: "gpt"}, "talks", "talks", deadline)
	slow := c.put(t, lite.Cell{User: "slow", Model: "gpt"}, "slow", "slow", deadline.Add(200*time.Millisecond))
	if status, whole := result(t, slow); status != http.StatusGatewayTimeout || whole {
		t.Errorf("slow model: caller got %d", status)
	}
	if status, whole := result(t, talks); status != 200 || !whole {
		t.Errorf("stream under way: caller got %d (whole: %t)", status, whole)
	}
}

func TestAsyncAnswersGoToTheStore(t *testing.T) {
	nc, b := natsServer(t, t.TempDir()), newMemory(4)
	store, err := reply.OpenStore(t.Context(), nc, reply.StoreOptions{TotalBytes: 16 << 20})
	if err != nil {
		t.Fatal(err)
	}
	s := newStub(t, func(w http.ResponseWriter, _ *http.Request, body string) {
		if body == "fails" {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		fmt.Fprintf(w, `{"echo":%q}`, body)
	})
	_, stop := run(t, Options{Consumer: b, Downstream: upstream(t, s), NATS: nc, Store: store, Attempts: 2, BackoffMin: time.Millisecond})
	put := func(id string, deadline time.Time) {
		if err := store.Create(t.Context(), reply.Record{ID: id, User: "alice", Model: "gpt", Created: time.Now()}); err != nil {
			t.Fatal(err)
		}
		if id == "cancelled" {
			if _, err := store.Cancel(t.Context(), id, "alice"); err != nil {
				t.Fatal(err)
			}
		}
		b.put(t, alice, reply.Request{ID: id, Path: "/v1/completions", Async: true, Deadline: deadline}, id)
	}
	put("answered", time.Time{})
	put("fails", time.Time{})
	put("cancelled", time.Time{})
	put("expired", time.Now().Add(-time.Second))
	b.drained(t)
	stop()
	for id, want := range map[string]reply.State{
		"answered": reply.StateDone, "fails": reply.StateFailed, "cancelled": reply.StateCancelled, "expired": reply.StateExpired,
	} {
		r, err := store.Get(t.Context(), id, "alice")
		if err != nil {
			t.Fatal(err)
		}
		if r.State != want {
			t.Errorf("%s: state %s", id, r.State)
		}
		if id == "answered" && (r.Status != 200 || string(r.Body) != `{"echo":"answered"}`) {
			t.Errorf("answer %d %s", r.Status, r.Body)
		}
		if id == "fails" && (r.Failure == nil || r.Failure.Status != 500 || r.Attempt != 2) {
			t.Errorf("failure %+v after attempt %d", r.Failure, r.Attempt)
		}
	}
	if n := s.count("cancelled") + s.count("expired"); n != 0 {
		t.Errorf("%d requests were forwarded that had ended", n)
	}
}

func TestALostLeaseIsTheBrokersBusiness(t *testing.T) {
	p, err := New(Options{Consumer: newMemory(1), Downstream: downstreamFunc(
		func(ctx context.Context, _ forward.Request, _ forward.Sink) forward.Outcome {
			<-ctx.Done()
			return forward.Outcome{Kind: forward.Failed, Retry: true, Err: errors.New("connection closed")}
		})})
	if err != nil {
		t.Fatal(err)
	}
	p.stopping = t.Context()
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(mq.ErrLeaseLost)
	name, _ := lite.Encode(alice)
	if v := p.handle(ctx, &mq.Message{Lite: name, Attempt: 1}); v.Kind != mq.VerdictRetry || v.After != 0 || p.opts.Metrics.Lost.Load() != 1 {
		t.Errorf("verdict %v, %d lost", v, p.opts.Metrics.Lost.Load())
	}
}
