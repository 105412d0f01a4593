package limit

import (
	"math/big"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestTokenBucketPaysOffABurst is the example of KIP-599: 5/s with a capacity of 500 (100 windows of a second), and a burst
// of 560 leaves a debt of 60.
func TestTokenBucketPaysOffABurst(t *testing.T) {
	l := TokenBucket{Rate: Rate{5, time.Second}, Capacity: 500}
	s, d := l.Take(TokenState{}, noon, 560)
	if !d.Allowed || l.Balance(s, noon) != -60 {
		t.Fatalf("a full bucket: %+v, balance %d", d, l.Balance(s, noon))
	}
	want := noon.Add(12 * time.Second)
	if _, d = l.Take(s, noon, 1); d.Allowed || !d.RetryAt.Equal(want) {
		t.Errorf("in debt: %+v, want a retry after 12 s", d)
	}
	if _, d = l.Take(s, want.Add(-1), 1); d.Allowed {
		t.Error("passed before the debt was paid")
	}
	if _, d = l.Take(s, want, 1); !d.Allowed {
		t.Error("refused when the debt was paid")
	}
}

// TestTokenBucketIsFullAgain: 560 charges of 1 at 5/s with a second's capacity take 112 s to be made good, to the nanosecond.
func TestTokenBucketIsFullAgain(t *testing.T) {
	l := TokenBucket{Rate: Rate{5, time.Second}}
	var s TokenState
	for range 560 {
		s = l.Charge(s, noon, 1)
	}
	full := noon.Add(112 * time.Second)
	if got := l.Rests(s, noon); !got.Equal(full) {
		t.Errorf("full at %v, want %v", got, full)
	}
	if got := l.Opens(s, noon); !got.Equal(full.Add(-time.Second)) {
		t.Errorf("opens at %v, want a second before it is full", got)
	}
	if b := l.Balance(s, full.Add(-1)); b != 4 {
		t.Errorf("a nanosecond before: %d tokens, want 4", b)
	}
	if b := l.Balance(s, full); b != l.Full() {
		t.Errorf("then: %d tokens, want %d", b, l.Full())
	}
}

func TestTokenBucketCapacity(t *testing.T) {
	for _, tc := range []struct {
		l    TokenBucket
		full int64
	}{
		{TokenBucket{Rate: Rate{5, time.Second}}, 5},
		{TokenBucket{Rate: Rate{30, time.Minute}}, 1}, // half a token, and at least one
		{TokenBucket{Rate: Rate{90, time.Minute}}, 1},
		{TokenBucket{Rate: Rate{2, time.Millisecond}}, 2000},
		{TokenBucket{Rate: Rate{MaxEvents, MinWindow}}, MaxEvents * 1000},
		{TokenBucket{Rate: Rate{5, time.Second}, Capacity: 500}, 500},
	} {
		if got := tc.l.Full(); got != tc.full {
			t.Errorf("%v: full at %d, want %d", tc.l, got, tc.full)
		}
	}
}

// TestTokenBucketOfNoRateIsUnlimited, and a limit that comes back starts with a full bucket.
func TestTokenBucketOfNoRateIsUnlimited(t *testing.T) {
	s, d := TokenBucket{Rate: Rate{5, time.Second}}.Take(TokenState{}, noon, 1000)
	if !d.Allowed {
		t.Fatal("a full bucket refused")
	}
	var none TokenBucket
	if s, d = none.Take(s, noon, 1<<40); !d.Allowed || !none.Rests(s, noon).Equal(noon) {
		t.Fatalf("unlimited: %+v, rests at %v", d, none.Rests(s, noon))
	}
	if b := (TokenBucket{Rate: Rate{5, time.Second}}).Balance(s, noon); b != 5 {
		t.Errorf("the limit came back with a balance of %d", b)
	}
}

// TestLiveChangeKeepsTheBalance: whatever the rate and capacity become, debt stays and savings are not given.
func TestLiveChangeKeepsTheBalance(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		from, to := drawTokenBucket(t), drawTokenBucket(t)
		h := tokenSubject(from)
		now := drawHistory(t, h, interval(from.Rate))
		s, _ := from.Peek(h.state().(TokenState), now, 0)
		want := min(from.Balance(s, now), to.Full())
		if got := to.Balance(s, now); got != want {
			t.Fatalf("from %v to %v: a balance of %d became %d", from, to, from.Balance(s, now), got)
		}
	})
}

// TestTokenBucketAgainstModel compares with a balance in rational numbers, over asks, charges and changes of the rate.
func TestTokenBucketAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := TokenBucket{Rate: Rate{rapid.Int64Range(1, 1000).Draw(t, "events"), drawPer(t)}, Capacity: rapid.Int64Range(1, 30).Draw(t, "capacity")}
		balance := new(big.Rat).SetInt64(l.Capacity)
		var s TokenState
		now, last := noon.UnixNano(), noon.UnixNano()
		for range rapid.IntRange(1, 60).Draw(t, "asks") {
			refill := new(big.Rat).Mul(big.NewRat(l.Rate.Events, int64(l.Rate.Per)), new(big.Rat).SetInt64(now-last))
			balance.Add(balance, refill)
			if full := new(big.Rat).SetInt64(l.Capacity); balance.Cmp(full) > 0 {
				balance = full
			}
			last = now
			cost := rapid.Int64Range(0, 50).Draw(t, "cost")
			var d Decision
			if s, d = l.Take(s, time.Unix(0, now), cost); d.Allowed != (cost == 0 || balance.Sign() >= 0) {
				t.Fatalf("at %d cost %d: %+v, balance %v", now, cost, d, balance)
			}
			if d.Allowed {
				balance.Sub(balance, new(big.Rat).SetInt64(cost))
			}
			floor := new(big.Int).Div(balance.Num(), balance.Denom())
			if got := l.Balance(s, time.Unix(0, now)); got != floor.Int64() {
				t.Fatalf("balance %d, want %v", got, balance)
			}
			if rapid.IntRange(0, 9).Draw(t, "policy") == 0 {
				l.Rate.Events = rapid.Int64Range(1, 1000).Draw(t, "new events") // the same denominator: nothing is rounded
				s, _ = l.Peek(s, time.Unix(0, now), 0)
			}
			now += rapid.Int64Range(0, 20*int64(interval(l.Rate))).Draw(t, "pause")
			if !d.Allowed && rapid.Bool().Draw(t, "on time") {
				now = max(now, d.RetryAt.UnixNano())
			}
		}
	})
}

// TestTokenWindowHoldsWhatIsTooMuch: the calls reserve more than they turn out to use, and settle. At 100 a minute the
// second call goes over, so the rest waits; had it been 99, one of 175 more would make it 274 at most.
func TestTokenWindowHoldsWhatIsTooMuch(t *testing.T) {
	const reserve = 400
	l := TokenWindow{Limit: 100, Window: time.Minute}
	var s TokenWindowState
	calls := []int64{58, 80, 175, 175, 175}
	perMinute := make([]int64, 20)
	now, end := noon, noon.Add(20*time.Minute)
	for len(calls) > 0 && now.Before(end) {
		var d Decision
		if s, d = l.Take(s, now, reserve); !d.Allowed {
			now = d.RetryAt
			continue
		}
		if got := l.Opens(s, now); !got.After(now) {
			t.Errorf("a reservation of %d leaves the window open", reserve)
		}
		now = now.Add(2 * time.Second) // the answer
		s = l.Charge(s, now, calls[0]-reserve)
		perMinute[now.Sub(noon)/time.Minute] += calls[0]
		calls = calls[1:]
	}
	if len(calls) > 0 {
		t.Fatalf("%d calls were never let through", len(calls))
	}
	if perMinute[0] > 275 || perMinute[0] < 100 {
		t.Errorf("%d tokens in the first minute, want 100 to 275: %v", perMinute[0], perMinute)
	}
	total := int64(0)
	for minute, n := range perMinute {
		// What a call may exceed the limit by is paid back by the minutes that follow.
		if total += n; total > int64(minute+1)*100+175 {
			t.Errorf("%d tokens by the end of minute %d", total, minute)
		}
	}
}

// TestTokenWindowHoldsTheFifthCall: 1000 a minute, calls of 300: 900 are used when the fourth asks, 1200 when the fifth does.
func TestTokenWindowHoldsTheFifthCall(t *testing.T) {
	l := TokenWindow{Limit: 1000, Window: time.Minute}
	var s TokenWindowState
	var d Decision
	for call := 1; call <= 5; call++ {
		if s, d = l.Take(s, noon.Add(time.Duration(call)*time.Second), 300); d.Allowed != (call < 5) {
			t.Fatalf("call %d: %+v", call, d)
		}
	}
	// The window began with the first call. 200 are carried over, so three more calls fit, and the fourth of them does too.
	begin := noon.Add(time.Second)
	if !d.RetryAt.Equal(begin.Add(time.Minute)) {
		t.Errorf("retry at %v", d.RetryAt)
	}
	if used := l.Used(s, d.RetryAt); used != 200 {
		t.Errorf("%d carried over, want 200", used)
	}
	if rests := l.Rests(s, d.RetryAt); !rests.Equal(begin.Add(2 * time.Minute)) {
		t.Errorf("rests at %v", rests)
	}
}

// TestTokenWindowAgainstModel compares with one that goes through the windows one by one, over reservations, settlements
// and changes of the limit.
func TestTokenWindowAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := TokenWindow{Limit: rapid.Int64Range(1, 30).Draw(t, "limit"), Window: time.Duration(rapid.Int64Range(1, 3000).Draw(t, "window")) * time.Millisecond}
		var s TokenWindowState
		now, begin, used, granted := noon.UnixNano(), int64(0), int64(0), int64(0)
		for range rapid.IntRange(1, 60).Draw(t, "events") {
			for granted = max(granted, l.Limit); used > 0 && begin+int64(l.Window) <= now; granted = l.Limit {
				used = max(used-granted, 0)
				begin += int64(l.Window)
			}
			cost := rapid.Int64Range(-60, 60).Draw(t, "cost")
			open := used < l.Limit
			var d Decision
			if s, d = l.Peek(s, time.Unix(0, now), max(cost, 0)); d.Allowed != (open || cost <= 0) {
				t.Fatalf("%d of %d used: %+v", used, l.Limit, d)
			}
			if open || rapid.Bool().Draw(t, "charged unasked") {
				if used == 0 {
					begin, granted = now, l.Limit
				}
				used = max(used+cost, 0)
				s = l.Charge(s, time.Unix(0, now), cost)
			}
			if s.Used != used {
				t.Fatalf("%d used, want %d", s.Used, used)
			}
			if rapid.IntRange(0, 9).Draw(t, "policy") == 0 {
				l.Limit = rapid.Int64Range(1, 30).Draw(t, "new limit")
			}
			now += rapid.Int64Range(0, 2*int64(l.Window)).Draw(t, "pause")
		}
	})
}
