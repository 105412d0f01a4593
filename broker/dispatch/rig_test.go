package dispatch

import (
	"time"

	"github.com/penstockmq/penstock/broker/lite"
	"github.com/penstockmq/penstock/suspend"
	"github.com/penstockmq/penstock/suspend/policy"
	"github.com/penstockmq/penstock/suspend/signal"
)

// epoch0 is when tests begin.
var epoch0 = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// rig drives a machine as an owner loop does, over a disk and a clock of its own.
type rig struct {
	t    tester
	now  time.Time
	disk *disk
	m    *Machine

	// stamp is what the next messages are stamped with, plus one: 0 is nothing. cost is
	// what they say of theirs.
	stamp int8
	cost  MessageCost

	// What the turns since the last look gave.
	got      []Item
	answered []*Waiter
	empty    []*Waiter
	notices  []Notice
}

// wild is the usual group of a test: wildcard, one message of a bucket at a time.
var wild = GroupConfig{Name: "pool", ID: 1, Wildcard: true}

func newRig(t tester, topic TopicConfig, groups ...GroupConfig) *rig {
	topic.Name, topic.ID = "requests", 1
	r := &rig{t: t, now: epoch0, disk: newDisk(t, topic, groups...)}
	r.m = r.disk.start(r.now)
	return r
}

// restart is a kill and a start from what is on disk.
func (r *rig) restart() {
	r.m = r.disk.start(r.now)
	r.turn()
}

// turn is one round of the owner loop.
func (r *rig) turn() Effects {
	r.t.Helper()
	r.m.Tick(r.now)
	r.m.Match(r.now)
	e := r.m.Take()
	r.disk.apply(e.Writes)
	for _, d := range e.Deliveries {
		r.answered = append(r.answered, d.Waiter)
		r.got = append(r.got, d.Items...)
	}
	r.empty = append(r.empty, e.EmptyPulls...)
	r.notices = append(r.notices, e.Notices...)
	return e
}

// pass lets time go by as a sleeping loop would, turn by turn.
func (r *rig) pass(d time.Duration) {
	r.t.Helper()
	end := r.now.Add(d)
	for {
		wake, ok := r.m.NextWake()
		if !ok || wake.After(end) {
			break
		}
		if wake.After(r.now) {
			r.now = wake
		}
		r.turn()
	}
	r.now = end
	r.turn()
}

// cellOf is the cell of a bucket name.
func cellOf(name string) lite.Cell {
	c, err := lite.Resolve(name, "", "")
	if err != nil {
		panic(err)
	}
	return c
}

// send appends and makes durable.
func (r *rig) send(name string, msgs ...MessageMeta) Appended {
	r.t.Helper()
	a, err := r.trySend(name, msgs...)
	if err != nil {
		r.t.Fatalf("send to %q: %v", name, err)
	}
	return a
}

func (r *rig) trySend(name string, msgs ...MessageMeta) (Appended, error) {
	if len(msgs) == 0 {
		msgs = []MessageMeta{{Size: 10}}
	}
	if s, ok := r.disk.buckets[name]; ok && !r.m.Resident(name) {
		r.m.Load(s)
	}
	a, err := r.m.Append(r.now, AppendRequest{Name: name, Cell: cellOf(name), Level: r.stamp - 1, Messages: msgs})
	if err != nil {
		return a, err
	}
	for i := range msgs {
		r.disk.messages[messageKey{a.Bucket, a.First + Offset(i)}] = true
		r.disk.costs[messageKey{a.Bucket, a.First + Offset(i)}] = r.cost
	}
	r.m.Durable(r.now, a.Bucket, a.First+Offset(len(msgs)))
	return a, nil
}

// messages are n of them.
func messages(n int) []MessageMeta {
	msgs := make([]MessageMeta, n)
	for i := range msgs {
		msgs[i].Size = 10
	}
	return msgs
}

// poll parks a poll of 20 s.
func (r *rig) poll(g GroupID, client string, most int) *Waiter {
	r.t.Helper()
	w, err := r.m.Pull(r.now, PullRequest{Group: g, Client: client, Max: most, Invisible: 60 * time.Second, Until: r.now.Add(20 * time.Second)})
	if err != nil {
		r.t.Fatalf("pull: %v", err)
	}
	return w
}

// pull polls, takes a turn and returns what came; a poll that got nothing is cancelled.
func (r *rig) pull(g GroupID, client string, most int) []Item {
	r.t.Helper()
	before := len(r.got)
	w := r.poll(g, client, most)
	for r.turn(); r.m.unfinished; {
		r.turn() // as the owner loop does: at once
	}
	r.m.CancelPull(w)
	return append([]Item(nil), r.got[before:]...)
}

// one pulls a single message.
func (r *rig) one(g GroupID, client string) Item {
	r.t.Helper()
	got := r.pull(g, client, 1)
	if len(got) != 1 {
		r.t.Fatalf("pulled %d messages, want 1", len(got))
	}
	return got[0]
}

func (r *rig) none(g GroupID, client string) {
	r.t.Helper()
	if got := r.pull(g, client, 32); len(got) > 0 {
		r.t.Fatalf("pulled %v, want nothing", got)
	}
}

func (r *rig) ack(items ...Item) {
	r.t.Helper()
	for _, it := range items {
		if err := r.m.Ack(r.now, it.Handle); err != nil {
			r.t.Fatalf("ack: %v", err)
		}
	}
	r.turn()
}

func (r *rig) suspend(it Item, d time.Duration) {
	r.t.Helper()
	if err := r.m.Suspend(r.now, it.Handle, d, "worker", "test"); err != nil {
		r.t.Fatalf("suspend: %v", err)
	}
	r.turn()
}

// apply puts a policy in force.
func (r *rig) apply(text string) {
	r.t.Helper()
	doc, err := policy.Parse([]byte("version: 1\n" + text))
	if err != nil {
		r.t.Fatalf("policy: %v", err)
	}
	r.disk.policy = doc
	r.m.SetPolicy(r.now, doc)
	r.turn()
}

// signal puts a signal in force that ends after d.
func (r *rig) signal(t suspend.Target, permille int64, d time.Duration) {
	s := signal.Signal{Target: t, Source: "test", Kind: signal.Alarm, Permille: permille, At: r.now, Until: r.now.Add(d)}
	r.disk.signals = append(r.disk.signals, s)
	r.m.SetSignal(r.now, s)
	r.turn()
}

func (r *rig) sweep() {
	r.t.Helper()
	for _, id := range sorted(r.disk.expiry) {
		e := r.disk.expiry[id]
		if e.At.After(r.now) {
			continue
		}
		s, ok := r.disk.buckets[e.Name]
		r.m.Sweep(r.now, e, s, ok)
		r.turn()
	}
}

func bucketHold(name string, until time.Time) suspend.Hold {
	return suspend.Hold{Target: suspend.Target{Scope: suspend.Bucket, Name: name}, Until: until}
}
