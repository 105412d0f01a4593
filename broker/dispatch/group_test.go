package dispatch

import (
	"testing"
	"time"

	"github.com/penstockmq/penstock/suspend"
)

func TestAGroupThatComesLater(t *testing.T) {
	for _, latest := range []bool{false, true} {
		r := newRig(t, TopicConfig{}, wild)
		r.send("a", messages(2)...)
		r.ack(r.one(1, "c"))
		late := GroupConfig{Name: "late", ID: 2, Wildcard: true, StartLatest: latest}
		r.m.AddGroup(late)
		r.disk.groups = append(r.disk.groups, late)
		r.turn()
		r.restart()
		r.send("a")
		want := Offset(1) // what is left when it comes
		if latest {
			want = 2
		}
		if it := r.one(2, "x"); it.Handle.Offset != want {
			t.Fatalf("latest %v: began at %d, want %d", latest, it.Handle.Offset, want)
		}
	}
}

func TestALatestFirstGroupLetsTheBacklogGo(t *testing.T) {
	r := newRig(t, TopicConfig{})
	r.send("a", messages(3)...)
	r.turn()
	latest := wild
	latest.StartLatest = true
	r.m.AddGroup(latest)
	r.turn()
	if len(r.disk.messages) != 0 || r.m.Resident("a") {
		t.Fatalf("%d messages are kept that nobody will read", len(r.disk.messages))
	}
}

func TestMessagesWaitForTheFirstGroup(t *testing.T) {
	r := newRig(t, TopicConfig{})
	a := r.send("a", messages(3)...)
	if got := r.m.Cancel(r.now, "a", a.Bucket, 0); got != Cancelled {
		t.Fatalf("cancel: %d", got)
	}
	r.turn()
	r.m.AddGroup(wild)
	if it := r.one(1, "c"); it.Handle.Offset != 1 {
		t.Fatalf("began at %d, want 1: 0 was cancelled", it.Handle.Offset)
	}
}

func TestRemovingAGroupLeavesNothingOfIt(t *testing.T) {
	g2 := GroupConfig{Name: "g2", ID: 2}
	r := newRig(t, TopicConfig{}, wild, g2)
	r.send("a", messages(2)...)
	r.ack(r.one(1, "c"))
	if _, err := r.m.SyncSubscription(r.now, SyncRequest{Group: 2, Client: "x", Action: CompleteAdd, Names: []string{"a", "b"}}); err != nil {
		t.Fatal(err)
	}
	r.one(2, "x")
	if err := r.m.SetHold(r.now, 2, bucketHold("b", r.now.Add(time.Hour))); err != nil {
		t.Fatal(err)
	}
	r.poll(2, "x", 1)
	r.turn()
	r.empty = nil
	r.m.RemoveGroup(r.now, 2)
	r.turn()
	if len(r.disk.leases)+len(r.disk.holds)+len(r.disk.subscriptions)+len(r.disk.cursors) != 0 || len(r.empty) != 1 {
		t.Fatalf("left over: %d leases, %d holds, %d subscriptions, %d cursors; %d polls ended",
			len(r.disk.leases), len(r.disk.holds), len(r.disk.subscriptions), len(r.disk.cursors), len(r.empty))
	}
	if s := r.disk.buckets["a"]; s.Head != 1 {
		t.Fatalf("head %d: the message only that group waited for is still there", s.Head)
	}
	r.pass(time.Hour)
	r.one(1, "c")
}

func TestLeasesAreRenewedForThreeHoursAtMost(t *testing.T) {
	r := newRig(t, TopicConfig{}, wild)
	r.send("a")
	_, err := r.m.Pull(r.now, PullRequest{Group: 1, Client: "c", Max: 1, AutoRenew: true, Until: r.now})
	if err != nil {
		t.Fatal(err)
	}
	r.turn()
	for r.m.Stats().Groups[0].Leases == 1 {
		r.pass(10 * time.Second)
		r.m.Touch(r.now, "c")
		if r.now.Sub(epoch0) == time.Hour {
			r.restart() // what is left of the three hours survives
			r.m.Touch(r.now, "c")
		}
		if r.now.Sub(epoch0) > renewMax {
			t.Fatal("renewed for more than three hours")
		}
	}
	if lived := r.now.Sub(epoch0); lived != renewMax {
		t.Fatalf("the lease lived %v, want %v", lived, renewMax)
	}
}

func TestAClientWhosePollWaitsIsNotForgotten(t *testing.T) {
	r := newRig(t, TopicConfig{}, GroupConfig{Name: "g", ID: 2})
	if _, err := r.m.SyncSubscription(r.now, SyncRequest{Group: 2, Client: "c", Action: CompleteAdd, Names: []string{"a"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.m.Pull(r.now, PullRequest{Group: 2, Client: "c", Max: 1, Until: r.now.Add(10 * time.Minute)}); err != nil {
		t.Fatal(err)
	}
	r.pass(9 * time.Minute)
	r.send("a")
	r.turn()
	if len(r.got) != 1 {
		t.Fatal("its message came to nobody")
	}
}

func TestAWideHoldCoversClientsThatComeLater(t *testing.T) {
	r := newRig(t, TopicConfig{}, GroupConfig{Name: "g", ID: 2})
	column := suspend.Hold{Target: suspend.Target{Scope: suspend.Column, Name: "m"}, Until: r.now.Add(time.Minute)}
	if _, err := r.m.ExtendHold(r.now, 2, column); err != nil {
		t.Fatal(err)
	}
	r.send("alice__m")
	if _, err := r.m.SyncSubscription(r.now, SyncRequest{Group: 2, Client: "c", Action: CompleteAdd, Names: []string{"alice__m"}}); err != nil {
		t.Fatal(err)
	}
	r.poll(2, "c", 1)
	r.pass(20*time.Second - 1)
	if len(r.got) != 0 {
		t.Fatal("delivered while its column is held")
	}
	r.poll(2, "c", 1)
	r.pass(20*time.Second + 1)
	r.poll(2, "c", 1)
	r.pass(20*time.Second - 1)
	if len(r.got) != 0 {
		t.Fatal("delivered while its column is held")
	}
	r.pass(1)
	if len(r.got) != 1 {
		t.Fatal("not delivered at the end of the hold")
	}
}

// A client may turn from names to everything while its polls wait.
func TestAWaitingPollFollowsTheSubscription(t *testing.T) {
	r := newRig(t, TopicConfig{}, GroupConfig{Name: "g", ID: 2})
	r.send("a")
	r.poll(2, "c", 1)
	r.turn()
	if len(r.got) != 0 {
		t.Fatal("nothing was subscribed")
	}
	sync := func(a SyncAction, names ...string) {
		t.Helper()
		if _, err := r.m.SyncSubscription(r.now, SyncRequest{Group: 2, Client: "c", Action: a, Names: names}); err != nil {
			t.Fatal(err)
		}
		r.turn()
	}
	sync(PartialAdd, "*")
	if len(r.got) != 1 {
		t.Fatal("* reads all")
	}
	r.poll(2, "c", 1)
	sync(PartialRemove, "*")
	r.send("b")
	r.turn()
	if len(r.got) != 1 {
		t.Fatal("it reads nothing any more")
	}
	sync(PartialAdd, "b")
	if len(r.got) != 2 {
		t.Fatal("it reads b")
	}
}

func TestBucketInfo(t *testing.T) {
	r := newRig(t, TopicConfig{}, wild)
	r.send("alice__m", messages(3)...)
	r.suspend(r.one(1, "c"), time.Minute)
	info, ok := r.m.BucketInfo(r.now, "alice__m")
	if !ok || info.Queued != 3 || info.State.Cell.User != "alice" || len(info.Groups) != 1 {
		t.Fatalf("%+v", info)
	}
	if g := info.Groups[0]; g.Queued != 3 || g.Leased != 0 || g.Returned != 1 || !g.Hold.Until.Equal(r.now.Add(time.Minute)) {
		t.Fatalf("%+v", g)
	}
	if info, ok := r.m.BucketInfo(r.now, "nobody"); ok {
		t.Fatalf("a bucket that nobody made: %+v", info)
	}
}

// A message that is settled everywhere and kept by an older one is not purged, whichever group has the older one out.
func TestPurgeCountsWhatWaited(t *testing.T) {
	for slow := GroupID(1); slow <= 2; slow++ {
		two := GroupConfig{Name: "two", ID: 2, Wildcard: true, InFlight: 2}
		one := wild
		one.InFlight = 2
		r := newRig(t, TopicConfig{}, one, two)
		r.send("a", messages(2)...)
		fast := 3 - slow
		r.ack(r.one(fast, "c"), r.one(fast, "c"))
		r.one(slow, "c")
		r.ack(r.one(slow, "c"))
		if n := r.m.Purge(r.now, "a"); n != 0 {
			t.Errorf("group %d has the first out: purged %d, and nothing waits", slow, n)
		}
	}
}

// TestCensusCountsWhatOneGroupAloneKeeps: three groups at different places, in chunks of
// one bucket.
func TestCensusCountsWhatOneGroupAloneKeeps(t *testing.T) {
	second, third := GroupConfig{Name: "g2", ID: 2, Wildcard: true}, GroupConfig{Name: "g3", ID: 3, Wildcard: true}
	r := newRig(t, TopicConfig{}, wild, second, third)
	read := func(g GroupID, n int) { // n messages of each bucket
		for range n {
			r.ack(r.pull(g, "c", 32)...)
		}
	}
	r.send("a", messages(5)...)
	r.send("b", messages(5)...)
	read(1, 4)
	read(2, 3)
	read(3, 1)
	r.send("c") // no group has read it: it is kept for all three
	r.turn()
	kept, rounds := map[GroupID]int64{}, 0
	for from := 0; from > 0 || rounds == 0; rounds++ {
		from = r.m.Census(from, 1, kept)
	}
	if rounds != 3 || len(kept) != 1 || kept[3] != 4 { // two of each of a and b: the next group has read three
		t.Errorf("kept %v after %d rounds, want 4 messages for group 3 after 3", kept, rounds)
	}
	r.m.RemoveGroup(r.now, 3)
	r.m.RemoveGroup(r.now, 2)
	r.turn()
	clear(kept)
	if next := r.m.Census(0, 100, kept); next != 0 || kept[1] != 3 {
		t.Errorf("kept %v for the only group, then %d; want its 3 messages, then 0", kept, next)
	}
}
