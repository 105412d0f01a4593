package dispatch

import (
	"fmt"
	"math"
	"time"

	"github.com/penstockmq/penstock/broker/lite"
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

// limitSignal is what package quota calls the limit of a unit that signals have closed.
const limitSignal = "signal"

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
// for the one that goes next, or the first that is out if all are. False: there is no
// such message any more, or group. It costs O(window), and a read of the message
// if its cost matters.
func (m *Machine) Explain(now time.Time, id GroupID, name string, off Offset) (Explanation, bool) {
	defer m.check(now)
	b := m.byName[name]
	if b == nil {
		return Explanation{}, false
	}
	c := b.cursor(id)
	if c == nil {
		return Explanation{}, false
	}
	if off == NextOffset {
		off = c.foremost()
	}
	if off >= b.tail || c.stateAt(off) == settled || b.isDead(off) {
		return Explanation{}, false
	}
	x := Explanation{Offset: off, Level: b.level, Position: c.before(off), Lines: c.g.ledger.Explain(now, c.where())}
	x.Hold, _ = c.g.holds.Blocking(now, c.where())
	if c.stateAt(off) == out {
		x.explainOut(c.at(off).lease)
		return x, true
	}
	m.explainHead(now, c, &x)
	x.EstimatedStart = m.estimate(now, c, &x)
	if x.Position > 0 {
		x.State = WaitQueued
		x.Opens = fmt.Sprintf("%d before it go first; their next waits until %s", x.Position, x.Opens)
	}
	return x, true
}

// ExplainCell says what keeps, or would keep, the messages of a cell that has none: the
// limits that apply to its bucket, and the hold in force. False: there is no such group.
func (m *Machine) ExplainCell(now time.Time, id GroupID, name string, cell lite.Cell) (Explanation, bool) {
	defer m.check(now)
	g := m.group(id)
	if g == nil {
		return Explanation{}, false
	}
	x := Explanation{Offset: NextOffset, Level: m.importance(cell, -1)}
	place := suspend.Place{Bucket: name, User: cell.User, Model: cell.Model, Level: x.Level}
	x.Lines = g.ledger.Explain(now, place)
	x.Hold, _ = g.holds.Blocking(now, place)
	return x, true
}

// foremost is the message that goes next, or the first that is out if none waits.
func (c *cursor) foremost() Offset {
	switch {
	case c.returned > 0:
		return c.lowest(back)
	case c.next() < c.b.tail:
		return c.next()
	default:
		return c.lowest(out)
	}
}

// lowest is the first message of the window in a state; next if there is none.
func (c *cursor) lowest(s placeState) Offset {
	for i := range c.window {
		if c.window[i].state == s {
			return c.floor + Offset(i)
		}
	}
	return c.next()
}

// before counts the messages that wait and go before off.
func (c *cursor) before(off Offset) int {
	n := 0
	for i := range c.window {
		if c.floor+Offset(i) < off && c.window[i].state == back {
			n++
		}
	}
	return n + c.b.liveBetween(c.next(), off)
}

func (x *Explanation) explainOut(l *lease) {
	x.State, x.Position = WaitOut, 0
	x.Since, x.Until, x.EstimatedStart = moment(l.first), l.item.At(), moment(l.first)
	x.Opens = fmt.Sprintf("delivery %d ends with an answer, or with its lease", l.attempt)
}

// explainHead says what the head of the bucket waits for.
func (m *Machine) explainHead(now time.Time, c *cursor, x *Explanation) {
	x.Since = moment(c.since)
	switch {
	case c.leased >= c.inFlight:
		x.State, x.Since = WaitFull, time.Time{}
		x.Opens = fmt.Sprintf("a message of the bucket that is out ends: %d of at most %d are", c.leased, c.inFlight)
		return
	case !c.waits():
		x.State = WaitQueued
		x.Opens = "it is written to disk, or an older message is settled"
		return
	}
	gate, limited := m.closedLimit(now, c)
	held := !x.Hold.Until.IsZero()
	switch {
	case limited && (!held || gate.Until.IsZero() || gate.Until.After(x.Hold.Until)):
		x.State, x.Gate, x.Limit, x.Until = WaitLimited, gate.Of, gate.Limit, gate.Until
		x.Opens = openedBy(gate)
	case held:
		x.State, x.Gate, x.Until = WaitHeld, x.Hold.Target, x.Hold.Until
		x.Opens = fmt.Sprintf("the suspend of %v ends or is lifted", x.Hold.Target)
	default:
		x.State = WaitReady
		x.Opens = "its turn comes and a consumer asks"
	}
}

func openedBy(g quota.Gate) string {
	switch {
	case g.Never:
		return fmt.Sprintf("never: it costs more than the %s of %v ever gives, and becomes a dead letter at its turn", g.Limit, g.Of)
	case g.Limit == limitSignal:
		return fmt.Sprintf("the load signals let %v go again", g.Of)
	case g.Until.IsZero():
		return fmt.Sprintf("a message of %v that is out ends: its %s limit is reached", g.Of, g.Limit)
	default:
		return fmt.Sprintf("there is room again in the %s limit of %v", g.Limit, g.Of)
	}
}

// closedLimit is the limit that keeps the head of the bucket longest. It asks without
// having the bucket parked anew.
func (m *Machine) closedLimit(now time.Time, c *cursor) (quota.Gate, bool) {
	place := c.where()
	var latest quota.Gate
	found := false
	take := func(g quota.Gate, closed bool) {
		if closed && (!found || !latest.Until.IsZero() && (g.Until.IsZero() || g.Until.After(latest.Until))) {
			latest, found = g, true
		}
	}
	take(c.g.ledger.Look(now, suspend.Target{Scope: suspend.Bucket, Name: place.Bucket}))
	if place.User != "" {
		take(c.g.ledger.Look(now, suspend.Target{Scope: suspend.Row, Name: place.User}))
	}
	for _, t := range wideTargets(place) {
		take(m.lookWide(now, c.g, t))
	}
	if off, ok := c.pick(); ok && !found { // as in choose: who does not fit is parked by the ledger
		g, fits := c.g.ledger.Fits(now, m.ask(c, off))
		take(g, !fits)
	}
	return latest, found
}

// wideTargets are the units that a place belongs to.
func wideTargets(p suspend.Place) []suspend.Target {
	t := []suspend.Target{levelTarget(p.Level), {Scope: suspend.All}}
	if p.Model != "" {
		t = append(t, suspend.Target{Scope: suspend.Column, Name: p.Model})
	}
	return t
}
