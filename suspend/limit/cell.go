package limit

import (
	"fmt"
	"math"
	"time"
)

// Kind names a limit of a Cell.
type Kind uint8

// The limits a Cell may have. Unlimited: none of them binds.
const (
	Unlimited Kind = iota
	Leaky
	Window
)

func (k Kind) String() string {
	switch k {
	case Unlimited:
		return "unlimited"
	case Leaky:
		return "rate"
	case Window:
		return "window"
	}
	return fmt.Sprintf("kind(%d)", uint8(k))
}

// Cell is all limits of one bucket, asked as one: an ask passes if every limit lets it pass, and is then charged to each;
// refused by one, it is charged to none. A nil limit lets everything pass.
type Cell struct {
	Leaky  *LeakyBucket
	Window *FixedWindow
}

// CellState is what a Cell remembers. The zero state is that of a bucket never asked for.
type CellState struct {
	Leaky  LeakyState
	Window WindowState
}

// Verdict is the decision of a Cell.
type Verdict struct {
	Decision
	// Binds is the limit that decides: of those that refuse, the one that opens last; of those that let pass, the one with
	// the least remaining. Unlimited if the cell has no limit.
	Binds Kind
}

// Take asks all limits for cost at now and charges all of them or none. RetryAt is exact, as for a single limit: each limit that
// would pass at some instant passes at every later one, so the latest of their instants is the earliest at which all
// pass. The caller keeps the returned state whatever the verdict. A limit that has gone forgets what it was charged.
func (c Cell) Take(s CellState, now time.Time, cost int64) (CellState, Verdict) {
	s, v := c.Peek(s, now, cost)
	if !v.Allowed {
		return s, v
	}
	charged := Verdict{Decision: v.Decision, Binds: Unlimited}
	if c.Leaky != nil {
		var d Decision
		s.Leaky, d = c.Leaky.Take(s.Leaky, now, cost)
		charged = charged.and(Leaky, d)
	}
	if c.Window != nil {
		var d Decision
		s.Window, d = c.Window.Take(s.Window, now, cost)
		charged = charged.and(Window, d)
	}
	return s, charged
}

// Peek is Take without the charge; the returned state is still to be kept.
func (c Cell) Peek(s CellState, now time.Time, cost int64) (CellState, Verdict) {
	v := Verdict{Decision: Decision{Allowed: cost >= 0, Never: cost < 0, Remaining: math.MaxInt64}}
	if c.Leaky == nil {
		s.Leaky = LeakyState{}
	} else {
		var d Decision
		s.Leaky, d = c.Leaky.Peek(s.Leaky, now, cost)
		v = v.and(Leaky, d)
	}
	if c.Window == nil {
		s.Window = WindowState{}
	} else {
		var d Decision
		s.Window, d = c.Window.Peek(s.Window, now, cost)
		v = v.and(Window, d)
	}
	return s, v
}

// and joins the decision of one more limit. The order in which limits are joined makes no difference but to which of two
// equals is named.
func (v Verdict) and(kind Kind, d Decision) Verdict {
	if v.Binds == Unlimited || stricter(d, v.Decision) {
		return Verdict{Decision: d, Binds: kind}
	}
	return v
}

// stricter reports whether a keeps an ask back longer than b, or leaves less if both let it pass.
func stricter(a, b Decision) bool {
	switch {
	case a.Never != b.Never:
		return a.Never
	case a.Allowed != b.Allowed:
		return !a.Allowed
	case a.Allowed:
		return a.Remaining < b.Remaining
	}
	return a.RetryAt.After(b.RetryAt)
}
