package dispatch

import "time"

// The model's view of turns with shares, and of the counts of live messages.

// shrink makes the shares of the machine's turns small.
func (p *model) shrink() {
	if p.small != nil {
		p.r.m.shares, p.r.m.left = *p.small, *p.small
	}
}

// tickAll runs a machine with small turns until no event is due: the model handles all events at once.
func (p *model) tickAll() {
	m := p.r.m
	due := func() bool {
		at := p.r.now.Add(1)
		for _, next := range []func() (time.Time, bool){m.living.Next, m.gates.Next, m.leases.Next} {
			if t, ok := next(); ok && t.Before(at) {
				at = t
			}
		}
		for _, g := range m.groups {
			if t, ok := g.ledger.Next(); ok && t.Before(at) {
				at = t
			}
		}
		return m.review > 0 || !at.After(p.r.now)
	}
	for n := 0; p.small != nil && due(); n++ {
		if n == 10_000 {
			p.t.Fatalf("something is due for ever")
		}
		m.Tick(p.r.now)
		e := m.Take()
		p.r.disk.apply(e.Writes)
		p.buried(e.Writes)
		p.ended(e.EmptyPulls)
	}
}

// judgeCounts compares the counts with the live messages: those that a group waits for or has in flight.
// The machine may not have noticed a passed deadline yet, and cannot notice a lost message.
func (p *model) judgeCounts() {
	for name, b := range p.buckets {
		least, most := 0, 0
		for off, msg := range b.msgs {
			waits, ghost := false, p.ghost(Handle{Bucket: b.id, Offset: Offset(off)})
			for _, pl := range msg.groups {
				waits = waits || !pl.settled
			}
			waits = waits && !msg.dead
			if waits && !p.overdue(msg) && !ghost {
				least++
			}
			if waits || ghost {
				most++
			}
		}
		info, _ := p.r.m.BucketInfo(p.r.now, name)
		if info.Queued < least || info.Queued > most {
			p.t.Fatalf("%q counts %d messages, %d to %d live", name, info.Queued, least, most)
		}
	}
}
