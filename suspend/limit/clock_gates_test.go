package limit

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestStepBackKeepsTheWait: after a clock has gone back, each limit waits as long as it had still to wait, counted from the
// new now. The fixed window goes by the calendar, and waits for the end of the window it is now in.
func TestStepBackKeepsTheWait(t *testing.T) {
	forEach(t, func(t *rapid.T, h subject, now time.Time, _ time.Duration) {
		cost := rapid.SampledFrom([]int64{0, 1, 42}).Draw(t, "cost")
		h.take(now, 0)
		before, rests := h.opens(now).Sub(now), h.rests(now).Sub(now)
		step := time.Duration(rapid.Int64Range(int64(ClockTolerance)+1, int64(30*365*24*time.Hour)).Draw(t, "step"))
		then := now.Add(-step)
		waitIsShortest(t, then, func(at time.Time) Decision {
			c := h.clone()
			c.take(then, 0) // the step is seen by whoever asks first
			return c.take(at, cost)
		})
		after := h.opens(then).Sub(then)
		if w, ok := h.(*held[WindowState, FixedWindow]); ok {
			if (before > 0) != (after > 0) || after > w.l.Window {
				t.Fatalf("waited %v, after the step %v", before, after)
			}
			return
		}
		if after != before {
			t.Fatalf("waited %v, after the step %v", before, after)
		}
		// What observed slots cover depends on where in a slot the clock is, everything else moves with it.
		if _, ok := h.(*held[ObservedState, ObservedRate]); !ok && h.rests(then).Sub(then) != rests {
			t.Fatalf("rested after %v, after the step after %v", rests, h.rests(then).Sub(then))
		}
	})
}

// TestSlewedClockIsWaitedFor: within the tolerance, an ask counts as made at the latest instant; nothing opens by it.
func TestSlewedClockIsWaitedFor(t *testing.T) {
	forEach(t, func(t *rapid.T, h subject, now time.Time, _ time.Duration) {
		cost := rapid.Int64Range(0, 60).Draw(t, "cost")
		h.take(now, 0)
		late := now.Add(-time.Duration(rapid.Int64Range(0, int64(ClockTolerance)).Draw(t, "late")))
		if got, want := h.peek(late, cost), h.peek(now, cost); got != want {
			t.Fatalf("%v late: %+v, want %+v", now.Sub(late), got, want)
		}
		h.charge(late, cost)
		charged := h.opens(now)
		if got := h.opens(late); charged.After(now) && !got.Equal(charged) {
			t.Fatalf("opens at %v, for one who reads the clock late at %v", charged, got)
		}
	})
}

// TestStepForwardGivesNoMoreThanItSkips: a clock that goes forward is time gone by, and going back takes nothing away again:
// the bucket is at most as good as new.
func TestStepForwardGivesNoMoreThanItSkips(t *testing.T) {
	forEach(t, func(t *rapid.T, h subject, now time.Time, _ time.Duration) {
		step := time.Duration(rapid.Int64Range(int64(ClockTolerance)+1, int64(time.Hour)).Draw(t, "step"))
		there := h.clone()
		there.take(now.Add(step), 0)
		opens := h.opens(now)
		back := there.opens(now)
		if _, ok := h.(*held[WindowState, FixedWindow]); !ok && back.After(opens) {
			t.Fatalf("opened at %v, after a step there and back at %v", opens, back)
		}
		if there.peek(now, 0).Remaining > h.fresh().peek(now, 0).Remaining {
			t.Fatalf("%d remain", there.peek(now, 0).Remaining)
		}
	})
}

// TestC101_ClockStepsLockNobodyOut: a load of half the limit, while the clock steps back by an hour, and then back and
// forth by 11 s every 3 s. Nobody is refused, and no bucket is in debt.
func TestC101_ClockStepsLockNobodyOut(t *testing.T) {
	rate := Rate{10, time.Second}
	for name, h := range map[string]subject{
		// Without a burst it waits 100 ms once more, for the time that the step has hidden.
		"leaky":    leakySubject(LeakyBucket{Rate: rate, Burst: 100 * time.Millisecond}),
		"token":    tokenSubject(TokenBucket{Rate: rate}),
		"observed": observedSubject(ObservedRate{Rate: rate}),
		"window":   windowSubject(FixedWindow{Limit: 10, Window: time.Second}),
		"tokens":   tokensSubject(TokenWindow{Limit: 10, Window: time.Second}),
	} {
		t.Run(name, func(t *testing.T) {
			step := func(passed time.Duration) time.Duration {
				switch {
				case passed < 10*time.Second:
					return 0
				case passed < 13*time.Second:
					return -time.Hour
				case int(passed/(3*time.Second))%2 == 0:
					return -time.Hour - 11*time.Second
				}
				return -time.Hour
			}
			for passed := time.Duration(0); passed < 73*time.Second; passed += 200 * time.Millisecond {
				now := noon.Add(passed + step(passed))
				if d := h.take(now, 1); !d.Allowed {
					t.Fatalf("refused after %v, for %v", passed, d.Wait(now))
				}
			}
		})
	}
}

// TestC101_SuspendOfASecondEndsInASecond: what has a second left to wait when the clock goes back by an hour waits that second.
func TestC101_SuspendOfASecondEndsInASecond(t *testing.T) {
	for name, h := range map[string]subject{
		"leaky":    leakySubject(LeakyBucket{Rate: Rate{1, time.Second}}),
		"token":    tokenSubject(TokenBucket{Rate: Rate{1, time.Second}}),
		"observed": observedSubject(ObservedRate{Cap: time.Second}),
		"tokens":   tokensSubject(TokenWindow{Limit: 1, Window: time.Second}),
	} {
		t.Run(name, func(t *testing.T) {
			for h.take(noon, 1).Allowed {
			}
			left := h.opens(noon).Sub(noon)
			if left != time.Second {
				t.Fatalf("%v to wait before the step", left)
			}
			then := noon.Add(-time.Hour)
			if h.take(then, 1).Allowed || h.take(then.Add(time.Second-1), 1).Allowed {
				t.Error("passed early")
			}
			if d := h.take(then.Add(time.Second), 1); !d.Allowed {
				t.Errorf("a second later: %+v", d)
			}
		})
	}
}
