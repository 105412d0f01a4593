package dispatch

import (
	"time"

	"github.com/penstockmq/penstock/suspend/deadline"
	"github.com/penstockmq/penstock/suspend/quota"
)

const (
	// defaultInvisible is the length of a lease when the poll says nothing; also that
	// of one renewal.
	defaultInvisible = 60 * time.Second
	// renewSeen is how recently a client must have been heard of for its lease to be
	// renewed.
	renewSeen = 30 * time.Second
	// renewMax is how long a lease may live by renewals, from its first delivery.
	renewMax = 3 * time.Hour
)

// reasonAttempts is the reason of a dead letter whose attempts are used up.
const reasonAttempts = "delivery attempts used up"

// reasonNever is the reason of a dead letter that would wait for ever.
const reasonNever = "costs more than its limit ever gives"

// lease is a message that is out.
type lease struct {
	item deadline.Item[*lease] // armed until the lease ends
	c    *cursor
	off  Offset
	// token is the token of a current handle: the same for the whole lease, unless ThenRetry
	// takes the lease away from its worker.
	token     Token
	attempt   uint32
	autoRenew bool
	first     int64
	client    string
	// ticket is what the delivery was charged; charged until that has been freed. fair
	// is what its turn cost and output the part of it that was a guess.
	ticket       quota.Ticket
	charged      bool
	fair, output int64
	batch        *batch // nil when the poll was not repeatable
}

// batch is the answer to a repeatable poll: its messages that are still out.
type batch struct {
	client *client
	key    batchKey
	leases []*lease
}

type batchKey struct {
	group GroupID
	id    string
}

func (l *lease) handle() Handle {
	return Handle{Group: l.c.g.cfg.ID, Bucket: l.c.b.id, Offset: l.off, Token: l.token}
}

func (l *lease) itemOut() Item {
	return Item{Handle: l.handle(), Name: l.c.b.name, Cell: l.c.b.cell, Attempt: l.attempt, Until: l.item.At()}
}

// newLease lets a message out for what it was charged. REQUIRES: off is at or below the
// cursor's next.
func (m *Machine) newLease(now time.Time, c *cursor, off Offset, w *Waiter, ticket quota.Ticket) *lease {
	c.reach(off)
	p := c.at(off)
	l := m.pool.lease()
	l.c, l.off, l.token = c, off, m.newToken()
	l.attempt = p.attempts + 1
	l.ticket, l.charged = ticket, true
	l.autoRenew, l.first, l.client = w.autoRenew, instant(now), w.member.client.name
	if p.attempts > 0 {
		m.moved(c) // its Return leaves the cursor's record
	}
	c.set(p, out)
	p.lease, p.attempts = l, 0
	m.leases.Set(&l.item, now.Add(w.invisible))
	m.putLease(l)
	return l
}

func (m *Machine) putLease(l *lease) {
	var ticket []byte
	if l.charged {
		ticket = m.out.stash(l.ticket.Append)
	}
	m.write(Write{Op: PutLease, Lease: put(&m.out.leases, LeaseState{
		Ticket: ticket,
		Group:  l.c.g.cfg.ID, Bucket: l.c.b.id, Offset: l.off, Until: l.item.At(),
		Attempt: l.attempt, Token: l.token, Client: l.client, AutoRenew: l.autoRenew, First: moment(l.first),
	})})
}

// endLease takes a message back with the number of attempts that count so far, and
// frees what it was charged. Every way on which a message ceases to be out comes
// through here. The caller goes on to settle or arrange.
func (m *Machine) endLease(now time.Time, l *lease, attempts uint32, learned quota.Settlement) {
	m.free(now, l, learned)
	c, p := l.c, l.c.at(l.off)
	c.set(p, back)
	p.lease, p.attempts = nil, attempts
	if attempts > 0 {
		m.moved(c)
	}
	m.leases.Remove(&l.item)
	m.write(Write{Op: DeleteLease, Group: c.g.cfg.ID, Bucket: c.b.id, Offset: l.off})
	if l.batch != nil {
		l.batch.drop(l)
	}
	m.pool.putLease(l)
}

func (b *batch) drop(l *lease) {
	for i, x := range b.leases {
		if x == l {
			last := len(b.leases) - 1
			b.leases[i], b.leases[last] = b.leases[last], nil
			b.leases = b.leases[:last]
			break
		}
	}
	if len(b.leases) == 0 && b.client.batches[b.key] == b {
		delete(b.client.batches, b.key)
	}
}

// giveBack ends a lease without settling its message.
func (m *Machine) giveBack(now time.Time, l *lease, attempts uint32, learned quota.Settlement) {
	c := l.c
	m.endLease(now, l, attempts, learned)
	m.arrange(now, c)
}

// leaseDue acts on a lease whose instant has come.
func (m *Machine) leaseDue(now time.Time, l *lease) {
	if l.autoRenew && m.alive(now, l.client) {
		until := now.Add(defaultInvisible)
		if last := moment(l.first).Add(renewMax); until.After(last) {
			until = last
		}
		if until.After(now) {
			m.leases.Set(&l.item, until)
			m.putLease(l)
			m.out.Counters.LeasesRenewed++
			return
		}
	}
	m.out.Counters.LeasesEnded++
	if int(l.attempt) >= l.c.g.maxAttempts {
		m.bury(now, l.c, l.off, l.attempt, reasonAttempts, quota.Settlement{})
		return
	}
	m.giveBack(now, l, l.attempt, quota.Settlement{})
}

// bury makes a message of the window a dead letter.
func (m *Machine) bury(now time.Time, c *cursor, off Offset, attempt uint32, reason string, learned quota.Settlement) {
	m.write(Write{
		Op: DeadLetter, Group: c.g.cfg.ID, Bucket: c.b.id, Name: c.b.name,
		Offset: off, Attempt: attempt, Reason: reason,
	})
	m.out.Counters.DeadLettered++
	m.settle(now, c, off, learned)
}
