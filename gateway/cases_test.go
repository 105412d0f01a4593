package gateway

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/penstockmq/penstock/broker/lite"
	"github.com/penstockmq/penstock/suspend"
	"github.com/penstockmq/penstock/suspend/limit"
	"github.com/penstockmq/penstock/suspend/policy"
)

// used is what the window of a target has let in.
func (a *admission) used(scope suspend.Scope, name string) int64 {
	if acc := a.accounts.open[accountKey{Target: suspend.Target{Scope: scope, Name: name}}]; acc != nil {
		return acc.state.Used
	}
	return 0
}

func perMinute(n int64) *limit.FixedWindow { return &limit.FixedWindow{Limit: n, Window: time.Minute} }

func TestC57_RefusedByOneLimitIsChargedToNone(t *testing.T) {
	m := new(Metrics)
	a := aloneAdmission(m)
	now := t0
	asks := func(user string, n int) (admitted int) {
		q := askOf(user, policy.Limits{})
		q.windows[suspend.Row], q.windows[suspend.Column] = perMinute(10), perMinute(100)
		for range n {
			now = now.Add(time.Millisecond)
			if _, err := a.take(now, q); err == nil {
				admitted++
			} else if statusOf(err).http != 429 {
				t.Fatal(err)
			}
		}
		return admitted
	}
	if n := asks("A", 1010); n != 10 {
		t.Errorf("%d of A's are admitted, want 10", n)
	}
	if used := a.used(suspend.Column, "m"); used != 10 {
		t.Errorf("the column has used %d before B, want 10", used)
	}
	if n := asks("B", 95); n != 10 {
		t.Errorf("%d of B's are admitted, want 10", n)
	}
	if used := a.used(suspend.Column, "m"); used != 20 {
		t.Errorf("the column has used %d, want 20", used)
	}
	if row, column := m.Limited[suspend.Row].Load(), m.Limited[suspend.Column].Load(); row != 1085 || column != 0 {
		t.Errorf("refused by rows %d, by the column %d, want 1085 and 0", row, column)
	}
	if _, accounts, queued := a.counts(); accounts != 3 || queued != 20 {
		t.Errorf("%d accounts, %d places", accounts, queued)
	}
}

// A refused depth charges no window, and the other way round.
func TestDepthAndWindowsAreOne(t *testing.T) {
	a := aloneAdmission(new(Metrics))
	l := policy.Limits{Depth: 1, Window: perMinute(2)}
	p, err := a.take(t0, askOf("u", l))
	must(t, err)
	_, err = a.take(t0, askOf("u", l))
	retryOf(t, err, errQueueFull)
	if used := a.used(suspend.Bucket, "u/m"); used != 1 {
		t.Errorf("the window has used %d, want 1", used)
	}
	a.leave(t0, p.place)
	p, err = a.take(t0, askOf("u", l))
	must(t, err)
	if _, err = a.take(t0, askOf("u", l)); retryOf(t, err, errRate) != time.Minute {
		t.Error("both refuse, and the caller is told the sooner one")
	}
	a.refund(p)
	if _, _, queued := a.counts(); queued != 0 || a.used(suspend.Bucket, "u/m") != 1 {
		t.Errorf("%d places, %d used after a refund", queued, a.used(suspend.Bucket, "u/m"))
	}
}

// Constant load of 20/s for 80 s; every 20 s the most specific rule is taken out. What is let in in each second is what
// the level below allows, from the next window on.
func TestC59_RemovedOverrideFallsBack(t *testing.T) {
	rules := []string{
		"  - {user: u1, model: m1, window: 1/1s}\n",
		"  - {user: '*', window: 5/1s}\n",
		"  - {model: m1, window: 10/1s}\n",
	}
	a := aloneAdmission(new(Metrics))
	for step, want := range []int{1, 5, 10, 20} {
		text := "version: 1\nlimits:\n"
		for _, r := range rules[step:] {
			text += r
		}
		doc, err := policy.Parse([]byte(text))
		must(t, err)
		for second := range 20 {
			admitted := 0
			for i := range 20 {
				now := t0.Add(time.Duration(step*20+second)*time.Second + time.Duration(i)*50*time.Millisecond)
				q := ask{rules: rulesOf(doc, lite.Cell{User: "u1", Model: "m1"}, "b", "")}
				if p, err := a.take(now, q); err == nil {
					a.leave(now, p.place)
					admitted++
				}
			}
			if admitted != want {
				t.Errorf("step %d, second %d: %d admitted, want %d", step, second, admitted, want)
			}
		}
	}
	if _, accounts, _ := a.counts(); accounts > 1 {
		t.Errorf("%d accounts are left", accounts)
	}
}

// The header of each answer, in a hundred phases of the window, asked every 250 ms: a whole number of at least 1, never
// rising, and waiting just so long is allowed. Once over one connection, once over a new one for each ask.
func TestC61_RetryAfterIsTrueAndNeverRises(t *testing.T) {
	const every = 250 * time.Millisecond
	l := windowOf(3, 10*time.Second)
	for phase := range 100 {
		begin := t0.Add(time.Duration(rand.Int64N(int64(10 * time.Second))))
		for _, reconnects := range []bool{false, true} {
			// run asks until it is allowed; after the ask number stop it waits as it was told and asks once more.
			run := func(stop int) (asks int) {
				a := aloneAdmission(new(Metrics))
				last := int64(1 << 40)
				for i, now := 0, begin; ; i, now = i+1, now.Add(every) {
					q := askOf("u", l)
					q.caller = caller{who: 1, conn: 1}
					if reconnects {
						q.caller.conn = rand.Uint64()
					}
					_, err := a.take(now, q)
					if i < 3 || err == nil {
						if err != nil {
							t.Fatalf("phase %d: ask %d: %v", phase, i, err)
						}
						if i >= 3 {
							return i
						}
						continue
					}
					seconds := retrySeconds(retryOf(t, err, errRate))
					if seconds < 1 || seconds > last {
						t.Fatalf("phase %d, reconnects %v: ask %d is told %d s after %d s", phase, reconnects, i, seconds, last)
					}
					last = seconds
					if i == stop {
						if _, err := a.take(now.Add(time.Duration(seconds)*time.Second), q); err != nil {
							t.Fatalf("phase %d: told %d s, then refused: %v", phase, seconds, err)
						}
						return i
					}
				}
			}
			asks := run(-1)
			run(3 + rand.IntN(max(asks-3, 1)))
		}
	}
}

// A thousand are refused in the same millisecond and come back as told: as one user over many connections, and as many
// users of one model.
func TestC82_RefusedTogetherDoNotReturnTogether(t *testing.T) {
	const callers, most = 1000, 600
	for name, userOf := range map[string]func(i int) string{
		"one user":   func(int) string { return "u" },
		"many users": func(i int) string { return fmt.Sprint("u", i) },
	} {
		t.Run(name, func(t *testing.T) {
			a := aloneAdmission(new(Metrics))
			askAs := func(i int) ask {
				q := askOf(userOf(i), policy.Limits{})
				q.windows[suspend.Column] = perMinute(most)
				q.caller = caller{who: mix(userOf(i)), conn: mix(fmt.Sprint("conn", i))}
				return q
			}
			now := t0.Add(30 * time.Second)
			for i := range most {
				_, err := a.take(now, askAs(i))
				must(t, err)
			}
			returns := map[int64][]int{} // callers by the second they are told
			for i := range callers {
				_, err := a.take(now, askAs(i))
				s := retrySeconds(retryOf(t, err, errRate))
				returns[s] = append(returns[s], i)
			}
			if len(returns) < 4 {
				t.Errorf("%d distinct seconds", len(returns))
			}
			admitted := 0
			for s := int64(1); s <= 90; s++ {
				if len(returns[s]) > 0 && (s < 30 || s > 36) {
					t.Errorf("%d callers are told %d s", len(returns[s]), s)
				}
				for _, i := range returns[s] {
					if _, err := a.take(now.Add(time.Duration(s)*time.Second), askAs(i)); err == nil {
						admitted++
					}
				}
			}
			if admitted < most*9/10 {
				t.Errorf("%d are admitted in the minute after, of %d", admitted, most)
			}
		})
	}
}

// mix is a hash that is the same in each run.
func mix(s string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 1099511628211
	}
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	return h ^ h>>33
}

// In a crowd too, what a caller is told never rises while it keeps its connection, and never falls short of the opening.
func TestCrowdNeverRises(t *testing.T) {
	var w crowd
	until := t0.Add(time.Minute)
	before := map[uint64]time.Duration{}
	for i := range 600 {
		now := t0.Add(time.Duration(i) * 100 * time.Millisecond)
		for c := range uint64(20) {
			who := caller{who: mix(fmt.Sprint("who", c%5)), conn: mix(fmt.Sprint("conn", c))}
			got, left := w.wait(now, until, who), until.Sub(now)
			if got < left || got > left*12/10 {
				t.Fatalf("%s for %s", got, left)
			}
			if last, again := before[c]; again && i > 1 && got > last {
				t.Fatalf("caller %d is told %s after %s", c, got, last)
			}
			before[c] = got
		}
	}
}

// Users who are refused one after the other are a crowd too, and each keeps its share over new connections.
func TestCrowdOfUsers(t *testing.T) {
	var w crowd
	until := t0.Add(time.Hour)
	shares := map[int]int{} // of each user, in tenths of the spread
	parts := map[int]bool{}
	for round := range 2 {
		for i := range 100 { // each user twice in a row
			u := i / 2
			now := t0.Add(time.Duration(100*round+i) * time.Second)
			who := caller{who: mix(fmt.Sprint("who", u)), conn: rand.Uint64()}
			left := until.Sub(now)
			part := int(float64(w.wait(now, until, who)-left) / float64(left) * 50)
			if before, again := shares[u]; again && part != before {
				t.Errorf("round %d: user %d has share %d, and %d before", round, u, part, before)
			}
			shares[u], parts[part] = part, true
		}
	}
	if len(parts) < 8 {
		t.Errorf("50 users share %d of 10 parts of the spread", len(parts))
	}
}

// Enforced, a window refuses what is over it; in shadow it counts the same and refuses nothing.
func TestC89_RefusalsAreCountedOnEveryPath(t *testing.T) {
	for _, tt := range []struct {
		name                            string
		shadow                          bool
		forwarded, refused, wouldRefuse int64
	}{
		{"enforced", false, 10, 1000, 0},
		{"report only", true, 1010, 0, 1000},
	} {
		m := new(Metrics)
		a := aloneAdmission(m)
		q := askOf("u", policy.Limits{})
		if tt.shadow {
			q.shadowWindows[suspend.Bucket] = perMinute(10)
		} else {
			q.windows[suspend.Bucket] = perMinute(10)
		}
		for i := range 1010 {
			if p, err := a.take(t0.Add(time.Duration(i)*time.Millisecond), q); err == nil {
				m.accepted(p.would)
			}
		}
		if m.Accepted.Load() != tt.forwarded || m.Limited[suspend.Bucket].Load() != tt.refused ||
			m.WouldRefuse.Load() != tt.wouldRefuse || m.WouldLimit[suspend.Bucket].Load() != tt.wouldRefuse {
			t.Errorf("%s: forwarded %d, refused %d, would refuse %d (%d by the cell)", tt.name, m.Accepted.Load(),
				m.Limited[suspend.Bucket].Load(), m.WouldRefuse.Load(), m.WouldLimit[suspend.Bucket].Load())
		}
	}
}

// Shadow rules are asked as one, and each request counts once, whatever the number of rules that would refuse it.
func TestShadowIsAskedAsOne(t *testing.T) {
	m := new(Metrics)
	a := aloneAdmission(m)
	q := askOf("u", policy.Limits{})
	q.shadow.Depth = 4
	q.shadowWindows[suspend.Row], q.shadowWindows[suspend.Column] = perMinute(2), perMinute(3)
	for range 5 {
		p, err := a.take(t0, q)
		must(t, err)
		m.accepted(p.would)
	}
	if m.WouldRefuse.Load() != 3 || m.WouldLimit[suspend.Row].Load() != 3 || m.WouldLimit[suspend.Column].Load() != 0 || m.WouldFill.Load() != 1 {
		t.Errorf("would refuse %d: by the row %d, by the column %d, by the depth %d", m.WouldRefuse.Load(),
			m.WouldLimit[suspend.Row].Load(), m.WouldLimit[suspend.Column].Load(), m.WouldFill.Load())
	}
	column := a.accounts.open[accountKey{Target: suspend.Target{Scope: suspend.Column, Name: "m"}, shadow: true}]
	if column == nil || column.state.Used != 2 {
		t.Errorf("the column's shadow account: %+v", column)
	}
	enforced := askOf("u", policy.Limits{})
	enforced.windows[suspend.Row] = perMinute(1)
	if _, err := a.take(t0, enforced); err != nil {
		t.Errorf("what shadow rules counted was charged: %v", err)
	}
}
