package dispatch

import (
	"fmt"
	"testing"
	"time"

	"github.com/penstockmq/penstock/suspend"
)

// released counts what is handed out to a consumer that acks at once, while time goes
// by turn by turn.
func (r *rig) released(g GroupID, d time.Duration) map[string]int {
	r.t.Helper()
	n := map[string]int{}
	end := r.now.Add(d)
	for r.now.Before(end) {
		for {
			got := r.pull(g, "c", 32)
			if len(got) == 0 {
				break
			}
			for _, it := range got {
				n[it.Name]++
			}
			r.ack(got...)
		}
		wake, ok := r.m.NextWake()
		if !ok || wake.After(end) {
			wake = end
		}
		r.pass(max(wake.Sub(r.now), time.Microsecond))
	}
	return n
}

func hold(t suspend.Target, until time.Time) suspend.Hold {
	return suspend.Hold{Target: t, Until: until, By: "test"}
}

var (
	columnM = suspend.Target{Scope: suspend.Column, Name: "m1"}
	cellU1  = suspend.Target{Scope: suspend.Bucket, Name: "u1__m1"}
)

func TestC09_ThrottledHeadsStallNobody(t *testing.T) {
	r := newRig(t, TopicConfig{}, wild)
	r.apply("limits:\n  - {user: slow, rate: 2/s}\nrows:\n  - {user: thin, rate: 1/s}\n")
	for i := range 40 {
		r.send(fmt.Sprintf("slow__m%d", i), messages(300)...)
	}
	for i := range 20 {
		r.send(fmt.Sprintf("thin__m%d", i), messages(10)...)
	}
	for i := range 10 {
		r.send(fmt.Sprintf("free%d__m%d", i, i), messages(50)...)
	}
	got := r.pull(1, "c", 32)
	for len(got) > 0 {
		r.ack(got...)
		got = r.pull(1, "c", 32)
	}
	for i := range 10 {
		if b, ok := r.m.BucketInfo(r.now, fmt.Sprintf("free%d__m%d", i, i)); ok {
			t.Fatalf("%d messages of a free bucket wait behind throttled ones", b.Queued)
		}
	}
	pulls := r.m.Stats().Pulls
	n := r.released(1, 10*time.Second)
	for i := range 40 {
		if got := n[fmt.Sprintf("slow__m%d", i)]; got < 19 || got > 21 {
			t.Fatalf("a bucket of 2/s released %d in 10 s, want 20", got)
		}
	}
	thin := 0
	for i := range 20 {
		thin += n[fmt.Sprintf("thin__m%d", i)]
	}
	if thin < 9 || thin > 11 {
		t.Fatalf("a row of 1/s released %d in 10 s, want 10", thin)
	}
	if tried := r.m.Stats().Pulls - pulls; tried > 3_000 {
		t.Fatalf("polls were tried %d times to release 810 messages", tried)
	}
}

func TestC16_ColumnPauseAndBucketSuspendDoNotUndoEachOther(t *testing.T) {
	r := newRig(t, TopicConfig{}, wild)
	first := map[string]time.Duration{}
	begin := r.now
	until := func(at time.Duration) {
		for step := begin.Add(at); r.now.Before(step); r.pass(10 * time.Millisecond) {
			for _, it := range r.pull(1, "c", 10) {
				first[it.Name] = r.now.Sub(begin)
				r.ack(it)
			}
		}
	}
	set := func(h suspend.Hold) {
		if err := r.m.SetHold(r.now, 1, h); err != nil {
			t.Fatal(err)
		}
		r.turn()
	}
	lift := func(target suspend.Target) {
		if _, err := r.m.LiftHold(r.now, 1, target); err != nil {
			t.Fatal(err)
		}
		r.turn()
	}
	set(hold(cellU1, begin.Add(10*time.Second)))
	set(hold(columnM, begin.Add(time.Hour))) // as of 1 s in the case; what waits must not go before
	r.send("u1__m1")
	r.send("u2__m1")
	until(2 * time.Second)
	r.send("u5__m1")
	lift(suspend.Target{Scope: suspend.Bucket, Name: "u9__m1"}) // it does not exist yet
	until(3 * time.Second)
	lift(columnM)
	until(4 * time.Second)
	r.send("u9__m1")
	until(11 * time.Second)
	for name, want := range map[string]time.Duration{
		"u1__m1": 10 * time.Second, "u2__m1": 3 * time.Second, "u5__m1": 3 * time.Second, "u9__m1": 4 * time.Second,
	} {
		if at, ok := first[name]; !ok || at < want || at > want+100*time.Millisecond {
			t.Errorf("%s was delivered at %v, want %v", name, at, want)
		}
	}
}

// The same for a limit and a hold of one unit: neither opens what the other closes.
func TestC16_LimitAndHoldDoNotUndoEachOther(t *testing.T) {
	for _, target := range []suspend.Target{columnM, {Scope: suspend.Level, Name: "1"}, {Scope: suspend.All}, cellU1, {Scope: suspend.Row, Name: "u1"}} {
		t.Run(target.String(), func(t *testing.T) {
			r := newRig(t, TopicConfig{}, wild)
			r.apply(map[suspend.Scope]string{
				suspend.Column: "columns:\n  - {model: m1, rate: 1/4s}\n",
				suspend.Level:  "levels:\n  - {level: 1, rate: 1/4s}\n",
				suspend.All:    "broker: {rate: 1/4s}\n",
				suspend.Bucket: "limits:\n  - {user: u1, model: m1, rate: 1/4s}\n",
				suspend.Row:    "rows:\n  - {user: u1, rate: 1/4s}\n",
			}[target.Scope])
			r.send("u1__m1", messages(3)...)
			r.ack(r.one(1, "c")) // the limit closes until 4 s
			if err := r.m.SetHold(r.now, 1, hold(target, r.now.Add(2*time.Second))); err != nil {
				t.Fatal(err)
			}
			r.pass(3 * time.Second)
			r.none(1, "c") // the hold has ended, the limit has not
			if err := r.m.SetHold(r.now, 1, hold(target, r.now.Add(3*time.Second))); err != nil {
				t.Fatal(err)
			}
			r.pass(2 * time.Second)
			r.none(1, "c") // now it is the other way round
			r.pass(time.Second)
			r.ack(r.one(1, "c"))
			if err := r.m.SetHold(r.now, 1, hold(target, r.now.Add(time.Hour))); err != nil {
				t.Fatal(err)
			}
			r.apply("") // without the limit
			r.none(1, "c")
			if _, err := r.m.LiftHold(r.now, 1, target); err != nil {
				t.Fatal(err)
			}
			r.one(1, "c")
		})
	}
}

func TestC18_TheSamePolicyAgainChangesNothing(t *testing.T) {
	const text = "limits:\n  - {user: \"*\", rate: 1/10m}\nrows:\n  - {user: u1, in_flight: 3}\n"
	r := newRig(t, TopicConfig{}, wild)
	r.apply(text)
	for i := range 100 {
		r.send(fmt.Sprintf("u%d__m", i), messages(2)...)
	}
	for _, it := range r.pull(1, "c", 100) {
		r.suspend(it, time.Hour)
	}
	holds := func() string {
		all := map[string]time.Time{}
		r.m.group(1).holds.Each(func(h suspend.Hold) bool { all[h.Target.Name] = h.Until; return true })
		return fmt.Sprint(all)
	}
	before := holds()
	check := func() {
		t.Helper()
		r.none(1, "c")
		if s := r.m.Stats(); s.Messages != 200 || s.Groups[0].Holds != 100 || s.Groups[0].Parked != 100 || holds() != before {
			t.Fatalf("%+v, want 200 messages and 100 holds as they were", s)
		}
	}
	for range 10 {
		r.apply(text)
		r.m.AddGroup(wild)
		check()
	}
	r.apply("limits:\n  - {user: \"*\", rate: 1/s}\n")
	check()
	r.restart()
	check()
	r.pass(time.Hour)
	if got := len(r.pull(1, "c", 200)); got != 100 {
		t.Fatalf("%d messages an hour later, want 100", got)
	}
}

func TestC33_ABucketThatWaitsForALimitOutlivesItsTTL(t *testing.T) {
	r := newRig(t, TopicConfig{TTL: time.Minute}, wild)
	r.apply("limits:\n  - {user: \"*\", rate: 1/10m}\n")
	r.send("u__m", messages(2)...)
	r.ack(r.one(1, "c"))
	for range 10 {
		r.pass(time.Minute - time.Second)
		r.sweep()
		r.none(1, "c")
		if !r.m.Resident("u__m") {
			t.Fatal("the bucket went with a message that waits for its limit")
		}
	}
	r.pass(10 * time.Second)
	r.ack(r.one(1, "c"))
	r.pass(2 * time.Minute)
	r.sweep()
	if r.m.Stats().Buckets != 0 {
		t.Fatal("the bucket outlives its TTL")
	}
}

func TestC59_RemovingAnOverrideFallsBackForWhatIsQueued(t *testing.T) {
	r := newRig(t, TopicConfig{}, wild)
	r.send("u1__m1", messages(2_000)...)
	const (
		cell  = "  - {user: u1, model: m1, rate: 1/s}\n"
		user  = "  - {user: u1, rate: 5/s}\n"
		model = "  - {model: m1, rate: 10/s}\n"
	)
	for _, step := range []struct {
		text string
		want int
	}{{"limits:\n" + cell + user + model, 1}, {"limits:\n" + user + model, 5}, {"limits:\n" + model, 10}} {
		r.apply(step.text)
		r.released(1, time.Second) // each change acts within a second
		if got := r.released(1, 10*time.Second)["u1__m1"]; got < 10*step.want-1 || got > 10*step.want+1 {
			t.Fatalf("%d in 10 s under %q, want %d", got, step.text, 10*step.want)
		}
	}
	r.apply("")
	if got := r.released(1, time.Second)["u1__m1"]; got < 1_500 {
		t.Fatalf("%d without any limit, want all that is left", got)
	}
	// A name that is no cell has the defaults, too.
	r.apply("limits:\n  - {user: \"*\", rate: 2/s}\n")
	r.send("nobody", messages(100)...)
	r.released(1, time.Second)
	if got := r.released(1, 10*time.Second)["nobody"]; got < 19 || got > 21 {
		t.Fatalf("a bucket of no cell released %d in 10 s, want 20", got)
	}
}

func TestC83_ANewBucketAndANewConsumerKnowOfAPause(t *testing.T) {
	exact := GroupConfig{Name: "exact", ID: 2}
	r := newRig(t, TopicConfig{}, wild, exact)
	r.apply("columns:\n  - {model: m1, in_flight: 100}\n")
	pauses := []struct{ set, clear func() }{
		{
			func() { _ = r.m.SetHold(r.now, 1, hold(columnM, r.now.Add(time.Hour))) },
			func() { _, _ = r.m.LiftHold(r.now, 1, columnM) },
		},
		{func() { r.signal(columnM, 0, time.Hour) }, func() { r.m.DropSignal(r.now, columnM, "test") }},
	}
	for i, pause := range pauses {
		pause.set()
		r.turn()
		name := fmt.Sprintf("u%d__m1", 77+i)
		r.send(name, messages(10)...)
		r.pass(10 * time.Second)
		r.none(1, "new consumer")
		if i == 1 {
			if _, err := r.m.SyncSubscription(r.now, SyncRequest{Group: 2, Client: "e", Action: CompleteAdd, Names: []string{name}}); err != nil {
				t.Fatal(err)
			}
			r.none(2, "e")
			r.restart() // and another process
			r.none(1, "new consumer")
			r.none(2, "e")
			r.disk.signals = nil
		}
		pause.clear()
		r.turn()
		r.pass(time.Second) // a factor rises step by step
		for range 10 {
			r.ack(r.one(1, "new consumer"))
		}
		r.send(name)
		pause.set()
		r.turn()
		r.none(1, "new consumer") // the second pause works
		pause.clear()
		r.pass(time.Second)
		r.ack(r.one(1, "new consumer"))
	}
}
