package dispatch

import (
	"fmt"
	"testing"
	"time"

	"github.com/penstockmq/penstock/suspend"
)

// takes runs turns at one instant until nothing is left to do, and returns for each turn the
// number of effects counted by did.
func (r *rig) takes(did func(Effects) int) []int {
	r.t.Helper()
	var turns []int
	for n := 0; ; n++ {
		turns = append(turns, did(r.turn()))
		if wake, ok := r.m.NextWake(); !ok || wake.After(r.now) {
			return turns
		}
		if n == 1000 {
			r.t.Fatalf("not done after %d turns at one instant", n)
		}
	}
}

// When many events are due at one instant, a turn handles no more of them than its share; the
// rest follows at once, in further turns with other events between them.
func TestWhatFallsDueTogetherIsSpreadOverTurns(t *testing.T) {
	const n = 1100
	name := func(i int) string { return fmt.Sprintf("u%d__m", i) }
	ops := func(op Op) func(Effects) int {
		return func(e Effects) (sum int) {
			for _, w := range e.Writes {
				if w.Op == op {
					sum++
				}
			}
			return sum
		}
	}
	delivered := func(e Effects) int { return e.Counters.Delivered }
	for _, c := range []struct {
		what  string
		share int
		// prepare makes n events due at the rig's now, and returns a function that counts them.
		prepare func(r *rig) func(Effects) int
		want    int
	}{
		{"leases end", turnShares.leases, func(r *rig) func(Effects) int {
			for i := range n {
				r.send(name(i))
			}
			for i := 0; i < n; i += 100 {
				r.poll(1, "c", 100)
				r.turn()
			}
			r.now = r.now.Add(time.Minute)
			return ops(DeleteLease)
		}, n},
		{"holds end", turnShares.holds, func(r *rig) func(Effects) int {
			for i := range n {
				if err := r.m.SetHold(r.now, 1, bucketHold(name(i), r.now.Add(time.Minute))); err != nil {
					t.Fatal(err)
				}
			}
			r.turn()
			r.now = r.now.Add(time.Minute)
			return ops(DeleteHold)
		}, n},
		{"messages are overdue", turnShares.expiries, func(r *rig) func(Effects) int {
			for i := range n {
				r.send("u__m", MessageMeta{Size: i, Deadline: r.now.Add(time.Second + time.Duration(i))})
			}
			r.now = r.now.Add(time.Minute)
			r.poll(1, "c", 1)
			return func(e Effects) int { return e.Counters.Expired }
		}, n},
		{"polls end", turnShares.polls, func(r *rig) func(Effects) int {
			for range n {
				r.poll(1, "c", 1)
			}
			r.turn()
			r.now = r.now.Add(time.Minute)
			return func(e Effects) int { return len(e.EmptyPulls) }
		}, n},
		{"a column opens for waiting polls", turnShares.looks, func(r *rig) func(Effects) int {
			column := suspend.Hold{Target: suspend.Target{Scope: suspend.Column, Name: "m"}, Until: r.now.Add(time.Second)}
			if err := r.m.SetHold(r.now, 1, column); err != nil {
				t.Fatal(err)
			}
			for i := range n {
				r.send(name(i))
				r.poll(1, "c", 1)
			}
			r.turn()
			r.now = r.now.Add(time.Second)
			return delivered
		}, n},
		{"a row opens for waiting polls", turnShares.looks, func(r *rig) func(Effects) int {
			row := suspend.Hold{Target: suspend.Target{Scope: suspend.Row, Name: "u"}, Until: r.now.Add(time.Second)}
			if err := r.m.SetHold(r.now, 1, row); err != nil {
				t.Fatal(err)
			}
			for i := range n {
				r.send(fmt.Sprintf("u__m%d", i))
				r.poll(1, "c", 1)
			}
			r.turn()
			r.now = r.now.Add(time.Second)
			return delivered
		}, n},
		{"windows end together", turnShares.limits, func(r *rig) func(Effects) int {
			r.apply("limits:\n  - {user: \"*\", window: 1/10s, window_at: release}\n")
			for i := range n {
				r.send(name(i), messages(2)...)
			}
			for range 2 {
				for i := 0; i < n; i += 100 {
					r.poll(1, "c", 100)
					r.turn()
				}
				for _, it := range r.got {
					if err := r.m.Ack(r.now, it.Handle); err != nil {
						t.Fatal(err)
					}
				}
				r.got = nil
			}
			for r.turn(); r.m.unfinished; {
				r.turn()
			}
			for range n {
				r.poll(1, "c", 1)
			}
			if e := r.turn(); e.Counters.Delivered > 0 {
				t.Fatal("a second message went in one window")
			}
			r.now = r.now.Add(10 * time.Second)
			return delivered
		}, n},
	} {
		t.Run(c.what, func(t *testing.T) {
			r := newRig(t, TopicConfig{}, wild)
			turns := r.takes(c.prepare(r))
			sum := 0
			for i, did := range turns {
				sum += did
				if did > c.share {
					t.Errorf("turn %d did %d, its share is %d", i, did, c.share)
				}
			}
			if sum != c.want || len(turns) < c.want/c.share {
				t.Errorf("%d in %d turns, want %d", sum, len(turns), c.want)
			}
		})
	}
}

// A bucket with more overdue messages than a turn may settle must not keep the others.
func TestOverdueHeadsDoNotKeepOtherBuckets(t *testing.T) {
	r := newRig(t, TopicConfig{}, wild)
	for i := range 10 * turnShares.expiries {
		r.send("late__m", MessageMeta{Size: i, Deadline: r.now.Add(time.Second + time.Duration(i))})
	}
	r.now = r.now.Add(time.Minute)
	r.send("other__m")
	w := r.poll(1, "c", 1)
	for i := range 2 {
		if r.turn(); len(r.got) == 1 {
			break
		}
		if i == 1 {
			t.Fatalf("after two turns the other bucket's message is not out: %v", w)
		}
	}
	if r.got[0].Name != "other__m" {
		t.Fatalf("got %v", r.got)
	}
}

// Two groups share the turns: one with much to do does not keep the other from its own.
func TestGroupsShareTurns(t *testing.T) {
	r := newRig(t, TopicConfig{}, GroupConfig{Name: "one", ID: 1, Wildcard: true}, GroupConfig{Name: "two", ID: 2, Wildcard: true})
	n := 4 * turnShares.looks
	for i := range n {
		r.send(fmt.Sprintf("u%d__m", i))
	}
	for range n {
		r.poll(1, "c", 1)
	}
	r.poll(2, "d", 1)
	for i := range 3 {
		for _, d := range r.turn().Deliveries {
			if d.Waiter.member.g.cfg.ID == 2 {
				return
			}
		}
		if i == 2 {
			t.Fatal("the second group's poll waits behind the first group's backlog")
		}
	}
}
