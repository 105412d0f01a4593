package dispatch

import (
	"testing"
	"time"

	"github.com/penstockmq/penstock/broker/lite"
	"github.com/penstockmq/penstock/suspend"
	"github.com/penstockmq/penstock/suspend/policy"
	"github.com/penstockmq/penstock/suspend/quota"
	"pgregory.net/rapid"
)

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
	} else {
		groups[1].Unlimited = rapid.IntRange(0, 3).Draw(t, "unlimited") == 0
	}
	p := &model{
		t: t, r: newRig(t, TopicConfig{TTL: 5 * time.Minute}, groups...), groups: map[GroupID]GroupConfig{},
		buckets: map[string]*modelBucket{}, holds: map[holdKey]time.Time{}, subs: map[subscriptionKey]*modelSub{},
		seen: map[string]time.Time{}, waiters: map[*Waiter]*modelWaiter{}, ledgers: map[GroupID]*quota.Ledger{},
	}
	p.steps = rapid.IntRange(0, 3).Draw(t, "steps") == 0
	p.signals = rapid.IntRange(0, 2).Draw(t, "signals") == 0 && !p.steps
	if rapid.Bool().Draw(t, "small turns") {
		p.small = &shares{
			clients: rapid.IntRange(1, 3).Draw(t, "clients"), holds: rapid.IntRange(1, 3).Draw(t, "holds"),
			leases: rapid.IntRange(1, 3).Draw(t, "leases"), limits: rapid.IntRange(1, 3).Draw(t, "limits"),
			reviews: rapid.IntRange(1, 3).Draw(t, "reviews"), polls: rapid.IntRange(1, 3).Draw(t, "polls"),
			looks: rapid.IntRange(1, 4).Draw(t, "looks"), gates: rapid.IntRange(1, 4).Draw(t, "gates"),
			expiries: rapid.IntRange(1, 3).Draw(t, "expiries"),
		}
		p.shrink()
	}
	p.rates = rapid.Bool().Draw(t, "rates")
	p.unsure = p.signals || p.rates
	for _, g := range groups {
		p.groups[g.ID] = g
		p.ledgers[g.ID] = quota.New(policy.Empty())
	}
	names := []string{"alice__m", "alice__n", "alice__o", "bob__m", "other"}
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
			{Scope: suspend.Level, Name: "3"},
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
			p.r.cost = drawCost(t)
			p.r.stamp = int8(max(0, rapid.IntRange(-8, 4).Draw(t, "stamp")))
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
			var s quota.Settlement
			var err error
			if rapid.Bool().Draw(t, "plain") {
				err = p.r.m.Ack(p.r.now, h)
			} else {
				s = drawSettlement(t)
				err = p.r.m.Settle(p.r.now, h, s, ThenAck())
			}
			b, pl := p.find(h)
			overtaken := pl != nil && pl.lease != nil && pl.lease.token != h.Token
			if (err != nil) != overtaken {
				t.Fatalf("ack of %v: %v, overtaken %v", h, err, overtaken)
			}
			if pl != nil && !overtaken {
				if pl.lease != nil {
					p.free(h.Group, p.nameOf(h), pl.lease, s)
				}
				if !pl.settled {
					b.idle = p.r.now
				}
				pl.settled, pl.lease = true, nil
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
				p.free(h.Group, p.nameOf(h), pl.lease, quota.Settlement{Outcome: quota.Unused})
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
			err := p.r.m.ChangeInvisible(p.r.now, h, d)
			pl := p.current(h)
			if (err == nil) != (pl != nil) {
				t.Fatalf("change invisible: %v, current %v", err, pl)
			}
			if pl != nil {
				pl.lease.until, pl.lease.autoRenew = p.r.now.Add(d), false
			}
		},
		"release": func(t *rapid.T) {
			if h, ok := handle(t); ok {
				p.r.m.Release(p.r.now, h)
				if pl := p.current(h); pl != nil {
					p.free(h.Group, p.nameOf(h), pl.lease, quota.Settlement{Outcome: quota.Unsent})
					pl.attempts, pl.lease = pl.lease.attempt-1, nil
				}
			}
		},
		"retry": func(t *rapid.T) {
			h, ok := handle(t)
			if !ok {
				return
			}
			d, s := time.Duration(millis(30_000).Draw(t, "ms"))*time.Millisecond, drawSettlement(t)
			err := p.r.m.Settle(p.r.now, h, s, ThenRetry(d))
			pl := p.current(h)
			if (err == nil) != (pl != nil) {
				t.Fatalf("retry: %v, current %v", err, pl)
			}
			if pl != nil {
				p.free(h.Group, p.nameOf(h), pl.lease, s)
				b := p.r.m.byID[h.Bucket]
				pl.lease.token, pl.lease.until, pl.lease.autoRenew = b.cursor(h.Group).at(h.Offset).lease.token, p.r.now.Add(d), false
			}
		},
		"policy": func(t *rapid.T) {
			if !p.steps {
				p.setPolicy(t)
			}
		},
		"clock step": func(t *rapid.T) {
			if p.steps {
				p.step(rapid.SampledFrom([]time.Duration{-2 * time.Hour, -90 * time.Second, 90 * time.Second, 2 * time.Hour}).Draw(t, "step"))
			}
		},
		"pause": func(t *rapid.T) { p.pause(time.Duration(millis(90_000).Draw(t, "ms")) * time.Millisecond) },
		"signal": func(t *rapid.T) {
			if p.signals {
				p.setSignal(t)
			}
		},
		"explain": func(t *rapid.T) { p.explain(name.Draw(t, "name"), group.Draw(t, "group").ID) },
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
				if pl.lease != nil {
					p.free(h.Group, p.nameOf(h), pl.lease, quota.Settlement{})
				}
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
			if got == Cancelled {
				b.idle = p.r.now
			}
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
				if got > 0 {
					b.idle = p.r.now
				}
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
			if p.signals {
				return // how far a factor had risen is not kept
			}
			before := p.r.m.Stats()
			exact := rapid.IntRange(0, 3).Draw(t, "dead forgotten") > 0
			if !exact {
				p.r.disk.forgetDead()
			}
			p.r.m = p.r.disk.start(p.r.now)
			p.shrink()
			if after := p.r.m.Stats(); exact && (after.Messages != before.Messages || after.Bytes != before.Bytes) {
				t.Fatalf("%d messages of %d bytes before a restart, %d of %d after it", before.Messages, before.Bytes, after.Messages, after.Bytes)
			}
			p.restartLedgers()
			p.grace()
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
