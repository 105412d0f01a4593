package dispatch

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/penstockmq/penstock/broker/lite"
	"github.com/penstockmq/penstock/suspend"
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
	t       *rapid.T
	r       *rig
	groups  map[GroupID]GroupConfig
	buckets map[string]*modelBucket
	holds   map[holdKey]time.Time
	subs    map[subscriptionKey]*modelSub
	seen    map[string]time.Time
	waiters map[*Waiter]*modelWaiter
	handles []Handle
	dead    int
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
		{Scope: suspend.Level, Name: "1"},
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
	if leases >= max(1, p.groups[g].InFlight) {
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
	for p.oneTurn() {
	}
	for _, w := range p.waiters {
		if !w.until.After(p.r.now) {
			p.t.Fatalf("a poll outlived its time")
		}
		for name := range p.buckets {
			if off := p.next(w.group, name); off >= 0 && p.reads(w.group, w.client, name) {
				p.t.Fatalf("lost wake-up: %v waits beside message %d of %q", w, off, name)
			}
		}
	}
	p.judgeDisk()
}

// oneTurn reports whether the machine has to look again, as it delivered a message
// that is not in the store.
func (p *model) oneTurn() (again bool) {
	p.tick()
	e := p.r.turn()
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
				continue
			}
			if b, _ := p.find(it.Handle); b != nil && b.msgs[it.Handle.Offset].recovered && p.overdue(b.msgs[it.Handle.Offset]) {
				expired = append(expired, it.Handle)
				continue
			}
			p.delivered(w, it)
		}
	}
	for _, w := range e.EmptyPulls {
		mw := p.waiters[w]
		if mw == nil || mw.until.After(p.r.now) {
			p.t.Fatalf("a poll ended early: %v", mw)
		}
		delete(p.waiters, w)
	}
	for _, h := range missing {
		p.r.m.Missing(p.r.now, h)
	}
	for _, h := range expired {
		p.r.m.Expire(p.r.now, h)
	}
	return len(missing)+len(expired) > 0
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
	pl.lease = &modelLease{token: it.Handle.Token, until: it.Until, attempt: it.Attempt, client: w.client, autoRenew: w.client == "c1", first: p.r.now}
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
	for _, b := range p.buckets {
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

func TestModel(t *testing.T) {
	rapid.Check(t, runModel)
}

func runModel(t *rapid.T) {
	groups := []GroupConfig{
		{Name: "wild", ID: 1, Wildcard: true, MaxAttempts: 3},
		{Name: "exact", ID: 2, MaxAttempts: 4, InFlight: 3},
	}
	if rapid.Bool().Draw(t, "one group") {
		groups = groups[:1]
	}
	p := &model{
		t: t, r: newRig(t, TopicConfig{TTL: 5 * time.Minute}, groups...), groups: map[GroupID]GroupConfig{},
		buckets: map[string]*modelBucket{}, holds: map[holdKey]time.Time{}, subs: map[subscriptionKey]*modelSub{},
		seen: map[string]time.Time{}, waiters: map[*Waiter]*modelWaiter{},
	}
	for _, g := range groups {
		p.groups[g.ID] = g
	}
	names := []string{"alice__m", "alice__n", "bob__m", "other"}
	name := rapid.SampledFrom(names)
	client := rapid.SampledFrom([]string{"c1", "c2", "c3"})
	group := rapid.SampledFrom(groups)
	millis := func(most int) *rapid.Generator[int] { return rapid.IntRange(0, most) }
	handle := func(t *rapid.T) (Handle, bool) {
		if len(p.handles) == 0 {
			return Handle{}, false
		}
		last := len(p.handles) - 1 // recent ones are more likely to be current
		return p.handles[last-min(last, rapid.IntRange(0, 12).Draw(t, "handle"))], true
	}
	target := rapid.Custom(func(t *rapid.T) suspend.Target {
		return rapid.SampledFrom([]suspend.Target{
			{Scope: suspend.Bucket, Name: "alice__m"},
			{Scope: suspend.Bucket, Name: "bob__m"},
			{Scope: suspend.Row, Name: "alice"},
			{Scope: suspend.Row, Name: "bob"},
			{Scope: suspend.Column, Name: "m"},
			{Scope: suspend.Level, Name: "1"},
			{Scope: suspend.All},
		}).Draw(t, "target")
	})
	t.Repeat(map[string]func(*rapid.T){
		"append": func(t *rapid.T) {
			n := name.Draw(t, "name")
			msgs := make([]MessageMeta, rapid.IntRange(1, 4).Draw(t, "n"))
			for i := range msgs {
				msgs[i].Size = rapid.IntRange(0, 2).Draw(t, "size")
				if rapid.IntRange(0, 5).Draw(t, "deadline") == 0 {
					msgs[i].Deadline = p.r.now.Add(time.Duration(1+millis(60_000).Draw(t, "ms")) * time.Millisecond)
				}
			}
			a := p.r.send(n, msgs...)
			b := p.buckets[n]
			if a.Created != (b == nil) {
				t.Fatalf("created %v, want %v", a.Created, b == nil)
			}
			if b == nil {
				b = &modelBucket{id: a.Bucket}
				p.buckets[n] = b
			}
			if int(a.First) != len(b.msgs) || a.Bucket != b.id {
				t.Fatalf("append to %q: %+v, want offset %d of %d", n, a, len(b.msgs), b.id)
			}
			for _, msg := range msgs {
				mm := &modelMessage{deadline: msg.Deadline, groups: map[GroupID]*modelPlace{}}
				for id := range p.groups {
					mm.groups[id] = &modelPlace{}
				}
				b.msgs = append(b.msgs, mm)
			}
			b.idle = p.r.now
		},
		"pull": func(t *rapid.T) {
			g, c := group.Draw(t, "group").ID, client.Draw(t, "client")
			w := &modelWaiter{group: g, client: c, max: rapid.IntRange(1, 4).Draw(t, "max"), until: p.r.now.Add(time.Duration(millis(20_000).Draw(t, "wait")) * time.Millisecond)}
			got, err := p.r.m.Pull(p.r.now, PullRequest{Group: g, Client: c, Max: w.max, Invisible: time.Duration(1+millis(60_000).Draw(t, "invisible")) * time.Millisecond, AutoRenew: c == "c1", Until: w.until})
			if err != nil {
				t.Fatal(err)
			}
			p.waiters[got] = w
			p.seen[c] = p.r.now
			if rapid.IntRange(0, 9).Draw(t, "leaves") == 0 {
				p.r.m.CancelPull(got)
				delete(p.waiters, got)
			}
		},
		"ack": func(t *rapid.T) {
			h, ok := handle(t)
			if !ok {
				return
			}
			err := p.r.m.Ack(p.r.now, h)
			b, pl := p.find(h)
			overtaken := pl != nil && pl.lease != nil && pl.lease.token != h.Token
			if (err != nil) != overtaken {
				t.Fatalf("ack of %v: %v, overtaken %v", h, err, overtaken)
			}
			if pl != nil && !overtaken {
				pl.settled, pl.lease = true, nil
				b.idle = p.r.now
			}
		},
		"suspend": func(t *rapid.T) {
			h, ok := handle(t)
			if !ok {
				return
			}
			d := time.Duration(millis(30_000).Draw(t, "ms")) * time.Millisecond
			if err := p.r.m.Suspend(p.r.now, h, d, "w", ""); err != nil {
				t.Fatal(err)
			}
			if pl := p.current(h); pl != nil {
				pl.attempts, pl.lease = pl.lease.attempt-1, nil
				for n, b := range p.buckets {
					k := holdKey{h.Group, suspend.Target{Scope: suspend.Bucket, Name: n}}
					if until := p.r.now.Add(d); b.id == h.Bucket && d > 0 && until.After(p.holds[k]) {
						p.holds[k] = until
					}
				}
			}
		},
		"change invisible": func(t *rapid.T) {
			h, ok := handle(t)
			if !ok {
				return
			}
			d := time.Duration(millis(60_000).Draw(t, "ms")) * time.Millisecond
			renewed, err := p.r.m.ChangeInvisible(p.r.now, h, d)
			pl := p.current(h)
			if (err == nil) != (pl != nil) {
				t.Fatalf("change invisible: %v, current %v", err, pl)
			}
			if pl != nil {
				pl.lease.token, pl.lease.until, pl.lease.autoRenew = renewed.Token, p.r.now.Add(d), false
				p.handles = append(p.handles, renewed)
			}
		},
		"release": func(t *rapid.T) {
			if h, ok := handle(t); ok {
				p.r.m.Release(p.r.now, h)
				if pl := p.current(h); pl != nil {
					pl.attempts, pl.lease = pl.lease.attempt-1, nil
				}
			}
		},
		"dead letter": func(t *rapid.T) {
			h, ok := handle(t)
			if !ok {
				return
			}
			b, pl := p.find(h)
			if pl != nil && pl.lease == nil && (b.msgs[h.Offset].dead || p.overdue(b.msgs[h.Offset])) {
				return // whether it is still there is the machine's business
			}
			err := p.r.m.DeadLetter(p.r.now, h, "test")
			good := pl != nil && !pl.settled && (pl.lease == nil || pl.lease.token == h.Token)
			if (err == nil) != good {
				t.Fatalf("dead letter: %v, want good %v", err, good)
			}
			if good {
				pl.settled, pl.lease = true, nil
				p.dead++
				b.idle = p.r.now
			}
		},
		"cancel": func(t *rapid.T) {
			n := name.Draw(t, "name")
			b := p.buckets[n]
			if b == nil {
				return
			}
			off := rapid.IntRange(0, len(b.msgs)-1).Draw(t, "off")
			msg := b.msgs[off]
			got := p.r.m.Cancel(p.r.now, n, b.id, Offset(off))
			running := false
			for _, pl := range msg.groups {
				running = running || pl.lease != nil
			}
			killed := p.kill(b, msg)
			b.idle = p.r.now
			if p.ghost(Handle{Bucket: b.id, Offset: Offset(off)}) {
				return // known to be gone when it is read
			}
			if running != (got == Running) || (killed != (got == Cancelled) && !p.overdue(msg)) {
				t.Fatalf("cancel: %d, running %v, killed %v", got, running, killed)
			}
		},
		"purge": func(t *rapid.T) {
			n := name.Draw(t, "name")
			got, want, unsure, ghosts := p.r.m.Purge(p.r.now, n), 0, 0, 0
			if b := p.buckets[n]; b != nil {
				for off, msg := range b.msgs {
					if p.ghost(Handle{Bucket: b.id, Offset: Offset(off)}) {
						ghosts++
					}
					if p.kill(b, msg) {
						if want++; p.overdue(msg) {
							unsure++
						}
					}
				}
				b.idle = p.r.now
			}
			if got > want+ghosts || got < want-unsure {
				t.Fatalf("purged %d, want %d (%d of them past their deadline)", got, want, unsure)
			}
		},
		"hold": func(t *rapid.T) {
			g, tg := group.Draw(t, "group").ID, target.Draw(t, "target")
			k, until := holdKey{g, tg}, p.r.now.Add(time.Duration(millis(30_000).Draw(t, "ms"))*time.Millisecond)
			h := suspend.Hold{Target: tg, Until: until}
			var err error
			switch rapid.IntRange(0, 3).Draw(t, "how") {
			case 0:
				_, err = p.r.m.LiftHold(p.r.now, g, tg)
				delete(p.holds, k)
			case 1:
				err = p.r.m.SetHold(p.r.now, g, h)
				p.holds[k] = until
			default:
				_, err = p.r.m.ExtendHold(p.r.now, g, h)
				if until.After(p.holds[k]) {
					p.holds[k] = until
				}
			}
			if err != nil {
				t.Fatal(err)
			}
		},
		"subscribe": func(t *rapid.T) {
			c, action := client.Draw(t, "client"), SyncAction(rapid.IntRange(0, 3).Draw(t, "action"))
			picked := rapid.SliceOfN(rapid.SampledFrom(append([]string{lite.Wildcard}, names...)), 0, 4).Draw(t, "names")
			if _, ok := p.groups[2]; !ok {
				return
			}
			if _, err := p.r.m.SyncSubscription(p.r.now, SyncRequest{Group: 2, Client: c, Action: action, Names: picked}); err != nil {
				t.Fatal(err)
			}
			p.seen[c] = p.r.now
			p.subscribe(subscriptionKey{2, c}, action, picked)
		},
		"touch": func(t *rapid.T) {
			c := client.Draw(t, "client")
			p.r.m.Touch(p.r.now, c)
			p.seen[c] = p.r.now
		},
		"time": func(t *rapid.T) {
			p.r.now = p.r.now.Add(time.Duration(millis(40_000).Draw(t, "ms")) * time.Millisecond)
			for c := range p.seen { // silence is another test's matter
				if p.r.now.Sub(p.seen[c]) > time.Minute {
					p.r.m.Touch(p.r.now, c)
					p.seen[c] = p.r.now
				}
			}
			p.turn()
		},
		"restart": func(t *rapid.T) {
			p.turn()
			p.r.m = p.r.disk.start(p.r.now)
			p.waiters = map[*Waiter]*modelWaiter{}
			p.seen = map[string]time.Time{}
			for _, b := range p.buckets {
				for _, msg := range b.msgs {
					msg.recovered = true
				}
			}
			for k := range p.r.disk.subscriptions { // who has one is waited for
				p.seen[k.client] = p.r.now
			}
			p.turn()
		},
		"sweep": func(t *rapid.T) {
			p.turn()
			for _, id := range sorted(p.r.disk.expiry) {
				e := p.r.disk.expiry[id]
				s, found := p.r.disk.buckets[e.Name]
				if e.At.After(p.r.now) || !p.r.m.Sweep(p.r.now, e, s, found) {
					continue
				}
				p.mayGo(e.Name)
				delete(p.buckets, e.Name)
			}
			p.turn()
		},
		"turn": func(*rapid.T) { p.turn() },
	})
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
