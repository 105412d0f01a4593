package broker

import "time"

// Clock is the only place where a broker reads the time. Owner loops compare the two parts
// of a Reading to detect that the wall clock was set, or that the loop did not run for a
// while. It is called from several goroutines at once.
type Clock func() Reading

// Reading is one reading of the clock.
type Reading struct {
	// Wall is the wall clock, without a monotonic part: instants in the machine are compared
	// with instants read from disk.
	Wall time.Time
	// Mono grows steadily from any origin, also when the wall clock is set.
	Mono time.Duration
}

// systemClock returns the clock of the machine.
func systemClock() Clock {
	begin := time.Now()
	return func() Reading { return Reading{Wall: wall(), Mono: time.Since(begin)} }
}

const (
	// stepTolerance is the difference between wall clock and monotonic clock above which the
	// wall clock counts as set. The operating system slews both alike.
	stepTolerance = time.Second
	// pauseTolerance is the time between two readings above which the loop counts as paused.
	// The loop reads the clock every maxSleep.
	pauseTolerance = 2 * maxSleep
	// clockPeriod is the pause between two records of the wall clock while a loop writes.
	clockPeriod = 100 * time.Millisecond
)

// watch detects steps and pauses of one loop. The zero value has no reading yet.
type watch struct {
	// ref is the reading against which steps are measured, last the newest.
	ref, last Reading
	// noted is the wall clock that was last written to disk.
	noted time.Time
}

// look takes a reading and returns the step of the wall clock since the previous reading,
// and for how long the loop was paused; 0 means none.
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

// now reads the clock for the loop, and reports steps and pauses to the machine. Only the
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

// noteClock adds the wall clock to a non-empty batch once per clockPeriod, so that the
// next start can detect that the clock was set back meanwhile.
func (o *owner) noteClock(t *turn) {
	if since := t.now.Sub(o.watch.noted); t.batch.Empty() || (since >= 0 && since < clockPeriod) {
		return
	}
	o.watch.noted = t.now
	t.batch.PutClock(t.now)
}

// sinceLastWrite returns the instant of the last write to the store, in terms of the
// wall clock of today, and the amount by which the wall clock was set back since; 0 if no
// step back can be shown. The instant is zero if nothing was written yet.
func (b *Broker) sinceLastWrite(now time.Time) (last time.Time, back time.Duration, err error) {
	last, err = b.store.Clock()
	if err != nil || last.Before(now) {
		return last, 0, err
	}
	if back = last.Sub(now); back < stepTolerance {
		back = 0
	}
	return now, back, nil
}
