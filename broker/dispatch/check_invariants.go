//go:build invariants

package dispatch

import (
	"errors"
	"fmt"
	"time"

	"github.com/penstockmq/penstock/readyset"
	"github.com/penstockmq/penstock/suspend"
	"github.com/penstockmq/penstock/suspend/quota"
)

// auditLarge is the number of things above which not every event is followed by a
// check: that would make a story of ten thousand buckets quadratic.
const auditLarge = 256

// audit counts the events since the last check.
type audit struct{ events int }

// check panics if the machine contradicts itself after an event. Above all
// it looks for a lost wake-up: a bucket that could go and is in no ring, on no gate
// that will open. Every event pays for the whole state, in a large one every so many:
// compiled in under the build tag invariants only.
func (m *Machine) check(now time.Time) {
	m.audit.events++
	if size := len(m.byID) + m.polls.Len() + m.subscriptions; size > auditLarge && m.audit.events < size/4 {
		return
	}
	m.audit.events = 0
	if err := m.inconsistencies(now); err != nil {
		panic(fmt.Sprintf("dispatch: %v", err))
	}
}

func (m *Machine) inconsistencies(now time.Time) error {
	if m.restored != nil || m.startHolds != nil {
		return nil // Start has not been called
	}
	f := &faults{}
	leases, returned, leased := 0, map[*group]int{}, map[*group]int{}
	var messages, bytes int64
	for name, b := range m.byName {
		f.want(b.name == name && m.byID[b.id] == b && !b.gone, "bucket %q: maps disagree", name)
		f.want(b.retained > 0 || b.queued, "bucket %q is idle and nobody will let it go", name)
		m.checkBucket(f, b)
		f.want(int(b.at) < len(m.all) && m.all[b.at] == b, "bucket %q is not where it is listed", name)
		messages += int64(b.live)
		bytes += b.bytes
		for c := b.first; c != nil; c = c.sibling {
			m.checkCursor(now, f, c)
			leases += int(c.leased)
			leased[c.g] += int(c.leased)
			returned[c.g] += int(c.returned)
		}
	}
	f.want(len(m.all) == len(m.byID) && m.review <= len(m.all), "%d listed, %d to review, %d ids", len(m.all), m.review, len(m.byID))
	f.want(len(m.byName) == len(m.byID), "%d names, %d ids", len(m.byName), len(m.byID))
	f.want(m.leases.Len() == leases, "%d leases armed, %d out", m.leases.Len(), leases)
	f.want(m.messages == messages && m.bytes == bytes, "sums %d %d, want %d %d", m.messages, m.bytes, messages, bytes)
	polls, subscriptions := 0, 0
	for _, g := range m.groups {
		f.want(g.leases == leased[g] && g.returned == returned[g], "group %d: leases %d returned %d, want %d %d", g.cfg.ID, g.leases, g.returned, leased[g], returned[g])
		p, s := m.checkGroup(f, g)
		polls += p
		subscriptions += s
	}
	f.want(polls == m.polls.Len(), "%d polls wait, %d armed", polls, m.polls.Len())
	f.want(subscriptions == m.subscriptions, "%d subscriptions, counted %d", subscriptions, m.subscriptions)
	return errors.Join(f.errs...)
}

type faults struct{ errs []error }

func (f *faults) want(ok bool, format string, args ...any) {
	if !ok {
		f.errs = append(f.errs, fmt.Errorf(format, args...))
	}
}

func (m *Machine) checkBucket(f *faults, b *bucket) {
	head := b.tail
	for c := b.first; c != nil; c = c.sibling {
		head = min(head, c.floor)
	}
	f.want(b.first == nil || head == b.head(), "bucket %q: head %d, lowest floor %d", b.name, b.head(), head)
	f.want(b.pending <= b.retained && b.live <= b.retained && b.bytes >= 0, "bucket %q: retained %d pending %d live %d", b.name, b.retained, b.pending, b.live)
	at := b.head()
	for i, r := range b.runs {
		end := b.runs.end(i, b.tail)
		f.want(r.start == at && r.start < end, "bucket %q: run %d is [%d, %d), want it to start at %d", b.name, i, r.start, end, at)
		at = end
	}
	live := b.liveBetween(b.head(), b.tail)
	f.want(uint32(live) == b.live && (len(b.runs) > 0) == (b.retained > 0), "bucket %q: %d live, counted %d", b.name, live, b.live)
	for c := b.first; c != nil; c = c.sibling {
		for off := max(c.floor, b.head()); off < c.next(); off++ {
			f.want(!b.isSettled(off) || b.isDead(off), "bucket %q: every group is done with %d, and it counts", b.name, off)
			f.want(!b.isDead(off) || c.stateAt(off) == settled, "bucket %q: %d is dead and group %d waits for it", b.name, off, c.g.cfg.ID)
		}
	}
}

func (m *Machine) checkCursor(now time.Time, f *faults, c *cursor) {
	name := fmt.Sprintf("bucket %q group %d", c.b.name, c.g.cfg.ID)
	var leased, returned uint16
	for i := range c.window {
		p := &c.window[i]
		switch p.state {
		case out:
			leased++
			f.want(p.lease != nil && p.lease.c == c && p.lease.off == c.floor+Offset(i) && p.lease.item.Armed(), "%s: offset %d is out with no timer", name, c.floor+Offset(i))
		case back:
			returned++
		case untouched, settled:
		}
		f.want((p.lease != nil) == (p.state == out), "%s: offset %d: lease and state disagree", name, c.floor+Offset(i))
		f.want(p.state != untouched, "%s: an untouched place in the window", name)
	}
	f.want(leased == c.leased && returned == c.returned, "%s: leased %d returned %d, counted %d %d", name, leased, returned, c.leased, c.returned)
	f.want(len(c.window) == 0 || c.window[0].state != settled, "%s: floor %d is settled", name, c.floor)
	f.want(c.next() <= c.b.durable(), "%s: next %d is over durable %d", name, c.next(), c.b.durable())
	f.want(len(c.window) <= windowMax+maxInFlight, "%s: window of %d", name, len(c.window))
	if c.next() < c.b.durable() && len(c.window) < c.windowMax() {
		f.want(!c.b.isDead(c.next()), "%s: next %d is dead", name, c.next())
	}
	if !c.deliverable() {
		f.want(!c.entry.Ready() && !c.entry.Parked(), "%s has nothing to deliver and is in the ready set", name)
	} else if target, parked := c.entry.Gate(); parked {
		f.want(target.Scope <= suspend.Row, "%s: parked on %v", name, target)
		f.want(m.willOpen(now, c, target), "%s: lost wake-up: parked on %v, which nothing will open", name, target)
		f.want(c.since != 0, "%s: waits since never", name)
	} else {
		f.want(c.entry.Ready(), "%s: lost wake-up: deliverable and nowhere", name)
	}
	f.want(c.entry.Level() == readyset.Level(c.b.level), "%s: level %d in the set, %d in force", name, c.entry.Level(), c.b.level)
	f.want(c.inFlight > 0 && (m.review > 0 || c.inFlight == c.g.mayFly(c.where())), "%s: %d may be out", name, c.inFlight)
	f.want(c.link == nil || c.link.cursor == c, "%s: its link does not know it", name)
	f.want((c.link != nil) == (c.g.links[c.b.name] != nil), "%s: link missing or left over", name)
}

// willOpen is whether something is to come that has the bucket look again: a hold that
// ends, a limit's timer, something in flight, or what is under way already.
func (m *Machine) willOpen(now time.Time, c *cursor, target suspend.Target) bool {
	if _, held := c.g.holds.Get(target); held {
		return true
	}
	if m.review > 0 || m.freed.has(freed{c.g, target}) || c.g.opens(target) {
		return true
	}
	next, armed := c.g.ledger.Next()
	gate, closed := c.g.ledger.Look(now, target)
	switch {
	case !closed: // its timer is due, or is that of a window that is too small for the head
		return armed
	case gate.Until.IsZero():
		return c.g.leases > 0
	default:
		return armed && !next.After(gate.Until)
	}
}

// checkStart panics if a message is about to go though a gate of its bucket is closed.
func (m *Machine) checkStart(now time.Time, c *cursor, a quota.Ask) {
	if h, held := c.g.holds.Blocking(now, a.Place); held {
		panic(fmt.Sprintf("dispatch: %q goes beside the hold of %v", c.b.name, h.Target))
	}
	gate, closed := c.g.ledger.Narrow(now, a.Place)
	for _, t := range wideTargets(a.Place) {
		if !closed {
			gate, closed = c.g.ledger.Look(now, t)
		}
	}
	if closed {
		panic(fmt.Sprintf("dispatch: %q goes though %v is closed by its %s", c.b.name, gate.Target, gate.Limit))
	}
}

func (m *Machine) checkGroup(f *faults, g *group) (polls, subscriptions int) {
	name := fmt.Sprintf("group %d", g.cfg.ID)
	if err := g.set.Check(); err != nil {
		f.errs = append(f.errs, err)
	}
	at, ok := g.holds.Next()
	f.want(g.item.Armed() == ok && (!ok || g.item.At().Equal(at)), "%s: its holds end unheard", name)
	for t, why := range g.shut {
		_, held := g.holds.Get(t)
		f.want(why != 0 && held == (why&byHold != 0), "%s: %v is closed for %b, held %v", name, t, why, held)
	}
	ready := map[*opening]int{}
	for c, o := range g.offers {
		f.want(c.entry.Ready(), "%s: %q is offered and not ready", name, c.b.name)
		ready[o.of]++
	}
	for t, o := range g.open {
		f.want(o.target == t && o.ready == ready[o], "%s: %d of %v are offered, counted %d", name, ready[o], t, o.ready)
	}
	waiting := 0
	for _, mb := range g.members {
		f.want(!mb.gone && m.clients[mb.client.name] == mb.client, "%s: member %q is gone", name, mb.client.name)
		polls += mb.waiters.len
		subscriptions += len(mb.subs)
		if mb.wildcard {
			waiting += mb.waiters.len
		} else if mb.set != nil && mb.waiters.len > 0 && mb.set.Ready() > 0 {
			f.want(mb.eager && g.hungry, "%s: member %q waits beside ready buckets", name, mb.client.name)
		}
		if mb.set != nil {
			if err := mb.set.Check(); err != nil {
				f.errs = append(f.errs, err)
			}
		}
		for n, s := range mb.subs {
			f.want(g.links[n] == s.link && s.member == mb, "%s: subscription %q has another link", name, n)
			if c := s.link.cursor; c != nil {
				f.want(s.entry.Ready() == c.entry.Ready() && !s.entry.Parked(), "%s: subscription %q disagrees with its bucket", name, n)
			}
		}
	}
	f.want(waiting == g.waiting.len, "%s: %d wildcard polls, queue of %d", name, waiting, g.waiting.len)
	f.want(g.waiting.len == 0 || g.set.Ready() == 0 || g.hungry, "%s: polls wait beside ready buckets", name)
	for n, l := range g.links {
		f.want(l.first != nil, "%s: link %q has no subscriber", name, n)
		b := m.byName[n]
		f.want((l.cursor != nil) == (b != nil), "%s: link %q and its bucket disagree", name, n)
	}
	return polls, subscriptions
}
