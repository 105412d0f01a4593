package quota

import (
	"time"

	"github.com/penstockmq/penstock/suspend"
	"github.com/penstockmq/penstock/suspend/policy"
)

const (
	// lateMax is how late a charge may be and still count as of the instant at which the gate it waited at opened. Between
	// a gate's timer and the charge is the turn of a loop, and often a poll that has to come first: a millisecond or some. Were
	// each charged when it comes, a backlog would run slower than its rate by that much with every message, five per cent
	// at 50/s. The bound is on what one message may catch up after a stall.
	lateMax = 250 * time.Millisecond
	// lateStep is the same for those that follow it through a gate that a late timer found open for more than one. It bounds
	// the burst that a stall ends with: at 100/s and below there is none.
	lateStep = 5 * time.Millisecond
)

// normal is the cost with nothing negative, no more tokens than a call can use, and at least one request.
func (c Cost) normal() Cost {
	tokens := min(max(c.Tokens, 0), MaxTokens)
	return Cost{Requests: max(c.Requests, 1), Tokens: tokens, Output: min(max(c.Output, 0), tokens), BytesIn: max(c.BytesIn, 0)}
}

// Charge charges everything that applies to an ask, at once and whatever is open: to have asked Narrow and Fits, and to
// leave closed units alone, is the caller's part. It counts the message in flight until Free gets the ticket.
//
// A rate is charged as of the instant at which the last of the gates opened, if that is not long ago: see lateMax. So a
// backlog keeps the pace of its rate, however late the timers are; its schedule is the policy's at every instant.
func (l *Ledger) Charge(now time.Time, a Ask) Ticket {
	l.observe(now)
	cost := a.Cost.normal()
	// Without any limit nobody asks a cell or row, and an account for each that has a message out would be made and dropped
	// with every message. What is out when the first limit comes is not counted in its row, then.
	wide := l.unlimited != nil
	accounts := l.path(now, a.Place, wide, true)
	cost = cost.reserved(&accounts)
	at := l.promised(now, a.Since, &accounts)
	tokens := l.doc.CostUnit() == policy.Tokens
	l.floor(now, accounts[suspend.Level], func(k kind) int64 { return k.of(cost) }) // by what is left before
	for _, acc := range accounts {
		if acc == nil {
			continue
		}
		tokens = tokens || acc.res.tokens
		acc.charge(now, at, cost)
		acc.running++
		l.touch(acc)
		if acc.item.Armed() && !acc.gated {
			l.rest.Remove(&acc.item)
		}
	}
	t := Ticket{Requests: cost.Requests, BytesIn: cost.BytesIn, Level: level(a.Place), Counted: true, Wide: wide}
	if tokens {
		t.Tokens, t.Output = cost.Tokens, cost.Output
	}
	return t
}

// charge charges one account: a rate as of at, if something waited here, all else as of now. A shadow rule is charged as if
// it were in force, and counts what it would have held.
func (a *account) charge(now, at time.Time, c Cost) {
	if !a.waited {
		at = later(at, now.Add(-lateStep))
	}
	a.waited = false
	for i, m := range a.meters {
		k := a.res.enforced[i].kind
		when := now
		if k == kindRate {
			when = at
		}
		m.charge(when, k.of(c))
	}
	if a.extra == nil {
		return
	}
	for i, m := range a.extra.shadow {
		s := a.res.shadow[i]
		if wouldHold(m, now, int64(a.running), c) {
			*s.would++
		}
		m.charge(now, s.kind.of(c))
	}
}

// wouldHold is whether a shadow rule would have kept a message back.
func wouldHold(m meter, now time.Time, running int64, c Cost) bool {
	if w, ok := m.(*windowMeter); ok {
		_, d := w.law.Peek(w.state, now, c.Requests)
		return !d.Allowed
	}
	_, open := m.opens(now, running)
	return !open
}

// promised is the instant as of which a rate is charged: when the last gate of the path opened, if that is not too long ago,
// but not before the message was there. Else it is now: nothing kept the message.
func (l *Ledger) promised(now, since time.Time, accounts *path) time.Time {
	late, rates := lateStep, false
	for _, a := range accounts {
		if a != nil {
			rates = rates || a.res.paced
			if a.waited {
				late = lateMax
			}
		}
	}
	if !rates {
		return now
	}
	from := now.Add(-late)
	at := from
	for _, a := range accounts {
		if a != nil {
			at = l.openFrom(at, a)
		}
	}
	if !at.After(from) || at.After(now) { // charged at a closed gate: whoever does that gets no credit
		return now
	}
	return earlier(later(at, since), now)
}

// openFrom is the instant from which an account is open, not before at; at itself for what does not open by itself.
func (l *Ledger) openFrom(at time.Time, a *account) time.Time {
	for _, m := range a.meters {
		if opens, open := m.opens(at, int64(a.running)); !open && !opens.IsZero() {
			at = opens
		}
	}
	if a.scope == suspend.Level {
		if opens, _, short := l.squeezed(at, a); short {
			at = opens
		}
	}
	return at
}

// Free ends what Charge began, once for each ticket: what is in flight goes down, what was reserved is corrected by what was
// learned, bytes_out and the adaptive window are fed. It returns the targets that there is reason to look at again, as Due
// does; valid until the next call.
func (l *Ledger) Free(now time.Time, p suspend.Place, t Ticket, s Settlement) []suspend.Target {
	l.observe(now)
	l.opened = l.opened[:0]
	if !t.Counted {
		return nil
	}
	p.Level = min(t.Level, levels-1)
	accounts := l.path(now, p, t.Wide, false)
	s = s.believed()
	delta, bytesOut := t.correction(s), s.BytesOut
	amount := func(k kind) int64 {
		if k == kindBytesOut {
			return bytesOut
		}
		return k.of(delta)
	}
	l.floor(now, accounts[suspend.Level], func(k kind) int64 { return max(amount(k), 0) })
	for _, a := range accounts {
		if a == nil {
			continue
		}
		if m := a.adaptive(); m != nil {
			m.observe(now, s, int64(a.running))
		}
		a.settle(now, amount)
		a.running = max(a.running-1, 0)
		l.touch(a)
		if delta.Requests < 0 {
			l.rejoin(now, a, l.reopen)
		}
	}
	if output, ok := t.output(s); ok && accounts[suspend.Bucket] != nil {
		accounts[suspend.Bucket].learn(now, output)
	}
	l.freed(now, &accounts)
	return l.opened
}

// settle charges an account what a settlement says beside what was reserved.
func (a *account) settle(now time.Time, amount func(kind) int64) {
	for i, m := range a.meters {
		m.charge(now, amount(a.res.enforced[i].kind))
	}
	if a.extra != nil {
		for i, m := range a.extra.shadow {
			m.charge(now, amount(a.res.shadow[i].kind))
		}
	}
}

// freed finds what is to be looked at again.
func (l *Ledger) freed(now time.Time, accounts *path) {
	for _, a := range accounts[:suspend.Column] {
		if a == nil {
			continue
		}
		if a.parked {
			if g, closed := a.binds(now); closed {
				l.park(a, g.Until)
			} else {
				l.unpark(now, a)
				l.opened = append(l.opened, a.target())
			}
		}
		l.retire(now, a)
	}
	l.turned(now, accounts[suspend.Column])
	for _, a := range l.levels {
		if len(l.squeezes) > 0 || a == accounts[suspend.Level] {
			l.turned(now, a)
		}
	}
	l.turned(now, l.all)
}

// turned adds a wide account to those to look at if it is not as the machine was last told.
func (l *Ledger) turned(now time.Time, a *account) {
	if a == nil {
		return
	}
	g, closed := l.judge(now, a)
	if closed != a.shut {
		l.opened = append(l.opened, a.target())
		return
	}
	l.rearm(now, a, g, closed)
}

// Readmit counts a message that is out since before a restart; what it was charged is in the records.
func (l *Ledger) Readmit(now time.Time, p suspend.Place, t Ticket) {
	l.observe(now)
	if !t.Counted {
		return
	}
	p.Level = min(t.Level, levels-1)
	for _, a := range l.path(now, p, t.Wide, true) {
		if a == nil {
			continue
		}
		a.running++
		if a.item.Armed() && !a.gated {
			l.rest.Remove(&a.item)
		}
		if !a.narrow() {
			l.lookAgain(a)
		}
	}
}
