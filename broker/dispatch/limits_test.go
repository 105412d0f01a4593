package dispatch

import (
	"fmt"
	"testing"
	"time"

	"github.com/penstockmq/penstock/suspend"
	"github.com/penstockmq/penstock/suspend/policy"
	"github.com/penstockmq/penstock/suspend/quota"
)

// A column with one slot: whatever ends the one message that is out, the other bucket
// goes in the same turn, and the account agrees.
func TestEveryWayOutFreesItsSlot(t *testing.T) {
	column := "columns:\n  - {model: m, in_flight: 1}\n"
	ways := map[string]func(r *rig, it Item){
		"ack": func(r *rig, it Item) { _ = r.m.Ack(r.now, it.Handle) },
		"settle": func(r *rig, it Item) {
			_ = r.m.Settle(r.now, it.Handle, quota.Settlement{Outcome: quota.Used, Tokens: 5, OutputTokens: -1}, ThenAck())
		},
		"suspend":   func(r *rig, it Item) { _ = r.m.Suspend(r.now, it.Handle, time.Hour, "w", "") },
		"retry":     func(r *rig, it Item) { _ = r.m.Settle(r.now, it.Handle, quota.Settlement{}, ThenRetry(time.Hour)) },
		"reject":    func(r *rig, it Item) { _ = r.m.Settle(r.now, it.Handle, quota.Settlement{}, ThenReject("bad")) },
		"dead":      func(r *rig, it Item) { _ = r.m.DeadLetter(r.now, it.Handle, "bad") },
		"lease end": func(r *rig, _ Item) { hold1(r, "a__m"); r.pass(time.Minute) },
		"change-invisible": func(r *rig, it Item) {
			hold1(r, "a__m")
			_ = r.m.ChangeInvisible(r.now, it.Handle, time.Second)
			r.none(1, "c")
			r.pass(time.Second)
		},
		"release": func(r *rig, it Item) { hold1(r, "a__m"); r.m.Release(r.now, it.Handle) },
		"expire":  func(r *rig, it Item) { r.m.Expire(r.now, it.Handle) },
		"missing": func(r *rig, it Item) {
			delete(r.disk.messages, messageKey{it.Handle.Bucket, it.Handle.Offset})
			r.m.Missing(r.now, it.Handle)
		},
		"seek": func(r *rig, _ Item) { _ = r.m.Seek(r.now, 1, "a__m", 1) },
		"restart and ack": func(r *rig, it Item) {
			r.restart()
			r.none(1, "c")
			_ = r.m.Ack(r.now, it.Handle)
		},
	}
	for name, end := range ways {
		t.Run(name, func(t *testing.T) {
			g := wild
			g.MaxAttempts = 3
			r := newRig(t, TopicConfig{}, g)
			r.apply(column)
			r.send("a__m")
			first := r.one(1, "c")
			r.send("b__m")
			r.none(1, "c")
			end(r, first)
			r.turn()
			if second := r.one(1, "c"); second.Name != "b__m" {
				t.Fatalf("%s went, want the other bucket", second.Name)
			}
			if got := r.m.Stats().Groups[0].Quota.InFlight; got != 1 {
				t.Fatalf("%d in flight, want one", got)
			}
		})
	}
}

// hold1 holds a bucket for a day.
func hold1(r *rig, name string) {
	if err := r.m.SetHold(r.now, 1, bucketHold(name, r.now.Add(24*time.Hour))); err != nil {
		r.t.Fatalf("hold: %v", err)
	}
}

func TestALatePlainAckFreesOnce(t *testing.T) {
	r := newRig(t, TopicConfig{}, wild)
	r.apply("columns:\n  - {model: m, in_flight: 2}\n")
	r.send("a__m")
	it := r.one(1, "c")
	hold1(r, "a__m")
	r.pass(2 * time.Minute) // the lease ends
	if got := r.m.Stats().Groups[0].Quota.InFlight; got != 0 {
		t.Fatalf("%d in flight after the lease's end", got)
	}
	r.ack(it)
	if got := r.m.Stats().Groups[0].Quota.InFlight; got != 0 {
		t.Fatalf("%d in flight after the late ack", got)
	}
}

func TestWhatNeverPassesIsADeadLetter(t *testing.T) {
	r := newRig(t, TopicConfig{}, wild)
	r.apply("limits:\n  - {user: \"*\", window: 3/1m, window_at: release}\n")
	r.cost.Requests = 5
	r.send("a__m")
	r.cost.Requests = 2
	r.send("a__m", messages(2)...)
	x, ok := r.m.Explain(r.now, 1, "a__m", 0)
	if !ok || x.State != WaitLimited || x.Limit != "window" {
		t.Fatalf("%+v", x)
	}
	r.ack(r.one(1, "c"))
	if len(r.disk.dead) != 1 || r.disk.dead[0].Reason != "costs more than its limit ever gives" || r.disk.dead[0].Offset != 0 {
		t.Fatalf("dead letters %+v, want the first message", r.disk.dead)
	}
	r.none(1, "c") // 2 of 3 are used, the next costs 2
	r.pass(time.Minute)
	r.ack(r.one(1, "c"))
}

// A dear message waits for the next window and goes first in it, whatever cheap ones came
// meanwhile.
func TestADearHeadIsNotOvertakenForEver(t *testing.T) {
	r := newRig(t, TopicConfig{}, wild)
	r.apply("columns:\n  - {model: m, window: 10/1m}\n")
	for i := range 10 {
		r.send(fmt.Sprintf("cheap%d__m", i), messages(200)...)
	}
	r.cost.Requests = 8
	r.send("dear__m", messages(40)...)
	dear := 0
	for range 100 {
		dear += r.released(1, time.Minute)["dear__m"]
	}
	// Eleven share a thousand, so it may go eleven times.
	if dear < 9 || dear > 13 {
		t.Fatalf("the dear bucket went %d times in 100 windows of 10, want 11", dear)
	}
}

func TestUnlimitedGroupsKnowNoPolicy(t *testing.T) {
	free := GroupConfig{Name: "free", ID: 2, Wildcard: true, Unlimited: true}
	r := newRig(t, TopicConfig{}, wild, free)
	r.apply("limits:\n  - {user: \"*\", rate: 1/1h}\nbroker: {in_flight: 1}\n")
	r.signal(suspend.Target{Scope: suspend.Column, Name: "m"}, 0, time.Hour)
	r.send("a__n", messages(5)...)
	for range 5 {
		r.ack(r.one(2, "c"))
	}
	r.ack(r.one(1, "c"))
	r.none(1, "c")
	r.send("a__m")
	r.ack(r.one(2, "c"))
	r.none(1, "c")
}

func TestInFlightOfACellFollowsThePolicy(t *testing.T) {
	g := wild
	g.InFlight = 2
	r := newRig(t, TopicConfig{}, g)
	r.send("a__m", messages(20)...)
	take := func() []Item {
		var all []Item
		for got := r.pull(1, "c", 1); len(got) > 0; got = r.pull(1, "c", 1) {
			all = append(all, got...)
		}
		return all
	}
	out := take()
	r.apply("limits:\n  - {user: a, in_flight: 5}\n")
	out = append(out, take()...)
	if len(out) != 5 {
		t.Fatalf("%d out, want the 5 of the policy", len(out))
	}
	r.apply("limits:\n  - {user: a, in_flight: 1}\n")
	r.ack(out[0], out[1], out[2], out[3])
	r.none(1, "c")
	r.ack(out[4])
	out = take()
	r.apply("") // the group's default again
	if out = append(out, take()...); len(out) != 2 {
		t.Fatalf("%d out, want the group's 2", len(out))
	}
}

// A level is what a sender stamped or what the policy says; it acts on what is queued.
func TestLevelsAreLive(t *testing.T) {
	r := newRig(t, TopicConfig{}, wild)
	level := func(name string) uint8 {
		t.Helper()
		info, ok := r.m.BucketInfo(r.now, name)
		if !ok {
			t.Fatalf("no bucket %q", name)
		}
		return info.State.Level
	}
	want := func(name string, l uint8) {
		t.Helper()
		if got := level(name); got != l {
			t.Fatalf("%s has level %d, want %d", name, got, l)
		}
	}
	send := func(name string, stamp int8) {
		r.stamp = stamp + 1
		r.send(name)
	}
	send("a__m", -1)
	want("a__m", 1) // the default
	r.apply("default_level: 2\nimportance:\n  - {user: b, level: 3}\n")
	want("a__m", 2)
	send("a__m", 3) // less important than what waits
	want("a__m", 2)
	send("a__m", 0)
	want("a__m", 0)
	send("b__m", -1)
	want("b__m", 3)
	send("b__m", 2)
	want("b__m", 2)
	r.turn()
	r.restart()
	want("a__m", 0) // stamped
	want("b__m", 2)
	r.stamp = 0
	r.apply("importance:\n  - {user: b, level: 1}\n")
	want("a__m", 0)
	want("b__m", 2) // a stamp is not the policy's
	send("b__m", -1)
	want("b__m", 1)
	for range 5 {
		for _, it := range r.pull(1, "c", 10) {
			r.ack(it)
		}
	}
	send("a__m", -1) // an emptied bucket takes the newest
	want("a__m", 1)

	// A closed level lets go what leaves it.
	three := suspend.Target{Scope: suspend.Level, Name: "3"}
	r.apply("importance:\n  - {user: z, level: 3}\n")
	if err := r.m.SetHold(r.now, 1, hold(three, r.now.Add(time.Hour))); err != nil {
		t.Fatal(err)
	}
	r.ack(r.one(1, "c"))
	send("z__m", -1)
	r.poll(1, "waits", 10)
	r.turn()
	if got := r.got[len(r.got)-1].Name; got != "a__m" {
		t.Fatalf("%s went out of a closed level", got)
	}
	r.apply("importance:\n  - {user: z, level: 0}\n")
	if got := r.got[len(r.got)-1].Name; got != "z__m" {
		t.Fatalf("%s went last, want what left the closed level", got)
	}
}

func TestWeightsAreLive(t *testing.T) {
	r := newRig(t, TopicConfig{}, wild)
	for _, u := range []string{"a", "b", "c"} {
		r.send(u+"__m", messages(3_000)...)
	}
	serve := func(n int) map[string]int {
		got := map[string]int{}
		for range n {
			it := r.one(1, "c")
			got[it.Name]++
			r.ack(it)
		}
		return got
	}
	r.apply("limits:\n  - {user: b, weight: 2}\n  - {user: c, weight: 4}\n")
	got := serve(700)
	if got["a__m"] < 97 || got["a__m"] > 103 || got["b__m"] < 197 || got["b__m"] > 203 {
		t.Fatalf("weights 1, 2, 4 of 700 turns gave %v", got)
	}
	r.apply("limits:\n  - {user: a, weight: 4}\n")
	serve(10)
	if got = serve(600); got["a__m"] < 390 || got["a__m"] > 410 {
		t.Fatalf("weights 4, 1, 1 of 600 turns gave %v", got)
	}
}

// Fairness is in what messages turn out to cost, not in what was reserved for them.
func TestTokensAreSharedByTrueCost(t *testing.T) {
	r := newRig(t, TopicConfig{}, wild)
	r.apply("cost: tokens\n")
	truth := map[string]int64{"small__m": 200, "large__m": 3_000, "liar__m": 1_200}
	for name, says := range map[string]int64{"small__m": 200, "large__m": 3_000, "liar__m": 10} {
		r.cost = MessageCost{Input: says, MaxOutput: 1} // an input that is counted wrong is never learned
		r.send(name, messages(4_000)...)
	}
	spent := map[string]int64{}
	for range 4_000 {
		it := r.one(1, "c")
		spent[it.Name] += truth[it.Name]
		s := quota.Settlement{Outcome: quota.Used, Tokens: truth[it.Name], OutputTokens: 1}
		if err := r.m.Settle(r.now, it.Handle, s, ThenAck()); err != nil {
			t.Fatal(err)
		}
		r.turn()
	}
	for name, n := range spent {
		if share := float64(n) / float64(spent["large__m"]); share < 0.97 || share > 1.03 {
			t.Errorf("%s spent %.3f times what the largest did, want the same", name, share)
		}
	}
}

// A row that has room for one message at a time. Three of its buckets are alone in their
// columns and take the room as soon as it is there; two are in busy columns, and whenever their
// turn comes the row is used up. Who lost its turn longest ago is the first when the row opens, in its
// column and among the columns, so all get on alike.
func TestARowsBucketsGetOnInTurn(t *testing.T) {
	r := newRig(t, TopicConfig{}, wild)
	r.apply("rows:\n  - {user: thin, rate: 10/s}\n")
	for m := range 5 {
		r.send(fmt.Sprintf("thin__m%d", m), messages(200)...)
	}
	for u := range 50 {
		r.send(fmt.Sprintf("busy%d__m%d", u, 3+u%2), messages(300)...)
	}
	got := map[string]int{}
	for range 4_000 { // one message each millisecond
		r.pass(time.Millisecond)
		it := r.one(1, "c")
		got[it.Name]++
		r.ack(it)
	}
	for m := range 5 {
		if n := got[fmt.Sprintf("thin__m%d", m)]; n < 5 || n > 11 {
			t.Errorf("bucket %d went %d times, want its fifth of 40", m, n)
		}
	}
}

func TestABucketGoesBetweenAPolicyAndItsReview(t *testing.T) {
	r := newRig(t, TopicConfig{TTL: time.Minute, ExpireBacklog: true}, wild)
	r.send("a__m")
	r.send("b__m")
	r.turn()
	r.now = r.now.Add(2 * time.Minute)
	r.m.SetPolicy(r.now, r.disk.policy)
	for _, e := range r.disk.expiry {
		if !r.m.Sweep(r.now, e, r.disk.buckets[e.Name], true) {
			t.Fatalf("%s is still there", e.Name)
		}
		break
	}
	r.turn()
	if len(r.m.all) != 1 || r.m.review != 0 {
		t.Fatalf("%d buckets, %d to review", len(r.m.all), r.m.review)
	}
}

// Exact clients have sets of their own: their units close too.
func TestLimitsHoldForExactSubscribers(t *testing.T) {
	exact := GroupConfig{Name: "exact", ID: 1}
	r := newRig(t, TopicConfig{}, exact)
	r.apply("columns:\n  - {model: m, rate: 1/s}\nrows:\n  - {user: a, in_flight: 1}\n")
	subscribe := func(client string, names ...string) {
		if _, err := r.m.SyncSubscription(r.now, SyncRequest{Group: 1, Client: client, Action: CompleteAdd, Names: names}); err != nil {
			t.Fatal(err)
		}
	}
	subscribe("c1", "a__m", "b__m", "a__n")
	subscribe("c2", "b__m", "a__n")
	for _, n := range []string{"a__m", "b__m", "a__n"} {
		r.send(n, messages(3)...)
	}
	if first := r.one(1, "c1"); first.Name != "a__m" {
		t.Fatalf("%s went first", first.Name)
	}
	// It took what column m had for this second, and the one slot of row a.
	r.none(1, "c1")
	r.none(1, "c2")
	subscribe("c3", "b__m") // comes later
	r.none(1, "c3")
	r.pass(999 * time.Millisecond)
	r.none(1, "c3")
	r.pass(time.Millisecond)
	if got := r.one(1, "c3"); got.Name != "b__m" {
		t.Fatalf("%s went when the column opened", got.Name)
	}
	r.none(1, "c2")
}

// A change of policy is brought to a chunk of buckets in each turn, and to those that come and go
// meanwhile.
func TestReviewInChunks(t *testing.T) {
	r := newRig(t, TopicConfig{}, wild)
	n := 2*turnShares.reviews + 100
	for i := range n {
		r.send(fmt.Sprintf("u%d__m", i))
	}
	r.turn()
	doc, err := policy.Parse([]byte("version: 1\ncost: bytes\ndefault_level: 3\nlimits:\n  - {user: \"*\", weight: 7}\n"))
	if err != nil {
		t.Fatal(err)
	}
	r.m.SetPolicy(r.now, doc)
	turns := 0
	for wake, ok := r.m.NextWake(); ok && !wake.After(r.now); wake, ok = r.m.NextWake() {
		r.turn()
		turns++
		for range 30 { // the last ones listed go, others come
			r.ack(r.one(1, "c"))
			turns++
		}
		r.send(fmt.Sprintf("late%d__m", turns))
	}
	if turns > 3*31 || r.m.review != 0 || r.m.groups[0].forgive {
		t.Fatalf("the review took %d turns, %d are left", turns, r.m.review)
	}
	for _, b := range r.m.all {
		if c := b.first; b.level != 3 || c.entry.Level() != 3 || c.entry.Weight != 7 {
			t.Fatalf("%s was not reviewed: level %d weight %d", b.name, b.level, c.entry.Weight)
		}
	}
}

// After a restart a limit goes on where it was, and what is out still counts.
func TestLimitsSurviveARestart(t *testing.T) {
	r := newRig(t, TopicConfig{}, wild)
	r.apply("limits:\n  - {user: a, rate: 1/1m}\nrows:\n  - {user: b, in_flight: 1}\ncolumns:\n  - {model: n, quota: 1/10s}\n")
	r.send("a__m", messages(2)...)
	r.send("b__m")
	r.send("b__o")
	r.send("c__n", messages(3)...)
	for range 2 {
		for _, it := range r.pull(1, "c", 10) {
			if it.Name != "b__m" && it.Name != "b__o" {
				r.ack(it)
			}
		}
	}
	leases := len(r.disk.leases)
	r.restart()
	r.none(1, "c")
	if len(r.disk.leases) != leases || r.m.Stats().Groups[0].Quota.InFlight != 1 {
		t.Fatalf("%d leases, %+v", len(r.disk.leases), r.m.Stats().Groups[0].Quota)
	}
	r.pass(59 * time.Second) // the column has opened, the cell and the row have not
	if got := r.pull(1, "c", 10); len(got) != 1 || got[0].Name != "c__n" {
		t.Fatalf("got %v, want the third message of c", got)
	}
	r.pass(time.Second)
	if got := r.pull(1, "c", 10); len(got) != 2 {
		t.Fatalf("got %v, want a's second message, and b's as its lease ended", got)
	}
}

// An account that cannot be read is dropped: its limits begin anew.
func TestABrokenAccountIsDropped(t *testing.T) {
	r := newRig(t, TopicConfig{}, wild)
	r.apply("limits:\n  - {user: a, rate: 1/1m}\n")
	r.send("a__m", messages(2)...)
	r.ack(r.one(1, "c"))
	k := accountKey{1, suspend.Target{Scope: suspend.Bucket, Name: "a__m"}}
	if _, ok := r.disk.accounts[k]; !ok {
		t.Fatalf("accounts on disk: %v", r.disk.accounts)
	}
	r.disk.accounts[k] = quota.Record{Target: k.target, Data: []byte{255, 1, 2}}
	r.restart()
	if len(r.disk.accounts) != 0 {
		t.Fatalf("accounts on disk: %v", r.disk.accounts)
	}
	r.one(1, "c")
}

func TestDiscardsNameWhatWentUndelivered(t *testing.T) {
	r := newRig(t, TopicConfig{TTL: time.Hour, MaxMessages: 6}, GroupConfig{Name: "pool", ID: 1, Wildcard: true, InFlight: 3})
	r.send("a__m", messages(5)...)
	first, second := r.one(1, "c"), r.one(1, "c")
	r.one(1, "c")
	r.ack(second) // 0 is out, 1 settled, 2 out, 3 and 4 wait
	r.m.Purge(r.now, "a__m")
	want := []Discard{{Bucket: first.Handle.Bucket, Name: "a__m", Offset: 3, To: 5, Reason: DiscardPurged}}
	if e := r.turn(); fmt.Sprint(e.Discards) != fmt.Sprint(want) {
		t.Fatalf("discards %v, want %v", e.Discards, want)
	}
	r.send("b__m", MessageMeta{Size: 1, Deadline: r.now.Add(time.Second)}, MessageMeta{Size: 1, Deadline: r.now.Add(time.Second)})
	r.pass(2 * time.Second)
	r.poll(1, "c", 1)
	e := r.turn()
	if d := e.Discards; len(d) != 1 || d[0].Reason != DiscardExpired || d[0].Name != "b__m" || d[0].To-d[0].Offset != 2 {
		t.Fatalf("discards %v, want two expired", d)
	}
}
