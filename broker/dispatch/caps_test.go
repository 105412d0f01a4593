package dispatch

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/penstockmq/penstock/broker/lite"
	"github.com/penstockmq/penstock/suspend/quota"
)

func TestCapsRefuseWholeAppends(t *testing.T) {
	r := newRig(t, TopicConfig{MaxMessages: 3, MaxBytes: 100, MaxBuckets: 2}, wild)
	refused := func(want error, name string, msgs ...MessageMeta) {
		t.Helper()
		before := r.m.Stats()
		if _, err := r.trySend(name, msgs...); !errors.Is(err, want) {
			t.Fatalf("got %v, want %v", err, want)
		}
		if after := r.m.Stats(); after.Messages != before.Messages || after.Buckets != before.Buckets {
			t.Fatalf("a refused append changed something: %+v", after)
		}
	}
	refused(ErrBucketFull, "a", messages(4)...)
	r.send("a", messages(2)...)
	refused(ErrBucketFull, "a", messages(2)...)
	refused(ErrBucketBytes, "a", MessageMeta{Size: 81})
	r.send("a", MessageMeta{Size: 80})
	r.send("b")
	refused(ErrTooManyBuckets, "c")
	r.ack(r.one(1, "c"))
	r.send("a") // room again
	refused(ErrBucketFull, "a")
}

func TestARefusedAppendLeavesAnIdleBucketInTheStore(t *testing.T) {
	r := newRig(t, TopicConfig{MaxMessages: 1}, wild)
	r.send("a")
	r.ack(r.one(1, "c"))
	if _, err := r.trySend("a", messages(2)...); !errors.Is(err, ErrBucketFull) {
		t.Fatal(err)
	}
	if e := r.turn(); len(e.Writes) != 0 || r.m.Resident("a") {
		t.Fatalf("wrote %v, resident %v", e.Writes, r.m.Resident("a"))
	}
}

func TestWaitersAreBounded(t *testing.T) {
	r := newRig(t, TopicConfig{MaxWaiters: 2}, wild)
	w := r.poll(1, "a", 1)
	r.poll(1, "b", 1)
	_, err := r.m.Pull(r.now, PullRequest{Group: 1, Client: "c", Max: 1, Until: r.now.Add(time.Second)})
	if !errors.Is(err, ErrTooManyWaiters) {
		t.Fatalf("third poll: %v", err)
	}
	r.m.CancelPull(w)
	r.m.CancelPull(w) // twice is once
	r.poll(1, "c", 1)
	if _, err := r.m.Pull(r.now, PullRequest{Group: 9}); !errors.Is(err, ErrNoGroup) {
		t.Fatalf("unknown group: %v", err)
	}
}

func TestSubscriptionQuotas(t *testing.T) {
	r := newRig(t, TopicConfig{MaxSubscriptions: 5}, GroupConfig{Name: "g", ID: 2, ClientQuota: 3})
	sync := func(client string, a SyncAction, names ...string) error {
		_, err := r.m.SyncSubscription(r.now, SyncRequest{Group: 2, Client: client, Action: a, Names: names})
		return err
	}
	if err := sync("c1", CompleteAdd, "a", "b", "c", "c"); err != nil {
		t.Fatal(err)
	}
	for _, a := range []SyncAction{PartialAdd, CompleteAdd} {
		if err := sync("c1", a, "a", "d", "e", "f"); !errors.Is(err, ErrSubscriptionQuota) {
			t.Fatalf("action %d over the client's quota: %v", a, err)
		}
	}
	if err := sync("c2", PartialAdd, "a", "b", "d"); !errors.Is(err, ErrSubscriptionQuota) {
		t.Fatalf("over the topic's quota: %v", err)
	}
	if err := sync("c2", PartialAdd, "a", "b"); err != nil {
		t.Fatal(err)
	}
	if err := sync("c1", CompleteAdd, "x", "y", "z"); err != nil { // as many as before
		t.Fatal(err)
	}
	if s := r.m.Stats(); s.Subscriptions != 5 {
		t.Fatalf("%d subscriptions, want 5", s.Subscriptions)
	}
}

// A message that runs for hours must not let the record of its bucket grow without end.
func TestTheWindowIsBounded(t *testing.T) {
	g := wild
	g.InFlight = 2
	r := newRig(t, TopicConfig{}, g)
	r.send("b", messages(3000)...)
	head := r.one(1, "slow")
	n := 0
	for {
		got := r.pull(1, "fast", 1)
		if len(got) == 0 {
			break
		}
		r.ack(got...)
		n++
	}
	if want := windowMax + g.InFlight - 1; n != want {
		t.Fatalf("%d messages went by the head, want %d", n, want)
	}
	for _, c := range r.disk.cursors {
		if len(c.Settled) > windowMax+g.InFlight {
			t.Fatalf("a record of %d offsets", len(c.Settled))
		}
	}
	r.ack(head)
	if it := r.one(1, "fast"); it.Handle.Offset != Offset(n)+1 {
		t.Fatalf("got message %d, want %d", it.Handle.Offset, n+1)
	}
}

func TestIDsAndTokensAreFreshForEver(t *testing.T) {
	r := newRig(t, TopicConfig{TTL: time.Second}, wild)
	ids, tokens := map[BucketID]bool{}, map[Token]bool{}
	for i := range 50 {
		a := r.send("b")
		if ids[a.Bucket] || a.Bucket>>sequenceBits != 1 {
			t.Fatalf("bucket id %x again, or of another topic", a.Bucket)
		}
		ids[a.Bucket] = true
		it := r.one(1, "c")
		if tokens[it.Handle.Token] {
			t.Fatalf("token %x again", it.Handle.Token)
		}
		tokens[it.Handle.Token] = true
		r.ack(it)
		r.pass(3 * time.Second)
		r.sweep()
		if i%3 == 0 {
			r.restart()
		}
	}
}

// The owner loop is still busy with one Take while it collects the next.
func TestEffectsHoldUntilTheNextTake(t *testing.T) {
	r := newRig(t, TopicConfig{}, wild)
	r.send("a")
	r.poll(1, "c", 1)
	r.m.Match(r.now)
	e := r.m.Take()
	want := fmt.Sprintf("%+v %+v", *e.Writes[len(e.Writes)-1].State, e.Deliveries[0].Items)
	for i := range 100 {
		r.send(fmt.Sprint("b", i))
	}
	r.poll(1, "c", 50)
	r.m.Match(r.now)
	if got := fmt.Sprintf("%+v %+v", *e.Writes[len(e.Writes)-1].State, e.Deliveries[0].Items); got != want {
		t.Fatalf("effects changed under their reader:\n%s\n%s", got, want)
	}
}

func TestAnUnknownModelIsAColumnOfItsOwn(t *testing.T) {
	r := newRig(t, TopicConfig{}, wild)
	a, err := r.m.Append(r.now, AppendRequest{Name: "odd", Cell: lite.Cell{User: "odd"}, Level: 9, Messages: messages(1)})
	if err != nil {
		t.Fatal(err)
	}
	r.disk.messages[messageKey{a.Bucket, 0}] = true
	r.none(1, "c") // not durable yet
	r.m.Durable(r.now, a.Bucket, 1)
	r.m.Durable(r.now, a.Bucket, 1) // said twice
	r.m.Durable(r.now, a.Bucket+1, 1)
	if it := r.one(1, "c"); it.Name != "odd" {
		t.Fatalf("got %+v", it)
	}
}

// A sender that hammers a full bucket must not buy a walk over its queue with each try.
func TestAFullBucketIsSweptOnceForEachDeadlineThatPassed(t *testing.T) {
	const deep = 4 * dueFloor
	r := newRig(t, TopicConfig{MaxMessages: deep}, wild)
	r.send("a", MessageMeta{Size: 1, Deadline: r.now.Add(time.Second)})
	r.one(1, "c") // a message that is out is not expired
	for i := range deep - 1 {
		r.send("a", MessageMeta{Size: 1, Deadline: r.now.Add(time.Second + time.Duration(i%7)*time.Hour + time.Duration(i))})
	}
	r.pass(30 * time.Second)
	sent := 0
	for ; ; sent++ {
		if _, err := r.trySend("a"); err != nil {
			break
		}
	}
	b := r.m.byName["a"]
	if want := (deep - 1 + 6) / 7; sent != want || int(b.live) != deep {
		t.Fatalf("%d sent, %d live, want %d in the places of those overdue and %d", sent, b.live, want, deep)
	}
	if len(b.deep.dues) == 0 || b.deep.dues[0].at <= instant(r.now) {
		t.Fatalf("a deadline that has passed is still looked at: %v", b.deep.dues)
	}
	if _, err := r.trySend("a"); !errors.Is(err, ErrBucketFull) {
		t.Fatal(err)
	}
}

// In one turn a bucket is swept and written to: the store, which the owner loop asks
// in between, does not know of the first yet.
func TestABucketIsSweptAndUsedInOneTurn(t *testing.T) {
	for _, used := range []bool{false, true} {
		r := newRig(t, TopicConfig{TTL: time.Minute}, wild)
		old := r.send("a")
		r.ack(r.one(1, "c"))
		if used { // after half its TTL: the entry is moved, the bucket stays
			r.pass(30 * time.Second)
			r.send("a")
			r.ack(r.one(1, "c"))
		}
		r.now = r.now.Add(2 * time.Minute)
		if used {
			r.now = epoch0.Add(time.Minute)
		}
		r.m.Sweep(r.now, r.disk.expiry[old.Bucket], r.disk.buckets["a"], true)
		a := r.send("a")
		if (a.Bucket == old.Bucket) != used {
			t.Fatalf("used %v: bucket %x after %x", used, a.Bucket, old.Bucket)
		}
		r.ack(r.one(1, "c"))
		if s := r.disk.buckets["a"]; len(r.disk.expiry) != 1 || !r.disk.expiry[s.ID].At.Equal(s.Expiry) || r.m.Stats().Buckets != 1 {
			t.Fatalf("used %v: record says %v, index %v", used, s.Expiry, r.disk.expiry)
		}
	}
}

// ofUser makes bucket names that are cells of one user.
func ofUser(user string, n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf("%s__m%d", user, i)
	}
	return out
}

// TestOneUserCannotTakeAllBuckets: a caller that makes up model names is refused at its own
// bound, alone and in one append for many; other users are not. A restart counts anew.
func TestOneUserCannotTakeAllBuckets(t *testing.T) {
	r := newRig(t, TopicConfig{MaxBuckets: 100, MaxUserBuckets: 3, TTL: time.Hour}, wild)
	refused := func(when string) {
		t.Helper()
		before := r.m.Stats().Buckets
		if _, err := r.trySend("mallory__new"); !errors.Is(err, ErrTooManyUserBuckets) || !strings.Contains(err.Error(), `user "mallory" has 3`) {
			t.Fatalf("%s: error %v, want that mallory has 3 buckets", when, err)
		}
		if after := r.m.Stats().Buckets; after != before {
			t.Fatalf("%s: a refused append left %d buckets of %d", when, after, before)
		}
		r.send("alice__" + strings.ReplaceAll(when, " ", ""))
	}
	var batch []AppendRequest
	for _, name := range ofUser("mallory", 4) {
		cell, err := lite.Resolve(name, "", "")
		if err != nil {
			t.Fatal(err)
		}
		batch = append(batch, AppendRequest{Name: name, Cell: cell, Level: -1, Messages: messages(1)})
	}
	if _, err := r.m.AppendAll(r.now, nil, batch...); !errors.Is(err, ErrTooManyUserBuckets) {
		t.Fatalf("an append for four: error %v", err)
	}
	if n := r.m.Stats().Buckets; n != 0 {
		t.Fatalf("a refused append left %d buckets", n)
	}
	for _, name := range ofUser("mallory", 3) {
		r.send(name)
	}
	refused("at the bound")
	r.send("mallory__m0") // one that exists
	r.turn()
	r.restart()
	refused("after a restart")
	if n := r.turn().Counters.UserRefused; n != 1 {
		t.Errorf("%d refusals counted since the last turn, want 1", n)
	}
	for r.m.Stats().Messages > 0 {
		r.ack(r.pull(1, "c", 32)...)
	}
	r.turn()
	r.pass(2 * time.Hour)
	r.sweep()
	r.send("mallory__new") // the old ones are gone
}

// TestACountIsNeverTooLow fills the table of counts with a million users.
func TestACountIsNeverTooLow(t *testing.T) {
	var u userCounts
	for i := range 1_000_000 {
		u.created(fmt.Sprint("user", i))
	}
	for range 500 {
		u.created("heavy")
	}
	high, sum := 0, 0
	for i := range 1000 {
		n := u.count(fmt.Sprint("user", i))
		if n < 1 {
			t.Fatalf("user%d has %d buckets, want 1 at least", i, n)
		}
		high, sum = max(high, n), sum+n
	}
	if n := u.count("heavy"); n < 500 || n > 530 {
		t.Errorf("a user with 500 buckets has %d", n)
	}
	if high > 30 || sum > 8*1000 {
		t.Errorf("users with one bucket count %d at most and %d in all thousand: too far off", high, sum)
	}
	for range 500 {
		u.deleted("heavy")
	}
	if n := u.count("heavy"); n > 30 {
		t.Errorf("a user without buckets has %d", n)
	}
}

// TestABucketThatServedNothingIsGoneSooner: a bucket of a made-up model, whose requests
// were all refused, does not stay for a day; a bucket with a served message does, across a
// restart, and so does a bucket whose worker reports no outcome.
func TestABucketThatServedNothingIsGoneSooner(t *testing.T) {
	used := quota.Settlement{Outcome: quota.Used, Tokens: 10, OutputTokens: 5}
	for _, x := range []struct {
		name    string
		learned []quota.Settlement
		backlog bool // the topic expires backlogs, so the bucket has an entry before it is idle
		life    time.Duration
	}{
		{"refused by the model", []quota.Settlement{{Outcome: quota.Used}}, false, 15 * time.Minute},
		{"reached no model", []quota.Settlement{{Outcome: quota.Unsent}}, false, 15 * time.Minute},
		{"refused, entered as backlog", []quota.Settlement{{Outcome: quota.Used}}, true, 15 * time.Minute},
		{"used", []quota.Settlement{used}, false, 24 * time.Hour},
		{"tokens unknown", []quota.Settlement{{Outcome: quota.Used, Tokens: -1, OutputTokens: -1}}, false, 24 * time.Hour},
		{"a plain ack", []quota.Settlement{{}}, false, 24 * time.Hour},
		{"used, then refused", []quota.Settlement{used, {Outcome: quota.Used}}, false, 24 * time.Hour},
	} {
		t.Run(x.name, func(t *testing.T) {
			r := newRig(t, TopicConfig{TTL: 24 * time.Hour, UnservedTTL: 15 * time.Minute, ExpireBacklog: x.backlog}, wild)
			for _, learned := range x.learned {
				r.send("a__m")
				if err := r.m.Settle(r.now, r.one(1, "c").Handle, learned, ThenAck()); err != nil {
					t.Fatal(err)
				}
				r.turn()
				r.restart()
			}
			r.pass(x.life - time.Second)
			r.sweep()
			if n := r.m.Stats().Buckets; n != 1 {
				t.Fatalf("%d buckets a second before the end of its life", n)
			}
			r.pass(2 * time.Second)
			r.sweep()
			if n := r.m.Stats().Buckets; n != 0 {
				t.Fatalf("%d buckets after its life of %v", n, x.life)
			}
		})
	}
}

// TestDepthIsCountedWhereTheMessagesAre: the policy's caps of a cell hold for every sender
// and across restarts; a message that is out takes no place, a cancelled one neither.
func TestDepthIsCountedWhereTheMessagesAre(t *testing.T) {
	behind := GroupConfig{Name: "behind", ID: 2, Wildcard: true}
	r := newRig(t, TopicConfig{}, wild, behind)
	refused := func(want error, text, name string, msgs ...MessageMeta) {
		t.Helper()
		before := r.m.Stats().Messages
		if _, err := r.trySend(name, msgs...); !errors.Is(err, want) || !strings.Contains(err.Error(), text) {
			t.Fatalf("error %v, want %v with %q", err, want, text)
		}
		if after := r.m.Stats().Messages; after != before {
			t.Fatalf("a refused append left %d messages of %d", after, before)
		}
	}
	r.apply("limits:\n  - {user: \"*\", model: m, depth: 3}\n  - {user: \"*\", model: b, depth_bytes: 25}\n")
	refused(ErrBucketFull, "0 messages queued of at most 3 (depth)", "a__m", messages(4)...)
	a := r.send("a__m", messages(3)...)
	refused(ErrBucketFull, "3 messages queued of at most 3 (depth)", "a__m")
	r.send("other__m", messages(3)...)
	r.send("a__x", messages(9)...) // no rule names it
	r.turn()
	r.restart()
	refused(ErrBucketFull, "3 messages queued of at most 3 (depth)", "a__m")

	hold1(r, "a__x")
	hold1(r, "other__m")
	it := r.one(1, "c")
	refused(ErrBucketFull, "3 messages queued", "a__m") // the other group has it before it
	r.m.RemoveGroup(r.now, 2)
	r.send("a__m") // one is out
	refused(ErrBucketFull, "3 messages queued", "a__m")
	r.m.Release(r.now, it.Handle)
	refused(ErrBucketFull, "4 messages queued", "a__m") // it came back
	for off := range Offset(2) {
		if got := r.m.Cancel(r.now, "a__m", a.Bucket, a.First+1+off); got != Cancelled {
			t.Fatalf("cancel: %v", got)
		}
	}
	r.send("a__m")
	refused(ErrBucketFull, "3 messages queued", "a__m")

	refused(ErrTooLarge, "26 bytes never fits", "a__b", MessageMeta{Size: 26})
	r.send("a__b", MessageMeta{Size: 10}, MessageMeta{Size: 15})
	refused(ErrBucketBytes, "25 bytes queued of at most 25 (depth_bytes)", "a__b", MessageMeta{Size: 1})
	hold1(r, "a__m")
	if it = r.one(1, "c"); it.Name != "a__b" {
		t.Fatalf("%s went", it.Name)
	}
	refused(ErrBucketBytes, "15 bytes queued", "a__b", MessageMeta{Size: 11})
	r.send("a__b", MessageMeta{Size: 10})

	r.apply("limits:\n  - {user: \"*\", model: m, depth: 9}\n")
	r.send("a__m", messages(6)...)
	r.send("a__b", MessageMeta{Size: 1000})
}

// TestAnExpiredMessageTakesNoPlace: a bucket at its depth is looked through for deadlines.
func TestAnExpiredMessageTakesNoPlace(t *testing.T) {
	r := newRig(t, TopicConfig{}, wild)
	r.apply("limits:\n  - {user: \"*\", model: m, depth: 2}\n")
	r.send("a__m", MessageMeta{Size: 1, Deadline: r.now.Add(time.Second)}, MessageMeta{Size: 1})
	if _, err := r.trySend("a__m"); !errors.Is(err, ErrBucketFull) {
		t.Fatalf("error %v", err)
	}
	r.pass(2 * time.Second)
	r.send("a__m")
}

// TestHoldsOfNamesThatDoNotExistAreBounded: workers may hold names that do not exist yet. At
// the bound they cannot hold more such names; existing holds, a bucket with one of their
// messages, and an operator are not refused.
func TestHoldsOfNamesThatDoNotExistAreBounded(t *testing.T) {
	r := newRig(t, TopicConfig{}, wild)
	until := r.now.Add(time.Hour)
	g := r.m.group(1)
	r.m.maxHolds = 100
	for i := range r.m.maxHolds {
		if err := g.holds.Set(r.now, bucketHold(fmt.Sprint("n", i), until)); err != nil {
			t.Fatal(err)
		}
	}
	r.m.armGates(g)
	if _, err := r.m.ExtendHold(r.now, 1, bucketHold("one more", until)); !errors.Is(err, ErrTooManyHolds) || !strings.Contains(err.Error(), "at most 100") {
		t.Errorf("one more: error %v, want one that names the bound", err)
	}
	if _, err := r.m.ExtendHold(r.now, 1, bucketHold("n7", until.Add(time.Minute))); err != nil {
		t.Errorf("one that is held: %v", err)
	}
	r.send("a")
	if err := r.m.Suspend(r.now, r.one(1, "c").Handle, time.Minute, "w", "busy"); err != nil {
		t.Errorf("a bucket whose message is out: %v", err)
	}
	if err := r.m.SetHold(r.now, 1, bucketHold("of-an-operator", until)); err != nil {
		t.Errorf("an operator: %v", err)
	}
}
