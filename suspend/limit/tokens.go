package limit

import "time"

// TokenWindow lets through Limit model tokens per Window ("tokens per minute"), where the cost of an ask is known for
// certain only once its answer has ended. The caller reserves an estimate (Charge(estimate)) and settles it by the
// difference at the end (Charge(actual - estimate)): credit if the estimate was too high, debt if it was too low.
//
// A window begins with the first charge after a rest. An ask passes as long as less than Limit is used, whatever it
// costs. At the end of a window Limit is taken from what was used, and what is left over is debt that the next windows
// begin with:
//
//	used' = max(used - Limit, 0)
//	wait  = begin + floor(used/Limit)*Window - now
//
// So in one window all that passes but the last ask costs less than Limit, and in a span of length d less than
// (floor(d/Window) + 2)*Limit, as with any window that is counted from an instant.
//
// The scheme is that of the token limits of model vendors (tokens per minute, counted at the request and corrected by
// the usage block of the answer) with the debt of KIP-13.
type TokenWindow struct {
	Limit  int64         // tokens per window, from 1 to MaxLimit
	Window time.Duration // length, from MinWindow to MaxWindow
}

// TokenWindowState is what a TokenWindow remembers of a bucket. The zero state has used nothing.
type TokenWindowState struct {
	Begin int64 // of the current window, UnixNano; 0 if Used is 0
	Used  int64 // charged in it, with the debt it began with; never negative
	// Granted is the highest limit that was in force in the window. Only what exceeds that is debt: a limit that is
	// lowered, or scaled by a signal for a while, does not turn into debt what it let pass before. Less than the present
	// Limit counts as that.
	Granted int64
	At      int64 // latest instant asked at, UnixNano
}

// Validate reports as ErrInvalid what is out of bounds.
func (l TokenWindow) Validate() error { return checkWindow(l.Limit, " tokens", l.Window) }

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
	return s, refused(l.opens(s), 0)
}

// Opens is the earliest instant from now on at which an ask passes; now itself if less than Limit is used.
func (l TokenWindow) Opens(s TokenWindowState, now time.Time) time.Time {
	s = l.at(s, nanos(now))
	return notBefore(now, s.At, l.opens(s))
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
	return notBefore(now, s.At, l.after(s, 1+ceilDiv(s.Used-s.Granted, l.Limit)))
}

// Used is how many tokens the window that now lies in has used, with the debt it began with.
func (l TokenWindow) Used(s TokenWindowState, now time.Time) int64 { return l.at(s, nanos(now)).Used }

// at moves the state to an ask at now: through the windows that have ended. A clock that went back takes the window
// with it.
func (l TokenWindow) at(s TokenWindowState, now int64) TokenWindowState {
	at, back := settle(s.At, now)
	if s.Used == 0 {
		return TokenWindowState{At: at}
	}
	s.Begin, s.At = sub(s.Begin, back), at
	s.Granted = max(s.Granted, l.Limit)
	ended := int64((uint64(at) - uint64(s.Begin)) / uint64(l.Window)) // Begin <= at, and they may be all of int64 apart
	switch {
	case ended == 0:
		return s
	case ended > ceilDiv(s.Used-s.Granted, l.Limit):
		return TokenWindowState{At: at} // all is paid, and the next charge begins a window
	}
	// No sum overflows: (ended-1)*Limit is less than what is owed, and the window begins at or before at.
	s.Used -= s.Granted + (ended-1)*l.Limit
	s.Begin += ended * int64(l.Window)
	s.Granted = l.Limit
	return s
}

// charge adds cost to a state that at has moved.
func (l TokenWindow) charge(s TokenWindowState, cost int64) TokenWindowState {
	used := max(add(s.Used, cost), 0)
	switch {
	case used == 0:
		return TokenWindowState{At: s.At}
	case s.Used == 0:
		s.Begin, s.Granted = s.At, l.Limit
	}
	s.Used = used
	return s
}

// opens is the first instant at which less than Limit is used.
func (l TokenWindow) opens(s TokenWindowState) int64 {
	switch {
	case s.Used < l.Limit:
		return s.At
	case s.Used < s.Granted: // the limit was lowered below what is used: until the end of the window
		return l.after(s, 1)
	}
	return l.after(s, 1+(s.Used-s.Granted)/l.Limit)
}

// after is the instant n windows after the current one began.
func (l TokenWindow) after(s TokenWindowState, n int64) int64 {
	span, _ := mulDiv(n, int64(l.Window), 0, 1)
	return add(s.Begin, span)
}

func (l TokenWindow) remaining(s TokenWindowState) int64 { return max(sub(l.Limit, s.Used), 0) }
