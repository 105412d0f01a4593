package dispatch

import (
	"time"

	"github.com/penstockmq/penstock/suspend"
	"github.com/penstockmq/penstock/suspend/quota"
)

type restoredHold struct {
	group GroupID
	hold  suspend.Hold
	moved bool // its record has to be rewritten
}

type restoredAccount struct {
	group  GroupID
	record quota.Record
}

// CountBucket counts a bucket of the user whose record the store has.
func (m *Machine) CountBucket(user string) {
	m.buckets++
	if m.cfg.MaxUserBuckets > 0 {
		m.users.created(user)
	}
}

// RestoreBucket brings back a bucket. Idle ones are ignored: they need no memory.
func (m *Machine) RestoreBucket(s BucketState) {
	if s.Tail > s.Head && m.byName[s.Name] == nil {
		m.restored = append(m.restored, m.adopt(s))
	}
}

// RestoreCursor brings back a position. A record that fits nothing is deleted.
// REQUIRES: the group's buckets were restored and its leases were not.
func (m *Machine) RestoreCursor(id GroupID, s CursorState) {
	c := m.restoredCursor(id, s.Bucket)
	if c == nil {
		m.write(Write{Op: DeleteCursor, Group: id, Bucket: s.Bucket})
		return
	}
	c.recorded = true
	c.floor = min(max(s.Floor, c.b.head()), c.b.tail)
	for _, off := range s.Settled {
		if p := c.restoredPlace(off); p != nil {
			c.set(p, settled)
		}
	}
	for _, r := range s.Returned {
		if p := c.restoredPlace(r.Offset); p != nil {
			c.set(p, back)
			p.attempts = r.Attempts
		}
	}
}

// RestoreLease restores a message in flight; its lease keeps its end, but see startLeases.
// A record that fits nothing is deleted. A message that was out and has no record is
// simply deliverable: nothing marks it as out but its lease.
func (m *Machine) RestoreLease(s LeaseState) {
	c := m.restoredCursor(s.Group, s.Bucket)
	var p *place
	if c != nil {
		p = c.restoredPlace(s.Offset)
	}
	if p == nil || p.state != back {
		m.write(Write{Op: DeleteLease, Group: s.Group, Bucket: s.Bucket, Offset: s.Offset})
		return
	}
	l := m.pool.lease()
	l.c, l.off, l.token, l.client = c, s.Offset, s.Token, s.Client
	l.attempt, l.autoRenew, l.first = max(1, s.Attempt), s.AutoRenew, instant(s.First)
	if t, err := quota.DecodeTicket(s.Ticket); err == nil && len(s.Ticket) > 0 {
		l.ticket, l.charged = t, true // one that cannot be read is as if it was free
	}
	c.set(p, out)
	p.lease, p.attempts = l, 0
	m.leases.Set(&l.item, s.Until)
}

// RestoreHold brings back a hold. It is in force from Start on.
func (m *Machine) RestoreHold(id GroupID, h suspend.Hold) {
	m.startHolds = append(m.startHolds, restoredHold{group: id, hold: h})
}

// RestoreSubscription brings back what a client asked for. It has clientTimeout from
// Start to be heard of.
func (m *Machine) RestoreSubscription(s SubscriptionState) {
	g := m.group(s.Group)
	if g == nil || m.clients[s.Client] != nil && g.members[s.Client] != nil {
		return
	}
	c := m.clients[s.Client]
	if c == nil {
		c = &client{name: s.Client}
		c.item.Value = c
		m.clients[s.Client] = c
	}
	mb := m.member(g, c)
	mb.recorded = true
	mb.wildcard = mb.wildcard || s.Wildcard
	for _, name := range s.Names {
		if mb.subs[name] == nil {
			m.addName(mb, name)
		}
	}
}

// Start ends recovery: holds come into force and everything goes where it belongs.
func (m *Machine) Start(now time.Time) {
	for _, h := range m.startHolds {
		m.startHold(now, h)
	}
	m.startHolds = nil
	m.startLeases(now)
	for _, c := range m.clients {
		c.seen = max(c.seen, instant(now))
		m.living.Set(&c.item, now.Add(clientTimeout))
	}
	m.startLedgers(now)
	for _, b := range m.restored {
		for c := b.first; c != nil; c = c.sibling {
			c.advance()
		}
		m.buryDone(b) // an earlier version kept them until the head passed
		m.trim(now, b)
		m.arrangeAll(now, b)
	}
	m.restored = nil
	m.check(now)
}

func (m *Machine) startHold(now time.Time, r restoredHold) {
	g := m.group(r.group)
	if g == nil {
		return
	}
	inForce, held := g.holds.Restore(now, r.hold)
	switch {
	case !held:
		m.write(Write{Op: DeleteHold, Group: r.group, Hold: put(&m.out.holds, suspend.Hold{Target: r.hold.Target})})
		return
	case r.moved || !inForce.Until.Equal(r.hold.Until):
		m.write(Write{Op: PutHold, Group: r.group, Hold: put(&m.out.holds, inForce)})
	}
	m.armGates(g)
	if r.hold.Target.Scope > suspend.Row {
		m.setWideGate(g, r.hold.Target, byHold, true)
	}
}

// restoredCursor finds the cursor a record is about.
func (m *Machine) restoredCursor(id GroupID, b BucketID) *cursor {
	if bucket := m.byID[b]; bucket != nil {
		return bucket.cursor(id)
	}
	return nil
}

// restoredPlace makes the window reach an offset that a record names; nil if no such
// record can have been written.
func (c *cursor) restoredPlace(off Offset) *place {
	if off < c.floor || off >= c.b.tail || off-c.floor >= windowMax+maxInFlight {
		return nil
	}
	c.reach(off)
	return c.at(off)
}

// RestoreAccount brings back what a group has used of its limits. It is in force from
// Start on.
func (m *Machine) RestoreAccount(id GroupID, r quota.Record) {
	m.startAccounts = append(m.startAccounts, restoredAccount{id, r})
}
