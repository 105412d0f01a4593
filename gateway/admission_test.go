package gateway

import (
	"errors"
	"log/slog"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/penstockmq/penstock/suspend"
	"github.com/penstockmq/penstock/suspend/limit"
	"github.com/penstockmq/penstock/suspend/policy"
)

var t0 = time.Unix(1_767_225_600, 0) // a whole minute

// aloneAdmission is one that shares its windows with nobody.
func aloneAdmission(m *Metrics) *admission {
	return newAdmission(m, slog.New(slog.DiscardHandler), nil)
}

// askOf asks for a cell under the given limits; a window that is not asked at release is asked here.
func askOf(user string, l policy.Limits) ask {
	q := ask{rules: rules{place: suspend.Place{Bucket: user + "/m", User: user, Model: "m"}, cell: l}}
	q.windows.set(suspend.Bucket, l)
	return q
}

func windowOf(n int64, d time.Duration) policy.Limits {
	return policy.Limits{Window: &limit.FixedWindow{Limit: n, Window: d}}
}

func retryOf(t *testing.T, err, condition error) time.Duration {
	t.Helper()
	var f *fault
	if !errors.Is(err, condition) || !errors.As(err, &f) {
		t.Fatalf("error %v, want %v", err, condition)
	}
	return f.retry
}

// Retry-After of the window is the exact end of it: then the same ask passes, a moment before it does not.
func TestWindowRetryIsTrue(t *testing.T) {
	a := aloneAdmission(new(Metrics))
	q := askOf("u", windowOf(2, time.Minute))
	now := t0.Add(17 * time.Second)
	for range 2 {
		p, err := a.take(now, q)
		must(t, err)
		a.leave(now, p.place)
	}
	_, err := a.take(now, q)
	retry := retryOf(t, err, errRate)
	if retry != 43*time.Second {
		t.Errorf("retry after %s", retry)
	}
	if _, err := a.take(now.Add(retry-1), q); err == nil {
		t.Error("passes before its time")
	}
	if _, err := a.take(now.Add(retry), q); err != nil {
		t.Errorf("does not pass at its time: %v", err)
	}
}

func TestFailedSendIsNotCharged(t *testing.T) {
	a := aloneAdmission(new(Metrics))
	q := askOf("u", windowOf(1, time.Minute))
	for range 3 {
		p, err := a.take(t0, q)
		must(t, err)
		a.refund(p)
		a.refund(p) // once only
	}
	p, err := a.take(t0, q)
	must(t, err)
	if _, err := a.take(t0, q); !errors.Is(err, errRate) {
		t.Fatalf("second one: %v", err)
	}
	// A refund of the last window gives nothing to this one.
	later := t0.Add(time.Minute)
	if _, err := a.take(later, q); err != nil {
		t.Fatal(err)
	}
	a.refund(p)
	if _, err := a.take(later, q); !errors.Is(err, errRate) {
		t.Fatalf("after a late refund: %v", err)
	}
}

// A window that the pool enforces does not refuse here.
func TestReleaseWindowQueues(t *testing.T) {
	a := aloneAdmission(new(Metrics))
	l := windowOf(1, time.Minute)
	l.WindowAt = policy.Release
	for range 5 {
		_, err := a.take(t0, askOf("u", l))
		must(t, err)
	}
}

func TestDepthCaps(t *testing.T) {
	a := aloneAdmission(new(Metrics))
	q := askOf("u", policy.Limits{Depth: 2, DepthBytes: 25})
	q.bytes = 10
	first, err := a.take(t0, q)
	must(t, err)
	_, err = a.take(t0, q)
	must(t, err)
	_, err = a.take(t0, q)
	retryOf(t, err, errQueueFull)
	a.leave(t0, first.place)
	big := q
	big.bytes = 16
	_, err = a.take(t0, big)
	retryOf(t, err, errQueueFull)
	big.bytes = 26
	if _, err = a.take(t0, big); !errors.Is(err, errTooLarge) {
		t.Errorf("one that never fits: %v", err)
	}
	other := askOf("v", q.cell)
	if _, err := a.take(t0, other); err != nil {
		t.Errorf("another cell: %v", err)
	}
}

// The promise of a place: with a rate it is one interval, the next refused caller is told the next one, and nobody is told
// more than the time in which the whole bucket drains.
func TestQueueFullPromises(t *testing.T) {
	a := aloneAdmission(new(Metrics))
	l := policy.Limits{Depth: 3, Leaky: &limit.LeakyBucket{Rate: limit.Rate{Events: 1, Per: 2 * time.Second}}}
	q := askOf("u", l)
	for range 3 {
		_, err := a.take(t0, q)
		must(t, err)
	}
	for i, want := range []time.Duration{2 * time.Second, 4 * time.Second, 6 * time.Second, 6 * time.Second} {
		q.caller.conn++
		_, err := a.take(t0, q)
		if got := retryOf(t, err, errQueueFull); got != want {
			t.Errorf("refusal %d: %s, want %s", i, got, want)
		}
	}
}

// The caller who was told the latest place and asks again is told the same instant; somebody else is told the next.
func TestQueueFullKeepsItsPromise(t *testing.T) {
	d := drain{last: t0}
	p := pace{interval: 10 * time.Second}
	for s := range 10 {
		now := t0.Add(time.Duration(s) * time.Second)
		if got, want := d.promise(now, p, 100, caller{conn: 1}), time.Duration(10-s)*time.Second; got != want {
			t.Errorf("after %d s: %s, want %s", s, got, want)
		}
	}
	now := t0.Add(9 * time.Second)
	if got := d.promise(now, p, 100, caller{conn: 2}); got != 11*time.Second {
		t.Errorf("another caller: %s", got)
	}
}

// Without a limit the measured pace counts; a bucket that stands still is expected to do so for as long again.
func TestQueueFullMeasuresDrain(t *testing.T) {
	var d drain
	d.last = t0
	now := t0
	for range 20 {
		now = now.Add(500 * time.Millisecond)
		d.freed(now)
	}
	if got := d.promise(now, pace{}, 100, caller{}); got != 500*time.Millisecond {
		t.Errorf("at the measured pace: %s", got)
	}
	d.promised = time.Time{}
	now = now.Add(30 * time.Second)
	if got := d.promise(now, pace{}, 100, caller{}); got != 30*time.Second {
		t.Errorf("after 30 s of silence: %s", got)
	}
}

// With a window at release, only its end is a sure time.
func TestQueueFullWaitsForTheWindow(t *testing.T) {
	l := windowOf(100, time.Minute)
	l.WindowAt = policy.Release
	now := t0.Add(5 * time.Second)
	d := drain{last: now}
	if got := d.promise(now, paceOf(l, now), 100, caller{}); got != 55*time.Second {
		t.Errorf("%s, want the end of the window", got)
	}
}

func TestAsyncPlaceEndsWithItsDeadline(t *testing.T) {
	a := aloneAdmission(new(Metrics))
	q := askOf("u", policy.Limits{Depth: 1})
	q.async, q.until = "req_1", t0.Add(time.Minute)
	_, err := a.take(t0, q)
	must(t, err)
	if p := a.find(q.key(), "req_1"); p == nil || len(a.oldest(q.key(), 5)) != 1 {
		t.Fatal("the place is not found")
	}
	if _, err := a.take(t0.Add(time.Minute-1), q); err == nil {
		t.Fatal("the place is free before the deadline")
	}
	q.until = t0.Add(time.Hour)
	if _, err := a.take(t0.Add(time.Minute), q); err != nil {
		t.Fatal(err)
	}
}

// C129: memory follows what is queued. The books of cells, against a naive count.
func TestAdmissionKeepsBooks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := aloneAdmission(new(Metrics))
		now := t0
		held := map[*place]pass{}
		users := rapid.SampledFrom([]string{"a", "b", "c"})
		limits := []policy.Limits{{}, {Depth: 2}, windowOf(2, time.Second)}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(0, 700).Draw(t, "ms")) * time.Millisecond)
			if rapid.Bool().Draw(t, "take") {
				q := askOf(users.Draw(t, "user"), limits[rapid.IntRange(0, 2).Draw(t, "limits")])
				q.bytes = 3
				if rapid.Bool().Draw(t, "column") {
					q.windows[suspend.Column] = &limit.FixedWindow{Limit: 3, Window: time.Second}
				}
				q.shadowWindows[suspend.Row] = &limit.FixedWindow{Limit: 1, Window: time.Second}
				if rapid.Bool().Draw(t, "async") {
					q.async, q.until = "id", now.Add(time.Hour)
				}
				if p, err := a.take(now, q); err == nil {
					held[p.place] = p
				}
				continue
			}
			for place, p := range held {
				if rapid.Bool().Draw(t, "refund") {
					a.refund(p)
				} else {
					a.leave(now, place)
				}
				delete(held, place)
				break
			}
			for key, acc := range a.accounts.open {
				if acc.state.Used == 0 || !acc.drop.Armed() || acc.key != key {
					t.Fatalf("account %v: %+v", key, acc.state)
				}
			}
			if _, _, queued := a.counts(); queued != int64(len(held)) {
				t.Fatalf("%d places counted, %d held", queued, len(held))
			}
		}
		for place := range held {
			a.leave(now, place)
		}
		a.mu.Lock()
		a.dropDue(now.Add(2 * time.Second))
		a.mu.Unlock()
		timers := a.drop.Len() + a.accounts.drop.Len()
		if cells, accounts, queued := a.counts(); cells != 0 || accounts != 0 || queued != 0 || timers != 0 {
			t.Fatalf("%d cells, %d accounts, %d places, %d timers are left", cells, accounts, queued, timers)
		}
	})
}
