package limit

import (
	"math"
	"math/big"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// passed is an ask that passed.
type passed struct{ at, cost int64 }

// greedy asks at random and as soon as it may, and returns what passed.
func greedy(t *rapid.T, h subject, scale time.Duration, costMost int64) []passed {
	now := noon.Add(time.Duration(rapid.Int64Range(0, int64(time.Minute)).Draw(t, "start")))
	var all []passed
	for range rapid.IntRange(1, 40).Draw(t, "asks") {
		cost := rapid.Int64Range(1, costMost).Draw(t, "cost")
		d := h.take(now, cost)
		switch {
		case d.Allowed:
			all = append(all, passed{now.UnixNano(), cost})
		case !d.Never && rapid.IntRange(0, 3).Draw(t, "on time") > 0:
			if now = d.RetryAt; now.Year() > 2200 { // beyond 2262 instants stay where they are
				return all
			}
			continue
		}
		if rapid.Bool().Draw(t, "pause") {
			now = now.Add(max(drawStep(t, scale), 0))
		}
	}
	return all
}

// inEverySpan calls f with every span from one ask that passed to another: its length, and the cost of all but the last.
func inEverySpan(all []passed, f func(d, cost int64)) {
	for i := range all {
		sum := int64(0)
		for j := i; j < len(all); j++ {
			f(all[j].at-all[i].at, sum)
			sum += all[j].cost
		}
	}
}

// within reports whether cost <= burst + d*r.
func within(cost, burst, d int64, r Rate) bool {
	left := new(big.Int).Mul(big.NewInt(cost-burst), big.NewInt(int64(r.Per)))
	return left.Cmp(new(big.Int).Mul(big.NewInt(d), big.NewInt(r.Events))) <= 0
}

func drawPermille(t *rapid.T) int64 {
	return rapid.OneOf(rapid.Just(int64(1000)), rapid.Int64Range(50, 1000)).Draw(t, "permille")
}

// TestNeverMoreThanTheLimit: in any span, whatever passes but the last ask is within the limit and the burst it states; also
// of a limit that is scaled.
func TestNeverMoreThanTheLimit(t *testing.T) {
	t.Run("leaky", func(t *testing.T) {
		rapid.Check(t, func(t *rapid.T) {
			l := LeakyBucket{Rate: drawRate(t)}
			l.Burst = drawBurst(t, l.Rate)
			l, _ = l.Scaled(drawPermille(t))
			all := greedy(t, leakySubject(l), interval(l.Rate), 20)
			inEverySpan(all, func(d, cost int64) {
				if !within(cost, 0, d+int64(l.Burst), l.Rate) {
					t.Fatalf("%d in %d ns of %v", cost, d, l)
				}
			})
		})
	})
	t.Run("token", func(t *testing.T) {
		rapid.Check(t, func(t *rapid.T) {
			l, _ := drawTokenBucket(t).Scaled(drawPermille(t))
			all := greedy(t, tokenSubject(l), interval(l.Rate), 60)
			inEverySpan(all, func(d, cost int64) {
				if !within(cost, l.Full(), d, l.Rate) {
					t.Fatalf("%d in %d ns of %v", cost, d, l)
				}
			})
		})
	})
	t.Run("window", func(t *testing.T) {
		rapid.Check(t, func(t *rapid.T) {
			l := FixedWindow{Limit: rapid.Int64Range(1, 50).Draw(t, "limit"), Window: drawWindow(t)}
			l, _ = l.Scaled(drawPermille(t))
			used := make(map[int64]int64)
			for _, p := range greedy(t, windowSubject(l), l.Window/4, l.Limit) {
				if used[l.index(p.at)] += p.cost; used[l.index(p.at)] > l.Limit {
					t.Fatalf("%d in a window of %v", used[l.index(p.at)], l)
				}
			}
		})
	})
	t.Run("tokens", func(t *testing.T) {
		rapid.Check(t, func(t *rapid.T) {
			l := TokenWindow{Limit: rapid.Int64Range(1, 50).Draw(t, "limit"), Window: drawWindow(t)}
			l, _ = l.Scaled(drawPermille(t))
			all := greedy(t, tokensSubject(l), l.Window/4, 120)
			inEverySpan(all, func(d, cost int64) {
				if cost >= (d/int64(l.Window)+2)*l.Limit {
					t.Fatalf("%d in %d ns of %v", cost, d, l)
				}
			})
		})
	})
}

// TestObservedRateStaysInItsBounds: what passed in the slots that O covers, but the last ask. The stated bounds hold as
// long as Cap does not cut a delay short.
func TestObservedRateStaysInItsBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := drawObserved(t)
		l.Cap = MaxWindow
		if l.Rate.Events == 0 {
			return
		}
		l, _ = l.Scaled(drawPermille(t))
		unit := rapid.Bool().Draw(t, "unit")
		most := int64(60)
		if unit {
			most = 1
		}
		slots, length := l.slots()
		covers := int64(slots) * length
		if w := int64(l.Span()); covers < w || covers > w+w/observedSlots {
			t.Fatalf("%d ns are covered, W is %d", covers, w)
		}
		visible := func(from, at int64) bool { return floorDiv(at, length)-floorDiv(from, length) < int64(slots) }
		all := greedy(t, observedSubject(l), max(l.size(), interval(l.Rate)), most)
		for i := range all {
			sum := int64(0)
			for j := range all[:i] {
				if visible(all[j].at, all[i].at) {
					sum += all[j].cost
				}
			}
			if !within(sum, 0, int64(l.Span())+covers, l.Rate) {
				t.Fatalf("%d observed of %v", sum, l)
			}
			// The k-th ask above T*W waits at least k/T, and all these waits fit into what is covered.
			if k := sum - l.target() - 1; unit && k > 0 && !within(k*(k+1)/2, 0, covers, l.Rate) {
				t.Fatalf("%d asks observed of %v", sum, l)
			}
		}
	})
}

// TestEndlessDebtStaysEndless: more than a bucket can owe adds nothing, and takes nothing off.
func TestEndlessDebtStaysEndless(t *testing.T) {
	l := LeakyBucket{Rate: Rate{7, time.Second}, Burst: time.Hour}
	s := l.Charge(LeakyState{}, noon, 5)
	s = l.Charge(s, noon, math.MaxInt64/int64(time.Second)*7) // up to a fraction of the end
	opens := l.Opens(s, noon)
	for _, cost := range []int64{1, 1 << 40, math.MaxInt64} {
		if s = l.Charge(s, noon, cost); l.Opens(s, noon).Before(opens) {
			t.Errorf("charged %d: opens at %v, before that at %v", cost, l.Opens(s, noon), opens)
		}
		opens = l.Opens(s, noon)
	}
}

var extreme = rapid.OneOf(
	rapid.SampledFrom([]int64{math.MinInt64, math.MinInt64 + 1, -1, 0, 1, math.MaxInt64 - 1, math.MaxInt64}),
	rapid.Int64(),
)

// TestBoundsOfEveryLimit: at the bounds of all figures, with any cost and any clock, nothing wraps round: no instant lies
// before now, no charge opens a bucket and no refund closes one.
func TestBoundsOfEveryLimit(t *testing.T) {
	rates := []Rate{{1, MinWindow}, {1, MaxWindow}, {MaxEvents, MinWindow}, {MaxEvents, MaxWindow}}
	var limits []subject
	for _, r := range rates {
		limits = append(limits,
			leakySubject(LeakyBucket{Rate: r}), leakySubject(LeakyBucket{Rate: r, Burst: MaxWindow}),
			tokenSubject(TokenBucket{Rate: r}), tokenSubject(TokenBucket{Rate: r, Capacity: MaxLimit}),
			windowSubject(FixedWindow{Limit: r.Events, Window: r.Per}), windowSubject(FixedWindow{Limit: MaxLimit, Window: r.Per}),
			tokensSubject(TokenWindow{Limit: r.Events, Window: r.Per}), tokensSubject(TokenWindow{Limit: MaxLimit, Window: r.Per}))
	}
	for _, l := range []ObservedRate{
		{},
		{Cap: MaxWindow},
		{Rate: rates[0], Samples: 1, Size: MinWindow},
		{Rate: rates[1], Samples: 1, Size: MaxWindow, Cap: MaxWindow},
		{Rate: rates[3], Samples: MaxSamples, Size: MinWindow},
		{Rate: Rate{MaxObserved / 1000, time.Second}, Samples: 1000},
	} {
		limits = append(limits, observedSubject(l))
	}
	limits = append(limits, tokenSubject(TokenBucket{}))
	rapid.Check(t, func(t *rapid.T) {
		h := rapid.SampledFrom(limits).Draw(t, "limit").clone()
		if err := h.valid(); err != nil {
			t.Fatal(err)
		}
		if permille := extreme.Draw(t, "permille"); permille > 0 {
			h, _ = h.scaled(permille%1000 + 1)
		}
		for range rapid.IntRange(1, 12).Draw(t, "events") {
			now := time.Unix(0, extreme.Draw(t, "now"))
			cost := extreme.Draw(t, "cost")
			opens := h.opens(now)
			if opens.Before(now) || h.rests(now).Before(opens) {
				t.Fatalf("at %v it opens at %v and rests at %v", now, opens, h.rests(now))
			}
			d := h.peek(now, cost)
			if d.Remaining < 0 || d.Wait(now) < 0 || d.Allowed && cost < 0 || d.Never && !d.RetryAt.IsZero() {
				t.Fatalf("cost %d: %+v", cost, d)
			}
			if !d.Allowed && !d.Never && d.RetryAt.Before(now) {
				t.Fatalf("at %v: a retry at %v", now, d.RetryAt)
			}
			h.charge(now, cost)
			if after := h.opens(now); cost > 0 && after.Before(opens) || cost < 0 && after.After(opens) {
				t.Fatalf("cost %d moved %v to %v", cost, opens, after)
			}
		}
	})
}

// TestBeyondTheReachOfNanoseconds: instants that int64 cannot express become the nearest that it can.
func TestBeyondTheReachOfNanoseconds(t *testing.T) {
	for _, a := range algorithms {
		t.Run(a.name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				h, _ := a.draw(t)
				for range rapid.IntRange(1, 6).Draw(t, "events") {
					year := rapid.SampledFrom([]int{1, 1600, 1969, 1970, 2026, 2262, 2300, 9999}).Draw(t, "year")
					now := time.Date(year, 1, 1, 0, 0, 0, 0, time.UTC)
					h.charge(now, extreme.Draw(t, "cost"))
					if d := h.take(now, 1); d.Allowed != d.RetryAt.IsZero() || d.Remaining < 0 {
						t.Fatalf("in %d: %+v", year, d)
					}
				}
			})
		})
	}
}
