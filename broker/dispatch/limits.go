package dispatch

import (
	"time"

	"github.com/penstockmq/penstock/readyset"
	"github.com/penstockmq/penstock/suspend"
	"github.com/penstockmq/penstock/suspend/policy"
	"github.com/penstockmq/penstock/suspend/quota"
)

// freed is a gate of a group that something which ended may have opened.
type freed struct {
	group  *group
	target suspend.Target
}

// openLedger gives a new group its accounts.
func (m *Machine) openLedger(g *group) {
	doc := m.doc
	if g.cfg.Unlimited {
		doc = policy.Empty()
	}
	g.ledger = quota.New(doc)
	g.unit = doc.CostUnit()
	g.set.SetQuantum(quantum(g.unit))
	g.onWide = func(t suspend.Target, closed bool, _ time.Time) {
		m.setWideGate(g, t, byLimit, closed)
	}
	if !g.cfg.Unlimited {
		for _, s := range m.signals {
			g.ledger.SetSignal(m.signalsAt, s)
		}
	}
}

// quantum is what a bucket of weight 1 may cause in a round: about one message.
func quantum(unit policy.CostUnit) int64 {
	switch unit {
	case policy.Tokens:
		return 1 << 10
	case policy.Bytes:
		return 1 << 14
	case policy.Requests:
	}
	return 1
}

// fair is what a turn costs.
func (g *group) fair(c quota.Cost) int64 {
	n := c.Requests
	switch g.unit {
	case policy.Tokens:
		n = c.Tokens
	case policy.Bytes:
		n = c.BytesIn
	case policy.Requests:
	}
	return max(1, n)
}

// mayFly is how many messages of a bucket may be out at once.
func (g *group) mayFly(p suspend.Place) uint16 {
	inFlight, _ := g.terms(p)
	return inFlight
}

// terms are how many of a bucket may be out at once, and its weight.
func (g *group) terms(p suspend.Place) (inFlight, weight uint16) {
	n, weight := g.ledger.Terms(p, g.inFlight)
	return uint16(min(max(1, n), maxInFlight)), weight
}

// ask is what the bucket's message at off asks of the limits.
func (m *Machine) ask(c *cursor, off Offset) quota.Ask {
	a := quota.Ask{Place: c.where(), Cost: quota.Cost{Requests: 1}, Since: moment(c.since)}
	if m.cfg.CostOf == nil || !c.g.ledger.NeedsCost(a.Place) {
		return a
	}
	says := m.costAt(c.b, off)
	a.Cost.Requests = max(1, says.Requests)
	a.Cost.BytesIn = max(0, says.Bytes)
	a.Cost.Output = c.g.ledger.Expect(a.Place, max(0, says.MaxOutput))
	a.Cost.Tokens = max(0, says.Input) + a.Cost.Output
	return a
}

// maxCosts bounds the remembered costs of recovered messages.
const maxCosts = 1 << 16

// readCost is the cost of a message as read from the store.
type readCost struct {
	off  Offset
	cost MessageCost
}

// costAt returns the cost that the message states. Its run has it; for a recovered message
// it is read from the store, once while the message is the next of its bucket.
func (m *Machine) costAt(b *bucket, off Offset) MessageCost {
	if r := &b.runs[b.runs.find(off)]; r.requests > 0 {
		return MessageCost{Requests: int64(r.requests), Input: int64(r.input), MaxOutput: int64(r.output), Bytes: int64(r.size)}
	}
	if read, ok := m.costs[b.id]; ok && read.off == off {
		return read.cost
	}
	cost := m.cfg.CostOf(b.id, off)
	if m.costs == nil || len(m.costs) >= maxCosts {
		m.costs = map[BucketID]readCost{}
	}
	m.costs[b.id] = readCost{off, cost}
	return cost
}

// charge takes a message's cost from the limits and from the entry whose turn it was,
// and closes the units that are used up by it: the next turn is not theirs.
func (m *Machine) charge(now time.Time, c *cursor, set *readyset.Set[*cursor], e *readyset.Entry[*cursor], a quota.Ask) quota.Ticket {
	ticket := c.g.ledger.Charge(now, a)
	set.Charge(e, c.g.fair(a.Cost))
	c.g.ledger.Wide(now, a.Place, c.g.onWide)
	return ticket
}

// free ends what a delivery was charged. What that opens is looked at by the next
// Match: while a message is on its way out, nothing else moves.
func (m *Machine) free(now time.Time, l *lease, learned quota.Settlement) {
	if !l.charged {
		return
	}
	c := l.c
	for _, t := range c.g.ledger.Free(now, c.where(), l.ticket, learned) {
		m.freed.push(freed{c.g, t})
	}
	c.g.roomier(c.b.cell.User)
	l.charged = false
	if off := l.correction(learned); off != 0 {
		c.correct(l.client, off)
	}
}

// correction is by how much the true cost of a turn is above what was charged.
func (l *lease) correction(learned quota.Settlement) int64 {
	if l.fair == 0 {
		return 0 // it was let out before a restart
	}
	unit := l.c.g.unit
	switch {
	case learned.Outcome == quota.Unsent, learned.Outcome == quota.Unused && unit != policy.Requests:
		return -l.fair
	case learned.Outcome != quota.Used || unit != policy.Tokens:
		return 0
	case learned.Tokens >= 0:
		return max(1, learned.Tokens) - l.fair
	case learned.OutputTokens >= 0:
		return learned.OutputTokens - l.output
	}
	return 0
}

// correct puts right what a turn cost, in the set that gave it.
func (c *cursor) correct(client string, cost int64) {
	if mb := c.g.members[client]; mb != nil && !mb.wildcard {
		if s := mb.subs[c.b.name]; s != nil {
			mb.set.Charge(&s.entry, cost)
		}
		return
	}
	c.g.set.Charge(&c.entry, cost)
}

// limitsDue checks the limits whose instant has come, taking the groups in turn.
func (m *Machine) limitsDue(now time.Time) {
	for i := range m.groups {
		g := m.groups[(m.firstGroup+i)%len(m.groups)]
		for {
			t, ok := g.ledger.DueWithin(now, &m.left.limits)
			if !ok {
				break
			}
			m.reopen(now, g, t)
		}
	}
	if m.left.limits <= 0 {
		m.firstGroup = (m.firstGroup + 1) % len(m.groups)
	}
}

// lookWide asks whether a unit is closed by a limit, and closes or opens it accordingly:
// the ledger takes it that who asks also acts.
func (m *Machine) lookWide(now time.Time, g *group, t suspend.Target) (quota.Gate, bool) {
	gate, closed := g.ledger.Look(now, t)
	m.setWideGate(g, t, byLimit, closed)
	return gate, closed
}

// flushAccounts writes what was used of limits in this turn, in the batch of the
// deliveries that used it.
func (m *Machine) flushAccounts() {
	for _, g := range m.groups {
		g.ledger.Dirty(func(r quota.Record) {
			op := PutAccount
			if r.Data == nil {
				op = DeleteAccount
			}
			m.write(Write{Op: op, Group: g.cfg.ID, Account: put(&m.out.accounts, r)})
		})
	}
}

// startLedgers brings back what was used and what is in flight. The units that this
// closes fall due at once. An account that cannot be read begins anew.
func (m *Machine) startLedgers(now time.Time) {
	for _, r := range m.startAccounts {
		g := m.group(r.group)
		if g == nil {
			continue
		}
		if err := g.ledger.Restore(now, r.record); err != nil {
			gone := quota.Record{Target: r.record.Target}
			m.write(Write{Op: DeleteAccount, Group: r.group, Account: put(&m.out.accounts, gone)})
		}
	}
	for _, b := range m.restored {
		for c := b.first; c != nil; c = c.sibling {
			for i := range c.window {
				if l := c.window[i].lease; l != nil && l.charged {
					c.g.ledger.Readmit(now, c.where(), l.ticket)
				}
			}
		}
	}
	m.startAccounts = nil
}
