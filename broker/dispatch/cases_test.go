package dispatch

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/penstockmq/penstock/suspend"
)

// The cases are public faults of other systems, by their id in the project's collection.

func TestC03_InFlightMessagesDoNotUseUpTheReadySet(t *testing.T) {
	r := newRig(t, TopicConfig{}, wild)
	for i := range 25 {
		r.send(fmt.Sprint("b", i))
	}
	for i, want := range []int{10, 10, 5, 0} {
		if got := len(r.pull(1, "c", 10)); got != want {
			t.Fatalf("pull %d of 10 got %d messages, want %d", i, got, want)
		}
	}
}

func TestC05_WritesBehindABlockedHeadDoNotWakeAPoll(t *testing.T) {
	r := newRig(t, TopicConfig{}, wild)
	r.send("b")
	r.one(1, "holder") // out for 60 s
	w := r.poll(1, "waiter", 1)
	r.turn()
	before := r.m.Stats().Pulls
	begin := r.now
	for range 5000 {
		r.send("b")
		r.pass(2 * time.Millisecond)
		if len(r.empty) > 0 && r.now.Sub(begin) < 20*time.Second {
			t.Fatalf("the poll ended after %v", r.now.Sub(begin))
		}
	}
	r.pass(10*time.Second - time.Millisecond)
	if len(r.empty) != 0 {
		t.Fatal("the poll ended before its 20 s")
	}
	r.pass(time.Millisecond)
	if len(r.empty) != 1 || r.empty[0] != w {
		t.Fatalf("%d polls ended empty after 20 s, want the one", len(r.empty))
	}
	if tried := r.m.Stats().Pulls - before; tried > 50 {
		t.Fatalf("the poll was tried %d times for 5,000 writes it could not take", tried)
	}
}

func TestC07_OneReadyBucketBehindManyStaleOnes(t *testing.T) {
	r := newRig(t, TopicConfig{}, wild)
	for i := range 9_999 {
		name := fmt.Sprintf("u%d__m", i)
		if i%2 == 0 {
			name = fmt.Sprintf("held__m%d", i)
		}
		r.send(name, MessageMeta{Size: 1, Deadline: r.now.Add(time.Second + time.Duration(i%2)*time.Hour)})
		if i%4 == 1 {
			r.m.Purge(r.now, name)
		}
	}
	// A row is closed after its buckets became ready, and half of them are overdue.
	if err := r.m.SetHold(r.now, 1, suspend.Hold{Target: suspend.Target{Scope: suspend.Row, Name: "held"}, Until: r.now.Add(time.Hour)}); err != nil {
		t.Fatal(err)
	}
	for i := 3; i < 9_999; i += 4 {
		if err := r.m.SetHold(r.now, 1, bucketHold(fmt.Sprintf("u%d__m", i), r.now.Add(time.Hour))); err != nil {
			t.Fatal(err)
		}
	}
	r.now = r.now.Add(2 * time.Second)
	r.send("last")
	got := r.pull(1, "c", 1)
	if len(got) != 1 || got[0].Name != "last" {
		t.Fatalf("got %v, want the one message that may go, at once", got)
	}
	if len(r.pull(1, "c", 1)) != 0 {
		t.Fatal("nothing else may go")
	}
	if s := r.m.Stats().Groups[0]; s.Ready != 0 {
		t.Fatalf("%d stale buckets are left in the ready set", s.Ready)
	}
}

func TestC11_HugeDelaysDoNotWrapRound(t *testing.T) {
	for _, c := range []struct {
		d    time.Duration
		want error
		held time.Duration
	}{
		{d: suspend.Milliseconds(1<<63 - 1), want: suspend.ErrTooLong},
		{d: suspend.Milliseconds(1 << 31), want: suspend.ErrTooLong},
		{d: suspend.Milliseconds(315_576_000_000_999), want: suspend.ErrTooLong},
		{d: 24*time.Hour + 1, want: suspend.ErrTooLong},
		{d: -time.Millisecond, want: suspend.ErrNegative},
		{d: -1, want: suspend.ErrNegative},
		{d: 0},
		{d: 1, held: time.Millisecond},
		{d: time.Millisecond, held: time.Millisecond},
		{d: 29 * time.Millisecond, held: 29 * time.Millisecond},
		{d: 30 * time.Millisecond, held: 30 * time.Millisecond},
		{d: 24 * time.Hour, held: 24 * time.Hour},
	} {
		t.Run(c.d.String(), func(t *testing.T) {
			r := newRig(t, TopicConfig{}, wild)
			r.send("b")
			it := r.one(1, "c")
			if err := r.m.Suspend(r.now, it.Handle, c.d, "c", ""); !errors.Is(err, c.want) {
				t.Fatalf("got %v, want %v", err, c.want)
			}
			if c.want != nil { // as it was: out under the same handle, no hold
				if s := r.m.Stats().Groups[0]; s.Leases != 1 || s.Holds != 0 {
					t.Fatalf("a refused suspend changed something: %+v", s)
				}
				r.ack(it)
				return
			}
			if c.held > 0 {
				r.pass(c.held - 1)
				r.none(1, "c")
				r.pass(1)
			}
			if got := r.one(1, "c"); got.Attempt != 1 {
				t.Fatalf("attempt %d after a suspend, want 1", got.Attempt)
			}
		})
	}
}

func TestC13_AShortSuspendDoesNotCancelALongerOne(t *testing.T) {
	two := wild
	two.InFlight = 2
	for _, lifted := range []bool{false, true} {
		t.Run(fmt.Sprint("lifted=", lifted), func(t *testing.T) {
			r := newRig(t, TopicConfig{}, two)
			r.send("b", messages(2)...)
			first, second := r.one(1, "c"), r.one(1, "c")
			r.suspend(first, 5*time.Second)
			r.pass(time.Second)
			r.suspend(second, 100*time.Millisecond)
			r.pass(time.Second)
			if lifted {
				if had, err := r.m.LiftHold(r.now, 1, bucketHold("b", time.Time{}).Target); !had || err != nil {
					t.Fatal("no hold to lift", err)
				}
			} else {
				r.pass(3*time.Second - time.Millisecond)
				r.none(1, "c")
				r.pass(time.Millisecond)
			}
			if got := r.one(1, "c"); got.Handle.Offset != 0 || got.Attempt != 1 {
				t.Fatalf("got %+v, want message 0, attempt 1", got)
			}
		})
	}
}

func TestC20_AckAfterAChangeOfInvisibleTime(t *testing.T) {
	g := wild
	g.InFlight = 10
	r := newRig(t, TopicConfig{}, g)
	r.send("b", messages(10)...)
	var items []Item
	for range 10 {
		items = append(items, r.one(1, "c"))
	}
	if err := r.m.ChangeInvisible(r.now, items[4].Handle, 10*time.Second); err != nil {
		t.Fatal(err)
	}
	r.ack(items...)
	r.pass(time.Minute)
	r.none(1, "c")
}

func TestC23_OrderDoesNotHangOnTimestamps(t *testing.T) {
	r := newRig(t, TopicConfig{}, wild) // the clock stands still
	r.send("b", messages(1000)...)
	var order []Offset
	failed := false
	for len(order) < 1001 {
		it := r.one(1, "c")
		order = append(order, it.Handle.Offset)
		if it.Handle.Offset == 500 && !failed {
			failed = true
			if err := r.m.ChangeInvisible(r.now, it.Handle, 0); err != nil {
				t.Fatal(err)
			}
			r.turn()
			continue
		}
		r.ack(it)
	}
	for i, off := range order {
		want := Offset(i)
		if i > 500 {
			want--
		}
		if off != want {
			t.Fatalf("delivery %d was message %d, want %d", i, off, want)
		}
	}
	r.none(1, "c")
}

func TestC25_ReturnedMessagesThatWereRemovedAreNotTried(t *testing.T) {
	g := wild
	g.InFlight = 50
	r := newRig(t, TopicConfig{}, g)
	a := r.send("b", messages(100)...)
	var out []Item
	for range 50 {
		out = append(out, r.one(1, "c"))
	}
	for _, it := range out { // due for redelivery
		if err := r.m.ChangeInvisible(r.now, it.Handle, 0); err != nil {
			t.Fatal(err)
		}
	}
	r.turn()
	for off := range Offset(49) {
		if got := r.m.Cancel(r.now, "b", a.Bucket, off); got != Cancelled {
			t.Fatalf("cancel of message %d: %d", off, got)
		}
	}
	r.turn()
	r.got = nil
	for range 51 {
		it := r.one(1, "c")
		if it.Handle.Offset < 49 {
			t.Fatalf("message %d was removed and delivered", it.Handle.Offset)
		}
		r.ack(it)
	}
	r.none(1, "c")
	if s := r.m.Stats(); s.Groups[0].Returned != 0 || s.Resident != 0 {
		t.Fatalf("something is left: %+v", s)
	}
}

func TestC27_AMessageOutWithoutATimerIsDeliverable(t *testing.T) {
	g := wild
	g.InFlight = 20
	r := newRig(t, TopicConfig{}, g)
	r.send("b", messages(20)...)
	for range 20 {
		r.one(1, "c")
	}
	clear(r.disk.leases) // the fault
	r.restart()
	for i := range 20 {
		if it := r.one(1, "c"); it.Handle.Offset != Offset(i) {
			t.Fatalf("got message %d, want %d", it.Handle.Offset, i)
		}
	}
	if len(r.disk.leases) != 20 || r.m.Stats().Groups[0].Leases != 20 {
		t.Fatal("every message that is out has a lease again")
	}
}

func TestC27_OnlySomeOfTheTimersAreLost(t *testing.T) {
	g := wild
	g.InFlight = 4
	r := newRig(t, TopicConfig{}, g)
	a := r.send("b", messages(4)...)
	for range 4 {
		r.one(1, "c")
	}
	delete(r.disk.leases, leaseKey{1, a.Bucket, 1})
	r.restart()
	if it := r.one(1, "c"); it.Handle.Offset != 1 {
		t.Fatalf("got message %d, want 1, whose lease is lost", it.Handle.Offset)
	}
	r.none(1, "c")
}

func TestC33_ABucketInUseOutlivesItsTTL(t *testing.T) {
	r := newRig(t, TopicConfig{TTL: time.Minute}, wild)
	r.send("b")
	r.suspend(r.one(1, "c"), 5*time.Minute)
	sweeping := func(d time.Duration) {
		for range d / time.Second {
			r.pass(time.Second)
			r.sweep()
		}
	}
	exists := func() bool { _, ok := r.disk.buckets["b"]; return ok }
	sweeping(5 * time.Minute)
	it := r.one(1, "c")
	if err := r.m.SetHold(r.now, 1, bucketHold("b", time.Time{})); err != nil {
		t.Fatal(err)
	}
	if err := r.m.ChangeInvisible(r.now, it.Handle, 10*time.Minute); err != nil {
		t.Fatal(err)
	}
	sweeping(5 * time.Minute)
	if !exists() {
		t.Fatal("the bucket was removed while its message was out")
	}
	r.ack(it)
	sweeping(59 * time.Second)
	if !exists() {
		t.Fatal("the bucket was removed before its TTL")
	}
	sweeping(2 * time.Second)
	if exists() {
		t.Fatal("the bucket is still there a sweep after its TTL")
	}
	if len(r.disk.expiry) != 0 || r.m.Stats().Buckets != 0 {
		t.Fatalf("left over: %v, %d buckets counted", r.disk.expiry, r.m.Stats().Buckets)
	}
	old := it.Handle.Bucket
	if a := r.send("b"); a.Bucket == old || a.First != 0 {
		t.Fatal("a bucket that comes back starts clean")
	}
	// A late ack for the bucket that is gone must not touch the new one.
	if err := r.m.Ack(r.now, it.Handle); err != nil {
		t.Fatal(err)
	}
	r.one(1, "c")
}

func TestC33_AHeldBucketOutlivesItsTTL(t *testing.T) {
	r := newRig(t, TopicConfig{TTL: time.Minute}, wild)
	r.send("b")
	r.ack(r.one(1, "c"))
	if err := r.m.SetHold(r.now, 1, bucketHold("b", r.now.Add(10*time.Minute))); err != nil {
		t.Fatal(err)
	}
	for range 10*60 + 58 {
		r.pass(time.Second)
		r.sweep()
		if _, ok := r.disk.buckets["b"]; !ok {
			t.Fatalf("a held bucket was removed after %v", r.now.Sub(epoch0))
		}
	}
	r.pass(3 * time.Second)
	r.sweep()
	if _, ok := r.disk.buckets["b"]; ok {
		t.Fatal("it is still there")
	}
}

func TestC107_OneMessageWakesOnePoll(t *testing.T) {
	r := newRig(t, TopicConfig{}, wild)
	for i := range 200 {
		r.poll(1, fmt.Sprint("c", i), 32)
	}
	r.turn()
	before := r.m.Stats()
	r.send("b")
	r.turn()
	s := r.m.Stats()
	if len(r.answered) != 1 || s.Wakeups-before.Wakeups != 1 || s.Pulls-before.Pulls > 3 {
		t.Fatalf("%d polls were answered, %d woken, %d tried", len(r.answered), s.Wakeups-before.Wakeups, s.Pulls-before.Pulls)
	}
	before = s
	r.poll(1, "c0", 32)
	for i := range 200 {
		r.send(fmt.Sprint("b", i))
		r.pass(5 * time.Millisecond)
	}
	s = r.m.Stats()
	if len(r.got) != 201 || s.Wakeups-before.Wakeups != 200 || s.Pulls-before.Pulls > 600 {
		t.Fatalf("%d messages came, %d polls woken, %d tried", len(r.got), s.Wakeups-before.Wakeups, s.Pulls-before.Pulls)
	}
}

func TestC40_ClientsThatLeaveLeaveNothing(t *testing.T) {
	exact := GroupConfig{Name: "exact", ID: 2}
	r := newRig(t, TopicConfig{}, wild, exact)
	for i := range 500 {
		c := fmt.Sprint("c", i)
		for _, g := range []GroupID{1, 2} {
			if _, err := r.m.SyncSubscription(r.now, SyncRequest{Group: g, Client: c, Action: CompleteAdd, Names: []string{"*", "b", "d"}}); err != nil {
				t.Fatal(err)
			}
			if i%2 == 0 {
				r.m.Terminate(r.now, g, c)
			}
		}
		r.turn()
	}
	r.pass(clientTimeout + time.Second)
	if s := r.m.Stats(); s.Clients != 0 || s.Subscriptions != 0 || s.Groups[0].Clients != 0 || s.Groups[1].Clients != 0 {
		t.Fatalf("left over: %+v", s)
	}
	if len(r.disk.subscriptions) != 0 || len(r.m.group(2).links) != 0 {
		t.Fatalf("%d subscriptions on disk, %d links", len(r.disk.subscriptions), len(r.m.group(2).links))
	}
}

func TestC46_RepeatingACompleteSetChangesNothing(t *testing.T) {
	exact := GroupConfig{Name: "exact", ID: 2}
	r := newRig(t, TopicConfig{}, exact)
	names := make([]string, 1200)
	for i := range names {
		names[i] = fmt.Sprint("b", i)
	}
	sync := func() SyncResult {
		res, err := r.m.SyncSubscription(r.now, SyncRequest{Group: 2, Client: "c", Action: CompleteAdd, Names: names})
		if err != nil {
			t.Fatal(err)
		}
		return res
	}
	if res := sync(); res.Added != 1200 {
		t.Fatalf("added %d", res.Added)
	}
	r.turn()
	for i := range 60 {
		r.send(names[i])
		it := r.one(2, "c")
		res := sync()
		if e := r.turn(); len(e.Writes) != 0 || res.Added+res.Removed != 0 {
			t.Fatalf("repeating the set wrote %v", e.Writes)
		}
		if it.Name != names[i] {
			t.Fatalf("got %q", it.Name)
		}
		r.ack(it)
	}
}
