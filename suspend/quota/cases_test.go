package quota

import (
	"fmt"
	"testing"
	"time"

	"github.com/penstockmq/penstock/suspend"
)

func lineOf(t *testing.T, l *Ledger, now time.Time, p suspend.Place, scope suspend.Scope, limit string) Line {
	t.Helper()
	for _, line := range l.Explain(now, p) {
		if line.Scope == scope.String() && line.Limit == limit {
			return line
		}
	}
	t.Fatalf("no %v %s in %+v", scope, limit, l.Explain(now, p))
	return Line{}
}

// TestC57_ChargedTogetherOrNotAtAll: what a user's limit refuses is not charged to the column.
func TestC57_ChargedTogetherOrNotAtAll(t *testing.T) {
	d := newDesk(document(t, `
rows: [{user: "*", window: 10/1m}]
columns: [{model: m, window: 100/1m}]
`))
	refused := 0
	admitted := map[string]int{}
	send := func(user string, n int) {
		for range n {
			p := place(user, "m", 1)
			d.parked = map[suspend.Target]bool{} // each is a request of its own, and asks
			if ticket, ok := d.try(one(p)); ok {
				d.free(p, ticket, Settlement{})
				admitted[user]++
			} else {
				refused++
			}
		}
	}
	used := func() int64 { return lineOf(t, d.Ledger, d.now, place("a", "m", 1), suspend.Column, "window").Used }
	send("a", 1010)
	if admitted["a"] != 10 || refused != 1000 || used() != 10 {
		t.Errorf("a: admitted %d, refused %d, column used %d; want 10, 1000, 10", admitted["a"], refused, used())
	}
	send("b", 95)
	if admitted["b"] != 10 || refused != 1085 || used() != 20 {
		t.Errorf("b: admitted %d, refused %d, column used %d; want 10, 1085, 20", admitted["b"], refused, used())
	}
}

// TestC59_RemovedOverrideFallsBackAtOnce: what is queued goes at the rate of the next level, and at none when all are gone.
func TestC59_RemovedOverrideFallsBackAtOnce(t *testing.T) {
	rules := []string{"{user: u1, model: m1, rate: 1/s}", "{user: u1, rate: 5/s}", "{model: m1, rate: 10/s}"}
	text := func(n int) string {
		s := "limits:\n"
		for _, r := range rules[n:] {
			s += "  - " + r + "\n"
		}
		return s
	}
	d := newDesk(document(t, text(0)))
	s := &stream{place: place("u1", "m1", 1), every: 50 * time.Millisecond, next: start}
	for i, want := range []int{20, 100, 200} {
		was := s.went
		d.run(d.now.Add(20*time.Second), []*stream{s})
		if got := s.went - was; got < want-1 || got > want+1 {
			t.Errorf("under %v: %d in 20 s, want %d", rules[i], got, want)
		}
		d.SetPolicy(d.now, document(t, text(i+1)))
		d.review(s.place)
	}
	was := s.went
	d.run(d.now.Add(20*time.Second), []*stream{s})
	if s.queued != 0 || s.went-was < 400 {
		t.Errorf("without a rule: %d queued, %d went", s.queued, s.went-was)
	}
	// No user: the default holds for it.
	d.SetPolicy(d.now, document(t, `limits: [{user: "*", rate: 5/s}]`))
	s = &stream{place: suspend.Place{Bucket: "x", Model: "m1"}, every: 50 * time.Millisecond, next: d.now}
	d.run(d.now.Add(20*time.Second), []*stream{s})
	if s.went < 100 || s.went > 101 {
		t.Errorf("no user: %d in 20 s, want 100", s.went)
	}
}

// review asks a waiting place anew, as the machine does after a change of policy.
func (d *desk) review(p suspend.Place) {
	for scope := suspend.Bucket; scope <= suspend.Row; scope++ {
		t, _ := p.Target(scope)
		delete(d.parked, t)
	}
	if g, closed := d.Narrow(d.now, p); closed {
		d.parked[g.Target] = true
	}
}

// TestC77_TheWholeSqueezesTheLeastImportantFirst: 100/s for four levels that offer 40/s each.
func TestC77_TheWholeSqueezesTheLeastImportantFirst(t *testing.T) {
	d := newDesk(document(t, `broker: {quota: 100/s}`))
	var streams []*stream
	for level := range uint8(4) {
		for user := range 4 {
			streams = append(streams, &stream{
				place: place(fmt.Sprintf("u%d%d", level, user), "m", level), every: 100 * time.Millisecond,
				next: start.Add(time.Duration(user*25+int(level)*6) * time.Millisecond), forgetful: true,
			})
		}
	}
	perSecond := func(seconds int) (rates [4]float64) {
		for _, s := range streams {
			s.went = 0
		}
		d.run(d.now.Add(time.Duration(seconds)*time.Second), streams)
		for _, s := range streams {
			rates[s.place.Level] += float64(s.went) / float64(seconds)
		}
		return rates
	}
	near := func(got, want float64) bool { return got >= want-2 && got <= want+2 }
	perSecond(10) // what was saved up goes
	const floor = 100.0 / 16
	short := perSecond(50)
	if !near(short[0], 40) || !near(short[1], 40) || !near(short[2], 20-floor) || !near(short[3], floor) {
		t.Errorf("100/s: %.1f, want 40 40 %.1f %.1f", short, 20-floor, floor)
	}
	if sum := short[0] + short[1] + short[2] + short[3]; sum < 95 || sum > 105 {
		t.Errorf("100/s: %.1f in all", sum)
	}
	d.SetPolicy(d.now, document(t, `broker: {quota: 200/s}`))
	perSecond(5)
	for level, rate := range perSecond(20) {
		if !near(rate, 40) {
			t.Errorf("200/s: level %d has %.1f/s, want 40", level, rate)
		}
	}
}

// TestC77_ColumnLetsTheMoreImportantGoFirst: here only the column's gate is at work; the order is the caller's.
func TestC77_ColumnLetsTheMoreImportantGoFirst(t *testing.T) {
	d := newDesk(document(t, `columns: [{model: m, rate: 100/s}]`))
	var streams []*stream
	for level := range uint8(4) {
		streams = append(streams, &stream{
			place: place(fmt.Sprintf("u%d", level), "m", level), every: 25 * time.Millisecond,
			next: start.Add(time.Duration(level) * time.Millisecond),
		})
	}
	d.run(start.Add(60*time.Second), streams)
	want := [4]int{2400, 2400, 1200, 0}
	sum := 0
	for level, s := range streams {
		sum += s.went
		if s.went < want[level]-15 || s.went > want[level]+15 {
			t.Errorf("level %d: %d in 60 s, want %d", level, s.went, want[level])
		}
	}
	if sum < 5999 || sum > 6001 {
		t.Errorf("%d in 60 s, want 6000", sum)
	}
}

// TestC101_ClockStepsDoNotLockOut: 10/s with a load of 5/s, and a clock that steps by an hour and by seconds.
func TestC101_ClockStepsDoNotLockOut(t *testing.T) {
	d := newDesk(document(t, `
limits: [{user: u, model: m, rate: 10/s, quota: 10/s}]
rows: [{user: u, quota: 10/s}]
columns: [{model: m, rate: 10/s}]
`))
	p := place("u", "m", 1)
	clock, waited := start, time.Duration(0)
	for i := range 600 { // 5/s for two minutes of real time
		switch {
		case i == 50:
			clock = clock.Add(-time.Hour)
		case i > 100 && i%30 == 0:
			clock = clock.Add(-11 * time.Second)
		case i > 100 && i%30 == 15:
			clock = clock.Add(11 * time.Second)
		}
		clock = clock.Add(200 * time.Millisecond)
		d.now = clock
		d.tick()
		for range 100 {
			ticket, ok := d.try(one(p))
			if ok {
				d.free(p, ticket, Settlement{})
				break
			}
			waited += 10 * time.Millisecond
			d.now = d.now.Add(10 * time.Millisecond)
			d.tick()
			if waited > time.Second {
				t.Fatalf("ask %d waits for more than a second", i)
			}
		}
		waited = 0
	}
}

// TestKIP599 has the numbers of the proposal: a burst of 560 at 5/s.
func TestKIP599(t *testing.T) {
	for _, c := range []struct {
		rule string
		wait time.Duration
	}{
		{"quota: 5/s, quota_burst: 500", 12 * time.Second}, // 100 samples of 1 s
		{"rate: 5/s", 112 * time.Second},
	} {
		d := newDesk(document(t, "limits: [{user: u, model: m, "+c.rule+"}]"))
		p := place("u", "m", 1)
		d.Charge(d.now, Ask{Place: p, Cost: Cost{Requests: 560}})
		g, closed := d.Narrow(d.now, p)
		if !closed || !g.Until.Equal(start.Add(c.wait)) {
			t.Errorf("%s: closed %v until %v, want %v", c.rule, closed, g.Until.Sub(start), c.wait)
		}
		if _, closed := d.Narrow(g.Until.Add(-1), p); !closed {
			t.Errorf("%s: open a nanosecond early", c.rule)
		}
		if _, closed := d.Narrow(g.Until, p); closed {
			t.Errorf("%s: closed at its instant", c.rule)
		}
	}
}

// TestTokensPerMinute: 100 a minute with calls of 58, 80, 175, 175, 175.
func TestTokensPerMinute(t *testing.T) {
	d := newDesk(document(t, `limits: [{user: u, model: m, tokens: 100/1m}]`))
	p := place("u", "m", 1)
	var at []time.Duration
	for _, tokens := range []int64{58, 80, 175, 175, 175} {
		for {
			ticket, ok := d.try(Ask{Place: p, Cost: Cost{Requests: 1, Tokens: tokens}})
			if ok {
				d.free(p, ticket, Settlement{Outcome: Used, Tokens: tokens, OutputTokens: -1})
				at = append(at, d.now.Sub(start))
				break
			}
			next, ok := d.Next()
			if !ok {
				t.Fatal("nothing opens the gate")
			}
			d.to(next)
		}
	}
	want := []time.Duration{0, 0, time.Minute, 3 * time.Minute, 4 * time.Minute}
	if fmt.Sprint(at) != fmt.Sprint(want) {
		t.Errorf("went at %v, want %v", at, want)
	}
}
