package limit

import (
	"fmt"
	"time"
)

// Defaults of an Adaptive.
const (
	DefaultDecrease = 700 // permille
	DefaultCooldown = time.Second
)

// Outcome is what an answer says about the capacity of who gave it.
type Outcome uint8

// The outcomes. NoFeedback, the zero value, says nothing: the caller left, the request was at fault.
const (
	NoFeedback Outcome = iota
	Good
	Overload // refused for load: 429, 503
	Timeout  // no answer in time
)

func (o Outcome) String() string {
	switch o {
	case NoFeedback:
		return "no feedback"
	case Good:
		return "good"
	case Overload:
		return "overload"
	case Timeout:
		return "timeout"
	}
	return fmt.Sprintf("outcome(%d)", uint8(o))
}

// Adaptive is a concurrency limit that finds its size, the window, from the answers: additive increase, multiplicative
// decrease (AIMD; Chiu & Jain 1989, "Analysis of the Increase and Decrease Algorithms for Congestion Avoidance in
// Computer Networks"; TCP, RFC 5681):
//
//	a window of good answers:                                  window + 1
//	overload, time-out, or an answer slower than Latency:      floor(window * Decrease/1000)
//
// always within Min and Max. Two rules of TCP keep it from being misled. It grows only on answers that came while the
// whole window was running (RFC 7661: what was not used has not been tested). And it shrinks at most once per Cooldown:
// the answers that were under way when it shrank tell of the same overload, as losses within one round trip do.
//
// The window starts small, at Min, as TCP's does: what a model can take is found from below, with no answer refused.
type Adaptive struct {
	Min, Max int64         // at most MaxLimit; Min 0: 1
	Start    int64         // window before the first answer, from Min to Max; 0: Min
	Latency  time.Duration // a good answer that took longer counts as Overload; 0: none does
	Decrease int           // what a decrease keeps, in permille, from 1 to 999; 0: DefaultDecrease
	Cooldown time.Duration // between two decreases, at most MaxWindow; 0: DefaultCooldown
}

// AdaptiveState is what an Adaptive remembers. The zero state has the window Start.
type AdaptiveState struct {
	Size   int64 // window; 0: none yet. Use Adaptive.Window, which applies bounds that have changed since
	Good   int64 // good answers that count towards the next increase
	Shrunk int64 // latest decrease, UnixNano; 0: none
	At     int64 // latest answer, UnixNano
}

// Validate reports as ErrInvalid what is out of bounds.
func (l Adaptive) Validate() error {
	switch {
	case l.Max < 1 || l.Max > MaxLimit:
		return fmt.Errorf("%w: a max of %d, it must be from 1 to %d", ErrInvalid, l.Max, int64(MaxLimit))
	case l.Min < 0 || l.Min > l.Max:
		return fmt.Errorf("%w: a min of %d, it must be from 0 to max, which is %d", ErrInvalid, l.Min, l.Max)
	case l.Start != 0 && (l.Start < l.min() || l.Start > l.Max):
		return fmt.Errorf("%w: a start of %d, it must be from min to max, %d to %d", ErrInvalid, l.Start, l.min(), l.Max)
	case l.Latency < 0 || l.Latency > MaxWindow:
		return fmt.Errorf("%w: a latency of %s, it must be from 0 to %s", ErrInvalid, short(l.Latency), short(MaxWindow))
	case l.Decrease < 0 || l.Decrease > 999:
		return fmt.Errorf("%w: a decrease to %d permille, it must be from 1 to 999", ErrInvalid, l.Decrease)
	case l.Cooldown < 0 || l.Cooldown > MaxWindow:
		return fmt.Errorf("%w: a cooldown of %s, it must be from 0 to %s", ErrInvalid, short(l.Cooldown), short(MaxWindow))
	}
	return nil
}

// Window is how many may run at once.
func (l Adaptive) Window(s AdaptiveState) int64 {
	size := s.Size
	if size == 0 {
		size = l.Start
	}
	return min(max(size, l.min()), l.Max)
}

// Open reports whether one more may start beside those that are running.
func (l Adaptive) Open(s AdaptiveState, running int64) bool { return running < l.Window(s) }

// Observe is the state after an answer at now that took latency; running is how many ran when it came, itself included.
func (l Adaptive) Observe(s AdaptiveState, now time.Time, o Outcome, latency time.Duration, running int64) AdaptiveState {
	s = l.at(s, nanos(now))
	if o == Good && l.Latency > 0 && latency > l.Latency {
		o = Overload
	}
	switch o {
	case NoFeedback:
	case Good:
		return l.grow(s, running)
	case Overload, Timeout:
		return l.shrink(s)
	}
	return s
}

// at moves the state to an answer at now. A clock that went back takes the latest decrease with it.
func (l Adaptive) at(s AdaptiveState, now int64) AdaptiveState {
	at, back := settle(s.At, now)
	if s.Shrunk != 0 {
		s.Shrunk = sub(s.Shrunk, back)
	}
	s.At, s.Size = at, l.Window(s)
	return s
}

func (l Adaptive) grow(s AdaptiveState, running int64) AdaptiveState {
	if running < s.Size {
		return s
	}
	if s.Good++; s.Good >= s.Size {
		s.Good, s.Size = 0, min(s.Size+1, l.Max)
	}
	return s
}

func (l Adaptive) shrink(s AdaptiveState) AdaptiveState {
	s.Good = 0
	if s.Shrunk != 0 && sub(s.At, s.Shrunk) < int64(l.cooldown()) {
		return s
	}
	kept, _ := mulDiv(s.Size, l.decrease(), 0, 1000) // less than Size, as Decrease is below 1000
	s.Size, s.Shrunk = max(kept, l.min()), s.At
	return s
}

func (l Adaptive) min() int64 { return max(l.Min, 1) }

func (l Adaptive) decrease() int64 {
	if l.Decrease == 0 {
		return DefaultDecrease
	}
	return int64(l.Decrease)
}

func (l Adaptive) cooldown() time.Duration {
	if l.Cooldown == 0 {
		return DefaultCooldown
	}
	return l.Cooldown
}
