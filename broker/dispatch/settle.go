package dispatch

import (
	"time"

	"github.com/penstockmq/penstock/suspend/quota"
)

// standing is what a handle is worth now.
type standing uint8

const (
	// done: its message is settled, or there never was one.
	done standing = iota
	// current: its lease runs.
	current
	// lapsed: its lease ended and the message is not out again.
	lapsed
	// overtaken: the message is out under a newer token.
	overtaken
)

// find judges a handle. The cursor's window includes the offset unless it is done.
func (m *Machine) find(h Handle) (*cursor, standing) {
	b := m.byID[h.Bucket]
	if !m.issued(h.Token) {
		return nil, overtaken
	}
	if b == nil {
		return nil, done
	}
	c := b.cursor(h.Group)
	if c == nil || h.Offset >= b.durable() {
		return nil, done
	}
	if h.Offset >= c.next() && h.Offset-c.floor < Offset(c.windowMax()) && !b.isDead(h.Offset) {
		// Out before a restart whose lease record is missing, or before a Seek.
		c.reach(h.Offset)
	}
	switch p := c.at(h.Offset); {
	case p == nil || p.state == settled:
		return c, done
	case p.state == back:
		return c, lapsed
	case p.lease.token == h.Token:
		return c, current
	default:
		return c, overtaken
	}
}

// issued reports whether this process or an earlier one can have issued a token. A queued
// message has no lease to compare with.
func (m *Machine) issued(t Token) bool {
	return t != 0 && t <= Token(m.cfg.Epoch)<<tokenBits|m.leased
}

// running returns the lease of a handle that is current; nil else.
func (m *Machine) running(h Handle) *lease {
	c, s := m.find(h)
	if s != current {
		return nil
	}
	return c.at(h.Offset).lease
}

// settle marks a message of the window as done with for the group, with what was
// learned of its cost.
func (m *Machine) settle(now time.Time, c *cursor, off Offset, learned quota.Settlement) {
	p := c.at(off)
	if p.state == out {
		m.endLease(now, p.lease, 0, learned)
	}
	c.set(p, settled)
	p.attempts = 0
	m.moved(c)
	m.out.Counters.Settled++
	c.advance()
	m.trim(now, c.b)
	if off >= c.b.head() && c.b.isSettled(off) { // a lower message is still needed; this one is not
		m.dies(c.b, off, off+1)
	}
	m.arrange(now, c)
}

// Ack settles a message. ErrStaleHandle: it is out again under a newer token, and
// nothing was changed. Of a message that is settled, or whose lease ended and that
// is not out again, an ack is good. What its delivery reserved of limits stands.
func (m *Machine) Ack(now time.Time, h Handle) error {
	return m.Settle(now, h, quota.Settlement{}, ThenAck())
}

// Suspend gives a message back with its attempt unchanged and holds its bucket for d
// for this group, rounded up to a millisecond and at most GroupConfig.MaxSuspend; a longer
// hold stays. d = 0 gives it back at once. A handle that is not current has no effect. Tokens and bytes are given
// back to the limits: nothing was done.
// Errors: suspend.ErrNegative; suspend.ErrTooLong for more than that and 24 h; nothing was
// changed.
func (m *Machine) Suspend(now time.Time, h Handle, d time.Duration, by, reason string) error {
	return m.Settle(now, h, quota.Settlement{Outcome: quota.Unused}, ThenSuspend(d, by, reason))
}

// ChangeInvisible lets the lease end at now + d, as a failed attempt unless it is
// settled before. The handle stays the same, so a repetition of the call is harmless.
func (m *Machine) ChangeInvisible(now time.Time, h Handle, d time.Duration) error {
	defer m.check(now)
	l := m.running(h)
	if l == nil {
		return ErrStaleHandle
	}
	m.changeInvisible(now, l, d)
	return nil
}

// Release gives back a message that never reached its client: deliverable at once,
// the attempt not counted.
func (m *Machine) Release(now time.Time, h Handle) {
	if l := m.running(h); l != nil {
		m.giveBack(now, l, l.attempt-1, quota.Settlement{Outcome: quota.Unsent})
	}
	m.check(now)
}

// DeadLetter moves a message to the group's dead letters. As with Ack its lease may
// have ended. ErrStaleHandle: it is out under a newer token, or settled.
func (m *Machine) DeadLetter(now time.Time, h Handle, reason string) error {
	return m.Settle(now, h, quota.Settlement{}, ThenReject(reason))
}

// Expire settles a message that was let out and whose deadline has passed, in every
// group that does not have it out too.
func (m *Machine) Expire(now time.Time, h Handle) {
	if m.discard(now, h, true) {
		m.out.Counters.Expired++
	}
	m.check(now)
}

// Missing settles a message that was let out and is not in the store, as Expire does.
func (m *Machine) Missing(now time.Time, h Handle) {
	if m.discard(now, h, false) {
		m.out.Counters.Missing++
	}
	m.check(now)
}

func (m *Machine) discard(now time.Time, h Handle, inStore bool) bool {
	l := m.running(h)
	if l == nil {
		return false
	}
	c := l.c
	m.endLease(now, l, 0, quota.Settlement{Outcome: quota.Unsent})
	if m.kill(now, c.b, h.Offset, h.Offset+1, inStore, untold) == 0 { // another group has it out
		m.settle(now, c, h.Offset, quota.Settlement{})
	}
	return true
}
