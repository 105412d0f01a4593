package consumer

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstockmq/penstock/broker/lite"
	"github.com/penstockmq/penstock/consumer/mq"
	"github.com/penstockmq/penstock/suspend/policy"
	"github.com/penstockmq/penstock/suspend/quota"
)

func awake() func() func() { return func() func() { return func() {} } }

var alice = lite.Cell{User: "alice", Model: "gpt"}

// asking is the claim of a message of a cell that counts as so many requests.
func asking(c lite.Cell, requests int64) claim {
	name, err := lite.Encode(c)
	if err != nil {
		name = "plain"
	}
	return claimOf(&mq.Message{Lite: name}, c, requests)
}

// acquire is acquireOrSuspend for one request of c.
func acquire(ctx context.Context, l *limiter, c lite.Cell) (time.Duration, error) {
	_, wait, err := l.acquireOrSuspend(ctx, asking(c, 1), true, 100*time.Millisecond, awake())
	return wait, err
}

// wait is how long an ask at now would have to wait.
func (a answer) wait(now time.Time) time.Duration {
	if a.ok {
		return 0
	}
	return a.until.Sub(now)
}

func TestWaitsFromTheStepOnAreForTheBroker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(fixed(mustPolicy(t, `  - {user: alice, rate: 10/s}`)), 50*time.Millisecond)
		ask := func() time.Duration {
			wait, err := acquire(t.Context(), l, alice)
			if err != nil {
				t.Fatal(err)
			}
			return wait
		}
		if wait := ask(); wait != 0 {
			t.Fatalf("first ask: wait %s", wait)
		}
		if wait := ask(); wait != 100*time.Millisecond {
			t.Fatalf("second ask: wait %s, want the interval of 10/s", wait)
		}
		time.Sleep(51 * time.Millisecond)
		begin := time.Now()
		if wait := ask(); wait != 0 {
			t.Fatalf("ask 49 ms early: wait %s, want it slept", wait)
		}
		if slept := time.Since(begin); slept != 49*time.Millisecond {
			t.Fatalf("slept %s, want 49ms", slept)
		}
	})
}

func TestASuspendIsNeverTooShort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(fixed(mustPolicy(t, `  - {user: alice, rate: 3/s}`)), time.Millisecond)
		for range 4 {
			wait, err := acquire(t.Context(), l, alice)
			if err != nil {
				t.Fatal(err)
			}
			if wait == 0 {
				continue
			}
			if wait%time.Millisecond != 0 {
				t.Fatalf("wait %s is no whole millisecond", wait)
			}
			time.Sleep(wait)
			if wait, _ = acquire(t.Context(), l, alice); wait != 0 {
				t.Fatalf("after the suspend there are %s left", wait)
			}
		}
	})
}

func TestASleepEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(fixed(mustPolicy(t, `  - {user: alice, rate: 10/s}`)), time.Second)
		if wait, err := acquire(t.Context(), l, alice); wait != 0 || err != nil {
			t.Fatal(wait, err)
		}
		ctx, cancel := context.WithTimeoutCause(t.Context(), 30*time.Millisecond, errDeadline)
		defer cancel()
		begin := time.Now()
		if _, err := acquire(ctx, l, alice); !errors.Is(err, errDeadline) {
			t.Fatalf("got %v, want the deadline", err)
		}
		if slept := time.Since(begin); slept != 30*time.Millisecond {
			t.Fatalf("slept %s", slept)
		}
	})
}

func TestAChangeOfPolicyActsAndKeepsWhatIsOwed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow, fast := mustPolicy(t, `  - {user: alice, rate: 1/10s}`), mustPolicy(t, `  - {user: alice, rate: 10/s}`)
		doc := slow
		l := newLimiter(func() *policy.Document { return doc }, time.Millisecond)
		if v := l.ask(time.Now(), asking(alice, 1), true); !v.ok {
			t.Fatal("first ask refused")
		}
		if v := l.ask(time.Now(), asking(alice, 1), true); v.wait(time.Now()) != 10*time.Second {
			t.Fatalf("wait %s under the slow rate", v.wait(time.Now()))
		}
		doc = fast // the event that was taken costs an interval of the new rate
		if wait := l.ask(time.Now(), asking(alice, 1), true).wait(time.Now()); wait <= 0 || wait > 100*time.Millisecond {
			t.Fatalf("wait %s under the fast rate, want up to its interval", wait)
		}
		doc = policy.Empty()
		if v := l.ask(time.Now(), asking(alice, 1000), true); !v.ok {
			t.Fatal("refused without a limit")
		}
	})
}

// TestALongHoldDoesNotOutliveItsLimit raises a limit while the broker holds the bucket for it.
func TestALongHoldDoesNotOutliveItsLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		doc := mustPolicy(t, `  - {user: alice, rate: 1/h}`)
		l := newLimiter(func() *policy.Document { return doc }, time.Millisecond)
		ask := func() time.Duration {
			wait, err := acquire(t.Context(), l, alice)
			if err != nil {
				t.Fatal(err)
			}
			return wait
		}
		if wait := ask(); wait != 0 {
			t.Fatalf("first ask: wait %s", wait)
		}
		hold := ask()
		if hold <= 0 || hold > time.Second {
			t.Fatalf("hold of %s: a change of policy is to act within a second", hold)
		}
		doc = mustPolicy(t, `  - {user: alice, rate: 10/s}`)
		time.Sleep(hold)
		if wait := ask(); wait > 100*time.Millisecond { // the event that was taken costs an interval of the new rate
			t.Fatalf("wait %s under the raised limit", wait)
		}
	})
}

// TestManyWaitingCellsAreAskedLessOften bounds what asking again costs, and sees that the count behind the bound is kept.
func TestManyWaitingCellsAreAskedLessOften(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const cells = 5000
		l := newLimiter(fixed(mustPolicy(t, `  - {model: gpt, rate: 1/m}`)), time.Millisecond)
		var longest time.Duration
		for range 2 {
			for n := range cells {
				wait, err := acquire(t.Context(), l, lite.Cell{User: strconv.Itoa(n), Model: "gpt"})
				if err != nil {
					t.Fatal(err)
				}
				longest = max(longest, wait)
			}
		}
		if longest != cells*time.Millisecond {
			t.Fatalf("%d cells are held for up to %s, want a thousand asks a second", cells, longest)
		}
		time.Sleep(time.Minute)
		if v := l.ask(time.Now(), asking(lite.Cell{User: "0", Model: "gpt"}, 1), true); !v.ok {
			t.Fatal("refused after its wait")
		}
		if n := l.waiting.len(); n != cells-1 {
			t.Fatalf("%d cells wait after one has passed, want %d", n, cells-1)
		}
		for !l.sweepOnce(time.Now().Add(time.Hour)) {
		}
		if n := l.waiting.len(); n != 0 {
			t.Fatalf("%d cells wait after the sweep", n)
		}
	})
}

func TestPeekChargesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(fixed(mustPolicy(t, `  - {user: alice, window: 1/1h, window_at: release}`)), time.Millisecond)
		for range 3 {
			if v := l.ask(time.Now(), asking(alice, 1), false); !v.ok {
				t.Fatal("peek was charged")
			}
		}
		if v := l.ask(time.Now(), asking(alice, 1), true); !v.ok {
			t.Fatal("take refused")
		}
		if v := l.ask(time.Now(), asking(alice, 1), false); v.ok {
			t.Fatal("take was not charged")
		}
	})
}

func TestIdleCellsCostNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		doc := mustPolicy(t, "  - {user: alice, rate: 1/1h}\n  - {user: \"*\", rate: 1/s}\n  - {user: carol, window: 1/1h, window_at: release}")
		l := newLimiter(fixed(doc), time.Millisecond)
		always := l.accounts() // those of the levels and of the whole
		ctx, cancel := context.WithCancel(t.Context())
		go l.sweep(ctx)
		for _, user := range []string{"alice", "bob", "carol"} {
			l.free(time.Now(), l.ask(time.Now(), asking(lite.Cell{User: user, Model: "gpt"}, 1), true).permit, quota.Settlement{})
		}
		runs := l.ask(time.Now(), asking(lite.Cell{User: "dave", Model: "gpt"}, 1), true)
		time.Sleep(2 * time.Minute)
		// The cells that owe an hour, and those of what runs: its cell, row and column.
		if n := l.accounts() - always; n != 2+3 {
			t.Fatalf("%d accounts after two minutes", n)
		}
		l.free(time.Now(), runs.permit, quota.Settlement{})
		if v := l.ask(time.Now(), asking(alice, 1), true); v.ok {
			t.Fatal("a state that owes was dropped")
		}
		time.Sleep(2 * time.Hour)
		if n := l.accounts() - always; n != 0 {
			t.Fatalf("%d accounts when nobody owes", n)
		}
		cancel()
		synctest.Wait()
	})
}

// TestBacklogKeepsItsPace comes back for each release later than promised, as a message on its way through the broker
// does. The lateness must not add up, nor must a late ask be let in early.
func TestBacklogKeepsItsPace(t *testing.T) {
	const releases, interval = 100, 50 * time.Millisecond
	for _, late := range []time.Duration{0, 3 * time.Millisecond, 40 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			l := newLimiter(fixed(mustPolicy(t, `  - {user: alice, rate: 20/s}`)), time.Millisecond)
			begin := time.Now()
			for n := 0; n < releases; {
				wait, err := acquire(t.Context(), l, alice)
				if err != nil {
					t.Fatal(err)
				}
				if wait > 0 {
					time.Sleep(wait + late)
					continue
				}
				if early := time.Duration(n)*interval - time.Since(begin); early > 0 {
					t.Fatalf("%s late: release %d is %s early", late, n, early)
				}
				n++
			}
			if took := time.Since(begin); took > (releases-1)*interval+late {
				t.Errorf("%s late: %d releases took %s, want %s and the last one's lateness", late, releases, took, (releases-1)*interval)
			}
		})
	}
}

// accounts is the number of accounts that owe something.
func (l *limiter) accounts() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ledger.Stats().Accounts
}
