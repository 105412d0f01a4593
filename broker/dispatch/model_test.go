package dispatch

import (
	"fmt"
	"slices"
	"time"

	"github.com/penstockmq/penstock/broker/lite"
	"github.com/penstockmq/penstock/suspend"
	"github.com/penstockmq/penstock/suspend/quota"
	"pgregory.net/rapid"
)

// The naive model: every message of every bucket in a list, every question answered
// by looking at all of them.

type modelMessage struct {
	deadline time.Time
	// dead: cancelled or purged. That it is past its deadline the machine may or may
	// not have noticed.
	dead bool
	// recovered: its deadline is known to its reader only.
	recovered bool
	groups    map[GroupID]*modelPlace
}

type modelPlace struct {
	settled  bool
	attempts uint32
	lease    *modelLease
}

type modelLease struct {
	token     Token
	until     time.Time
	attempt   uint32
	client    string
	autoRenew bool
	first     time.Time
	ticket    quota.Ticket
	freed     bool // its worker told what it cost, and keeps it a while
}

type modelBucket struct {
	id   BucketID
	msgs []*modelMessage
	idle time.Time // since when it may be idle: last append or settlement
}

type modelWaiter struct {
	group  GroupID
	client string
	max    int
	until  time.Time
}

type modelSub struct {
	wildcard bool
	names    map[string]bool
}

type model struct {
	t *rapid.T
	r *rig
	// small are the shares of a turn, nil if they are as ever.
	small   *shares
	groups  map[GroupID]GroupConfig
	buckets map[string]*modelBucket
	holds   map[holdKey]time.Time
	subs    map[subscriptionKey]*modelSub
	seen    map[string]time.Time
	waiters map[*Waiter]*modelWaiter
	handles []Handle
	dead    int

	ledgers map[GroupID]*quota.Ledger
	// since is from when on buckets waited for nothing but gates and turn.
	since map[placeKey]int64
	// signals, rates are drawn in this run. steps: the clock is set in it, and there are no
	// limits, whose ledgers see a step when they are next asked.
	signals, rates, steps bool
	// restarted: the machine was, and the model's ledgers were not. unsure: so they may
	// differ by now.
	restarted, unsure bool
	// changed: the policy was changed when something had been charged.
	changed bool
	// stamps are the levels that senders gave.
	stamps map[string]int8
	// costs are those on disk.
	costs map[messageKey]MessageCost
	// undone are what charged noted in this turn.
	undone []undone
}

type undone struct {
	g      GroupID
	name   string
	ticket quota.Ticket
}

func (p *model) live(b *modelBucket, msg *modelMessage, g GroupID) bool {
	pl := msg.groups[g]
	return !msg.dead && !pl.settled && pl.lease == nil && !p.overdue(msg)
}

func (p *model) overdue(msg *modelMessage) bool {
	return !msg.deadline.IsZero() && !p.r.now.Before(msg.deadline)
}

func (p *model) closed(g GroupID, name string) bool {
	c := cellOf(name)
	for _, t := range []suspend.Target{
		{Scope: suspend.Bucket, Name: name},
		{Scope: suspend.Row, Name: c.User},
		{Scope: suspend.Column, Name: c.Model},
		{Scope: suspend.Level, Name: fmt.Sprint(p.place(name).Level)},
		{Scope: suspend.All},
	} {
		if p.holds[holdKey{g, t}].After(p.r.now) {
			return true
		}
	}
	return false
}

// next is the offset a group must get next from a bucket; -1 for none.
func (p *model) next(g GroupID, name string) int {
	b := p.buckets[name]
	if b == nil || p.closed(g, name) {
		return -1
	}
	first, leases := -1, 0
	for off, msg := range b.msgs {
		if msg.groups[g].lease != nil {
			leases++
		}
		if first < 0 && p.live(b, msg, g) {
			first = off
		}
	}
	if leases >= p.mayFly(g, name) {
		return -1
	}
	return first
}

func (p *model) reads(g GroupID, client, name string) bool {
	if p.groups[g].Wildcard {
		return true
	}
	s := p.subs[subscriptionKey{g, client}]
	return s != nil && (s.wildcard || s.names[name])
}

// turn takes turns of the machine until nothing read is missing, and judges what
// came of them.
func (p *model) turn() {
	for n := 0; p.oneTurn(); n++ {
		if n == 10_000 {
			p.t.Fatalf("the machine is not done after %d turns at one instant", n)
		}
	}
	for _, w := range p.waiters {
		if !w.until.After(p.r.now) {
			p.t.Fatalf("a poll outlived its time")
		}
		for name := range p.buckets {
			if off := p.next(w.group, name); off >= 0 && p.reads(w.group, w.client, name) && !p.limited(w.group, name, off) && !p.behindUnread(w.group, name, off) {
				p.t.Fatalf("lost wake-up: %v waits beside message %d of %q", w, off, name)
			}
		}
	}
	p.judgeDisk()
	p.judgeAccounts()
}

func (p *model) ended(polls []*Waiter) {
	for _, w := range polls {
		mw := p.waiters[w]
		if mw == nil || mw.until.After(p.r.now) {
			p.t.Fatalf("a poll ended early: %v", mw)
		}
		delete(p.waiters, w)
	}
}

// oneTurn reports whether the machine has to look again, as it delivered a message
// that is not in the store.
func (p *model) oneTurn() (again bool) {
	p.tick()
	p.look()
	p.tickAll()
	e := p.r.turn()
	p.buried(e.Writes)
	var missing, expired []Handle
	for _, d := range e.Deliveries {
		w := p.waiters[d.Waiter]
		if w == nil {
			p.t.Fatalf("a poll was answered that did not wait")
		}
		delete(p.waiters, d.Waiter)
		if len(d.Items) == 0 || len(d.Items) > w.max {
			p.t.Fatalf("a poll for %d messages got %d", w.max, len(d.Items))
		}
		seen := map[string]bool{}
		for _, it := range d.Items {
			if seen[it.Name] {
				p.t.Fatalf("two messages of %q in one answer", it.Name)
			}
			seen[it.Name] = true
			if !p.r.disk.messages[messageKey{it.Handle.Bucket, it.Handle.Offset}] {
				if !p.ghost(it.Handle) {
					p.t.Fatalf("message %d of %q was deleted and delivered", it.Handle.Offset, it.Name)
				}
				missing = append(missing, it.Handle)
				p.charged(w.group, it)
				continue
			}
			if b, _ := p.find(it.Handle); b != nil && b.msgs[it.Handle.Offset].recovered && p.overdue(b.msgs[it.Handle.Offset]) {
				expired = append(expired, it.Handle)
				p.charged(w.group, it)
				continue
			}
			p.delivered(w, it)
		}
	}
	p.ended(e.EmptyPulls)
	for _, h := range missing {
		p.r.m.Missing(p.r.now, h)
	}
	for _, h := range expired {
		p.r.m.Expire(p.r.now, h)
	}
	for _, it := range p.undone {
		p.ledgers[it.g].Free(p.r.now, p.place(it.name), it.ticket, quota.Settlement{Outcome: quota.Unsent})
	}
	p.undone = p.undone[:0]
	wake, ok := p.r.m.NextWake()
	return len(missing)+len(expired) > 0 || ok && !wake.After(p.r.now)
}

// charged notes a delivery that is undone at once: its message is not there.
func (p *model) charged(g GroupID, it Item) {
	t := p.charge(g, it.Name, int(it.Handle.Offset))
	p.undone = append(p.undone, undone{g, it.Name, t})
}

func (p *model) ghost(h Handle) bool { return p.r.disk.ghosts[messageKey{h.Bucket, h.Offset}] }

func (p *model) delivered(w *modelWaiter, it Item) {
	g, name := w.group, it.Name
	if !p.reads(g, w.client, name) {
		p.t.Fatalf("%q got %q, which it does not read", w.client, name)
	}
	if want := p.next(g, name); want != int(it.Handle.Offset) {
		p.t.Fatalf("group %d got message %d of %q, want %d", g, it.Handle.Offset, name, want)
	}
	b := p.buckets[name]
	pl := b.msgs[it.Handle.Offset].groups[g]
	if it.Attempt != pl.attempts+1 {
		p.t.Fatalf("message %d of %q: attempt %d, want %d", it.Handle.Offset, name, it.Attempt, pl.attempts+1)
	}
	if off := int(it.Handle.Offset); !p.unsure && (p.limited(g, name, off) || p.never(g, name, off)) {
		p.t.Fatalf("message %d of %q went beside a limit", it.Handle.Offset, name)
	}
	pl.lease = &modelLease{token: it.Handle.Token, until: it.Until, attempt: it.Attempt, client: w.client, autoRenew: w.client == "c1", first: p.r.now}
	pl.lease.ticket = p.charge(g, name, int(it.Handle.Offset))
	p.handles = append(p.handles, it.Handle)
}

// judgeDisk compares what is on disk, which is all that a restart will know.
func (p *model) judgeDisk() {
	leases := 0
	for name, b := range p.buckets {
		s, ok := p.r.disk.buckets[name]
		if !ok || s.ID != b.id || int(s.Tail) != len(b.msgs) {
			p.t.Fatalf("bucket %q on disk: %+v, want id %d tail %d", name, s, b.id, len(b.msgs))
		}
		for off, msg := range b.msgs {
			waits := false
			for g, pl := range msg.groups {
				waits = waits || (!pl.settled && !msg.dead && !p.overdue(msg))
				l := pl.lease
				if l == nil {
					continue
				}
				waits = true
				leases++
				got := p.r.disk.leases[leaseKey{g, b.id, Offset(off)}]
				if got.Token != l.token || got.Attempt != l.attempt || !got.Until.Equal(l.until) {
					p.t.Fatalf("lease of %d in %q on disk: %+v, want %+v", off, name, got, l)
				}
			}
			if waits && !p.r.disk.messages[messageKey{b.id, Offset(off)}] {
				p.t.Fatalf("message %d of %q is lost", off, name)
			}
		}
	}
	p.judgeCounts()
	if leases != len(p.r.disk.leases) {
		p.t.Fatalf("%d leases on disk, want %d", len(p.r.disk.leases), leases)
	}
	if len(p.r.disk.dead) != p.dead {
		p.t.Fatalf("%d dead letters, want %d", len(p.r.disk.dead), p.dead)
	}
	for k, s := range p.subs {
		got := p.r.disk.subscriptions[k]
		want := slices.Sorted(func(yield func(string) bool) {
			for n := range s.names {
				if !yield(n) {
					return
				}
			}
		})
		if got.Wildcard != s.wildcard || !slices.Equal(got.Names, want) {
			p.t.Fatalf("subscription %v on disk: %+v, want %+v", k, got, s)
		}
	}
}

// tick is what time does.
func (p *model) tick() {
	now := p.r.now
	for k, until := range p.holds {
		if !until.After(now) {
			delete(p.holds, k)
		}
	}
	for name, b := range p.buckets {
		for _, msg := range b.msgs {
			for g, pl := range msg.groups {
				l := pl.lease
				if l == nil || l.until.After(now) {
					continue
				}
				seen, known := p.seen[l.client]
				if l.autoRenew && known && now.Sub(seen) <= renewSeen && l.first.Add(renewMax).After(now) {
					l.until = now.Add(defaultInvisible)
					if last := l.first.Add(renewMax); l.until.After(last) {
						l.until = last
					}
					continue
				}
				pl.lease, pl.attempts = nil, l.attempt
				p.free(g, name, l, quota.Settlement{})
				if int(l.attempt) >= p.groups[g].MaxAttempts {
					pl.settled = true
					p.dead++
					b.idle = now
				}
			}
		}
	}
}

func (p *model) find(h Handle) (*modelBucket, *modelPlace) {
	for _, b := range p.buckets {
		if b.id == h.Bucket {
			return b, b.msgs[h.Offset].groups[h.Group]
		}
	}
	return nil, nil
}

// nameOf is the bucket of a handle.
func (p *model) nameOf(h Handle) string {
	for name, b := range p.buckets {
		if b.id == h.Bucket {
			return name
		}
	}
	return ""
}

// current is the place of a handle whose lease runs.
func (p *model) current(h Handle) *modelPlace {
	_, pl := p.find(h)
	if pl == nil || pl.lease == nil || pl.lease.token != h.Token {
		return nil
	}
	return pl
}

func (p *model) kill(b *modelBucket, msg *modelMessage) bool {
	waits := false
	for _, pl := range msg.groups {
		if pl.lease != nil {
			return false
		}
		waits = waits || !pl.settled
	}
	if msg.dead || !waits {
		return false
	}
	msg.dead = true
	return true
}

// mayGo fails if a bucket was deleted that is in use.
func (p *model) mayGo(name string) {
	b := p.buckets[name]
	if age := p.r.now.Sub(b.idle); age < 5*time.Minute {
		p.t.Fatalf("%q was deleted after %v", name, age)
	}
	for g := range p.groups {
		if p.holds[holdKey{g, suspend.Target{Scope: suspend.Bucket, Name: name}}].After(p.r.now) {
			p.t.Fatalf("%q was deleted while it is held", name)
		}
	}
	for off, msg := range b.msgs {
		for g, pl := range msg.groups {
			if pl.lease != nil || (!msg.dead && !pl.settled && !p.overdue(msg)) {
				p.t.Fatalf("%q was deleted with message %d in group %d", name, off, g)
			}
		}
	}
}

func (p *model) subscribe(k subscriptionKey, action SyncAction, names []string) {
	s := p.subs[k]
	if s == nil || action == CompleteAdd || action == CompleteRemove {
		s = &modelSub{names: map[string]bool{}}
		p.subs[k] = s
	}
	if action == CompleteRemove {
		delete(p.subs, k)
		for w, mw := range p.waiters {
			if mw.group == k.group && mw.client == k.client {
				mw.until = p.r.now // it ends with the membership
				_ = w
			}
		}
		return
	}
	for _, n := range names {
		switch add := action != PartialRemove; {
		case n == lite.Wildcard:
			s.wildcard = add
		case add:
			s.names[n] = true
		default:
			delete(s.names, n)
		}
	}
}

func (w *modelWaiter) String() string { return fmt.Sprintf("%s of group %d", w.client, w.group) }
