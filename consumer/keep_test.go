package consumer

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/penstockmq/penstock/broker/lite"
	"github.com/penstockmq/penstock/consumer/forward"
	"github.com/penstockmq/penstock/consumer/mq"
	"github.com/penstockmq/penstock/consumer/reply"
)

// A request whose record was lost in a power cut is run, since its message exists. Before, it was acked silently, and its
// caller got 202 and later 404.
//
// https://github.com/nats-io/nats-server/issues/7564
func TestARequestWithoutItsRecordIsRun(t *testing.T) {
	nc, b := natsServer(t, t.TempDir()), newMemory(2)
	store := openStore(t, nc, reply.StoreOptions{TotalBytes: 16 << 20})
	s := newStub(t, func(w http.ResponseWriter, _ *http.Request, body string) { fmt.Fprint(w, body) })
	_, stop := run(t, Options{Consumer: b, Downstream: upstream(t, s), NATS: nc, Store: store})
	b.put(t, alice, reply.Request{ID: "lost", Async: true, Deadline: time.Now().Add(time.Hour), Accepted: time.Now().Add(-time.Minute)}, "lost")
	b.drained(t)
	stop()
	if n := s.count("lost"); n != 1 {
		t.Errorf("the model was asked %d times", n)
	}
	if r, err := store.Get(t.Context(), "lost", "alice"); err != nil || r.State != reply.StateDone || string(r.Body) != "lost" {
		t.Errorf("%+v, %v", r, err)
	}
}

func openStore(t *testing.T, nc *nats.Conn, opts reply.StoreOptions) *reply.Store {
	t.Helper()
	store, err := reply.OpenStore(t.Context(), nc, opts)
	if err != nil {
		t.Fatal(err)
	}
	return store
}

// outage is a NATS server that can be stopped and started again at the same address.
type outage struct {
	t    *testing.T
	opts reply.ServerOptions
	ns   *reply.Server
}

func (o *outage) start() {
	o.t.Helper()
	var err error
	if o.ns, err = reply.StartServer(o.opts); err != nil {
		o.t.Fatal(err)
	}
	o.opts.Addr = o.ns.Addr().String()
}

func newOutage(t *testing.T) (*outage, *nats.Conn) {
	t.Helper()
	o := &outage{t: t, opts: reply.ServerOptions{Addr: "127.0.0.1:0", Dir: t.TempDir()}}
	o.start()
	t.Cleanup(func() { o.ns.Close() })
	nc, err := nats.Connect("nats://"+o.opts.Addr, nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return o, nc
}

// An answer that has cost a model's work waits for the store, with its message in flight, for as long as necessary. Before, the
// write was tried for three seconds and the message then acked.
func TestAnswersWaitForTheStore(t *testing.T) {
	o, nc := newOutage(t)
	b := newMemory(4)
	store := openStore(t, nc, reply.StoreOptions{TotalBytes: 16 << 20})
	asked, answer := make(chan struct{}), make(chan struct{})
	s := newStub(t, func(w http.ResponseWriter, _ *http.Request, body string) {
		asked <- struct{}{}
		<-answer
		if body == "fails" {
			w.WriteHeader(http.StatusInternalServerError)
		}
		fmt.Fprint(w, body)
	})
	p, stop := run(t, Options{Consumer: b, Downstream: upstream(t, s), NATS: nc, Store: store, Attempts: 1})
	for _, body := range []string{"answered", "fails"} {
		b.put(t, lite.Cell{User: body, Model: "gpt"}, reply.Request{ID: body, Async: true, Deadline: time.Now().Add(time.Hour)}, body)
		<-asked
	}
	o.ns.Close()
	close(answer)
	for end := time.Now().Add(patience); p.opts.Metrics.Unstored.Load() < 2; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d outcomes wait", p.opts.Metrics.Unstored.Load())
		}
	}
	if b.unsettled() != 2 {
		t.Errorf("%d of 2 messages are out", b.unsettled())
	}
	o.start()
	b.drained(t)
	stop()
	for id, want := range map[string]reply.State{"answered": reply.StateDone, "fails": reply.StateFailed} {
		r, err := store.Get(t.Context(), id, id)
		if err != nil || r.State != want {
			t.Errorf("%s: %+v, %v", id, r, err)
		}
		if n := s.count(id); n != 1 {
			t.Errorf("%s: the model was asked %d times", id, n)
		}
	}
	if n, bytes := p.opts.Metrics.Unstored.Load(), p.opts.Metrics.UnstoredBytes.Load(); n != 0 || bytes != 0 {
		t.Errorf("%d outcomes of %d bytes wait at the end", n, bytes)
	}
}

// A pool that stops while the store is away gives the request back, with its attempt used: the answer is lost, and the model
// is asked again.
func TestAPoolThatStopsGivesUnstoredRequestsBack(t *testing.T) {
	o, nc := newOutage(t)
	store := openStore(t, nc, reply.StoreOptions{TotalBytes: 16 << 20})
	p, err := New(Options{Consumer: newMemory(1), NATS: nc, Store: store, Downstream: downstreamFunc(
		func(_ context.Context, _ forward.Request, out forward.Sink) forward.Outcome {
			o.ns.Close()
			return forward.Outcome{Kind: forward.Done, Err: out.Answer(200, nil, []byte("x"), reply.Usage{})}
		})})
	if err != nil {
		t.Fatal(err)
	}
	p.stopping = t.Context()
	ctx, cancel := context.WithCancelCause(t.Context())
	message := func() *mq.Message { return newMemory(1).put(t, alice, reply.Request{ID: "a", Async: true}, "a") }
	go func() {
		for p.opts.Metrics.Unstored.Load() == 0 {
			time.Sleep(time.Millisecond)
		}
		cancel(mq.ErrStopping)
	}()
	if v := p.handle(ctx, message()); v.Kind != mq.VerdictRetry || v.After != 0 {
		t.Errorf("verdict %v after %s, want a retry at once", v.Kind, v.After)
	}
	// And while one waits, no other is started.
	p.opts.Metrics.Unstored.Store(1)
	if v := p.handle(t.Context(), message()); v.Kind != mq.VerdictSuspend || v.After != storeWait {
		t.Errorf("verdict %v after %s, want a suspend of %s", v.Kind, v.After, storeWait)
	}
}

// An answer without room is reported: its record is failed, and its message goes to the dead letters. An answer that finds no
// room in time is not lost silently.
//
// https://github.com/nats-io/nats-server/issues/4754
func TestAnAnswerWithoutRoomFailsItsRequest(t *testing.T) {
	nc, b := natsServer(t, t.TempDir()), newMemory(1)
	store := openStore(t, nc, reply.StoreOptions{TotalBytes: 64 << 10})
	p, err := New(Options{Consumer: b, NATS: nc, Store: store, Downstream: downstreamFunc(
		func(_ context.Context, _ forward.Request, out forward.Sink) forward.Outcome {
			return forward.Outcome{Kind: forward.Done, Err: out.Answer(200, nil, bytes.Repeat([]byte("x"), 100<<10), reply.Usage{})}
		})})
	if err != nil {
		t.Fatal(err)
	}
	p.stopping, p.fullMost = t.Context(), 0
	m := b.put(t, alice, reply.Request{ID: "a", Async: true}, "a")
	if v := p.handle(t.Context(), m); v.Kind != mq.VerdictReject {
		t.Errorf("verdict %v, want reject", v.Kind)
	}
	if r, err := store.Get(t.Context(), "a", "alice"); err != nil || r.State != reply.StateFailed || r.Failure.Code != codeNotKept || r.Status != 507 {
		t.Errorf("%+v, %v", r, err)
	}
	if n := p.opts.Metrics.Unkept.Load(); n != 1 {
		t.Errorf("%d answers were not kept", n)
	}
	// Answers that wait have a bound in bytes.
	p.fullMost = time.Hour
	p.opts.Metrics.UnstoredBytes.Store(unstoredMost)
	if v := p.handle(t.Context(), b.put(t, alice, reply.Request{ID: "b", Async: true}, "b")); v.Kind != mq.VerdictReject {
		t.Errorf("verdict %v, want reject", v.Kind)
	}
	if n := p.opts.Metrics.UnstoredBytes.Load(); n != unstoredMost {
		t.Errorf("%d bytes wait", n)
	}
}
