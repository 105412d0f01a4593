package limit

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// gate is what all limits with a state have in common.
type gate[S comparable] interface {
	Validate() error
	Take(s S, now time.Time, cost int64) (S, Decision)
	Peek(s S, now time.Time, cost int64) (S, Decision)
	Opens(s S, now time.Time) time.Time
	Charge(s S, now time.Time, cost int64) S
	Rests(s S, now time.Time) time.Time
}

// subject is a limit with its state, so that one property can be checked of all algorithms.
type subject interface {
	take(now time.Time, cost int64) Decision
	peek(now time.Time, cost int64) Decision // keeps nothing
	opens(now time.Time) time.Time
	charge(now time.Time, cost int64)
	rests(now time.Time) time.Time
	state() any
	clone() subject
	fresh() subject
	scaled(permille int64) (subject, bool) // with the same state
	valid() error
}

type held[S comparable, L gate[S]] struct {
	l     L
	s     S
	scale func(L, int64) (L, bool)
}

func (h *held[S, L]) take(now time.Time, cost int64) (d Decision) {
	h.s, d = h.l.Take(h.s, now, cost)
	return d
}

func (h *held[S, L]) peek(now time.Time, cost int64) Decision {
	_, d := h.l.Peek(h.s, now, cost)
	return d
}

func (h *held[S, L]) opens(now time.Time) time.Time    { return h.l.Opens(h.s, now) }
func (h *held[S, L]) charge(now time.Time, cost int64) { h.s = h.l.Charge(h.s, now, cost) }
func (h *held[S, L]) rests(now time.Time) time.Time    { return h.l.Rests(h.s, now) }
func (h *held[S, L]) state() any                       { return h.s }
func (h *held[S, L]) valid() error                     { return h.l.Validate() }

func (h *held[S, L]) clone() subject {
	c := *h
	return &c
}

func (h *held[S, L]) fresh() subject { return &held[S, L]{l: h.l, scale: h.scale} }

func (h *held[S, L]) scaled(permille int64) (subject, bool) {
	l, ok := h.scale(h.l, permille)
	return &held[S, L]{l: l, s: h.s, scale: h.scale}, ok
}

func leakySubject(l LeakyBucket) subject {
	return &held[LeakyState, LeakyBucket]{l: l, scale: LeakyBucket.Scaled}
}

func windowSubject(l FixedWindow) subject {
	return &held[WindowState, FixedWindow]{l: l, scale: FixedWindow.Scaled}
}

func tokenSubject(l TokenBucket) subject {
	return &held[TokenState, TokenBucket]{l: l, scale: TokenBucket.Scaled}
}

func observedSubject(l ObservedRate) subject {
	return &held[ObservedState, ObservedRate]{l: l, scale: ObservedRate.Scaled}
}

func tokensSubject(l TokenWindow) subject {
	return &held[TokenWindowState, TokenWindow]{l: l, scale: TokenWindow.Scaled}
}

// algorithms draw a limit of each kind, with an empty state, and the time scale on which it works.
var algorithms = []struct {
	name string
	draw func(t *rapid.T) (subject, time.Duration)
}{
	{"leaky", func(t *rapid.T) (subject, time.Duration) {
		l := LeakyBucket{Rate: drawRate(t)}
		l.Burst = drawBurst(t, l.Rate)
		return leakySubject(l), interval(l.Rate)
	}},
	{"window", func(t *rapid.T) (subject, time.Duration) {
		l := FixedWindow{Limit: rapid.Int64Range(1, 50).Draw(t, "limit"), Window: drawWindow(t)}
		return windowSubject(l), l.Window / 4
	}},
	{"token", func(t *rapid.T) (subject, time.Duration) {
		l := drawTokenBucket(t)
		return tokenSubject(l), interval(l.Rate)
	}},
	{"observed", func(t *rapid.T) (subject, time.Duration) {
		l := drawObserved(t)
		return observedSubject(l), max(l.size(), interval(l.Rate))
	}},
	{"tokens", func(t *rapid.T) (subject, time.Duration) {
		l := TokenWindow{Limit: rapid.Int64Range(1, 50).Draw(t, "limit"), Window: drawWindow(t)}
		return tokensSubject(l), l.Window / 4
	}},
}

// interval is the time between two events of a rate, at least a nanosecond; a second for none.
func interval(r Rate) time.Duration {
	if r.Events == 0 {
		return time.Second
	}
	return max(r.Per/time.Duration(r.Events), 1)
}

func drawRate(t *rapid.T) Rate {
	return rapid.OneOf(
		rapid.SampledFrom([]Rate{
			{1, 2 * time.Second},
			{1, time.Second},
			{3, time.Second},
			{7, time.Second},
			{1000, time.Second},
			{MaxEvents, time.Millisecond},
			{999_999_937, MaxWindow},
			{1, MaxWindow},
		}),
		rapid.Custom(func(t *rapid.T) Rate {
			return Rate{rapid.Int64Range(1, 1000).Draw(t, "events"), drawWindow(t)}
		}),
	).Draw(t, "rate")
}

func drawWindow(t *rapid.T) time.Duration {
	return time.Duration(rapid.OneOf(
		rapid.SampledFrom([]int64{int64(time.Millisecond), int64(time.Second), int64(time.Minute), int64(MaxWindow)}),
		rapid.Int64Range(int64(time.Millisecond), int64(10*time.Second)),
	).Draw(t, "window"))
}

func drawTokenBucket(t *rapid.T) TokenBucket {
	return TokenBucket{Rate: drawRate(t), Capacity: rapid.Int64Range(0, 40).Draw(t, "capacity")}
}

// drawObserved draws a valid limit, at times with the zero rate.
func drawObserved(t *rapid.T) ObservedRate {
	l := ObservedRate{
		Rate:    Rate{rapid.Int64Range(1, 100).Draw(t, "events"), time.Duration(rapid.Int64Range(1, 10).Draw(t, "per")) * time.Second},
		Samples: rapid.IntRange(0, 40).Draw(t, "samples"),
		Size:    time.Duration(rapid.Int64Range(0, 3000).Draw(t, "size")) * time.Millisecond,
		Cap:     time.Duration(rapid.SampledFrom([]int64{0, 1, int64(time.Second), int64(MaxWindow)}).Draw(t, "cap")),
	}
	if rapid.IntRange(0, 9).Draw(t, "target") == 0 {
		l.Rate = Rate{}
	}
	return l
}

// drawHistory lets a subject live for a while: asks, charges and what is given back, at times a little backward. It ends
// at an instant that is not before any of them.
func drawHistory(t *rapid.T, h subject, scale time.Duration) time.Time {
	now := noon.Add(time.Duration(rapid.Int64Range(0, int64(time.Minute)).Draw(t, "start")))
	latest := now
	for range rapid.IntRange(0, 8).Draw(t, "events") {
		cost := rapid.OneOf(rapid.Int64Range(0, 3), rapid.Int64Range(0, 60)).Draw(t, "cost")
		switch rapid.IntRange(0, 5).Draw(t, "event") {
		case 0:
			h.charge(now, cost)
		case 1:
			h.charge(now, -cost)
		default:
			h.take(now, cost)
		}
		now = now.Add(drawStep(t, scale))
		if now.After(latest) {
			latest = now
		}
	}
	return latest
}

func drawStep(t *rapid.T, scale time.Duration) time.Duration {
	return time.Duration(rapid.OneOf(
		rapid.Just(int64(0)),
		rapid.Int64Range(-int64(time.Millisecond), 0),
		rapid.Int64Range(0, 2*int64(scale)),
		rapid.Int64Range(0, 20*int64(scale)),
		rapid.Int64Range(0, int64(time.Second)),
	).Draw(t, "step"))
}

// forEach checks a property of every algorithm in a state that its history has led to.
func forEach(t *testing.T, check func(t *rapid.T, h subject, now time.Time, scale time.Duration)) {
	t.Helper()
	for _, a := range algorithms {
		t.Run(a.name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				h, scale := a.draw(t)
				if err := h.valid(); err != nil {
					t.Fatalf("drew a limit that is not valid: %v", err)
				}
				check(t, h, drawHistory(t, h, scale), scale)
			})
		})
	}
}

// TestC49_WaitOfEveryLimitIsTheShortest: an ask repeated at RetryAt passes, a nanosecond or a millisecond before it does
// not; also of a limit that was scaled since.
func TestC49_WaitOfEveryLimitIsTheShortest(t *testing.T) {
	forEach(t, func(t *rapid.T, h subject, now time.Time, _ time.Duration) {
		if rapid.Bool().Draw(t, "scaled") {
			h, _ = h.scaled(rapid.Int64Range(100, 999).Draw(t, "permille"))
			h.charge(now, 0)
		}
		cost := rapid.SampledFrom([]int64{0, 1, 42}).Draw(t, "cost")
		waitIsShortest(t, now, func(at time.Time) Decision { return h.clone().take(at, cost) })
	})
}

// TestOpensIsTheRetryOfOne: what Opens says is what an ask of cost 1 is told.
func TestOpensIsTheRetryOfOne(t *testing.T) {
	forEach(t, func(t *rapid.T, h subject, now time.Time, _ time.Duration) {
		want := h.peek(now, 1).RetryAt
		if want.IsZero() {
			want = now
		}
		if got := h.opens(now); !got.Equal(want) {
			t.Fatalf("opens at %v, an ask is told %v", got, want)
		}
		if h.peek(now, 1).Allowed != (h.peek(now, 1).Remaining > 0) {
			t.Fatalf("%+v", h.peek(now, 1))
		}
	})
}

// TestRemainingIsWhatPasses: exactly Remaining asks of cost 1 pass at once.
func TestRemainingIsWhatPasses(t *testing.T) {
	forEach(t, func(t *rapid.T, h subject, now time.Time, _ time.Duration) {
		want := h.peek(now, 0).Remaining
		if want > 2000 {
			return // a burst of millions at the highest rates
		}
		for n := int64(0); ; n++ {
			d := h.take(now, 1)
			if !d.Allowed {
				if n != want {
					t.Fatalf("%d passed, %d were said to", n, want)
				}
				return
			}
			if d.Remaining != want-n-1 {
				t.Fatalf("after %d of %d: %d remain", n+1, want, d.Remaining)
			}
		}
	})
}

// TestChargeIsTakeUnasked: Charge does to the state what Take does to one that passes.
func TestChargeIsTakeUnasked(t *testing.T) {
	forEach(t, func(t *rapid.T, h subject, now time.Time, _ time.Duration) {
		cost := rapid.Int64Range(0, 60).Draw(t, "cost")
		charged := h.clone()
		charged.charge(now, cost)
		if h.take(now, cost).Allowed && h.state() != charged.state() {
			t.Fatalf("taken %+v, charged %+v", h.state(), charged.state())
		}
	})
}

// TestChargeIsMonotone: a charge opens nothing earlier, a refund nothing later, and no refund makes a bucket better than new.
func TestChargeIsMonotone(t *testing.T) {
	costs := rapid.OneOf(rapid.Int64Range(0, 60), rapid.Int64Range(0, math.MaxInt64))
	forEach(t, func(t *rapid.T, h subject, now time.Time, _ time.Duration) {
		cost := costs.Draw(t, "cost")
		before, remaining := h.opens(now), h.peek(now, 0).Remaining
		more, less := h.clone(), h.clone()
		more.charge(now, cost)
		less.charge(now, -cost)
		if at := more.opens(now); at.Before(before) || more.peek(now, 0).Remaining > remaining {
			t.Fatalf("charged %d: opens at %v, before that at %v", cost, at, before)
		}
		if at := less.opens(now); at.After(before) || less.peek(now, 0).Remaining < remaining {
			t.Fatalf("given back %d: opens at %v, before that at %v", cost, at, before)
		}
		if got, most := less.peek(now, 0).Remaining, h.fresh().peek(now, 0).Remaining; got > most {
			t.Fatalf("given back %d: %d remain, of %d when new", cost, got, most)
		}
	})
}

// TestRefundUndoesACharge: given back at once, it is as if nothing had been charged. Of an observed rate that holds for
// what is observed; what is above the target without it delays from the charge on.
func TestRefundUndoesACharge(t *testing.T) {
	forEach(t, func(t *rapid.T, h subject, now time.Time, _ time.Duration) {
		cost := rapid.Int64Range(1, 60).Draw(t, "cost")
		opens, rests, remaining := h.opens(now), h.rests(now), h.peek(now, 0).Remaining
		h.charge(now, 0)
		before := h.clone()
		h.charge(now, cost)
		h.charge(now, -cost)
		if o, ok := h.(*held[ObservedState, ObservedRate]); ok {
			was := before.(*held[ObservedState, ObservedRate])
			if got, want := o.l.Observed(o.s, now), was.l.Observed(was.s, now); got != want {
				t.Fatalf("%d observed, before that %d", got, want)
			}
			return
		}
		if l, ok := h.(*held[LeakyState, LeakyBucket]); ok && rests.After(now) {
			was := before.(*held[LeakyState, LeakyBucket]) // to the fraction of a nanosecond
			if l.s.TAT != was.s.TAT || l.s.Frac != was.s.Frac {
				t.Fatalf("owed %+v, now %+v", was.s, l.s)
			}
		}
		if !h.opens(now).Equal(opens) || !h.rests(now).Equal(rests) || h.peek(now, 0).Remaining != remaining {
			t.Fatalf("opened at %v, now at %v; rested at %v, now at %v", opens, h.opens(now), rests, h.rests(now))
		}
	})
}

// TestRestedIsAsGoodAsNew: from Rests on, a bucket answers as one that was never charged; Rests does not move meanwhile.
func TestRestedIsAsGoodAsNew(t *testing.T) {
	forEach(t, func(t *rapid.T, h subject, now time.Time, scale time.Duration) {
		rests := h.rests(now)
		if rests.Before(h.opens(now)) {
			t.Fatalf("rests at %v, opens at %v", rests, h.opens(now))
		}
		if rests.After(now) {
			if again := h.rests(rests.Add(-1)); !again.Equal(rests) {
				t.Fatalf("rests at %v, later at %v", rests, again)
			}
		}
		if again := h.rests(rests); !again.Equal(rests) {
			t.Fatalf("rests at %v, then not before %v", rests, again)
		}
		fresh, at := h.fresh(), rests
		for range rapid.IntRange(1, 10).Draw(t, "asks") {
			cost := rapid.Int64Range(0, 30).Draw(t, "cost")
			if got, want := h.take(at, cost), fresh.take(at, cost); got != want {
				t.Fatalf("at %v: %+v, when new %+v", at, got, want)
			}
			at = at.Add(max(drawStep(t, scale), 0))
		}
	})
}

// TestOpenStaysOpen: time alone closes nothing, and takes nothing away.
func TestOpenStaysOpen(t *testing.T) {
	forEach(t, func(t *rapid.T, h subject, now time.Time, scale time.Duration) {
		cost := rapid.Int64Range(0, 60).Draw(t, "cost")
		before := h.peek(now, cost)
		for range 10 {
			now = now.Add(max(drawStep(t, scale), 0))
			after := h.peek(now, cost)
			if before.Allowed && !after.Allowed {
				t.Fatalf("passed, and at %v: %+v", now, after)
			}
			if after.Remaining < before.Remaining {
				t.Fatalf("%d remained, and at %v %d", before.Remaining, now, after.Remaining)
			}
			before = after
		}
	})
}

// TestRefusedChargesNothing: whoever is refused has only told the time.
func TestRefusedChargesNothing(t *testing.T) {
	forEach(t, func(t *rapid.T, h subject, now time.Time, _ time.Duration) {
		cost := rapid.Int64Range(-5, 60).Draw(t, "cost")
		opens, remaining, rests := h.opens(now), h.peek(now, 0).Remaining, h.rests(now)
		if h.take(now, cost).Allowed {
			return
		}
		if !h.opens(now).Equal(opens) || h.peek(now, 0).Remaining != remaining || !h.rests(now).Equal(rests) {
			t.Fatalf("cost %d refused and charged: %+v", cost, h.state())
		}
	})
}

// TestScaledIsStricter: at any factor, the same state opens no earlier; at 1000 nothing changes, and 0 is closed.
func TestScaledIsStricter(t *testing.T) {
	forEach(t, func(t *rapid.T, h subject, now time.Time, _ time.Duration) {
		permille := rapid.Int64Range(1, 999).Draw(t, "permille")
		scaled, ok := h.scaled(permille)
		if !ok {
			t.Fatalf("closed at %d", permille)
		}
		if at := scaled.opens(now); at.Before(h.opens(now)) {
			t.Fatalf("at %d it opens at %v, before that at %v", permille, at, h.opens(now))
		}
		if got, most := scaled.fresh().peek(now, 0).Remaining, h.fresh().peek(now, 0).Remaining; got > most {
			t.Fatalf("at %d a new bucket lets %d pass, else %d", permille, got, most)
		}
		whole, ok := h.scaled(1000 + rapid.Int64Range(0, 5).Draw(t, "above"))
		if !ok || whole.peek(now, 1) != h.peek(now, 1) {
			t.Fatal("a factor of one changes the answer")
		}
		if _, ok := h.scaled(-rapid.Int64Range(0, 5).Draw(t, "below")); ok {
			t.Fatal("a factor of zero does not close")
		}
	})
}
