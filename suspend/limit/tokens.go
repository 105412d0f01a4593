package limit

import (
	"fmt"
	"time"
)

// TokenWindow lets through Limit model tokens per Window ("tokens per minute"), where the cost of an ask is known for certain only once
// its answer has ended. The caller reserves an estimate (Charge(estimate)) and settles it by the difference at the end
// (Charge(actual - estimate)): credit if the estimate was too high, debt if it was too low.
//
// A window begins with the first charge after a rest. An ask passes as long as less than Limit is used, whatever it costs. At the
// end of a window Limit is taken from what was used; what is left over is debt that the next windows begin with:
//
//	used' = max(used - Limit, 0)
//	wait  = begin + floor(used/Limit)*Window - now
//
// So in one window all that passes but the last ask costs less than Limit, and in any span of the length of one less than
// twice that, as with any window that is counted from an instant. The scheme is that of the token limits of the
// model vendors (tokens per minute, counted at the request, corrected by the answer's usage) with KIP-13's carried debt.
type TokenWindow struct {
	Limit  int64         // tokens per window, from 1 to MaxLimit
	Window time.Duration // length, from MinWindow to MaxWindow
}

// TokenWindowState is what a TokenWindow remembers of a bucket. The zero state has used nothing.
type TokenWindowState struct {
	Begin int64 // of the current window, UnixNano; meaningless if Used is 0
	Used  int64 // charged in it, with the debt it began with; never negative
	At    int64 // latest instant asked at, UnixNano
}

// Validate reports as ErrInvalid what is out of bounds.
func (l TokenWindow) Validate() error {
	switch {
	case l.Limit < 1 || l.Limit > MaxLimit:
		return fmt.Errorf("%w: %d tokens per window, it must be from 1 to %d", ErrInvalid, l.Limit, int64(MaxLimit))
	case l.Window < MinWindow || l.Window > MaxWindow:
		return fmt.Errorf("%w: a window of %s, it must be from %s to %s", ErrInvalid,
			short(l.Window), short(MinWindow), short(MaxWindow))
	}
	return nil
}

// Take asks for cost at now and charges it if it passes. The caller keeps the returned state whatever the decision: it
// also records the clock. An ask of cost 0 always passes. REQUIRES: l is valid.
func (l TokenWindow) Take(s TokenWindowState, now time.Time, cost int64) (TokenWindowState, Decision) {
	s, d := l.Peek(s, now, cost)
	if d.Allowed {
		s = l.charge(s, cost)
		d.Remaining = l.remaining(s)
	}
	return s, d
}

// Peek is Take without the charge; the returned state is still to be kept.
func (l TokenWindow) Peek(s TokenWindowState, now time.Time, cost int64) (TokenWindowState, Decision) {
	s = l.at(s, nanos(now))
	switch remaining := l.remaining(s); {
	case cost < 0:
		return s, never(remaining)
	case cost == 0 || remaining > 0:
		return s, allowed(remaining)
	}
	return s, refused(l.after(s, s.Used/l.Limit), 0)
}

// Opens is the earliest instant from now on at which an ask passes; now itself if less than Limit is used.
func (l TokenWindow) Opens(s TokenWindowState, now time.Time) time.Time {
	s = l.at(s, nanos(now))
	if s.Used < l.Limit {
		return now
	}
	return instant(l.after(s, s.Used/l.Limit))
}

// Charge adds cost to what is used: the estimate as a reservation, then the difference to settle it. A negative cost gives
// back, at most all that is used; what a window that has ended had of it is not given back twice.
func (l TokenWindow) Charge(s TokenWindowState, now time.Time, cost int64) TokenWindowState {
	return l.charge(l.at(s, nanos(now)), cost)
}

// Rests is the instant from which nothing is used and nothing owed.
func (l TokenWindow) Rests(s TokenWindowState, now time.Time) time.Time {
	s = l.at(s, nanos(now))
	if s.Used == 0 {
		return now
	}
	return instant(l.after(s, (s.Used-1)/l.Limit+1))
}

// Used is how many tokens the window that now lies in has used, with the debt it began with.
func (l TokenWindow) Used(s TokenWindowState, now time.Time) int64 { return l.at(s, nanos(now)).Used }

// at moves the state to an ask at now: through the windows that have ended. A clock that went back takes the window
// with it.
func (l TokenWindow) at(s TokenWindowState, now int64) TokenWindowState {
	at, back := settle(s.At, now)
	s.Begin, s.At = sub(s.Begin, back), at
	if s.Used == 0 {
		return TokenWindowState{At: at}
	}
	ended := sub(at, s.Begin) / int64(l.Window)
	if ended <= 0 {
		return s
	}
	if s.Used <= l.Limit || (s.Used-1)/l.Limit < ended {
		return TokenWindowState{At: at}
	}
	// ended*Limit < Used and ended*Window <= at-Begin: neither product overflows.
	s.Used -= ended * l.Limit
	s.Begin += ended * int64(l.Window)
	return s
}

// charge adds cost to a state that at has moved.
func (l TokenWindow) charge(s TokenWindowState, cost int64) TokenWindowState {
	if s.Used == 0 {
		s.Begin = s.At
	}
	s.Used = max(add(s.Used, cost), 0)
	if s.Used == 0 {
		return TokenWindowState{At: s.At}
	}
	return s
}

// after is the instant n windows after the current one began.
func (l TokenWindow) after(s TokenWindowState, n int64) int64 {
	span, _ := mulDiv(n, int64(l.Window), 0, 1)
	return add(s.Begin, span)
}

func (l TokenWindow) remaining(s TokenWindowState) int64 { return max(sub(l.Limit, s.Used), 0) }
