package dispatch

import (
	"testing"
	"time"

	"github.com/penstockmq/penstock/suspend"
	"github.com/penstockmq/penstock/suspend/signal"
)

// eachLease calls f for the leases of the model.
func (p *model) eachLease(f func(l *modelLease)) {
	for _, b := range p.buckets {
		for _, msg := range b.msgs {
			for _, pl := range msg.groups {
				if pl.lease != nil {
					f(pl.lease)
				}
			}
		}
	}
}

// step sets the clock. Lengths of time move along.
func (p *model) step(d time.Duration) {
	p.turn()
	for _, b := range p.buckets {
		for _, msg := range b.msgs {
			if d < 0 && p.overdue(msg) {
				return // a step back would show whether the machine had noticed the passed deadline
			}
		}
	}
	p.r.now = p.r.now.Add(d)
	p.eachLease(func(l *modelLease) { l.until, l.first = l.until.Add(d), l.first.Add(d) })
	for k, until := range p.holds {
		p.holds[k] = until.Add(d)
	}
	for _, w := range p.waiters {
		w.until = w.until.Add(d)
	}
	for c, seen := range p.seen {
		p.seen[c] = seen.Add(d)
	}
	p.r.m.ClockStepped(p.r.now, d)
	p.turn()
}

// pause is time in which no event came in.
func (p *model) pause(d time.Duration) {
	p.turn()
	p.r.now = p.r.now.Add(d)
	p.eachLease(func(l *modelLease) { l.until = l.until.Add(d) })
	for c, seen := range p.seen {
		if seen = seen.Add(d); seen.After(p.r.now) {
			seen = p.r.now
		}
		p.seen[c] = seen
	}
	p.r.m.Paused(p.r.now, d)
	p.turn()
}

// grace extends leases as a start does.
func (p *model) grace() {
	low := p.r.now.Add(startGrace)
	p.eachLease(func(l *modelLease) {
		if l.until.Before(low) {
			l.until = low
		}
	})
}

// A step of the clock back made a hold of 2 s last 1 h; one forward called running requests
// a second time.
func TestClockStepsMoveWhatIsALengthOfTime(t *testing.T) {
	for _, step := range []time.Duration{-time.Hour, time.Hour} {
		for _, restart := range []bool{false, true} {
			name := step.String()
			if restart {
				name += " and a restart"
			}
			t.Run(name, func(t *testing.T) {
				r := newRig(t, TopicConfig{}, wild)
				r.send("running")
				running := r.one(1, "c") // for 60 s
				hold := suspend.Hold{Target: suspend.Target{Scope: suspend.Bucket, Name: "held"}, Until: r.now.Add(2 * time.Second)}
				if err := r.m.SetHold(r.now, 1, hold); err != nil {
					t.Fatal(err)
				}
				r.send("held")
				r.poll(1, "c", 1) // for 20 s
				r.turn()
				r.now = r.now.Add(step)
				r.m.ClockStepped(r.now, step)
				r.turn()
				if restart {
					r.restart()
				}
				if !restart {
					r.pass(2*time.Second - time.Millisecond)
					if len(r.got) != 1 {
						t.Fatalf("%d deliveries before the hold's end, want the first one", len(r.got))
					}
					r.pass(time.Millisecond)
					if len(r.got) != 2 || r.got[1].Name != "held" {
						t.Fatalf("the hold of 2 s has not ended after 2 s: %v", r.got)
					}
				} else {
					r.pass(2*time.Second - time.Millisecond)
					r.none(1, "c")
					r.pass(time.Millisecond)
					if got := r.one(1, "c"); got.Name != "held" {
						t.Fatalf("got %v", got)
					}
				}
				r.pass(58*time.Second - time.Millisecond)
				r.none(1, "c")
				r.pass(time.Millisecond)
				if again := r.one(1, "c"); again.Handle.Offset != running.Handle.Offset || again.Attempt != 2 {
					t.Fatalf("after the lease's 60 s: %+v", again)
				}
			})
		}
	}
}

func TestClockStepsMovePolls(t *testing.T) {
	for _, step := range []time.Duration{-time.Hour, time.Hour} {
		r := newRig(t, TopicConfig{}, wild)
		r.poll(1, "c", 1)
		r.turn()
		r.now = r.now.Add(step)
		r.m.ClockStepped(r.now, step)
		r.pass(20*time.Second - time.Millisecond)
		if len(r.empty) != 0 {
			t.Errorf("step %v: a poll of 20 s ended early", step)
		}
		r.pass(time.Millisecond)
		if len(r.empty) != 1 {
			t.Errorf("step %v: a poll of 20 s goes on", step)
		}
	}
}

// The clock was set back while the broker was away.
func TestClockSetBackBeforeAStart(t *testing.T) {
	r := newRig(t, TopicConfig{}, wild)
	r.send("running")
	r.one(1, "c")
	hold := suspend.Hold{Target: suspend.Target{Scope: suspend.Bucket, Name: "held"}, Until: r.now.Add(2 * time.Second)}
	if err := r.m.SetHold(r.now, 1, hold); err != nil {
		t.Fatal(err)
	}
	r.send("held")
	r.turn()
	r.now = r.now.Add(-time.Hour)
	r.disk.stepped = -time.Hour
	r.restart()
	r.disk.stepped = 0
	r.restart() // which reads the records of the first start
	r.pass(2*time.Second - time.Millisecond)
	r.none(1, "c")
	r.pass(time.Millisecond)
	if got := r.one(1, "c"); got.Name != "held" {
		t.Fatalf("got %v", got)
	}
	r.pass(58 * time.Second)
	if got := r.one(1, "c"); got.Name != "running" {
		t.Fatalf("got %v", got)
	}
}

// A broker that was stopped for 40 s could not be told that workers with leases of 30 s
// still run.
func TestPauseProlongsLeases(t *testing.T) {
	r := newRig(t, TopicConfig{}, wild)
	r.send("b")
	it := r.one(1, "c")
	if err := r.m.ChangeInvisible(r.now, it.Handle, 30*time.Second); err != nil {
		t.Fatal(err)
	}
	r.pass(time.Second)
	r.now = r.now.Add(40 * time.Second)
	r.m.Paused(r.now, 40*time.Second)
	r.pass(29*time.Second - time.Millisecond)
	r.none(1, "c")
	r.pass(time.Millisecond)
	if again := r.one(1, "c"); again.Attempt != 2 {
		t.Errorf("attempt %d, want 2", again.Attempt)
	}
}

// A lease that ended while the broker was away gets a grace, in which its worker can renew it;
// one far ahead is drawn in.
func TestLeasesAtAStart(t *testing.T) {
	r := newRig(t, TopicConfig{}, wild)
	r.send("b")
	it := r.one(1, "c") // for 60 s
	r.now = r.now.Add(5 * time.Minute)
	r.restart()
	r.none(1, "c")
	if err := r.m.ChangeInvisible(r.now, it.Handle, 30*time.Second); err != nil {
		t.Fatalf("renewal after the start: %v", err)
	}
	r.turn()
	r.now = r.now.Add(-24 * time.Hour)
	r.restart()
	r.pass(maxLease - time.Millisecond)
	r.none(1, "c")
	r.pass(time.Millisecond)
	if again := r.one(1, "c"); again.Attempt != 2 {
		t.Errorf("attempt %d, want 2", again.Attempt)
	}
}

// A lease gets the time that was left of it when the broker stopped, and no more: its worker
// may have died with the broker, and the message must not wait for longer than its lease.
func TestAShortLeaseIsNotLongerAfterAStart(t *testing.T) {
	r := newRig(t, TopicConfig{}, wild)
	r.send("b")
	it := r.one(1, "c")
	if err := r.m.ChangeInvisible(r.now, it.Handle, 4*time.Second); err != nil {
		t.Fatal(err)
	}
	r.turn()
	r.disk.stoppedAt = r.now.Add(time.Second)
	r.now = r.now.Add(time.Hour)
	r.restart()
	r.pass(3*time.Second - time.Millisecond)
	r.none(1, "c")
	r.pass(time.Millisecond)
	if again := r.one(1, "c"); again.Attempt != 2 {
		t.Errorf("attempt %d, want 2", again.Attempt)
	}
}

// An alarm lasts as long as it was raised for.
func TestClockStepsMoveSignals(t *testing.T) {
	r := newRig(t, TopicConfig{}, wild)
	s := signal.Signal{
		Target: suspend.Target{Scope: suspend.Column, Name: "m"}, Source: "alarm", Kind: signal.Alarm, Permille: 500,
		At: r.now, Until: r.now.Add(time.Minute),
	}
	r.m.SetSignal(r.now, s)
	for _, step := range []time.Duration{-time.Hour, 2 * time.Hour} {
		r.now = r.now.Add(step)
		r.m.ClockStepped(r.now, step)
		got := r.m.signals[signalKey{s.Target, s.Source}]
		if !got.Until.Equal(r.now.Add(time.Minute)) || !got.At.Equal(r.now) {
			t.Errorf("after %v: from %v until %v, now %v", step, got.At, got.Until, r.now)
		}
	}
}
