package broker_test

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/penstockmq/penstock/broker"
	"github.com/penstockmq/penstock/suspend"
)

// skewed is a clock whose wall part can be set.
type skewed struct {
	begin time.Time
	skew  atomic.Int64
}

func newSkewed() *skewed { return &skewed{begin: time.Now()} }

func (s *skewed) read() broker.Reading {
	return broker.Reading{Wall: time.Now().Round(0).Add(time.Duration(s.skew.Load())), Mono: time.Since(s.begin)}
}

func (s *skewed) set(d time.Duration) { s.skew.Store(int64(d)) }

func columnHold(model string, until time.Time) suspend.Hold {
	return suspend.Hold{Target: suspend.Target{Scope: suspend.Column, Name: model}, Until: until}
}

// A hold of 3 s lasted an hour when the clock was set back by one, and running requests were
// delivered a second time when it was set forward.
func TestClockStepWhileTheBrokerRuns(t *testing.T) {
	for _, step := range []time.Duration{-time.Hour, time.Hour} {
		t.Run(step.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				clock := newSkewed()
				o := options(vfs.NewMem())
				o.Clock = clock.read
				b := open(t, o)
				send(t, b, "running", "u__m")
				running := one(t, b, 0) // for a minute
				if err := b.SetHold(t.Context(), group, columnHold("held", time.Now().Add(3*time.Second))); err != nil {
					t.Fatal(err)
				}
				send(t, b, "held", "u__held")
				begin := time.Now()
				clock.set(step)
				held := one(t, b, 20*time.Second)
				if after := time.Since(begin); string(held.Body) != "held" || after < 3*time.Second || after > 5*time.Second {
					t.Errorf("got %q after %v, want the held one when its 3 s are over", held.Body, after)
				}
				none(t, b, 20*time.Second)
				if waited := time.Since(begin); waited > 30*time.Second {
					t.Errorf("a poll of 20 s ended after %v", waited)
				}
				none(t, b, time.Until(begin.Add(59*time.Second)))
				ack(t, b, running, held)
				none(t, b, 2*time.Minute)
				closeBroker(t, b)
			})
		})
	}
}

func TestClockSetBackWhileTheBrokerWasAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock := newSkewed()
		fs := vfs.NewMem()
		o := options(fs)
		o.Clock = clock.read
		b := open(t, o)
		send(t, b, "running", "u__m")
		one(t, b, 0) // for a minute
		if err := b.SetHold(t.Context(), group, columnHold("held", time.Now().Add(20*time.Second))); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		send(t, b, "held", "u__held")
		closeBroker(t, b)
		clock.set(-time.Hour)
		for range 2 { // the second start reads the records of the first
			b = open(t, o)
			send(t, b, "other", "other")
			ack(t, b, one(t, b, 0))
			closeBroker(t, b)
		}
		b = open(t, o)
		begin := time.Now()
		if d := one(t, b, time.Minute); string(d.Body) != "held" {
			t.Errorf("got %q", d.Body)
		}
		if after := time.Since(begin); after > 21*time.Second {
			t.Errorf("a hold of 20 s ended after %v", after)
		}
		if d := one(t, b, time.Minute); string(d.Body) != "running" || d.Attempt != 2 {
			t.Errorf("got %q in attempt %d", d.Body, d.Attempt)
		}
		if after := time.Since(begin); after > 61*time.Second {
			t.Errorf("a lease of a minute ended after %v", after)
		}
		closeBroker(t, b)
	})
}

// pausingClock simulates a pause of the loop: from one look to the next, both clocks advance
// by the added time, as in a stopped process.
type pausingClock struct {
	begin time.Time
	added atomic.Int64
}

func (c *pausingClock) read() broker.Reading {
	d := time.Duration(c.added.Load())
	return broker.Reading{Wall: time.Now().Round(0).Add(d), Mono: time.Since(c.begin) + d}
}

// A broker that was stopped for 40 s had its workers' leases of 30 s end, as no renewal could
// come in, and 52 requests were sent to the model twice.
func TestPauseOfTheBrokerProlongsLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock := &pausingClock{begin: time.Now()}
		o := options(vfs.NewMem())
		o.Clock = clock.read
		b := open(t, o)
		send(t, b, "x", "a")
		r := request("c", 1, 0)
		r.Invisible = 30 * time.Second
		got, err := b.Receive(t.Context(), r)
		if err != nil || len(got) != 1 {
			t.Fatalf("%d messages, %v", len(got), err)
		}
		time.Sleep(5 * time.Second)
		clock.added.Store(int64(40 * time.Second))
		none(t, b, 20*time.Second)
		if err := b.ChangeInvisible(t.Context(), topic, group, got[0].Handle, 30*time.Second); err != nil {
			t.Fatalf("renewal after the pause: %v", err)
		}
		ack(t, b, got...)
		if n := b.Metrics().Pauses.Load(); n != 1 {
			t.Errorf("%d pauses counted, want 1", n)
		}
		closeBroker(t, b)
	})
}

// A broker that was away for longer than the leases gives its workers time to renew them.
func TestLeasesThatEndWhileTheBrokerIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := vfs.NewMem()
		b := open(t, options(fs))
		send(t, b, "x", "a")
		d := one(t, b, 0) // for a minute
		closeBroker(t, b)
		time.Sleep(5 * time.Minute)
		b = open(t, options(fs))
		none(t, b, 5*time.Second)
		if err := b.ChangeInvisible(t.Context(), topic, group, d.Handle, 30*time.Second); err != nil {
			t.Fatal(err)
		}
		none(t, b, 29*time.Second)
		ack(t, b, d)
		closeBroker(t, b)
	})
}
