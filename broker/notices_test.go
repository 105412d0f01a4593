package broker_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/penstockmq/penstock/broker"
	"github.com/penstockmq/penstock/broker/lite"
)

// heard collects what the broker tells.
type heard struct {
	mu        sync.Mutex
	discarded []broker.Discarded // guarded by mu
	released  []broker.Released  // guarded by mu
}

func (h *heard) discard(d broker.Discarded) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.discarded = append(h.discarded, d)
}

func (h *heard) release(r broker.Released) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.released = append(h.released, r)
}

// discards returns "bucket offset reason of group" of each, in order, and forgets them.
func (h *heard) discards(t *testing.T) []string {
	t.Helper()
	synctest.Wait()
	h.mu.Lock()
	defer h.mu.Unlock()
	var out []string
	for _, d := range h.discarded {
		id := d.Message.Properties[lite.PropertyRequestID]
		if d.Topic != topic || id != fmt.Sprintf("%s-%d", d.Lite, d.Offset) || d.Message.Body != nil {
			t.Errorf("discarded is %+v", d)
		}
		out = append(out, fmt.Sprintf("%s %d %s %s", d.Lite, d.Offset, d.Reason, d.Group))
	}
	h.discarded = nil
	slices.Sort(out)
	return out
}

// sendRequests stores n messages in a bucket, each with a request id of its offset from
// first on, and other properties if they are given.
func sendRequests(t *testing.T, b *broker.Broker, name string, first, n int, properties ...string) {
	t.Helper()
	msgs := make([]broker.Message, n)
	for i := range msgs {
		p := map[string]string{lite.PropertyRequestID: fmt.Sprintf("%s-%d", name, first+i)}
		for k := 0; k+1 < len(properties); k += 2 {
			p[properties[k]] = properties[k+1]
		}
		msgs[i] = broker.Message{Lite: name, Body: []byte("x"), Properties: p}
	}
	if _, err := b.Send(t.Context(), topic, msgs); err != nil {
		t.Fatal(err)
	}
}

// TestDiscardsAreTold lets the broker settle messages in every way there is, with them
// in memory and with none.
func TestDiscardsAreTold(t *testing.T) {
	for _, cache := range []int64{0, 1} {
		t.Run(fmt.Sprintf("cache %d", cache), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testDiscards(t, cache) })
		})
	}
}

func testDiscards(t *testing.T, cache int64) {
	var h heard
	o := options(vfs.NewMem())
	o.TailCacheBytes, o.OnDiscard = cache, h.discard
	o.Topics[0].TTL, o.Topics[0].ExpireBacklog = time.Hour, true
	o.Groups[0].MaxAttempts = 1
	b := open(t, o)
	want := func(what string, want ...string) {
		t.Helper()
		if got := h.discards(t); !slices.Equal(got, want) {
			t.Errorf("%s: told %q, want %q", what, got, want)
		}
	}

	sendRequests(t, b, "purged", 0, 3)
	d := one(t, b, 0)
	if n, err := b.Purge(t.Context(), topic, "purged"); n != 2 || err != nil {
		t.Fatalf("purged %d, %v", n, err)
	}
	want("purge of all but the one that is out", "purged 1 purged ", "purged 2 purged ")
	ack(t, b, d)
	want("ack")

	sendRequests(t, b, "failed", 0, 1)
	one(t, b, 0)
	time.Sleep(2 * time.Minute)
	want("lease of the last attempt", "failed 0 delivery attempts used up pool")

	sendRequests(t, b, "rejected", 0, 2)
	if err := b.DeadLetter(t.Context(), topic, group, one(t, b, 0).Handle, "no"); err != nil {
		t.Fatal(err)
	}
	settle(t, b, one(t, b, 0), broker.Settlement{Then: broker.ThenReject, Reason: "no"})
	want("dead letters that workers asked for")

	soon := fmt.Sprint(time.Now().Add(10 * time.Second).UnixMilli())
	sendRequests(t, b, "late", 0, 2, lite.PropertyDeadline, soon)
	time.Sleep(20 * time.Second)
	none(t, b, 0)
	want("deadline", "late 0 deadline passed while queued ", "late 1 deadline passed while queued ")

	sendRequests(t, b, "recalled", 0, 1)
	time.Sleep(2 * time.Hour)
	want("expired backlog", "recalled 0 bucket expired with its messages ")
	if m := b.Metrics(); m.Discarded.Load() != 6 || m.NoticesDropped.Load() != 0 {
		t.Errorf("%d discarded, %d dropped, want 6 and none", m.Discarded.Load(), m.NoticesDropped.Load())
	}
	closeBroker(t, b)
}

// TestMessageThatNeverFitsIsTold costs more than its window ever gives.
func TestMessageThatNeverFitsIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h heard
		o := options(vfs.NewMem())
		o.OnDiscard = h.discard
		o.Policy = document(t, `limits: [{user: "*", model: "*", window: 5/1m, window_at: release}]`)
		b := open(t, o)
		name := cell(t, "alice", "m")
		sendRequests(t, b, name, 0, 1, lite.PropertyCost, "6")
		sendRequests(t, b, name, 1, 1, lite.PropertyCost, "5")
		if d := one(t, b, 2*time.Minute); d.Offset != 1 {
			t.Errorf("offset %d delivered, want that of the one that fits", d.Offset)
		}
		if got, want := h.discards(t), []string{name + " 0 costs more than its limit ever gives " + group}; !slices.Equal(got, want) {
			t.Errorf("told %q, want %q", got, want)
		}
		if letters, err := b.DeadLetters(t.Context(), group, 0, 10); err != nil || len(letters) != 1 {
			t.Errorf("%d dead letters, %v, want 1", len(letters), err)
		}
		closeBroker(t, b)
	})
}

// TestDeadlinePassedBeforeARestart: the machine does not know that deadline any more;
// whoever reads the message does.
func TestDeadlinePassedBeforeARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h heard
		o := options(vfs.NewMem())
		o.OnDiscard = h.discard
		b := open(t, o)
		sendRequests(t, b, "late", 0, 1, lite.PropertyDeadline, fmt.Sprint(time.Now().Add(time.Second).UnixMilli()))
		closeBroker(t, b)
		time.Sleep(time.Minute)
		b = open(t, o)
		none(t, b, 0)
		if got := h.discards(t); len(got) != 1 || got[0] != "late 0 deadline passed while queued " {
			t.Errorf("told %q", got)
		}
		closeBroker(t, b)
	})
}

// TestSlowListenerStopsNobody: the loop goes on while OnDiscard blocks; what finds the
// queue full is counted, and Close ends.
func TestSlowListenerStopsNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		told := 0
		o := options(vfs.NewMem())
		o.MaxNotices, o.TailCacheBytes = 100, 1
		o.OnDiscard = func(broker.Discarded) { time.Sleep(time.Second); told++ }
		b := open(t, o)
		const n = 200
		for i := range n {
			sendRequests(t, b, "a", i, 1)
			if _, err := b.Purge(t.Context(), topic, "a"); err != nil {
				t.Fatal(err)
			}
		}
		send(t, b, "x", "b")
		ack(t, b, one(t, b, 0))
		dropped := b.Metrics().NoticesDropped.Load()
		if dropped < n-70 || dropped >= n {
			t.Errorf("%d of %d dropped, want all but some 64", dropped, n)
		}
		closeBroker(t, b)
		if lost := b.Metrics().NoticesDropped.Load(); int64(told)+lost != n {
			t.Errorf("%d told and %d dropped of %d", told, lost, n)
		}
	})
}

// TestReleasesAreTold records a delivery that is acked, one that is suspended and one
// whose lease ends.
func TestReleasesAreTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h heard
		o := options(vfs.NewMem())
		o.OnRelease = h.release
		b := open(t, o)
		begin := time.Now()
		name := cell(t, "alice", "m")
		for i := range 3 {
			sendRequests(t, b, name, i, 1, lite.PropertyLevel, "2", lite.PropertyInputTokens, "7", lite.PropertyMaxTokens, "5", lite.PropertyCost, "3")
		}
		time.Sleep(time.Second)
		d := one(t, b, 0)
		time.Sleep(5 * time.Second)
		ack(t, b, d)
		d = one(t, b, 0)
		time.Sleep(2 * time.Second)
		if err := b.Suspend(t.Context(), topic, group, d.Handle, 0, "c", ""); err != nil {
			t.Fatal(err)
		}
		one(t, b, 0)
		time.Sleep(10 * time.Minute)
		closeBroker(t, b)
		if len(h.released) != 6 {
			t.Fatalf("told %+v, want three begins and three ends", h.released)
		}
		for i, want := range []struct {
			offset  uint64
			at      time.Duration
			service time.Duration
			settled bool
		}{{0, time.Second, 5 * time.Second, true}, {1, 6 * time.Second, 2 * time.Second, false}, {1, 8 * time.Second, time.Minute, false}} {
			first, last := h.released[2*i], h.released[2*i+1]
			if !first.Ended.IsZero() || first.Settled || first.Service() != 0 {
				t.Errorf("delivery %d begins as %+v", i, first)
			}
			if last.Offset != want.offset || last.At.Sub(begin) != want.at || last.Service() != want.service || last.Settled != want.settled {
				t.Errorf("delivery %d is %+v, want %+v", i, last, want)
			}
			if first.Stored.Sub(begin) != 0 || first.Level != 2 || first.Cell != (lite.Cell{User: "alice", Model: "m"}) || first.Group != group {
				t.Errorf("delivery %d is of %+v", i, first)
			}
			if c := first.Cost; c.Requests != 3 || c.Tokens != 12 || c.Output != 5 || c.BytesIn != 1 {
				t.Errorf("delivery %d costs %+v", i, c)
			}
		}
	})
}
