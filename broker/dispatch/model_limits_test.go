package dispatch

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/penstockmq/penstock/suspend"
	"github.com/penstockmq/penstock/suspend/policy"
	"github.com/penstockmq/penstock/suspend/quota"
	"github.com/penstockmq/penstock/suspend/signal"
	"pgregory.net/rapid"
)

// What the model knows of limits: a ledger of its own for each group, which is charged
// what goes and freed what ends, and is never restarted. That a ledger counts right is its own
// package's matter. Here it says, for each message that goes, that every gate was open, for each poll
// that waits, that a gate is closed, and after a restart, that nothing was forgotten.

type placeKey struct {
	group GroupID
	name  string
}

// place is where a bucket stands. Its level is the machine's word.
func (p *model) place(name string) suspend.Place {
	c := cellOf(name)
	stamped, ok := p.stamps[name]
	if b := p.r.m.byName[name]; b != nil {
		stamped = b.stamped
	} else if !ok {
		stamped = -1
	}
	return suspend.Place{Bucket: name, User: c.User, Model: c.Model, Level: p.r.m.importance(c, stamped)}
}

// limited is whether a limit keeps the message from going. What is used is put in terms of
// another limit when it is next asked for, what owes nothing is forgotten with a restart, and a
// rate is charged by whether somebody was seen waiting. So when signals scale limits, when there are
// rates, and when the policy changes after a restart, two ledgers may differ, and the machine's own
// has to do: it may not say that all is open beside a poll that waits.
func (p *model) limited(g GroupID, name string, off int) bool {
	place := p.place(name)
	l, targets := p.ledgers[g], wideTargets(place)
	if p.unsure { // to ask Narrow would be to park
		l = p.r.m.group(g).ledger
		targets = append(targets, suspend.Target{Scope: suspend.Bucket, Name: place.Bucket}, suspend.Target{Scope: suspend.Row, Name: place.User})
	} else if _, closed := l.Narrow(p.r.now, place); closed {
		return true
	}
	for _, t := range targets {
		if _, closed := l.Look(p.r.now, t); closed {
			return true
		}
	}
	gate, fits := l.Fits(p.r.now, p.ask(g, name, off))
	return !fits && !gate.Never // that would be a dead letter, not a wait
}

// behindUnread is whether an overdue message is before off whose deadline the machine has
// not read since it started: it may wait for a window that it does not fit.
func (p *model) behindUnread(g GroupID, name string, off int) bool {
	for _, msg := range p.buckets[name].msgs[:off] {
		if msg.recovered && p.overdue(msg) && !msg.dead && !msg.groups[g].settled {
			return true
		}
	}
	return false
}

func (p *model) ask(g GroupID, name string, off int) quota.Ask {
	a := quota.Ask{Place: p.place(name), Cost: quota.Cost{Requests: 1}, Since: moment(p.since[placeKey{g, name}])}
	if l := p.ledgers[g]; l.NeedsCost(a.Place) {
		says := p.costs[messageKey{p.buckets[name].id, Offset(off)}]
		a.Cost = quota.Cost{Requests: max(1, says.Requests), BytesIn: says.Bytes, Output: l.Expect(a.Place, says.MaxOutput)}
		a.Cost.Tokens = says.Input + a.Cost.Output
	}
	return a
}

// never is whether a message can never pass its windows.
func (p *model) never(g GroupID, name string, off int) bool {
	gate, fits := p.ledgers[g].Fits(p.r.now, p.ask(g, name, off))
	return !fits && gate.Never
}

func (p *model) mayFly(g GroupID, name string) int {
	n, _ := p.ledgers[g].Terms(p.place(name), max(1, p.groups[g].InFlight))
	return min(maxInFlight, n)
}

// charge notes a delivery.
func (p *model) charge(g GroupID, name string, off int) quota.Ticket {
	t := p.ledgers[g].Charge(p.r.now, p.ask(g, name, off))
	p.since[placeKey{g, name}] = instant(p.r.now) // what goes next begins to wait now
	return t
}

// free notes the end of a lease.
func (p *model) free(g GroupID, name string, l *modelLease, s quota.Settlement) {
	if l.freed {
		return
	}
	l.freed = true
	p.ledgers[g].Free(p.r.now, p.place(name), l.ticket, s)
}

// look takes down since when each bucket waits and what messages say they cost, before a
// turn changes it.
func (p *model) look() {
	p.costs = maps.Clone(p.r.disk.costs)
	p.since = map[placeKey]int64{}
	p.stamps = map[string]int8{}
	for name, b := range p.r.m.byName {
		p.stamps[name] = b.stamped
		for c := b.first; c != nil; c = c.sibling {
			since := c.since
			if since == 0 {
				since = instant(p.r.now)
			}
			p.since[placeKey{c.g.cfg.ID, name}] = since
		}
	}
	for _, l := range p.ledgers {
		for t, ok := l.Due(p.r.now); ok; t, ok = l.Due(p.r.now) {
			l.Look(p.r.now, t)
		}
	}
}

// judgeAccounts compares what the machine has counted with what the model has: what is
// used, what is in flight, when it opens.
func (p *model) judgeAccounts() {
	if p.unsure {
		return
	}
	for g, l := range p.ledgers {
		for _, name := range []string{"alice__m", "alice__n", "alice__o", "bob__m", "other"} {
			place := p.place(name)
			got, want := p.r.m.group(g).ledger.Explain(p.r.now, place), l.Explain(p.r.now, place)
			if !slices.Equal(enforced(got), enforced(want)) {
				p.t.Fatalf("group %d, limits of %q:\n%v\nwant\n%v", g, name, enforced(got), enforced(want))
			}
		}
	}
}

// enforced are the lines of limits in force: shadow rules and the floors of levels begin
// anew with a restart.
func enforced(lines []quota.Line) []quota.Line {
	return slices.DeleteFunc(slices.Clone(lines), func(l quota.Line) bool {
		return l.Shadow || strings.HasPrefix(l.Limit, "floor")
	})
}

// drawPolicy is a policy of a few rules of any kind, or of any but rates.
func drawPolicy(t *rapid.T, rates bool) *policy.Document {
	// Windows have one length: a window that is over owes nothing and is forgotten with a restart, but one
	// that was not forgotten would count again were it made longer. Quotas have one burst, for the like reason: one
	// that is at rest is full, and is dropped at some time after that; a larger burst finds it as full as it was, or new.
	limits := []string{
		"window: 3/10s", "window: 2/10s, window_at: release", "quota: 1/2s, quota_burst: 3", "quota: 2/s, quota_burst: 3",
		"in_flight: 1", "in_flight: 2", "tokens: 100/10s", "bytes_in: 100/s", "rate: 2/s, shadow: true", "observed: 1/s, samples: 4x1s",
		"quota: 1/s, quota_burst: 3, in_flight: 1, tokens: 50/10s",
	}
	whole := []string{"in_flight: 3", "window: 5/10s", "tokens: 500/10s", "quota: 1/s"}
	if rates {
		limits = append(limits, "rate: 1/s", "rate: 5/s, burst: 1s", "rate: 1/20s", "rate: 1/s, in_flight: 1, tokens: 50/10s")
		whole = append(whole, "rate: 1/s")
	}
	var text strings.Builder
	text.WriteString("version: 1\n")
	if rapid.IntRange(0, 2).Draw(t, "cost") == 0 {
		text.WriteString("cost: tokens\n")
	}
	section := func(name string, selectors ...string) {
		first := true
		for _, sel := range selectors {
			if rapid.IntRange(0, 2).Draw(t, name) > 0 {
				continue
			}
			if first {
				fmt.Fprintf(&text, "%s:\n", name)
				first = false
			}
			rule := rapid.SampledFrom(limits).Draw(t, "limit")
			if name != "limits" {
				rule = strings.ReplaceAll(rule, ", window_at: release", "")
			} else if !strings.Contains(rule, "shadow") && rapid.Bool().Draw(t, "weighs") {
				rule += fmt.Sprintf(", weight: %d", rapid.IntRange(1, 5).Draw(t, "weight"))
			}
			fmt.Fprintf(&text, "  - {%s, %s}\n", sel, rule)
		}
	}
	section("limits", "user: alice, model: m", "user: alice", `user: "*"`, "model: m", "user: other")
	section("rows", "user: alice", `user: "*"`)
	section("columns", "model: m", `model: "*"`)
	section("levels", "level: 1", "level: 3")
	if rapid.IntRange(0, 3).Draw(t, "broker") == 0 {
		fmt.Fprintf(&text, "broker: {%s}\n", rapid.SampledFrom(whole).Draw(t, "limit"))
	}
	switch rapid.IntRange(0, 3).Draw(t, "importance") {
	case 0:
		text.WriteString("importance:\n  - {user: alice, level: 0}\n  - {model: m, level: 3}\n")
	case 1:
		text.WriteString("default_level: 2\n")
	}
	doc, err := policy.Parse([]byte(text.String()))
	if err != nil {
		t.Fatalf("policy: %v\n%s", err, text.String())
	}
	return doc
}

func (p *model) setPolicy(t *rapid.T) {
	p.changed = p.changed || len(p.handles) > 0
	p.unsure = p.unsure || p.restarted
	doc := drawPolicy(t, p.rates)
	p.r.disk.policy = doc
	p.r.m.SetPolicy(p.r.now, doc)
	for g, l := range p.ledgers {
		if !p.groups[g].Unlimited {
			l.SetPolicy(p.r.now, doc)
		}
	}
	p.turn() // the buckets are reviewed before anything else is judged
}

// restartLedgers is what a restart does to the model. What was used is put in terms of a
// changed policy when it is next asked for: of accounts that nobody has asked since, and whose
// records are in the terms of the old one, the model takes the machine's word.
func (p *model) restartLedgers() {
	if p.restarted = !p.changed; p.restarted {
		return
	}
	p.changed, p.unsure = false, p.signals || p.rates
	for g := range p.ledgers {
		doc := p.r.disk.policy
		if p.groups[g].Unlimited {
			doc = policy.Empty()
		}
		p.ledgers[g] = quota.New(doc)
	}
	for _, k := range sorted(p.r.disk.accounts) {
		if err := p.ledgers[k.group].Restore(p.r.now, p.r.disk.accounts[k]); err != nil {
			p.t.Fatalf("restore: %v", err)
		}
	}
	for name, b := range p.buckets {
		for _, msg := range b.msgs {
			for g, pl := range msg.groups {
				if pl.lease != nil && !pl.lease.freed {
					p.ledgers[g].Readmit(p.r.now, p.place(name), pl.lease.ticket)
				}
			}
		}
	}
}

func (p *model) setSignal(t *rapid.T) {
	target := rapid.SampledFrom([]suspend.Target{{Scope: suspend.Column, Name: "m"}, {Scope: suspend.Column, Name: "n"}, {Scope: suspend.Level, Name: "1"}}).Draw(t, "target")
	s := signal.Signal{
		Target: target, Source: "alarm", Kind: signal.Alarm, Permille: rapid.SampledFrom([]int64{0, 100, 500, 1000}).Draw(t, "permille"),
		At: p.r.now, Until: p.r.now.Add(time.Duration(rapid.IntRange(1, 30_000).Draw(t, "ms")) * time.Millisecond),
	}
	drop := rapid.IntRange(0, 3).Draw(t, "drop") == 0
	if drop {
		p.r.m.DropSignal(p.r.now, s.Target, s.Source)
	} else {
		p.r.m.SetSignal(p.r.now, s)
	}
	for g, l := range p.ledgers {
		switch {
		case p.groups[g].Unlimited:
		case drop:
			l.DropSignal(p.r.now, s.Target, s.Source)
		default:
			l.SetSignal(p.r.now, s)
		}
	}
}

// drawSettlement is what a worker may have learned.
func drawSettlement(t *rapid.T) quota.Settlement {
	s := quota.Settlement{
		Outcome: quota.Outcome(rapid.IntRange(0, 3).Draw(t, "outcome")), Tokens: -1, OutputTokens: -1,
		BytesOut: rapid.Int64Range(0, 200).Draw(t, "bytes"),
	}
	if rapid.Bool().Draw(t, "knows") {
		s.Tokens = rapid.Int64Range(0, 200).Draw(t, "tokens")
	}
	if rapid.Bool().Draw(t, "knows output") {
		s.OutputTokens = rapid.Int64Range(0, 100).Draw(t, "output")
	}
	return s
}

func drawCost(t *rapid.T) MessageCost {
	return MessageCost{
		Requests: rapid.SampledFrom([]int64{0, 1, 1, 2, 4}).Draw(t, "requests"), Input: rapid.Int64Range(0, 60).Draw(t, "input"),
		MaxOutput: rapid.Int64Range(0, 60).Draw(t, "max output"), Bytes: rapid.Int64Range(0, 300).Draw(t, "bytes"),
	}
}

// buried notes the dead letters that no worker caused: what costs more than a window ever
// gives, when its turn comes.
func (p *model) buried(writes []Write) {
	for i := range writes {
		w := &writes[i]
		if w.Op != DeadLetter || w.Reason != reasonNever {
			continue
		}
		b := p.buckets[w.Name]
		msg := b.msgs[w.Offset]
		if overdue := p.overdue(msg) && msg.recovered; !overdue && !p.live(b, msg, w.Group) || !p.never(w.Group, w.Name, int(w.Offset)) {
			p.t.Fatalf("message %d of %q was buried, though it could go one day", w.Offset, w.Name)
		}
		b.msgs[w.Offset].groups[w.Group].settled = true
		b.idle = p.r.now
		p.dead++
	}
}

// explain compares what the machine says of the next message of a bucket.
func (p *model) explain(name string, g GroupID) {
	x, ok := p.r.m.Explain(p.r.now, g, name, NextOffset)
	if !ok {
		return
	}
	p.costs = maps.Clone(p.r.disk.costs)
	off := p.next(g, name)
	if int(x.Offset) != off {
		return // it is overdue, and its turn has not come
	}
	if got := x.State == WaitReady || x.State == WaitLimited; off >= 0 && !got {
		p.t.Fatalf("next of %q is %v", name, x.State)
	}
	if off >= 0 && (x.State == WaitLimited) != (p.limited(g, name, off) || p.never(g, name, off)) {
		p.t.Fatalf("next of %q is %v by %v", name, x.State, x.Limit)
	}
}
