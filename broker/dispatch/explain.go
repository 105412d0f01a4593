package dispatch

import (
	"math"
	"time"

	"github.com/penstockmq/penstock/suspend"
	"github.com/penstockmq/penstock/suspend/quota"
)

// NextOffset stands in Explain for the message that goes next.
const NextOffset Offset = math.MaxUint64

// WaitState says where a message is in a group.
type WaitState uint8

const (
	// WaitQueued: others of its bucket go before it.
	WaitQueued WaitState = iota
	// WaitOut: it is delivered and its lease runs.
	WaitOut
	// WaitHeld: it is next, and a suspend is in force.
	WaitHeld
	// WaitLimited: it is next, and a limit is used up.
	WaitLimited
	// WaitFull: it is next, and as many of its bucket are out as may be at once.
	WaitFull
	// WaitReady: it is next, and goes when its bucket's turn comes and a consumer asks.
	WaitReady
)

var waitNames = [...]string{"queued", "out", "held", "limited", "in_flight_full", "ready"}

func (s WaitState) String() string { return waitNames[min(int(s), len(waitNames)-1)] }

// Explanation says why a message waits. What it says of the gate is about the head of
// the bucket, which the others wait for.
type Explanation struct {
	State  WaitState
	Offset Offset
	// Position is how many undelivered messages of its bucket go before it.
	Position int
	// Level is the importance in force.
	Level uint8
	// Gate is the closed gate that opens last and Limit the kind of limit that closes
	// it, empty if a hold does. Zero: no gate is closed.
	Gate  suspend.Target
	Limit string
	// Hold is the hold in force that ends last; zero if there is none.
	Hold suspend.Hold
	// Since is when the bucket came to where it is now. Until is when the gate opens at
	// the earliest, or when the lease ends; zero: not known.
	Since, Until time.Time
	// Opens says in words what will let the message go.
	Opens string
	// Lines are the limits that apply, with what is used of them.
	Lines []quota.Line
	// EstimatedStart is a guess from the pace of the limit that binds or of what the
	// bucket did lately; zero: nothing is known.
	EstimatedStart time.Time
}

// Explain says where a message of a bucket is in a group, and why. NextOffset asks
// for the one that goes next. False: there is no such message any more, or group.
func (m *Machine) Explain(now time.Time, id GroupID, name string, off Offset) (Explanation, bool) {
	return Explanation{}, false
}
