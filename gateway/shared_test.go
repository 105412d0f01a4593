package gateway

import (
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/penstockmq/penstock/consumer/reply"
	"github.com/penstockmq/penstock/suspend"
	"github.com/penstockmq/penstock/suspend/limit"
	"github.com/penstockmq/penstock/suspend/policy"
)

// natsOf starts a server; an empty dir means one without JetStream.
func natsOf(t *testing.T, dir string) *nats.Conn {
	t.Helper()
	ns, err := reply.StartServer(reply.ServerOptions{Dir: dir})
	must(t, err)
	t.Cleanup(ns.Close)
	nc, err := ns.Connect()
	must(t, err)
	t.Cleanup(nc.Close)
	return nc
}

// sharing is the admission of a gateway of the cluster of nc.
func sharing(t *testing.T, nc *nats.Conn) *admission {
	t.Helper()
	s, err := newShared(nc, "requests")
	must(t, err)
	s.most = time.Minute // a gateway whose grant takes longer counts alone, as it may on a machine that is busy
	return newAdmission(new(Metrics), slog.New(slog.DiscardHandler), s)
}

// month is a window that does not end while a test runs, but for a moment each month.
func month(n int64) *limit.FixedWindow {
	return &limit.FixedWindow{Limit: n, Window: limit.MaxWindow}
}

// sharedUsed is what all gateways together have taken from a window.
func (a *admission) sharedUsed(t *testing.T, target suspend.Target) int64 {
	t.Helper()
	stream, err := a.shared.open(t.Context(), time.Now())
	must(t, err)
	state, _, err := lastState(t.Context(), stream, a.shared.subject(target))
	must(t, err)
	return state.Used
}

// Gateways that ask at the same time let in together exactly what the window allows. One that dies takes nothing with it that
// would be let in twice, and one that is added gets no window of its own.
func TestWindowsHoldForAllGateways(t *testing.T) {
	const most = 100
	nc := natsOf(t, t.TempDir())
	q := askOf("u", policy.Limits{})
	q.windows[suspend.Bucket], q.windows[suspend.Column] = month(most), month(10*most)
	var admitted, refused atomic.Int64
	var wait sync.WaitGroup
	for range 3 {
		a := sharing(t, nc)
		for range 4 {
			wait.Go(func() {
				for range most / 4 {
					_, err := a.admit(t.Context(), q)
					switch {
					case err == nil:
						admitted.Add(1)
					case errors.Is(err, errRate):
						refused.Add(1)
					default:
						t.Error(err)
					}
				}
			})
		}
	}
	wait.Wait()
	if admitted.Load() != most || refused.Load() != 2*most {
		t.Errorf("%d admitted, %d refused, want %d and %d", admitted.Load(), refused.Load(), most, 2*most)
	}
	added := sharing(t, nc)
	if _, err := added.admit(t.Context(), q); retryOf(t, err, errRate) <= 0 {
		t.Error("no time to wait")
	}
	if n := added.sharedUsed(t, suspend.Target{Scope: suspend.Bucket, Name: "u/m"}); n != most {
		t.Errorf("the shared account has used %d", n)
	}
}

// What a narrower window refuses takes no grant from a wider one; another parent topic has windows of its own.
func TestRefusedTakesNoGrant(t *testing.T) {
	nc := natsOf(t, t.TempDir())
	a := sharing(t, nc)
	q := askOf("u", policy.Limits{})
	q.windows[suspend.Row], q.windows[suspend.Column] = month(2), month(10)
	next := sharing(t, nc) // it knows nothing of what a let in
	for i := range 20 {
		if _, err := a.admit(t.Context(), q); (err == nil) != (i < 2) {
			t.Fatalf("ask %d: %v", i, err)
		}
		if i < 2 {
			continue
		}
		if _, err := next.admit(t.Context(), q); !errors.Is(err, errRate) {
			t.Fatalf("ask %d of another gateway: %v", i, err)
		}
	}
	if n := a.sharedUsed(t, suspend.Target{Scope: suspend.Column, Name: "m"}); n != 2 {
		t.Errorf("the column has used %d", n)
	}
	s, err := newShared(nc, "other")
	must(t, err)
	other := newAdmission(new(Metrics), slog.New(slog.DiscardHandler), s)
	if _, err := other.admit(t.Context(), q); err != nil {
		t.Errorf("another topic: %v", err)
	}
}

// An account is gone by itself when its window has ended: its message carries the time.
func TestSharedAccountsExpire(t *testing.T) {
	a := sharing(t, natsOf(t, t.TempDir()))
	target := suspend.Target{Scope: suspend.All}
	_, err := a.shared.take(t.Context(), time.Now(), target, limit.FixedWindow{Limit: 5, Window: time.Minute})
	must(t, err)
	stream, err := a.shared.open(t.Context(), time.Now())
	must(t, err)
	msg, err := stream.GetLastMsgForSubject(t.Context(), a.shared.subject(target))
	must(t, err)
	if d, err := time.ParseDuration(msg.Header.Get("Nats-TTL")); err != nil || d < time.Second || d > 62*time.Second {
		t.Errorf("it lives for %q", msg.Header.Get("Nats-TTL"))
	}
}

// Without JetStream each gateway has the whole window, callers are served, and the metric tells.
func TestWindowsAreCountedAlone(t *testing.T) {
	a := sharing(t, natsOf(t, ""))
	q := askOf("u", policy.Limits{})
	q.windows[suspend.Bucket] = month(3)
	for i := range 5 {
		if _, err := a.admit(t.Context(), q); (err == nil) != (i < 3) {
			t.Fatalf("ask %d: %v", i, err)
		}
	}
	if n := a.metrics.Alone.Load(); n != 1 {
		t.Errorf("counted alone %d times", n)
	}
}

// A lease is for one window of one limit: what was granted for another is not used.
func TestLease(t *testing.T) {
	w := perMinute(10)
	at := func(d time.Duration, used int64) limit.WindowState {
		return limit.WindowState{At: t0.Add(d).UnixNano(), Used: used}
	}
	var l lease
	if l.answer(w, at(0, 0)) != leaseUnknown {
		t.Error("no lease passes")
	}
	l.add(w, at(0, 0), grant{at: at(0, 0).At, n: 2, rest: 8})
	l.add(w, at(time.Minute, 0), grant{at: at(0, 0).At, n: 5}) // it came too late
	for used, want := range map[int64]leaseAnswer{0: leasePasses, 1: leasePasses, 2: leaseUnknown} {
		if got := l.answer(w, at(time.Second, used)); got != want {
			t.Errorf("%d used: %d, want %d", used, got, want)
		}
	}
	if n := l.left(w, at(0, 1), 9); n != 9 {
		t.Errorf("%d left", n)
	}
	l.add(w, at(0, 2), grant{at: at(0, 0).At})
	if l.answer(w, at(0, 2)) != leaseRefuses || l.answer(w, at(0, 1)) != leasePasses || l.left(w, at(0, 2), 8) != 0 {
		t.Error("a full window passes, or what was given back does not")
	}
	if l.answer(w, at(time.Minute, 0)) != leaseUnknown || l.answer(perMinute(20), at(0, 2)) != leaseUnknown {
		t.Error("another window, or another limit")
	}
}

func FuzzDecodeWindow(f *testing.F) {
	f.Add(encodeWindow(limit.WindowState{At: 1, Used: 2}))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := decodeWindow(data)
		if err == nil && (s.Used < 0 || string(encodeWindow(s)) != string(data)) {
			t.Fatalf("%x is %+v", data, s)
		}
	})
}
