package quota

import (
	"testing"
	"time"

	"github.com/penstockmq/penstock/suspend"
	"github.com/penstockmq/penstock/suspend/limit"
	"github.com/penstockmq/penstock/suspend/policy"
	"github.com/penstockmq/penstock/suspend/signal"
)

var column = suspend.Target{Scope: suspend.Column, Name: "m"}

func TestNarrowNamesTheGateThatOpensLast(t *testing.T) {
	d := newDesk(document(t, `
limits: [{user: u, rate: 10/s}]
rows: [{user: u, rate: 2/s}]
`))
	a, b := place("u", "a", 1), place("u", "b", 1)
	if _, ok := d.try(one(a)); !ok {
		t.Fatal("nothing is used and the first is kept")
	}
	row := suspend.Target{Scope: suspend.Row, Name: "u"}
	for _, p := range []suspend.Place{a, b} {
		g, closed := d.Narrow(d.now, p)
		if want := (Gate{Target: row, Of: row, Limit: "rate", Until: start.Add(500 * time.Millisecond)}); !closed || g != want {
			t.Errorf("%s: %+v closed %v, want %+v", p.Bucket, g, closed, want)
		}
	}
	d.now = start.Add(500*time.Millisecond - 1)
	if got, ok := d.Due(d.now); ok {
		t.Errorf("%v came out of Due before its instant", got)
	}
	d.now = start.Add(500 * time.Millisecond)
	if got, ok := d.Due(d.now); !ok || got != row {
		t.Errorf("Due is %v %v, want %v", got, ok, row)
	}
}

func TestInFlightOfAllScopes(t *testing.T) {
	for _, c := range []struct {
		scope  suspend.Scope
		policy string
	}{
		{suspend.Bucket, `limits: [{user: u, model: m, in_flight: 2}]`},
		{suspend.Row, `rows: [{user: u, in_flight: 2}]`},
		{suspend.Column, `columns: [{model: m, in_flight: 2}]`},
		{suspend.Level, `levels: [{level: 1, in_flight: 2}]`},
		{suspend.All, `broker: {in_flight: 2}`},
	} {
		d := newDesk(document(t, c.policy))
		p := place("u", "m", 1)
		first, _ := d.try(one(p))
		if _, ok := d.try(one(p)); !ok {
			t.Errorf("%v: the second is kept", c.scope)
		}
		if _, ok := d.try(one(p)); ok {
			t.Errorf("%v: a third goes", c.scope)
		}
		if _, ok := d.Next(); ok && c.scope > suspend.Row {
			t.Errorf("%v: a timer is armed for what no instant opens", c.scope)
		}
		d.now = d.now.Add(time.Second)
		moved := p
		moved.Level = 3 // the bucket's level changed; the ticket knows what was charged
		d.free(moved, first, Settlement{})
		if _, ok := d.try(one(p)); !ok {
			t.Errorf("%v: kept after one ended", c.scope)
		}
		if n := d.Stats().InFlight; n != 2 {
			t.Errorf("%v: %d in flight, want 2", c.scope, n)
		}
		d.free(p, Ticket{}, Settlement{})
		if n := d.Stats().InFlight; n != 2 {
			t.Errorf("%v: a zero ticket freed something: %d in flight", c.scope, n)
		}
	}
}

func TestSettlement(t *testing.T) {
	const rules = `limits: [{user: u, model: m, tokens: 1000/1m, bytes_in: 1000/s, bytes_out: 1000/s, quota: 1000/s}]`
	for _, c := range []struct {
		name                           string
		s                              Settlement
		tokens, bytesIn, out, requests int64
	}{
		{"unknown", Settlement{Tokens: -1, OutputTokens: -1}, 150, 70, 0, 1},
		{"used", Settlement{Outcome: Used, Tokens: 400, OutputTokens: 300, BytesOut: 30}, 400, 70, 30, 1},
		{"output known", Settlement{Outcome: Used, Tokens: -1, OutputTokens: 10}, 60, 70, 0, 1},
		{"used, nothing known", Settlement{Outcome: Used, Tokens: -1, OutputTokens: -1, BytesOut: 5}, 150, 70, 5, 1},
		{"unused", Settlement{Outcome: Unused, Tokens: -1, OutputTokens: -1}, 0, 0, 0, 1},
		{"unsent", Settlement{Outcome: Unsent, Tokens: -1, OutputTokens: -1}, 0, 0, 0, 0},
	} {
		d := newDesk(document(t, rules))
		p := place("u", "m", 1)
		ticket, _ := d.try(Ask{Place: p, Cost: Cost{Tokens: 150, Output: 100, BytesIn: 70}})
		d.free(p, ticket, c.s)
		used := func(limit string) int64 { return lineOf(t, d.Ledger, d.now, p, suspend.Bucket, limit).Used }
		got := [...]int64{used("tokens"), used("bytes_in"), used("bytes_out"), used("quota")}
		if want := [...]int64{c.tokens, c.bytesIn, c.out, c.requests}; got != want {
			t.Errorf("%s: tokens, bytes in, bytes out, requests are %v, want %v", c.name, got, want)
		}
	}
}

func TestEstimateIsLearnedFromTheCellsOwnPast(t *testing.T) {
	d := newDesk(document(t, `rows: [{user: u, tokens: 1000000/1m}]`))
	p := place("u", "m", 1)
	if got := d.Expect(p, 4000); got != 4000 {
		t.Errorf("without a past %d are expected, want the ceiling", got)
	}
	for range 50 {
		ticket, _ := d.try(Ask{Place: p, Cost: Cost{Tokens: 20, Output: 10}})
		d.free(p, ticket, Settlement{Outcome: Used, Tokens: -1, OutputTokens: 120})
	}
	if got := d.Expect(p, 4000); got != 120 {
		t.Errorf("after answers of 120 tokens %d are expected", got)
	}
	if got := d.Expect(p, 50); got != 50 {
		t.Errorf("%d expected above the ceiling of 50", got)
	}
	if got := d.Expect(place("v", "m", 1), 4000); got != 4000 {
		t.Errorf("another cell expects %d", got)
	}
}

func TestAdaptiveWindowFollowsTheAnswers(t *testing.T) {
	d := newDesk(document(t, `columns: [{model: m, adaptive: {min: 1, max: 100, start: 10}}]`))
	p := place("u", "m", 1)
	fill := func() (tickets []Ticket) {
		for {
			ticket, ok := d.try(one(p))
			if !ok {
				return tickets
			}
			tickets = append(tickets, ticket)
		}
	}
	tickets := fill()
	if len(tickets) != 10 {
		t.Fatalf("%d run at once, want 10", len(tickets))
	}
	for _, ticket := range tickets {
		d.free(p, ticket, Settlement{Feedback: limit.Overload})
	}
	if tickets = fill(); len(tickets) != 7 {
		t.Errorf("after an overload %d run, want 7", len(tickets))
	}
	d.now = d.now.Add(10 * time.Second)
	for range 200 { // each answer is followed by the next message: the window is in use
		d.free(p, tickets[0], Settlement{Feedback: limit.Good})
		tickets = append(tickets[1:], fill()...)
	}
	if len(tickets) < 15 {
		t.Errorf("after 200 good answers %d run", len(tickets))
	}
}

func TestSignalScalesAColumnAndLetsGoStepByStep(t *testing.T) {
	d := newDesk(document(t, `columns: [{model: m, rate: 100/s, in_flight: 10}]`))
	s := &stream{place: place("u", "m", 1), every: 5 * time.Millisecond, next: start}
	rate := func(span time.Duration) float64 {
		was := s.went
		d.run(d.now.Add(span), []*stream{s})
		return float64(s.went-was) / span.Seconds()
	}
	if got := rate(10 * time.Second); got < 99 || got > 101 {
		t.Errorf("%.1f/s without a signal, want 100", got)
	}
	d.SetSignal(d.now, signal.Signal{Target: column, Source: "a", Permille: 200, At: d.now, Kind: signal.Manual})
	if got := rate(10 * time.Second); got < 19 || got > 21 {
		t.Errorf("%.1f/s at a factor of 0.2, want 20", got)
	}
	d.SetSignal(d.now, signal.Signal{Target: column, Source: "b", Permille: 0, At: d.now, Kind: signal.Alarm, Until: d.now.Add(5 * time.Second)})
	if got := rate(5 * time.Second); got != 0 {
		t.Errorf("%.1f/s while it is closed", got)
	}
	line := lineOf(t, d.Ledger, d.now, s.place, suspend.Column, "signal")
	if line.Limit != "signal" {
		t.Errorf("%+v", line)
	}
	d.DropSignal(d.now, column, "a")
	if got := rate(5 * time.Second); got < 20 || got > 30 { // from 0 to 500 permille, 250 on average
		t.Errorf("%.1f/s while it is let go, want 25", got)
	}
	rate(6 * time.Second)
	if got := rate(10 * time.Second); got < 99 || got > 101 {
		t.Errorf("%.1f/s when it is over, want 100", got)
	}
	d.SetSignal(d.now, signal.Signal{Target: suspend.Target{Scope: suspend.Row, Name: "u"}, Source: "a", At: d.now, Kind: signal.Manual})
	if got := rate(time.Second); got < 99 {
		t.Errorf("a signal on a row did something: %.1f/s", got)
	}
}

func TestShadowRulesCountAndHoldNothing(t *testing.T) {
	d := newDesk(document(t, `
limits: [{user: u, model: m, rate: 1/s, shadow: true}]
rows: [{user: u, in_flight: 1, shadow: true}]
`))
	p := place("u", "m", 1)
	for range 10 {
		if _, ok := d.try(one(p)); !ok {
			t.Fatal("a shadow rule held something")
		}
	}
	if line := lineOf(t, d.Ledger, d.now, p, suspend.Bucket, "rate"); !line.Shadow || line.WouldHold != 9 {
		t.Errorf("%+v, want a shadow line that would have held 9", line)
	}
	want := []Count{{suspend.Bucket, "rate", 9}, {suspend.Row, "in_flight", 9}}
	check := func(when string) {
		t.Helper()
		got := d.Stats()
		if len(got.Held) != 0 || len(got.WouldHold) != 2 || got.WouldHold[0] != want[0] || got.WouldHold[1] != want[1] {
			t.Errorf("%s: held %v, would hold %v; want nothing and %v", when, got.Held, got.WouldHold, want)
		}
	}
	check("under the rules")
	d.SetPolicy(d.now, policy.Empty())
	check("when they are gone")
}

func TestWindowAsksWhatAMessageCosts(t *testing.T) {
	d := newDesk(document(t, `columns: [{model: m, window: 10/1m}]`))
	ask := func(user string, n int64) Ask { return Ask{Place: place(user, "m", 1), Cost: Cost{Requests: n}} }
	if _, ok := d.try(ask("u", 7)); !ok {
		t.Fatal("7 of 10 do not go")
	}
	big := ask("v", 5)
	g, fits := d.Fits(d.now, big)
	cell := suspend.Target{Scope: suspend.Bucket, Name: big.Place.Bucket}
	if want := (Gate{Target: cell, Of: column, Limit: "window", Until: start.Add(time.Minute)}); fits || g != want {
		t.Errorf("5 more: %+v %v, want %+v", g, fits, want)
	}
	if _, ok := d.try(ask("w", 3)); !ok {
		t.Error("3 do not go beside 7")
	}
	if !d.shut[column] {
		t.Error("the column is used up and open")
	}
	if g, fits := d.Fits(d.now, ask("u", 11)); fits || !g.Never {
		t.Errorf("11 of 10: %+v %v, want never", g, fits)
	}
	if g, fits := d.Fits(d.now, Ask{Place: place("new", "other", 1), Cost: Cost{Requests: 1 << 40}}); !fits {
		t.Errorf("where there is no window: %+v", g)
	}
	d.to(start.Add(time.Minute))
	if _, ok := d.try(big); !ok {
		t.Error("5 do not go in the next window")
	}
	d.SetSignal(d.now, signal.Signal{Target: column, Source: "a", Permille: 100, At: d.now, Kind: signal.Manual})
	if g, fits := d.Fits(d.now, big); fits || g.Never {
		t.Errorf("a window that a signal scales to less than the cost: %+v %v", g, fits)
	}
}

// TestLateTimersKeepThePace: the turn comes 3 ms after each instant, and the pace is the policy's.
func TestLateTimersKeepThePace(t *testing.T) {
	for _, rules := range []string{
		`limits: [{user: u, model: m, rate: 50/s}]`,
		`rows: [{user: u, rate: 50/s}]`,
		`columns: [{model: m, rate: 50/s}]`,
		`broker: {rate: 50/s}`,
	} {
		d := newDesk(document(t, rules))
		ask := one(place("u", "m", 1))
		ask.Since = start
		var went []time.Time
		for d.now.Before(start.Add(10 * time.Second)) {
			d.tick()
			for {
				ticket, ok := d.try(ask)
				if !ok {
					break
				}
				d.free(ask.Place, ticket, Settlement{})
				went = append(went, d.now)
			}
			next, _ := d.Next()
			d.now = next.Add(3 * time.Millisecond)
		}
		if n := len(went); n < 499 || n > 501 {
			t.Errorf("%s: %d in 10 s, want 500", rules, n)
		}
	}
}

// TestALateChargeIsNoBurst: after a stall one message catches up, and a message that has just come none.
func TestALateChargeIsNoBurst(t *testing.T) {
	for _, c := range []struct {
		stall, since time.Duration
		want         time.Duration // until the next may go, from the end of the stall
	}{
		{stall: 0, want: time.Second},
		{stall: 200 * time.Millisecond, want: 800 * time.Millisecond},
		{stall: 200 * time.Millisecond, since: 1150 * time.Millisecond, want: 950 * time.Millisecond},
		{stall: 300 * time.Millisecond, want: time.Second},
		{stall: 24 * time.Hour, want: time.Second},
	} {
		d := newDesk(document(t, `limits: [{user: u, model: m, rate: 1/s}]`))
		ask := one(place("u", "m", 1))
		ask.Since = start
		d.Charge(d.now, ask)
		d.Narrow(d.now, ask.Place)
		if c.since > 0 {
			ask.Since = start.Add(c.since)
		}
		d.now = start.Add(time.Second + c.stall)
		d.Charge(d.now, ask)
		g, closed := d.Narrow(d.now, ask.Place)
		if got := g.Until.Sub(d.now); !closed || got != c.want {
			t.Errorf("a stall of %v: the next goes after %v, want %v", c.stall, got, c.want)
		}
	}
}

// TestAChangeKeepsWhatIsUsed: of kinds that stay; what is owed is converted once.
func TestAChangeKeepsWhatIsUsed(t *testing.T) {
	d := newDesk(document(t, `limits: [{user: u, model: m, rate: 1/s, quota: 10/h}]`))
	p := place("u", "m", 1)
	d.Charge(d.now, Ask{Place: p, Cost: Cost{Requests: 20}})
	d.SetPolicy(d.now, document(t, `limits: [{user: u, model: m, rate: 10/s}]`))
	for _, at := range []time.Duration{0, 500 * time.Millisecond, 1900 * time.Millisecond} {
		if g, closed := d.Narrow(start.Add(at), p); !closed || !g.Until.Equal(start.Add(2*time.Second)) {
			t.Errorf("after %v: %+v %v, want the 20 owed at 10/s", at, g, closed)
		}
	}
	d.SetPolicy(start.Add(2*time.Second), document(t, `limits: [{user: u, model: m, quota: 10/h}]`))
	if g, closed := d.Narrow(start.Add(2*time.Second), p); closed {
		t.Errorf("a quota that had vanished came back as it was: %+v", g)
	}
}

func TestAccountsThatOweNothingAreDropped(t *testing.T) {
	d := newDesk(document(t, `
limits: [{user: "*", rate: 10/s}]
rows: [{user: "*", quota: 10/s}]
columns: [{model: "*", rate: 1000/s}]
`))
	for i := range 1000 {
		p := place("u"+string(rune('a'+i%26)), "m"+string(rune('a'+i%7)), 1)
		if ticket, ok := d.try(one(p)); ok {
			d.free(p, ticket, Settlement{})
		}
		d.to(d.now.Add(time.Millisecond))
	}
	if n := d.Stats().Accounts; n < 50 {
		t.Fatalf("%d accounts", n)
	}
	stored := map[suspend.Target]bool{}
	dirty := func() {
		d.Dirty(func(r Record) {
			if stored[r.Target] = r.Data != nil; !stored[r.Target] {
				delete(stored, r.Target)
			}
		})
	}
	dirty()
	if len(stored) < 50 {
		t.Errorf("%d records", len(stored))
	}
	d.to(d.now.Add(time.Minute))
	dirty()
	if n := d.Stats().Accounts; n != 1+levels {
		t.Errorf("%d accounts are left, want those of the levels and the whole", n)
	}
	if len(stored) != 0 {
		t.Errorf("records are left: %v", stored)
	}
	if at, ok := d.Next(); ok {
		t.Errorf("a timer is left for %v", at)
	}
}

func TestNeedsCostWeightInFlightImportance(t *testing.T) {
	l := New(document(t, `
default_level: 2
limits: [{user: u, in_flight: 5, weight: 3}]
columns: [{model: m, tokens: 100/1m}, {model: slots, in_flight: 3}]
`))
	for _, c := range []struct {
		p        suspend.Place
		needs    bool
		weight   uint16
		inFlight int
	}{
		{place("u", "slots", 1), false, 3, 5},
		{place("u", "m", 1), true, 3, 5},
		{place("v", "m", 1), true, 1, 7},
		{place("v", "x", 1), false, 1, 7},
	} {
		if got := l.NeedsCost(c.p); got != c.needs {
			t.Errorf("%s: NeedsCost %v", c.p.Bucket, got)
		}
		if inFlight, weight := l.Terms(c.p, 7); inFlight != c.inFlight || weight != c.weight {
			t.Errorf("%s: in flight %d, weight %d; want %d, %d", c.p.Bucket, inFlight, weight, c.inFlight, c.weight)
		}
	}
	for stamped, want := range map[int8]uint8{-1: 2, 0: 0, 3: 3, 9: 3} {
		if got := l.Importance(cellOf("u", "m"), stamped); got != want {
			t.Errorf("stamped %d: level %d, want %d", stamped, got, want)
		}
	}
	if !New(document(t, "cost: tokens\n")).NeedsCost(place("u", "m", 1)) {
		t.Error("fairness counts tokens and nobody asks for them")
	}
}

// TestDueNamesOnlyWhatTurned: a unit that stays closed while its factor moves is nobody's business.
func TestDueNamesOnlyWhatTurned(t *testing.T) {
	d := newDesk(document(t, `columns: [{model: m, rate: 1/10s}]`))
	d.SetSignal(d.now, signal.Signal{Target: column, Source: "a", Permille: 500, At: d.now, Kind: signal.Manual})
	d.tick()
	d.try(one(place("u", "m", 1)))
	d.DropSignal(d.now, column, "a")
	d.tick()
	for range 20 {
		next, ok := d.Next()
		if !ok {
			t.Fatal("no timer")
		}
		d.now = next
		if target, ok := d.Due(d.now); ok {
			if d.Look(d.now, target); d.now.Before(start.Add(5 * time.Second)) {
				t.Fatalf("%v came out of Due after %v, closed as before", target, d.now.Sub(start))
			}
			return
		}
	}
}

// TestALiftedLimitLeavesNoTimer: a cell that waited a day for a rule that is gone does not stay in memory for the day.
func TestALiftedLimitLeavesNoTimer(t *testing.T) {
	d := newDesk(document(t, `limits: [{user: u, rate: 1/24h}]`))
	p := place("u", "m", 1)
	ticket, _ := d.try(one(p))
	d.free(p, ticket, Settlement{})
	if _, ok := d.try(one(p)); ok {
		t.Fatal("two a day")
	}
	d.SetPolicy(d.now, policy.Empty())
	d.tick()
	if g, closed := d.Narrow(d.now, p); closed {
		t.Fatalf("closed by %+v under no rule", g)
	}
	d.to(d.now.Add(time.Minute))
	if n := d.Stats().Accounts; n != 1+levels {
		t.Errorf("%d accounts after a minute", n)
	}
}
