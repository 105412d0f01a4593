package dispatch

import (
	"math"
	"time"

	"github.com/penstockmq/penstock/suspend/policy"
)

// paceUnit is the unit in which a cursor keeps its pace: six bytes in all for what is
// only a guess. A bucket that goes faster has nothing to be guessed.
const paceUnit = 16 * time.Millisecond

// paced takes note that a message of the bucket went. The time between two of them is
// a measure if others waited all the while, and a pace is an average over about eight.
// The clock is kept in 32 bits of milliseconds: 49 days.
func (c *cursor) paced(now time.Time) {
	ms := uint32(max(1, now.UnixMilli()&math.MaxUint32))
	if c.last != 0 {
		took := min(int64(ms-c.last)*int64(time.Millisecond/time.Microsecond)/paceUnit.Microseconds(), math.MaxUint16)
		if c.pace == 0 {
			c.pace = uint16(took)
		} else {
			c.pace = uint16((int64(c.pace)*7 + took) / 8)
		}
	}
	c.last = ms
	if !c.waits() {
		c.last = 0
	}
}

// drain is the measured time between two messages; 0: there is none, or it is short.
func (c *cursor) drain() time.Duration { return time.Duration(c.pace) * paceUnit }

// estimate guesses when a message that waits starts: when its bucket's gate opens, and
// then one step for each message before it. A step is what the bucket took lately, or
// what its limits allow at best, whichever is longer.
func (m *Machine) estimate(now time.Time, c *cursor, x *Explanation) time.Time {
	step := max(c.drain(), m.allowed(c))
	known := step > 0 || c.last != 0
	start := now
	switch x.State {
	case WaitHeld, WaitLimited:
		switch {
		case !x.Until.IsZero():
			start = x.Until
		case !known || x.Limit == limitSignal:
			return time.Time{}
		default: // it opens when something ends, as it did before
			start = now.Add(step)
		}
	case WaitFull, WaitQueued:
		if !known {
			return time.Time{}
		}
		start = now.Add(step)
	case WaitReady, WaitOut:
	}
	if x.Position > 0 && !known {
		return time.Time{}
	}
	return start.Add(time.Duration(x.Position) * step)
}

// allowed is the least time between two messages of the bucket that the paced limits of
// its cell, row and column leave.
func (m *Machine) allowed(c *cursor) time.Duration {
	if c.g.cfg.Unlimited {
		return 0
	}
	cell := m.doc.Resolve(c.b.cell.User, c.b.cell.Model)
	row, _ := m.doc.Row(c.b.cell.User)
	column, _ := m.doc.Column(c.b.cell.Model)
	var step time.Duration
	for i, l := range []policy.Limits{cell, row, column} {
		if l.Leaky != nil {
			step = max(step, l.Leaky.Rate.Per/time.Duration(max(1, l.Leaky.Rate.Events)))
		}
		if l.Quota != nil {
			step = max(step, l.Quota.Rate.Per/time.Duration(max(1, l.Quota.Rate.Events)))
		}
		if l.Window != nil && (i > 0 || l.WindowAt == policy.Release) { // the gateway asks some cells' windows
			step = max(step, l.Window.Window/time.Duration(max(1, l.Window.Limit)))
		}
	}
	return step
}
