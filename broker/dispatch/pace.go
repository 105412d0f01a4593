package dispatch

import (
	"math"
	"time"
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
