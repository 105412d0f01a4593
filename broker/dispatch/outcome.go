package dispatch

import (
	"time"

	"github.com/penstockmq/penstock/suspend"
	"github.com/penstockmq/penstock/suspend/quota"
)

// Then is what becomes of a message whose worker has told what it learned.
type Then struct {
	act        then
	d          time.Duration
	by, reason string
}

type then uint8

const (
	thenAck then = iota
	thenSuspend
	thenRetry
	thenReject
)

// ThenAck settles it, as Ack does.
func ThenAck() Then { return Then{} }

// ThenSuspend gives it back and holds its bucket for d, as Suspend does.
func ThenSuspend(d time.Duration, by, reason string) Then {
	return Then{act: thenSuspend, d: d, by: by, reason: reason}
}

// ThenRetry has it delivered again after d, as a failed attempt. As with
// ChangeInvisible it keeps its place in its bucket until then; of limits it is freed now.
func ThenRetry(d time.Duration) Then { return Then{act: thenRetry, d: d} }

// ThenReject makes it a dead letter, as DeadLetter does.
func ThenReject(reason string) Then { return Then{act: thenReject, reason: reason} }

// Settle ends a delivery with what its worker learned of its cost. Of a handle that is
// not current nothing is learned; what follows then is that of Ack, Suspend,
// ChangeInvisible or DeadLetter, with their errors.
func (m *Machine) Settle(now time.Time, h Handle, learned quota.Settlement, t Then) error {
	defer m.check(now)
	switch t.act {
	case thenSuspend:
		return m.thenSuspend(now, h, learned, t)
	case thenRetry:
		l := m.running(h)
		if l == nil {
			return ErrStaleHandle
		}
		m.free(now, l, learned)
		// The worker has given the message up: a late renewal by it must not delay the next
		// attempt.
		l.token = m.newToken()
		m.changeInvisible(now, l, t.d)
		return nil
	case thenReject:
		return m.thenReject(now, h, learned, t.reason)
	case thenAck:
	}
	switch c, s := m.find(h); s {
	case overtaken:
		return ErrStaleHandle
	case current, lapsed:
		if serves(learned) {
			c.b.served = true // written with the bucket's record, at the latest when the bucket becomes idle
		}
		m.settle(now, c, h.Offset, learned)
	case done:
	}
	return nil
}

func (m *Machine) thenSuspend(now time.Time, h Handle, learned quota.Settlement, t Then) error {
	g := m.group(h.Group)
	if g == nil {
		return ErrNoGroup
	}
	d, err := suspend.ClampDuration(t.d, g.holds.Max())
	if err != nil {
		return err
	}
	l := m.running(h)
	if l == nil {
		return nil
	}
	if d > 0 {
		target := suspend.Target{Scope: suspend.Bucket, Name: l.c.b.name}
		if _, err := m.extend(now, g, suspend.Hold{Target: target, Until: now.Add(d), By: t.by, Reason: t.reason}); err != nil {
			return err
		}
	}
	m.giveBack(now, l, l.attempt-1, learned)
	return nil
}

func (m *Machine) thenReject(now time.Time, h Handle, learned quota.Settlement, reason string) error {
	c, s := m.find(h)
	if s != current && s != lapsed {
		return ErrStaleHandle
	}
	p := c.at(h.Offset)
	attempt := p.attempts
	if s == current {
		attempt = p.lease.attempt
	}
	m.bury(now, c, h.Offset, attempt, reason, learned)
	return nil
}

// changeInvisible moves the end of a lease and keeps its token. A new token for each change
// was rejected: a client that lost the reply would hold a stale handle for a running lease,
// and the message would be delivered a second time. Fencing only needs a new token for each
// delivery.
func (m *Machine) changeInvisible(now time.Time, l *lease, d time.Duration) {
	l.autoRenew = false
	m.leases.Set(&l.item, now.Add(max(0, d)))
	m.putLease(l)
}
