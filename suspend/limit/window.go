package limit

import (
	"errors"
	"fmt"
	"time"
)

// Bounds of what Validate accepts.
const (
	MaxLimit  = 1_000_000_000_000   // of a window
	MinWindow = time.Millisecond    // shorter than the finest suspend makes no sense
	MaxWindow = 31 * 24 * time.Hour // of a window, and of the duration of a rate
)

// ErrInvalid is wrapped by the errors of Validate and of the parsers.
var ErrInvalid = errors.New("invalid limit")

// FixedWindow lets through a total cost of Limit in each window of length Window. Windows are aligned to the Unix epoch, so
// all processes agree on them without talking: a window of a minute begins with the minute. Around a boundary up to
// twice the limit can pass within one window's length, as with any fixed window; it is a cap, not a pace.
type FixedWindow struct {
	Limit  int64         // total cost per window, at least 1
	Window time.Duration // length
}

// WindowState is what a FixedWindow remembers of a bucket. The zero state has used nothing.
//
// It names no window: the window is the one that At lies in. So no count can outlive its window, and one whose length
// has changed since goes on with what was used.
type WindowState struct {
	At   int64 // latest instant asked at, UnixNano
	Used int64 // cost charged in the window that At lies in
}

// Validate reports as ErrInvalid what is out of bounds.
func (l FixedWindow) Validate() error { return checkWindow(l.Limit, "", l.Window) }

// checkWindow checks n of a unit, empty or with a space before it, per window.
func checkWindow(n int64, unit string, window time.Duration) error {
	switch {
	case n < 1 || n > MaxLimit:
		return fmt.Errorf("%w: %d%s per window, it must be from 1 to %d", ErrInvalid, n, unit, int64(MaxLimit))
	case window < MinWindow || window > MaxWindow:
		return fmt.Errorf("%w: a window of %s, it must be from %s to %s", ErrInvalid,
			short(window), short(MinWindow), short(MaxWindow))
	}
	return nil
}

// Take asks for cost at now and charges it if it passes. The caller keeps the returned state whatever the decision: it
// also records the clock. An ask of cost 0 always passes. REQUIRES: l is valid.
func (l FixedWindow) Take(s WindowState, now time.Time, cost int64) (WindowState, Decision) {
	s, d := l.Peek(s, now, cost)
	if d.Allowed {
		s.Used += cost // at most Limit
		d.Remaining -= cost
	}
	return s, d
}

// Peek is Take without the charge; the returned state is still to be kept.
func (l FixedWindow) Peek(s WindowState, now time.Time, cost int64) (WindowState, Decision) {
	s = l.at(s, nanos(now))
	remaining := max(l.Limit-s.Used, 0) // a limit that was lowered may have been overrun already
	switch {
	case cost < 0 || cost > l.Limit:
		return s, never(remaining)
	case cost == 0 || cost <= remaining:
		return s, allowed(remaining)
	}
	return s, refused(l.end(s.At), remaining)
}

// Opens is the earliest instant from now on at which an ask of cost 1 passes; now itself if less than Limit is used.
func (l FixedWindow) Opens(s WindowState, now time.Time) time.Time {
	s = l.at(s, nanos(now))
	if s.Used < l.Limit {
		return now
	}
	return instant(l.end(s.At))
}

// Charge adds cost to what the window has used, also beyond Limit; that is forgotten with the window. A negative cost
// gives back, at most all that is used.
func (l FixedWindow) Charge(s WindowState, now time.Time, cost int64) WindowState {
	s = l.at(s, nanos(now))
	s.Used = max(add(s.Used, cost), 0)
	return s
}

// Rests is the instant from which nothing is used: the end of the window, or now if nothing is.
func (l FixedWindow) Rests(s WindowState, now time.Time) time.Time {
	s = l.at(s, nanos(now))
	if s.Used == 0 {
		return now
	}
	return instant(l.end(s.At))
}

// End is the first instant after the window that now lies in. Two instants are in one window if they have the same End.
func (l FixedWindow) End(now time.Time) time.Time { return instant(l.end(nanos(now))) }

// at moves the state to an ask at now: into a fresh window if a later one has begun, see the package comment for a clock
// that went back.
func (l FixedWindow) at(s WindowState, now int64) WindowState {
	at, back := settle(s.At, now)
	if back == 0 && l.index(at) != l.index(s.At) {
		s.Used = 0
	}
	s.At = at
	return s
}

func (l FixedWindow) index(at int64) int64 { return floorDiv(at, int64(l.Window)) }

// end is the first instant after the window that at lies in.
func (l FixedWindow) end(at int64) int64 { return begin(l.index(at)+1, int64(l.Window)) }
