package quota

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/penstockmq/penstock/suspend"
	"github.com/penstockmq/penstock/suspend/limit"
	"github.com/penstockmq/penstock/suspend/policy"
)

// model is what a ledger says, in the most simple way: a state for every target there ever was, asked one by one, with no
// account opened, dropped, shared or timed.
type model struct {
	doc    *policy.Document
	states map[suspend.Target]*modelState
	places map[suspend.Target]suspend.Place // one that lies in the target
}

type modelState struct {
	rate    limit.LeakyState
	window  limit.WindowState
	quota   limit.TokenState
	tokens  limit.TokenWindowState
	out     limit.TokenState
	running int64
}

func (m *model) limits(t suspend.Target) policy.Limits {
	p := m.places[t]
	var l policy.Limits
	switch t.Scope {
	case suspend.Bucket:
		l = m.doc.Resolve(p.User, p.Model)
	case suspend.Row:
		l, _ = m.doc.Row(p.User)
	case suspend.Column:
		l, _ = m.doc.Column(p.Model)
	case suspend.Level:
		l, _ = m.doc.LevelOf(p.Level)
	case suspend.All:
		l, _ = m.doc.Broker()
	}
	return l
}

func (m *model) targets(p suspend.Place) (list []suspend.Target) {
	for scope := range suspend.Scope(scopes) {
		t, _ := p.Target(scope)
		list = append(list, t)
		if m.states[t] == nil {
			m.states[t], m.places[t] = &modelState{}, p
		}
	}
	return list
}

// opens is when a target opens, and whether it is closed; zero: not at an instant.
func (m *model) opens(now time.Time, t suspend.Target) (until time.Time, closed bool) {
	s, l := m.states[t], m.limits(t)
	until = now
	if l.Leaky != nil {
		until = later(until, l.Leaky.Opens(s.rate, now))
	}
	if l.Window != nil {
		until = later(until, l.Window.Opens(s.window, now))
	}
	if l.Quota != nil {
		until = later(until, l.Quota.Opens(s.quota, now))
	}
	if l.Tokens != nil {
		until = later(until, l.Tokens.Opens(s.tokens, now))
	}
	if l.BytesOut != nil {
		until = later(until, l.BytesOut.Opens(s.out, now))
	}
	if l.InFlight > 0 && s.running >= l.InFlight {
		return time.Time{}, true
	}
	return until, until.After(now)
}

// charge charges a target; nothing is not charged, as it would note the instant.
func (m *model) charge(now time.Time, t suspend.Target, requests, tokens, out int64) {
	m.convert(now, t, requests, tokens, out, false)
}

func (m *model) convert(now time.Time, t suspend.Target, requests, tokens, out int64, always bool) {
	s, l := m.states[t], m.limits(t)
	if l.Leaky != nil && (always || requests != 0) {
		s.rate = l.Leaky.Charge(s.rate, now, requests)
	}
	if l.Window != nil && (always || requests != 0) {
		s.window = l.Window.Charge(s.window, now, requests)
	}
	if l.Quota != nil && (always || requests != 0) {
		s.quota = l.Quota.Charge(s.quota, now, requests)
	}
	if l.Tokens != nil && (always || tokens != 0) {
		s.tokens = l.Tokens.Charge(s.tokens, now, tokens)
	}
	if l.BytesOut != nil && (always || out != 0) {
		s.out = l.BytesOut.Charge(s.out, now, out)
	}
}

// change puts a policy in force, or notices a step of the clock: kinds that vanished forget.
func (m *model) change(now time.Time, doc *policy.Document) {
	m.doc = doc
	for t, s := range m.states {
		m.convert(now, t, 0, 0, 0, true)
		l := m.limits(t)
		if l.Leaky == nil {
			s.rate = limit.LeakyState{}
		}
		if l.Window == nil {
			s.window = limit.WindowState{}
		}
		if l.Quota == nil {
			s.quota = limit.TokenState{}
		}
		if l.Tokens == nil {
			s.tokens = limit.TokenWindowState{}
		}
		if l.BytesOut == nil {
			s.out = limit.TokenState{}
		}
	}
}

// anyPolicy draws a document. Bursts of quotas are the same in all: how a full bucket takes to a raised capacity differs
// between one that is at rest and one that was never used.
func anyPolicy(t *rapid.T) *policy.Document {
	limits := func(label string) string {
		parts := rapid.SliceOfNDistinct(rapid.SampledFrom([]string{
			"rate: 2/s", "rate: 20/s", "rate: 5/s, burst: 500ms", "rate: 1/3s",
			"quota: 3/s, quota_burst: 6", "quota: 30/s, quota_burst: 6",
			"tokens: 100/10s", "tokens: 1000/1m", "in_flight: 1", "in_flight: 3",
			"window: 5/2s, window_at: release", "bytes_out: 100/s",
		}), 1, 4, func(s string) string { key, _, _ := strings.Cut(s, ":"); return key }).Draw(t, label)
		return strings.Join(parts, ", ")
	}
	var b strings.Builder
	section := func(name string, entries ...string) {
		fmt.Fprintf(&b, "%s:\n", name)
		for _, e := range entries {
			if rapid.Bool().Draw(t, name) {
				own := limits(e)
				if name != "limits" {
					own = strings.ReplaceAll(own, ", window_at: release", "")
				}
				fmt.Fprintf(&b, "  - {%s, %s}\n", e, own)
			}
		}
	}
	section("limits", `user: a, model: m`, `user: a`, `user: "*"`, `model: n`)
	section("rows", `user: a`, `user: "*"`)
	section("columns", `model: m`, `model: "*"`)
	section("levels", `level: 1`, `level: 2`)
	if rapid.Bool().Draw(t, "broker") {
		fmt.Fprintf(&b, "broker: {tokens: 500/10s, in_flight: %d}\n", rapid.IntRange(1, 6).Draw(t, "whole"))
	}
	doc, err := policy.Parse([]byte("version: 1\n" + b.String()))
	if err != nil {
		t.Fatalf("%v\n%s", err, b.String())
	}
	return doc
}

type out struct {
	p suspend.Place
	t Ticket
}

// run is a desk, the model beside it, and what a restart needs.
type run struct {
	t *rapid.T
	*desk
	m     *model
	out   []out
	store map[suspend.Target][]byte
}

func places() (list []suspend.Place) {
	for i, user := range []string{"a", "b"} {
		for j, name := range []string{"m", "n"} {
			list = append(list, place(user, name, uint8(1+(i+j)%2)))
		}
	}
	return list
}

// check compares what the desk was told with what the model says.
func (r *run) check() {
	for _, p := range places() {
		for _, t := range r.m.targets(p) {
			_, closed := r.m.opens(r.now, t)
			if t.Scope > suspend.Row && r.shut[t] != closed {
				r.t.Fatalf("%v: the machine was told closed %v, it is %v", t, r.shut[t], closed)
			}
			if a := r.find(t); t.Scope <= suspend.Row && r.parked[t] && !closed && !a.gated {
				r.t.Fatalf("%v is open, and what waits there has no timer", t)
			}
			if a := r.find(t); a != nil && int64(a.running) != r.m.states[t].running || a == nil && r.m.states[t].running != 0 {
				r.t.Fatalf("%v: %d in flight in the model", t, r.m.states[t].running)
			}
		}
	}
	r.Dirty(func(rec Record) {
		if rec.Data == nil {
			delete(r.store, rec.Target)
		} else {
			r.store[rec.Target] = bytes.Clone(rec.Data)
		}
	})
}

// ask lets a message go if ledger and model agree that it may.
func (r *run) ask() {
	p := rapid.SampledFrom(places()).Draw(r.t, "place")
	a := Ask{Place: p, Since: r.now, Cost: Cost{
		Requests: rapid.Int64Range(1, 3).Draw(r.t, "requests"), Tokens: rapid.Int64Range(0, 80).Draw(r.t, "tokens"),
	}}
	if r.kept(p) {
		return
	}
	var until time.Time
	narrow := false
	for _, t := range r.m.targets(p)[:suspend.Column] {
		if at, closed := r.m.opens(r.now, t); closed && (!narrow || opensLater(at, until)) {
			until, narrow = at, true
		}
	}
	g, closed := r.Narrow(r.now, p)
	if closed != narrow || closed && !g.Until.Equal(until) {
		r.t.Fatalf("%s: closed %v until %v (%s of %v), the model says %v until %v", p.Bucket, closed, g.Until, g.Limit, g.Of, narrow, until)
	}
	if closed {
		r.parked[g.Target] = true
		return
	}
	if g, fits := r.Fits(r.now, a); fits != r.fits(a) {
		r.t.Fatalf("%s: fits %v: %+v", p.Bucket, fits, g)
	} else if !fits {
		r.parked[g.Target] = !g.Never
		return
	}
	ticket := r.Charge(r.now, a)
	r.Wide(r.now, p, r.tell)
	for _, t := range r.charged(p, ticket) {
		r.m.charge(r.now, t, a.Cost.Requests, a.Cost.Tokens, 0)
		r.m.states[t].running++
	}
	r.out = append(r.out, out{p, ticket})
}

// charged are the accounts that know of a message.
func (r *run) charged(p suspend.Place, t Ticket) []suspend.Target {
	if t.Wide {
		return r.m.targets(p)[suspend.Column:]
	}
	return r.m.targets(p)
}

func (r *run) fits(a Ask) bool {
	for _, t := range r.m.targets(a.Place) {
		if w := r.m.limits(t).Window; w != nil {
			if _, d := w.Peek(r.m.states[t].window, r.now, a.Cost.Requests); !d.Allowed {
				return false
			}
		}
	}
	return true
}

// end frees one that is out.
func (r *run) end() {
	if len(r.out) == 0 {
		return
	}
	i := rapid.IntRange(0, len(r.out)-1).Draw(r.t, "which")
	o := r.out[i]
	r.out = append(r.out[:i], r.out[i+1:]...)
	s := Settlement{
		Outcome: Outcome(rapid.IntRange(0, 3).Draw(r.t, "outcome")), Tokens: rapid.Int64Range(-1, 200).Draw(r.t, "used"),
		OutputTokens: -1, BytesOut: rapid.Int64Range(0, 300).Draw(r.t, "bytes"),
	}
	r.free(o.p, o.t, s)
	delta := o.t.correction(s)
	for _, t := range r.charged(o.p, o.t) {
		r.m.charge(r.now, t, delta.Requests, delta.Tokens, s.BytesOut)
		r.m.states[t].running--
	}
}

func (r *run) clock() {
	r.to(r.now.Add(time.Duration(rapid.IntRange(0, 3000).Draw(r.t, "milliseconds")) * time.Millisecond))
}

// step sets the clock forward or back.
func (r *run) step() {
	d := time.Duration(rapid.IntRange(-20, 20).Draw(r.t, "seconds")) * time.Second
	if d < 0 {
		d -= clockTolerance // less is no step
	}
	if d < 0 {
		r.m.change(r.now, r.m.doc)
		r.m.change(r.now.Add(d), r.m.doc)
	}
	r.now = r.now.Add(d)
	r.tick()
	r.each(r.touch)              // a record is from before the step until its account is touched: after a restart it is off by so much
	for _, p := range places() { // the machine looks at gates when it takes turns; some may be closed again
		r.review(p)
		r.Wide(r.now, p, r.tell)
	}
}

func (r *run) policy() {
	doc := anyPolicy(r.t)
	r.SetPolicy(r.now, doc)
	r.m.change(r.now, doc)
	r.tick()
	clear(r.parked)
	for _, p := range places() {
		r.review(p)
	}
}

// restart has a new ledger read the records of the old one.
func (r *run) restart() {
	doc := r.m.doc
	r.check()
	r.desk = &desk{Ledger: New(doc), now: r.now, shut: map[suspend.Target]bool{}, parked: map[suspend.Target]bool{}}
	for t, data := range r.store {
		if err := r.Restore(r.now, Record{t, data}); err != nil {
			r.t.Fatal(err)
		}
	}
	for _, o := range r.out {
		r.Readmit(r.now, o.p, o.t)
	}
	r.m.change(r.now, doc) // a record is brought in line with its law, and with the clock, when it is first asked
	r.tick()
	for _, p := range places() {
		r.review(p)
	}
}

func TestAgainstTheModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		doc := anyPolicy(t)
		r := &run{
			t: t, desk: newDesk(doc), store: map[suspend.Target][]byte{},
			m: &model{doc: doc, states: map[suspend.Target]*modelState{}, places: map[suspend.Target]suspend.Place{}},
		}
		t.Repeat(map[string]func(*rapid.T){
			"ask": func(*rapid.T) { r.ask() }, "ask again": func(*rapid.T) { r.ask() }, "and again": func(*rapid.T) { r.ask() },
			"free": func(*rapid.T) { r.end() }, "clock": func(*rapid.T) { r.clock() }, "step": func(*rapid.T) { r.step() },
			"policy": func(*rapid.T) { r.policy() }, "restart": func(*rapid.T) { r.restart() },
			"": func(*rapid.T) { r.check() },
		})
		// In the end everything that is out comes back, and nothing stays counted.
		for len(r.out) > 0 {
			r.end()
		}
		if n := r.Stats().InFlight; n != 0 {
			t.Fatalf("%d in flight at the end", n)
		}
		r.check()
	})
}
