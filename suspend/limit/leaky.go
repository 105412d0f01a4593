package limit

import (
	"fmt"
	"math"
	"time"
)

// MaxEvents is the largest number of events in a Rate.
const MaxEvents = 1_000_000_000

// Rate is a number of events per duration, kept as the pair: 7 per second has no exact interval in nanoseconds, and
// a rounded one would drift.
type Rate struct {
	Events int64         // at least 1
	Per    time.Duration // from MinWindow to MaxWindow
}

// Validate reports as ErrInvalid what is out of bounds.
func (r Rate) Validate() error {
	switch {
	case r.Events < 1 || r.Events > MaxEvents:
		return fmt.Errorf("%w: a rate of %d events, it must be from 1 to %d", ErrInvalid, r.Events, int64(MaxEvents))
	case r.Per < MinWindow || r.Per > MaxWindow:
		return fmt.Errorf("%w: a rate per %s, it must be per %s to %s", ErrInvalid, short(r.Per), short(MinWindow), short(MaxWindow))
	}
	return nil
}

// String is the rate as ParseRate reads it, such as "5/s" or "1/2s".
func (r Rate) String() string { return fmt.Sprintf("%d/%s", r.Events, unit(r.Per)) }

// LeakyBucket releases evenly: one event per interval T = Per/Events. It is the generic cell rate algorithm (ITU-T I.371,
// virtual scheduling): an event that comes on time or late pushes the theoretical arrival time (TAT) of the next one T
// ahead, and an ask passes unless it is more than Burst before the TAT.
//
// So floor(Burst/T) + 1 events pass back to back after a pause, and just one with Burst 0. In any span of length d,
// all that passes but the last ask costs at most (d + Burst)/T.
//
// An ask of cost n pushes the TAT n·T ahead, however large n is: a request is not divisible, so a large one is not
// refused but paid for afterwards. With Burst 0 every late ask moves the schedule by its lateness, and the pace stays
// under the rate; a Burst of some milliseconds lets a timer that fires late catch up.
type LeakyBucket struct {
	Rate  Rate
	Burst time.Duration // tolerance tau, from 0 to MaxWindow
}

// LeakyState is what a LeakyBucket remembers of a bucket. The zero state owes nothing.
type LeakyState struct {
	// TAT is the theoretical arrival time of the next event: UnixNano, plus Frac/Rate.Events of a nanosecond.
	// Invariant: 0 <= Frac < Rate.Events, or all of the state is zero.
	TAT, Frac int64
	At        int64 // latest instant asked at, UnixNano
	Rate      Rate  // the rate TAT was computed with; a changed rate converts what is owed
}

// Validate reports as ErrInvalid what is out of bounds.
func (l LeakyBucket) Validate() error {
	if err := l.Rate.Validate(); err != nil {
		return err
	}
	if l.Burst < 0 || l.Burst > MaxWindow {
		return fmt.Errorf("%w: a burst of %s, it must be from 0 to %s", ErrInvalid, short(l.Burst), short(MaxWindow))
	}
	return nil
}

// Take asks for cost at now and charges it if it passes. The caller keeps the returned state whatever the decision: it
// also records the clock and the rate. An ask of cost 0 always passes. REQUIRES: l is valid.
func (l LeakyBucket) Take(s LeakyState, now time.Time, cost int64) (LeakyState, Decision) {
	s, d := l.Peek(s, now, cost)
	if d.Allowed && cost > 0 {
		s = l.charge(s, cost)
		d.Remaining = l.remaining(s)
	}
	return s, d
}

// Peek is Take without the charge; the returned state is still to be kept.
func (l LeakyBucket) Peek(s LeakyState, now time.Time, cost int64) (LeakyState, Decision) {
	s = l.at(s, nanos(now))
	opens := l.opens(s)
	switch {
	case cost < 0:
		return s, never(l.remaining(s))
	case cost == 0 || opens <= s.At:
		return s, allowed(l.remaining(s))
	}
	return s, refused(opens, 0)
}

// Opens is the earliest instant from now on at which an ask passes; now itself if the bucket is open.
func (l LeakyBucket) Opens(s LeakyState, now time.Time) time.Time {
	s = l.at(s, nanos(now))
	return notBefore(now, s.At, l.opens(s))
}

// Charge pushes the TAT cost intervals ahead, open or not. A negative cost gives back, at most all that is owed.
func (l LeakyBucket) Charge(s LeakyState, now time.Time, cost int64) LeakyState {
	s = l.at(s, nanos(now))
	switch {
	case cost > 0:
		return l.charge(s, cost)
	case cost < 0:
		return l.refund(s, sub(0, cost))
	}
	return s
}

// Rests is the instant from which nothing is owed: the TAT.
func (l LeakyBucket) Rests(s LeakyState, now time.Time) time.Time {
	s = l.at(s, nanos(now))
	l.Burst = 0
	return notBefore(now, s.At, l.opens(s))
}

// at moves the state to an ask at now: with the clock if that went back, and to the present rate.
func (l LeakyBucket) at(s LeakyState, now int64) LeakyState {
	at, back := settle(s.At, now)
	s.TAT = sub(s.TAT, back)
	s.At = at
	if s.Rate != l.Rate {
		s = l.convert(s)
	}
	return s
}

// convert carries what is owed over to the present rate: the events stay, the time they take changes. Otherwise a cell that
// was charged at one per hour would wait out its hour after the policy had given it five per second.
func (l LeakyBucket) convert(s LeakyState) LeakyState {
	owed := sub(s.TAT, s.At)
	if s.Frac > 0 {
		owed = add(owed, 1) // up: never early. Once per change of rate, so it cannot add up
	}
	if s.Rate.Events > 0 && owed > 0 {
		owed = rescale(owed, s.Rate, l.Rate)
	}
	return LeakyState{TAT: add(s.At, max(owed, 0)), At: s.At, Rate: l.Rate}
}

// charge pushes the theoretical arrival time cost intervals ahead. An early event counts from its own time, a late one
// from now: the bucket saves up nothing but Burst.
func (l LeakyBucket) charge(s LeakyState, cost int64) LeakyState {
	if s.TAT < s.At {
		s.TAT, s.Frac = s.At, 0
	}
	step, frac := mulDiv(cost, int64(l.Rate.Per), s.Frac, l.Rate.Events)
	s.TAT, s.Frac = add(s.TAT, step), frac
	if s.TAT == math.MaxInt64 {
		s.Frac = 0 // nothing lies beyond
	}
	return s
}

// refund pulls the TAT back by n intervals. One that is then before now owes nothing, however far: nothing is given.
func (l LeakyBucket) refund(s LeakyState, n int64) LeakyState {
	step, frac := mulDiv(n, int64(l.Rate.Per), 0, l.Rate.Events)
	s.TAT, s.Frac = sub(s.TAT, step), s.Frac-frac
	if s.Frac < 0 {
		s.TAT, s.Frac = sub(s.TAT, 1), s.Frac+l.Rate.Events
	}
	return s
}

// opens is the first whole nanosecond at which an ask passes: TAT - Burst, rounded up.
func (l LeakyBucket) opens(s LeakyState) int64 {
	opens := sub(s.TAT, int64(l.Burst))
	if s.Frac > 0 {
		opens = add(opens, 1)
	}
	return opens
}

// remaining is how many asks of cost 1 pass at s.At: the first if the bucket is open, and one more for each interval by
// which the TAT may then still grow before it is Burst ahead.
func (l LeakyBucket) remaining(s LeakyState) int64 {
	if l.opens(s) > s.At {
		return 0
	}
	if s.TAT < s.At {
		s.TAT, s.Frac = s.At, 0
	}
	room, part := sub(add(s.At, int64(l.Burst)), s.TAT), int64(0)
	if s.Frac > 0 { // room is then at least 1, or the bucket would not be open
		room, part = room-1, l.Rate.Events-s.Frac
	}
	more, _ := mulDiv(room, l.Rate.Events, part, int64(l.Rate.Per))
	return add(more, 1)
}
