package reply

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
)

func TestCallerStates(t *testing.T) {
	srv, nc := newNATS(t, ServerOptions{})
	b := newInbox(t, nc, InboxOptions{})
	pool := connect(t, srv)
	callers := NewCallers(pool)
	ask := func(want CallerState, when string) {
		t.Helper()
		if got := callers.Ask(t.Context(), b.Subject("r"), time.Minute); got != want {
			t.Errorf("%s: state %d, want %d", when, got, want)
		}
	}
	sent := func(errs ...error) {
		t.Helper()
		must(t, append(errs, pool.Flush())...)
	}
	ask(CallerGone, "before the caller came")
	s := open(t, b, "r")
	ask(CallerWaits, "before the first byte")
	w := NewWriter(pool, Request{Reply: b.Subject("r")}, 1)
	sent(w.Started(time.Now(), true))
	ask(CallerWaits, "after a worker took it")
	sent(w.Head(200, nil))
	ask(CallerBegun, "after the head")
	sent(w.Chunk([]byte("x")))
	ask(CallerBegun, "in the answer")
	sent(w.End(Usage{}))
	ask(CallerGone, "after the end")
	s.Close()
	ask(CallerGone, "after the caller left")

	s = open(t, b, "r")
	sent(NewWriter(pool, Request{Reply: b.Subject("r")}, 1).Answer(200, nil, []byte("whole"), Usage{}))
	ask(CallerGone, "after a whole answer")
	s.Close()
}

// The worker of a begun answer was killed: the caller gets the error of the next worker, and no part of another answer.
func TestErrorOfTheNextAttemptEndsAnAnswer(t *testing.T) {
	srv, nc := newNATS(t, ServerOptions{})
	b := newInbox(t, nc, InboxOptions{})
	pool := connect(t, srv)
	s := open(t, b, "r")
	killed := NewWriter(pool, Request{Reply: b.Subject("r")}, 1)
	must(t, killed.Head(200, nil), killed.Chunk([]byte("part")), pool.Flush())
	must(t, NewWriter(pool, Request{Reply: b.Subject("r")}, 2).Fail(Failure{Status: 502, Code: "worker_lost"}))
	frames, body := readAll(t, s)
	if last := frames[len(frames)-1]; last.Kind != Error || last.Failure.Code != "worker_lost" || string(body) != "part" {
		t.Errorf("body %q, then %+v", body, last)
	}
}

func TestAGatewayThatIsAwayForAMomentIsNotGone(t *testing.T) {
	srv, nc := newNATS(t, ServerOptions{})
	b := newInbox(t, nc, InboxOptions{})
	subject := b.Subject("r")
	open(t, b, "r")
	callers := NewCallers(connect(t, srv))
	must(t, b.sub.Unsubscribe(), nc.Flush())
	back := make(chan error, 1)
	go func() {
		for {
			callers.mu.Lock()
			n := len(callers.absent)
			callers.mu.Unlock()
			if n > 0 { // the pool has heard that there is no such gateway
				break
			}
			runtime.Gosched()
		}
		sub, err := nc.Subscribe(b.prefix+"*", b.deliver)
		b.sub = sub
		back <- err
	}()
	state := callers.Ask(t.Context(), subject, time.Minute) // an answer may take long on a busy machine
	must(t, <-back)
	if state != CallerWaits || len(callers.absent) != 0 {
		t.Errorf("state %d, absent %v", state, callers.absent)
	}
}

// A killed gateway costs its requests one wait and not one each.
func TestAGatewayIsGoneAfterAWhile(t *testing.T) {
	_, nc := newNATS(t, ServerOptions{})
	callers := NewCallers(nc)
	now := time.Now()
	if callers.isGone("gw", now) || callers.isGone("gw", now.Add(absentLapse)) {
		t.Error("gone at once")
	}
	for d := absentLapse; d < absentFor; d += absentLapse {
		callers.isGone("gw", now.Add(d))
	}
	for range 2 { // the second request does not wait again
		if !callers.isGone("gw", now.Add(absentFor)) {
			t.Error("not gone after the time")
		}
	}
	if callers.isGone("other", now.Add(absentFor)) {
		t.Error("another gateway is gone, too")
	}
	if callers.isGone("gw", now.Add(absentFor+absentLapse+1)) {
		t.Error("gone by evidence that has lapsed")
	}
	callers.absent["gw"] = absence{since: time.Now().Add(-absentFor), last: time.Now()}
	if state := callers.Ask(t.Context(), "penstock.reply.gw.r", 0); state != CallerAbsent {
		t.Errorf("state %d of a caller without a gateway", state)
	}
}

func TestAbsentGatewaysAreBounded(t *testing.T) {
	_, nc := newNATS(t, ServerOptions{})
	callers := NewCallers(nc)
	now := time.Now()
	for i := range absentMax + 10 {
		callers.isGone(fmt.Sprint("gw", i), now.Add(time.Duration(i)))
	}
	if _, kept := callers.absent["gw0"]; len(callers.absent) != absentMax || kept {
		t.Errorf("%d gateways, the oldest kept: %v", len(callers.absent), kept)
	}
}

// A missing answer proves nothing: an older gateway does not know the question, and an unreachable NATS does not deliver it.
func TestNoAnswerIsUnknown(t *testing.T) {
	srv, nc := newNATS(t, ServerOptions{})
	pool := connect(t, srv)
	sub, err := nc.Subscribe("penstock.reply.old.*", func(*nats.Msg) {})
	must(t, err, nc.Flush())
	defer sub.Unsubscribe() //nolint:errcheck // the connection's end does as well
	callers := NewCallers(pool)
	if state := callers.Ask(t.Context(), "penstock.reply.old.r", time.Millisecond); state != CallerUnknown {
		t.Errorf("state %d at a gateway that does not answer", state)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if state := callers.Ask(ended, "penstock.reply.old.r", time.Hour); state != CallerUnknown {
		t.Errorf("state %d after ctx ended", state)
	}
	pool.Close()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		if state := callers.Ask(t.Context(), "penstock.reply.old.r", 30*time.Second); state != CallerUnknown {
			t.Errorf("state %d without NATS", state)
		}
		if d := time.Since(began); d != 30*time.Second {
			t.Errorf("waited %s", d)
		}
	})
}

func BenchmarkAskCaller(b *testing.B) {
	srv, err := StartServer(ServerOptions{Dir: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}
	defer srv.Close()
	nc, err := srv.Connect()
	if err != nil {
		b.Fatal(err)
	}
	defer nc.Close()
	inbox, err := NewInbox(nc, InboxOptions{Gateway: "gw"})
	if err != nil {
		b.Fatal(err)
	}
	defer inbox.Close()
	if _, err := inbox.Open("r"); err != nil {
		b.Fatal(err)
	}
	callers := NewCallers(nc)
	for b.Loop() {
		if callers.Ask(b.Context(), inbox.Subject("r"), time.Minute) != CallerWaits {
			b.Fatal("the caller is gone")
		}
	}
}

// NATS lost the gateway for longer than it takes to count as absent, and knew the pool all the time. The requests that were
// dropped meanwhile have callers that wait: each gets an error, and none waits for its deadline.
func TestCallersOfDroppedRequestsAreToldWhenTheirGatewayIsBack(t *testing.T) {
	srv, nc := newNATS(t, ServerOptions{})
	b := newInbox(t, nc, InboxOptions{})
	waits, left := open(t, b, "waits"), open(t, b, "left")
	callers := NewCallers(connect(t, srv))
	must(t, b.sub.Unsubscribe(), nc.Flush())
	callers.absent["gw"] = absence{since: time.Now().Add(-absentFor), last: time.Now()}
	for _, id := range []string{"waits", "left"} {
		if state := callers.Ask(t.Context(), b.Subject(id), 0); state != CallerAbsent {
			t.Errorf("%s: state %d without the gateway", id, state)
		}
		callers.Drop(Request{Reply: b.Subject(id), Deadline: time.Now().Add(time.Hour)}, 2)
	}
	callers.Drop(Request{Reply: b.Subject("late"), Deadline: time.Now().Add(-time.Second)}, 1)
	if n := callers.tellMissed(t.Context()); n != 2 {
		t.Errorf("%d requests are remembered while the gateway is away, want the 2 whose deadline has not passed", n)
	}
	left.Close()
	sub, err := nc.Subscribe(b.prefix+"*", b.deliver)
	must(t, err, nc.Flush())
	b.sub = sub
	if n := callers.tellMissed(t.Context()); n != 1 {
		t.Errorf("%d requests are remembered after the first round, want the one whose caller waits", n)
	}
	f, err := waits.Next(t.Context())
	if err != nil || f.Kind != Error || f.Failure.Code != CodeGatewayAway || f.Failure.Status != 503 || !f.Begun.IsZero() {
		t.Errorf("%+v, %v", f, err)
	}
	if n := callers.tellMissed(t.Context()); n != 0 {
		t.Errorf("%d requests are remembered after their callers were told", n)
	}
}

func TestDroppedRequestsAreBounded(t *testing.T) {
	_, nc := newNATS(t, ServerOptions{})
	callers := NewCallers(nc)
	for i := range missedMax + 10 {
		callers.Drop(Request{Reply: fmt.Sprint("penstock.reply.gw.r", i)}, 1)
	}
	if n := len(callers.missed.drops); n != missedMax || callers.missed.drops[0].subject != "penstock.reply.gw.r10" {
		t.Errorf("%d requests, the oldest is %s", n, callers.missed.drops[0].subject)
	}
}
