package gateway

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/penstockmq/penstock/consumer/reply"
)

// withStore is a rig whose store has other options.
func withStore(t *testing.T, opts reply.StoreOptions, change func(*Options)) *rig {
	t.Helper()
	return newRig(t, func(o *Options) {
		var err error
		o.Requests, err = reply.OpenStore(t.Context(), o.NATS, opts)
		must(t, err)
		if change != nil {
			change(o)
		}
	})
}

// A request that is refused leaves nothing in the store of asynchronous requests: a caller over its limits, in a loop, cannot
// fill it.
func TestRefusedRequestsLeaveNoRecord(t *testing.T) {
	r := newRig(t, policyOf(t, `  - {user: "*", model: "*", depth: 1}`))
	r.accept()
	for range 3 {
		a := r.ask(http.MethodPost, "/v1/chat/completions", chatBody, preferAsync)
		a.check(t, 429, "queue_full")
		if rec, err := r.store.Get(t.Context(), a.header.Get(headerRequestID), "alice"); !errors.Is(err, reply.ErrNotFound) {
			t.Errorf("record %+v, %v", rec, err)
		}
	}
	must(t, r.store.Check(t.Context())) // looks anew
	room, err := r.store.Room(t.Context())
	if must(t, err); room.Records != 1 {
		t.Errorf("%d records", room.Records)
	}
}

// A store that is nearly full refuses new requests before they are sent; stored requests are still answered.
//
// https://github.com/nats-io/nats-server/issues/4754
func TestAFullStoreRefusesNewRequests(t *testing.T) {
	r := withStore(t, reply.StoreOptions{TotalBytes: 256 << 10}, nil)
	url, j := r.accept()
	must(t, r.g.opts.Requests.Create(t.Context(), reply.Record{ID: "large", User: "bob"}))
	must(t, r.g.opts.Requests.Finish(t.Context(), "large", 1, reply.Result{Status: 200, Body: make([]byte, 245<<10)}))
	time.Sleep(1100 * time.Millisecond)
	a := r.ask(http.MethodPost, "/v1/chat/completions", chatBody, preferAsync)
	a.check(t, 503, "async_store_full")
	if a.header.Get("Retry-After") == "" {
		t.Errorf("no Retry-After in %v", a.header)
	}
	r.nothingSent()
	if n := r.g.Metrics().StoreFull.Load(); n != 1 {
		t.Errorf("%d are counted", n)
	}
	r.ask(http.MethodGet, url, "").check(t, 202, "")
	must(t, r.g.opts.Requests.Finish(t.Context(), j.ID, 1, reply.Result{Status: 200, Body: []byte("result")}))
	r.ask(http.MethodGet, url, "").check(t, 200, "")
}

// A user has a part of the store.
func TestAUserHasAPartOfTheStore(t *testing.T) {
	r := withStore(t, reply.StoreOptions{TotalBytes: 1 << 20, UserRecords: 2}, nil)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.g.opts.Requests.Run(ctx) }()
	for range 2 {
		r.accept()
	}
	for end := time.Now().Add(patience); r.g.opts.Requests.Admit(t.Context(), "alice") == nil; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the user has no bound")
		}
	}
	a := r.ask(http.MethodPost, "/v1/chat/completions", chatBody, preferAsync)
	a.check(t, 429, "async_limit_exceeded")
	r.nothingSent()
	r.ask(http.MethodPost, "/v1/chat/completions", chatBody, preferAsync, "Authorization: Bearer "+r.other).check(t, 202, "")
	stop()
	must(t, <-done)
}

// A request that is refused although its message may have been stored is not run when the message appears: a pool remembers a
// cancel for minutes, and one that starts later knows of none.
func TestAnUncertainAsyncSendIsBuried(t *testing.T) {
	r := newRig(t, nil)
	r.broker.refuseWith(errors.New("connection reset"))
	a := r.ask(http.MethodPost, "/v1/chat/completions", chatBody, preferAsync)
	a.check(t, 503, "broker_unavailable")
	must(t, r.g.Close()) // waits for the goroutines in the background
	id := a.header.Get(headerRequestID)
	if rec, err := r.store.Get(t.Context(), id, "alice"); err != nil || rec.State != reply.StateFailed {
		t.Errorf("record %+v, %v", rec, err)
	}
	if err := r.store.Running(t.Context(), reply.Record{ID: id, User: "alice"}, 1); !errors.Is(err, reply.ErrFinal) {
		t.Errorf("a worker is told %v, want that it has ended", err)
	}
}

// A record whose message is gone does not say queued or running until its deadline.
func TestARequestWhoseMessageIsGoneFails(t *testing.T) {
	r := newRig(t, func(o *Options) {
		o.Explain = func(context.Context, string, string) (Explanation, error) { return Explanation{}, ErrGone }
	})
	for _, state := range []reply.State{reply.StateQueued, reply.StateRunning} {
		url, j := r.accept()
		if state == reply.StateRunning {
			must(t, r.store.Running(t.Context(), reply.Record{ID: j.ID}, 1))
		}
		a := r.ask(http.MethodGet, url, "")
		a.check(t, 502, codeLost)
		if d := a.document(t); d.State != "failed" {
			t.Errorf("was %s: %s", state, a.body)
		}
		r.ask(http.MethodGet, url, "").check(t, 502, codeLost)
	}
}

// A large result goes out piece by piece, and takes a piece of the memory for bodies while it does.
func TestLargeResultsAreStreamed(t *testing.T) {
	budget := int64(4 * reply.ResultChunk)
	r := withStore(t, reply.StoreOptions{TotalBytes: 16 << 20}, func(o *Options) { o.MaxBodyBytes, o.MaxBufferBytes = 100, budget })
	url, j := r.accept()
	body := bytes.Repeat([]byte("0123456789abcdef"), 200_000)
	must(t, r.g.opts.Requests.Finish(t.Context(), j.ID, 1, reply.Result{
		Status: 200, Header: http.Header{"Content-Type": {"application/json"}}, Body: body,
	}))
	for range 2 {
		a := r.ask(http.MethodGet, url, "")
		a.check(t, 200, "")
		if a.body != string(body) || a.header.Get("Content-Length") != strconv.Itoa(len(body)) {
			t.Errorf("%d bytes, Content-Length %s", len(a.body), a.header.Get("Content-Length"))
		}
	}
	if n := r.g.shares.held().bytes; n != 0 {
		t.Errorf("%d bytes stay set aside", n)
	}
	must(t, r.g.shares.take("bob", holding{bytes: 2 * reply.ResultChunk}))
	must(t, r.g.shares.take("alice", holding{bytes: reply.ResultChunk}))
	if a := r.ask(http.MethodGet, url, ""); a.status != 503 && a.status != 429 {
		t.Errorf("status %d with no memory left", a.status)
	}
}
