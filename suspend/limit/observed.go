package limit

import (
	"fmt"
	"math"
	"time"
)

// Bounds and defaults of an ObservedRate.
const (
	DefaultSamples     = 11               // Kafka's quota.window.num
	DefaultSize        = time.Second      // Kafka's quota.window.size.seconds
	DefaultObservedCap = 30 * time.Second // the longest wait unless Cap says otherwise

	MaxSamples  = 3600
	MaxObserved = 1 << 31 // of the events that Rate gives in Samples*Size
)

// observedSlots is how many samples an ObservedState keeps apart.
const observedSlots = 12

// ObservedRate watches the rate O at which a bucket was charged over the latest W = Samples*Size and, once that is above
// its target T = Rate, holds all asks back for as long as the excess takes at T:
//
//	X = (O - T) / T * W,  0 <= X <= Cap
//
// It is the quota of Kafka's KIP-13 (ClientQuotaManager over the metric class Rate) and the formula of JDQ's elastic
// throttling. Units: Rate in what the caller charges per duration, W and X in time.
//
// The delay follows the charge, as in Kafka: whoever passed is not taken back, and at the end of the delay the next ask
// passes even if O is still above T, to wait longer after that. So it is elastic, not a cap: unless Cap cuts delays
// short, all that passes but the last ask costs at most T*(W + V) within the time V that the samples cover, which is W
// for up to 12 of them; and if all cost 1, at most T*W + sqrt(2*T*V) + 1. For a pace without that give there is TokenBucket.
//
// W is Samples*Size from the first ask on, as KIP-599 reckons: a burst of 560 at 5/s over 100 samples of 1 s waits 12 s.
// Samples are aligned to the Unix epoch, so the state names none of their beginnings. More than 12 are kept as groups,
// 12 at most, and V is up to a twelfth longer than W: a charge counts for longer, never for shorter.
//
// A Rate of zero is a target of zero: whatever is observed is above it by more than any factor, so X is Cap, and an ask
// passes once per Cap. (It does not mean unlimited, as in TokenBucket.)
type ObservedRate struct {
	Rate    Rate          // T; zero: see above
	Samples int           // at most MaxSamples; 0: DefaultSamples
	Size    time.Duration // of a sample, from MinWindow; Samples*Size is at most MaxWindow; 0: DefaultSize
	Cap     time.Duration // longest delay, at most MaxWindow; 0: DefaultObservedCap
}

// ObservedState is what an ObservedRate remembers of a bucket, in 72 bytes however many samples there are. The zero state
// has observed nothing.
type ObservedState struct {
	// Used is what was charged per slot, first in the one that At lies in. A slot counts to 2^32-1 and no further; the
	// delay is then at least W, see MaxObserved.
	Used [observedSlots]uint32
	At   int64 // latest instant asked at, UnixNano
	// Sum is what all slots held right after a charge at Charged, the one whose delay ends last. The delay is computed
	// from it when it is asked for, so that a changed limit acts at once. Invariant: Charged <= At.
	Charged, Sum int64
}

// Validate reports as ErrInvalid what is out of bounds.
func (l ObservedRate) Validate() error {
	if l.Rate != (Rate{}) {
		if err := l.Rate.Validate(); err != nil {
			return err
		}
	}
	switch {
	case l.Samples < 0 || l.Samples > MaxSamples:
		return fmt.Errorf("%w: %d samples, it must be from 1 to %d", ErrInvalid, l.Samples, MaxSamples)
	case l.Size != 0 && (l.Size < MinWindow || l.Size > MaxWindow):
		return fmt.Errorf("%w: samples of %s, it must be from %s to %s", ErrInvalid,
			short(l.Size), short(MinWindow), short(MaxWindow))
	case l.size() > MaxWindow/time.Duration(l.samples()):
		return fmt.Errorf("%w: %d samples of %s, together they must be at most %s", ErrInvalid,
			l.samples(), short(l.size()), short(MaxWindow))
	case l.Cap < 0 || l.Cap > MaxWindow:
		return fmt.Errorf("%w: a cap of %s, it must be from 0 to %s", ErrInvalid, short(l.Cap), short(MaxWindow))
	case l.target() > MaxObserved:
		return fmt.Errorf("%w: an observed rate of %d in %s, it must be at most %d", ErrInvalid,
			l.target(), short(l.Span()), int64(MaxObserved))
	}
	return nil
}

// Throttle is the delay X that follows when observed was charged within W, so at a rate of O = observed/W.
// Written over integers: X = observed/T - W, rounded up to the nanosecond.
func (l ObservedRate) Throttle(observed int64) time.Duration {
	switch {
	case observed <= 0:
		return 0
	case l.Rate.Events == 0:
		return l.cap()
	}
	x, _ := mulDiv(observed, int64(l.Rate.Per), l.Rate.Events-1, l.Rate.Events)
	return min(max(time.Duration(x)-l.Span(), 0), l.cap())
}

// Span is W, the time over which the rate is observed.
func (l ObservedRate) Span() time.Duration { return time.Duration(l.samples()) * l.size() }

// Observed is what was charged within W before now.
func (l ObservedRate) Observed(s ObservedState, now time.Time) int64 {
	s = l.at(s, nanos(now))
	return s.sum()
}

// Take asks for cost at now and charges it if it passes. The caller keeps the returned state whatever the decision: it
// also records the clock. An ask of cost 0 always passes. REQUIRES: l is valid.
func (l ObservedRate) Take(s ObservedState, now time.Time, cost int64) (ObservedState, Decision) {
	s, d := l.Peek(s, now, cost)
	if d.Allowed && cost > 0 {
		s = l.charge(s, cost)
		d.Remaining = l.remaining(s)
	}
	return s, d
}

// Peek is Take without the charge; the returned state is still to be kept.
func (l ObservedRate) Peek(s ObservedState, now time.Time, cost int64) (ObservedState, Decision) {
	s = l.at(s, nanos(now))
	switch remaining := l.remaining(s); {
	case cost < 0:
		return s, never(remaining)
	case cost == 0 || remaining > 0:
		return s, allowed(remaining)
	}
	return s, refused(l.opens(s), 0)
}

// Opens is the earliest instant from now on at which an ask passes; now itself if no delay is running.
func (l ObservedRate) Opens(s ObservedState, now time.Time) time.Time {
	s = l.at(s, nanos(now))
	return notBefore(now, s.At, l.opens(s))
}

// Charge counts cost and begins the delay that follows from it, unless one that ends later is running. A negative cost
// takes back what was counted last, and shortens the delay by it.
func (l ObservedRate) Charge(s ObservedState, now time.Time, cost int64) ObservedState {
	return l.charge(l.at(s, nanos(now)), cost)
}

// Rests is the instant from which nothing is observed any more and no delay is running.
func (l ObservedRate) Rests(s ObservedState, now time.Time) time.Time {
	s = l.at(s, nanos(now))
	rests := l.opens(s)
	slots, length := l.slots()
	for i, used := range s.Used[:slots] {
		if used > 0 {
			rests = max(rests, begin(add(floorDiv(s.At, length), int64(slots-i)), length))
			break
		}
	}
	return notBefore(now, s.At, rests)
}

func (l ObservedRate) samples() int {
	if l.Samples == 0 {
		return DefaultSamples
	}
	return l.Samples
}

func (l ObservedRate) size() time.Duration {
	if l.Size == 0 {
		return DefaultSize
	}
	return l.Size
}

func (l ObservedRate) cap() time.Duration {
	if l.Cap == 0 {
		return DefaultObservedCap
	}
	return l.Cap
}

// slots is how many slots of the state are in use, and the length of each in nanoseconds.
func (l ObservedRate) slots() (n int, length int64) {
	group := (l.samples() + observedSlots - 1) / observedSlots
	return (l.samples() + group - 1) / group, int64(group) * int64(l.size())
}

// target is T*W, the number of whole events that cause no delay.
func (l ObservedRate) target() int64 {
	if l.Rate.Events == 0 {
		return 0
	}
	n, _ := mulDiv(l.Rate.Events, int64(l.Span()), 0, int64(l.Rate.Per))
	return n
}

// at moves the state to an ask at now: slots that have gone out of sight are dropped. A clock that went back takes what
// was observed, and the delay, with it.
func (l ObservedRate) at(s ObservedState, now int64) ObservedState {
	at, back := settle(s.At, now)
	slots, length := l.slots()
	s.shift(sub(floorDiv(at, length), floorDiv(s.At, length)))
	s.At, s.Charged = at, sub(s.Charged, back)
	clear(s.Used[slots:]) // of a limit that had more of them
	if s.Sum > 0 && s.sum() == 0 && l.opens(s) <= at {
		s.Sum = 0 // or a limit that is lowered much later would find it again
	}
	return s
}

// shift makes room for n slots that have begun; none if the clock went back.
func (s *ObservedState) shift(n int64) {
	n = min(max(n, 0), observedSlots)
	copy(s.Used[n:], s.Used[:])
	clear(s.Used[:n])
}

func (s *ObservedState) sum() int64 {
	var sum int64
	for _, used := range s.Used {
		sum += int64(used)
	}
	return sum
}

// charge counts cost at s.At.
func (l ObservedRate) charge(s ObservedState, cost int64) ObservedState {
	if cost <= 0 {
		s.refund(sub(0, cost))
		return s
	}
	s.Used[0] = uint32(min(add(int64(s.Used[0]), cost), math.MaxUint32))
	sum := s.sum()
	if add(s.At, int64(l.Throttle(sum))) >= l.opens(s) {
		s.Charged, s.Sum = s.At, sum
	}
	return s
}

// refund takes back n, from what was counted last.
func (s *ObservedState) refund(n int64) {
	s.Sum = max(sub(s.Sum, n), 0)
	for i, used := range s.Used {
		part := min(int64(used), n)
		s.Used[i] = uint32(int64(used) - part)
		n -= part
	}
}

// opens is the instant at which the delay ends.
func (l ObservedRate) opens(s ObservedState) int64 {
	return add(s.Charged, int64(l.Throttle(s.Sum)))
}

// remaining is how many asks of cost 1 pass at s.At: the first if no delay is running, and those that follow until T*W
// is exceeded.
func (l ObservedRate) remaining(s ObservedState) int64 {
	if l.opens(s) > s.At {
		return 0
	}
	return max(l.target()-s.sum(), 0) + 1
}
