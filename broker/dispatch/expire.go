package dispatch

import (
	"time"

	"github.com/penstockmq/penstock/suspend/quota"
)

// expire settles the message at off, which is next and past its deadline, and the overdue
// messages right behind it.
func (m *Machine) expire(now time.Time, c *cursor, off Offset) {
	end := c.b.overdueEnd(instant(now), off, &m.left.expiries)
	n := m.kill(now, c.b, off, end, true, DiscardExpired)
	if n == 0 { // it is in flight in another group
		c.reach(off)
		m.settle(now, c, off, quota.Settlement{})
		n = 1
	}
	m.out.Counters.Expired += n
}

// sweepDeadlines settles overdue messages anywhere in the bucket until an append fits. It
// is called when a cap is about to refuse the append. Beyond the turn's share it settles as
// many ranges as there are messages to append, so that a sender pays with its own messages
// and no turn gets long.
func (m *Machine) sweepDeadlines(now time.Time, b *bucket, messages int, fits func() bool) {
	sweep := func(s stretch) { m.out.Counters.Expired += m.kill(now, b, s.from, s.to, true, DiscardExpired) }
	if b.deep == nil || b.deep.dues == nil {
		for _, s := range b.overdueRuns(instant(now)) {
			if sweep(s); fits() {
				return
			}
		}
		return
	}
	var kept dues // of messages that are not durable yet; choose settles messages that were in flight
	for b.deep != nil && b.deep.dues != nil && !fits() {
		if !spend(&m.left.expiries) && !spend(&messages) {
			break
		}
		s, d, ok := b.popOverdue(instant(now))
		if !ok {
			break
		}
		if sweep(s); s.to > b.durable() {
			kept = append(kept, d)
		}
	}
	for _, d := range kept {
		if b.deep != nil && b.deep.dues != nil {
			b.deep.dues.push(d)
		}
	}
}
