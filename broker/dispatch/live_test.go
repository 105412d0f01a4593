package dispatch

import (
	"errors"
	"fmt"
	"testing"
	"time"
)

// counts fails unless the bucket counts want live messages of 10 bytes, in its description,
// in the gauges and after a restart.
func (r *rig) counts(name string, want int) {
	r.t.Helper()
	r.turn()
	for _, when := range []string{"now", "after a restart"} {
		info, _ := r.m.BucketInfo(r.now, name)
		s := r.m.Stats()
		if info.Queued != want || info.State.Bytes != int64(10*want) || s.Messages != int64(want) || s.Bytes != int64(10*want) {
			r.t.Fatalf("%s: %d messages of %d bytes, gauges %d of %d, want %d", when, info.Queued, info.State.Bytes, s.Messages, s.Bytes, want)
		}
		if when == "now" {
			r.m = r.disk.start(r.now)
			r.turn()
		}
	}
}

func TestMessagesSettledOutOfOrderDoNotCount(t *testing.T) {
	g := GroupConfig{Name: "pool", ID: 1, Wildcard: true, InFlight: 8}
	r := newRig(t, TopicConfig{MaxMessages: 8, MaxBytes: 80}, g)
	r.send("a", messages(8)...)
	for range 8 {
		r.one(1, "c")
	}
	r.ack(r.got[1:]...) // the head still runs
	r.counts("a", 1)
	if _, err := r.trySend("a", messages(7)...); err != nil {
		t.Fatalf("one message lives, and an append of seven is refused: %v", err)
	}
	if _, err := r.trySend("a"); !errors.Is(err, ErrBucketFull) {
		t.Fatalf("a full bucket: %v", err)
	}
	r.counts("a", 8)
	r.ack(r.got[0])
	r.counts("a", 7)
}

func TestAMessageCountsUntilEveryGroupIsDoneWithIt(t *testing.T) {
	r := newRig(t, TopicConfig{},
		GroupConfig{Name: "one", ID: 1, Wildcard: true, InFlight: 8}, GroupConfig{Name: "two", ID: 2, Wildcard: true, InFlight: 8})
	r.send("a", messages(4)...)
	var got [3][]Item
	for range 4 {
		for g := GroupID(1); g <= 2; g++ {
			got[g] = append(got[g], r.one(g, "c"))
		}
	}
	r.ack(got[1][2], got[1][3], got[1][0])
	r.counts("a", 4) // the other group has them all out
	r.ack(got[2][2])
	r.counts("a", 3)
	r.ack(got[2][1])
	r.counts("a", 3)
	if err := r.m.Seek(r.now, 2, "a", 4); err != nil { // over all of them
		t.Fatal(err)
	}
	r.counts("a", 1) // 1 is out in the first group
}

func TestWhatARemovedGroupWaitedForDoesNotCount(t *testing.T) {
	groups := []GroupConfig{{Name: "one", ID: 1, Wildcard: true, InFlight: 8}, {Name: "two", ID: 2, Wildcard: true}}
	r := newRig(t, TopicConfig{}, groups...)
	r.send("a", messages(4)...)
	for range 4 {
		r.one(1, "c")
	}
	r.ack(r.got[1], r.got[3])
	r.m.RemoveGroup(r.now, 2)
	r.disk.groups = groups[:1]
	r.counts("a", 2)
}

func TestKilledMessagesDoNotCountAfterARestart(t *testing.T) {
	r := newRig(t, TopicConfig{MaxMessages: 10}, wild)
	a := r.send("a", messages(10)...)
	head := r.one(1, "c")
	if got := r.m.Cancel(r.now, "a", a.Bucket, 5); got != Cancelled {
		t.Fatal(got)
	}
	r.counts("a", 9)
	if got := r.m.Cancel(r.now, "a", a.Bucket, 5); got != Gone {
		t.Fatalf("a second cancel after a restart: %d, want gone", got)
	}
	if got := r.m.Purge(r.now, "a"); got != 8 {
		t.Fatalf("purged %d, want 8", got)
	}
	r.counts("a", 1)
	r.send("a", messages(9)...)
	r.counts("a", 10)
	r.ack(head)
	r.counts("a", 9)
	r.m.Purge(r.now, "a")
	r.turn()
	if len(r.disk.tombs) != 0 {
		t.Fatalf("an empty bucket leaves records of dead messages: %v", r.disk.tombs)
	}
}

// An earlier program counted from head to tail; the groups' records correct the counts of its
// store.
func TestMessagesOfAnEarlierProgramThatAllGroupsSettledDoNotCount(t *testing.T) {
	r := newRig(t, TopicConfig{}, GroupConfig{Name: "pool", ID: 1, Wildcard: true, InFlight: 4})
	a := r.send("a", messages(4)...)
	r.disk.cursors[cursorKey{1, a.Bucket}] = CursorState{Bucket: a.Bucket, Settled: []Offset{1, 3}}
	r.turn()
	r.m = r.disk.start(r.now)
	r.turn()
	r.counts("a", 2)
}

// deepQueue is a bucket with a message in flight and n queued ones with different deadlines.
func deepQueue(tb tester, n int) (*Machine, Appended) {
	m := New(TopicConfig{Name: "requests", ID: 1, Epoch: 1, MaxMessages: n + 1})
	m.AddGroup(wild)
	var a Appended
	for i := range n + 1 {
		got, err := m.Append(epoch0, AppendRequest{Name: "u__m", Cell: cellOf("u__m"), Messages: []MessageMeta{{Size: 10, Deadline: epoch0.Add(time.Hour + time.Duration(i)*time.Millisecond)}}})
		if err != nil {
			tb.Fatalf("append: %v", err)
		}
		if i == 0 {
			a = got
		}
	}
	m.Durable(epoch0, a.Bucket, Offset(n+1))
	if _, err := m.Pull(epoch0, PullRequest{Group: 1, Client: "c", Max: 1, Invisible: 3 * time.Hour, Until: epoch0.Add(time.Minute)}); err != nil {
		tb.Fatalf("pull: %v", err)
	}
	m.Match(epoch0)
	m.Take()
	return m, a
}

// BenchmarkDeep measures the calls on one message of a deep bucket. Their cost must not
// follow the depth.
func BenchmarkDeep(b *testing.B) {
	for _, n := range []int{1_000, 100_000} {
		b.Run(fmt.Sprint("cancel/depth=", n), func(b *testing.B) {
			m, a := deepQueue(b, n)
			at := 0
			for b.Loop() {
				if at == n {
					b.StopTimer()
					m, a = deepQueue(b, n)
					at = 0
					b.StartTimer()
				}
				m.Cancel(epoch0, "u__m", a.Bucket, Offset(1+(at*7919)%n))
				if at++; at%64 == 0 {
					m.Take()
				}
			}
		})
		b.Run(fmt.Sprint("explain/depth=", n), func(b *testing.B) {
			m, a := deepQueue(b, n)
			for i := range n / 2 {
				m.Cancel(epoch0, "u__m", a.Bucket, Offset(1+2*i))
			}
			m.Take()
			for b.Loop() {
				if _, ok := m.Explain(epoch0, 1, "u__m", Offset(n)); !ok {
					b.Fatal("no such message")
				}
			}
		})
		b.Run(fmt.Sprint("info/depth=", n), func(b *testing.B) {
			m, _ := deepQueue(b, n)
			for b.Loop() {
				m.BucketInfo(epoch0, "u__m")
			}
		})
	}
}

func TestDeadlinesOfMessagesThatAreGoneAreForgotten(t *testing.T) {
	r := newRig(t, TopicConfig{}, wild)
	n := 0
	next := func() MessageMeta {
		n++
		return MessageMeta{Size: 10, Deadline: r.now.Add(time.Hour + time.Duration(n))}
	}
	for range 2 * dueFloor {
		r.send("a", next())
	}
	most := 0
	for range 20 * dueFloor {
		r.send("a", next())
		r.ack(r.one(1, "c"))
		most = max(most, len(r.m.byName["a"].deep.dues))
	}
	if want := 2*(2*dueFloor+1) + dueFloor + 1; most > want {
		t.Fatalf("%d deadlines of %d messages, want at most %d", most, 2*dueFloor, want)
	}
	r.m.Purge(r.now, "a")
	if r.turn(); r.m.Resident("a") {
		t.Fatal("an empty bucket stays")
	}
}
