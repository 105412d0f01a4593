package dispatch

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/penstockmq/penstock/suspend"
)

// row is a rig with a message in each of n buckets of a user, one in each model, of
// which one may be in flight at a time.
func row(t *testing.T, n int, g GroupConfig) *rig {
	t.Helper()
	r := newRig(t, TopicConfig{}, g)
	r.apply("rows:\n  - {user: u, in_flight: 1}\n")
	for i := range n {
		r.send(fmt.Sprintf("u__m%04d", i))
	}
	return r
}

func holdTarget(r *rig, scope suspend.Scope, name string, until time.Time) {
	r.t.Helper()
	if err := r.m.SetHold(r.now, 1, suspend.Hold{Target: suspend.Target{Scope: scope, Name: name}, Until: until}); err != nil {
		r.t.Fatalf("hold: %v", err)
	}
}

// A free slot of a user with thousands of buckets opens one bucket, not all of them.
func TestAFreedSlotOpensAsManyBucketsAsThereIsRoomFor(t *testing.T) {
	const n = 3000
	r := row(t, n, wild)
	for range 5 {
		r.poll(1, "c", 1)
	}
	for len(r.got) == 0 || r.m.unfinished {
		r.turn()
	}
	var order []string
	for range 50 {
		it := r.got[0]
		r.got = nil
		order = append(order, it.Name)
		if err := r.m.Ack(r.now, it.Handle); err != nil {
			t.Fatal(err)
		}
		r.poll(1, "c", 1)
		r.m.Tick(r.now)
		r.m.Match(r.now)
		looks, gates := turnShares.looks-r.m.left.looks, turnShares.gates-r.m.left.gates
		if looks > 8 || gates > 8 {
			t.Fatalf("an ack cost %d looks and opened %d buckets", looks, gates)
		}
		for _, d := range r.m.Take().Deliveries {
			r.got = append(r.got, d.Items...)
		}
		if len(r.got) != 1 {
			t.Fatalf("%d messages went, want 1", len(r.got))
		}
	}
	if !slices.IsSorted(order) {
		t.Errorf("they went in the order %v, want that in which they came", order)
	}
}

// An offered bucket that cannot be served, because its column closes, must not keep back the
// user's buckets of other columns.
func TestAClosedColumnKeepsNoRowBack(t *testing.T) {
	for _, what := range []string{"closes before", "closes after", "level closes", "is cancelled", "is held", "moves to a closed level"} {
		t.Run(what, func(t *testing.T) {
			r := row(t, 3, wild)
			first := r.one(1, "c") // m0000
			for r.none(1, "c"); r.m.unfinished; {
				r.turn()
			}
			if what == "closes before" {
				holdTarget(r, suspend.Column, "m0001", r.now.Add(time.Hour))
			}
			if what == "level closes" || what == "moves to a closed level" {
				r.apply("rows:\n  - {user: u, in_flight: 1}\nimportance:\n  - {model: m0001, level: 3}\n")
			}
			r.ack(first)
			for r.m.unfinished {
				r.turn()
			}
			switch what {
			case "closes after":
				holdTarget(r, suspend.Column, "m0001", r.now.Add(time.Hour))
			case "level closes":
				holdTarget(r, suspend.Level, "3", r.now.Add(time.Hour))
			case "is cancelled":
				r.m.Purge(r.now, "u__m0001")
			case "is held":
				holdTarget(r, suspend.Bucket, "u__m0001", r.now.Add(time.Hour))
			case "moves to a closed level":
				holdTarget(r, suspend.Level, "2", r.now.Add(time.Hour))
				r.stamp = 3 // level 2
				r.send("u__m0001")
			}
			if it := r.one(1, "c"); it.Name != "u__m0002" {
				t.Fatalf("got %q, want the bucket that may go", it.Name)
			}
		})
	}
}

// Where clients read single names a row lets all its buckets in: the next poll may be for
// any of them.
func TestARowOpensForTheReaderOfAnyName(t *testing.T) {
	r := newRig(t, TopicConfig{}, GroupConfig{Name: "pool", ID: 1})
	r.apply("rows:\n  - {user: u, in_flight: 1}\n")
	for _, c := range []string{"a", "b", "c"} {
		if _, err := r.m.SyncSubscription(r.now, SyncRequest{Group: 1, Client: c, Action: CompleteAdd, Names: []string{"u__" + c}}); err != nil {
			t.Fatal(err)
		}
		r.send("u__" + c)
	}
	first := r.one(1, "a")
	r.none(1, "b")
	r.none(1, "c")
	r.ack(first)
	r.ack(r.one(1, "c"))
	r.one(1, "b")
}

// The first subscription to a single name comes when some of a row wait behind others.
func TestARowThatIsOpenLetsAllInForTheFirstReaderOfAName(t *testing.T) {
	r := row(t, 3, wild)
	first := r.one(1, "c")
	r.none(1, "c")
	r.ack(first)
	if g := r.m.groups[0]; len(g.open) != 1 || g.set.Parked() == 0 {
		t.Fatalf("%d openings, %d parked, want one of which some wait", len(g.open), g.set.Parked())
	}
	r.m.groups[0].cfg.Wildcard = false
	if _, err := r.m.SyncSubscription(r.now, SyncRequest{Group: 1, Client: "d", Action: CompleteAdd, Names: []string{"u__m0002"}}); err != nil {
		t.Fatal(err)
	}
	if it := r.one(1, "d"); it.Name != "u__m0002" {
		t.Fatalf("got %q", it.Name)
	}
}
