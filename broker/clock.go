package broker

import "time"

// Clock is where a broker reads the time, and the only place: its loops compare the two
// parts of a Reading to notice that the wall clock was set, or that they did not run for
// a while. It is called from several goroutines at once.
type Clock func() Reading

// Reading is one look at the clock.
type Reading struct {
	// Wall is the wall clock, without a monotonic part: instants in the machine are compared
	// with instants read from disk.
	Wall time.Time
	// Mono grows with the time that passes, whatever becomes of the wall clock, from any origin.
	Mono time.Duration
}

// systemClock is the machine's clock.
func systemClock() Clock {
	begin := time.Now()
	return func() Reading { return Reading{Wall: wall(), Mono: time.Since(begin)} }
}

const (
	// stepTolerance is how far the wall clock may be from where the monotonic clock expects
	// it before that counts as a step. The system slews both alike.
	stepTolerance = time.Second
	// pauseTolerance is how long the loop may be between two looks at the clock before that
	// counts as a pause. It looks every maxSleep.
	pauseTolerance = 2 * maxSleep
	// clockPeriod is how often a loop that writes notes the wall clock on disk.
	clockPeriod = time.Second
)

// watch notices steps and pauses of one loop. The zero watch has not looked yet.
type watch struct {
	// ref is the reading that steps are measured against, last the newest.
	ref, last Reading
	// noted is the wall clock that was written to disk last.
	noted time.Time
}

// look takes a reading and returns by how much the wall clock was set since the look
// before, and how long the loop was away; 0 for neither.
func (w *watch) look(r Reading) (step, gap time.Duration) {
	if w.ref.Wall.IsZero() {
		w.ref, w.last = r, r
		return 0, 0
	}
	if away := r.Mono - w.last.Mono; away > pauseTolerance {
		gap = away
	}
	step = r.Wall.Sub(w.ref.Wall) - (r.Mono - w.ref.Mono)
	if step.Abs() < stepTolerance {
		step = 0
	} else {
		w.ref = r
	}
	w.last = r
	return step, gap
}

// now looks at the clock for the loop, and tells the machine what it noticed. Only the
// loop may call it.
func (o *owner) now() time.Time {
	r := o.clock()
	step, gap := o.watch.look(r)
	if step != 0 {
		o.log.Warn("wall clock was set; leases, holds and polls keep their length", "topic", o.name, "step", step)
		o.metrics.ClockSteps.Add(1)
		o.m.ClockStepped(r.Wall, step)
	}
	if gap != 0 {
		o.log.Warn("broker did not run; leases are prolonged", "topic", o.name, "gap", gap)
		o.metrics.Pauses.Add(1)
		o.m.Paused(r.Wall, gap)
	}
	return r.Wall
}

// noteClock writes the wall clock with a batch that is not empty, now and then, so that the
// next start can see that it was set back meanwhile.
func (o *owner) noteClock(t *turn) {
	if since := t.now.Sub(o.watch.noted); t.batch.Empty() || (since >= 0 && since < clockPeriod) {
		return
	}
	o.watch.noted = t.now
	t.batch.PutClock(t.now)
}

// setBack returns by how much the wall clock was set back since the store was last written;
// 0 if it was not, as far as that shows.
func (b *Broker) setBack(now time.Time) (time.Duration, error) {
	last, err := b.store.Clock()
	if err != nil || last.IsZero() || last.Sub(now) < stepTolerance {
		return 0, err
	}
	return last.Sub(now), nil
}
