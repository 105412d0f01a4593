package limit

import (
	"testing"
	"time"
)

// TestC47_TokenBucketNeverJumpsBackToFull: 3 per second, a hit every 100 ms for 10 s, as for the leaky bucket.
func TestC47_TokenBucketNeverJumpsBackToFull(t *testing.T) {
	for _, tc := range []struct {
		name     string
		capacity int64 // one more passes back to back, into debt
		from, to int
	}{
		{"burst of 3", 2, 30, 32},
		{"the least burst", 1, 29, 31},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l := TokenBucket{Rate: Rate{3, time.Second}, Capacity: tc.capacity}
			var s TokenState
			passed, before := 0, tc.capacity+1
			for hit := range 100 {
				now := noon.Add(time.Duration(hit) * 100 * time.Millisecond)
				_, ask := l.Peek(s, now, 1)
				if ask.Remaining > before+1 {
					t.Errorf("hit %d: remaining rose from %d to %d", hit, before, ask.Remaining)
				}
				var d Decision
				s, d = l.Take(s, now, 1)
				if d.Allowed {
					passed++
				}
				before = d.Remaining
			}
			if passed < tc.from || passed > tc.to {
				t.Errorf("%d of 100 passed, want %d to %d", passed, tc.from, tc.to)
			}
		})
	}
}

// TestC50_OldTokenWindowDoesNotLeakIntoTheNew: a window of tokens begins with its first charge, and nothing of it is left
// an instant after its end.
func TestC50_OldTokenWindowDoesNotLeakIntoTheNew(t *testing.T) {
	l := TokenWindow{Limit: 5, Window: time.Minute}
	var s TokenWindowState
	hit := func(after time.Duration, want bool) {
		t.Helper()
		var d Decision
		if s, d = l.Take(s, noon.Add(after), 1); d.Allowed != want {
			t.Errorf("hit at %v: allowed %v, want %v", after, d.Allowed, want)
		}
	}
	begin := 58*time.Second + 700*time.Millisecond
	for range 5 {
		hit(begin, true)
	}
	for i := range 6 { // around the minute, which means nothing to it
		hit(time.Minute+time.Duration(i)*120*time.Millisecond, false)
	}
	hit(begin+time.Minute-1, false)
	for range 5 {
		hit(begin+time.Minute, true)
	}
	hit(begin+time.Minute+600*time.Millisecond, false)
	hit(begin+2*time.Minute, true)
}

// TestC50_OldSampleIsNotObserved: what lies W back does not count by a nanosecond.
func TestC50_OldSampleIsNotObserved(t *testing.T) {
	l := ObservedRate{Rate: Rate{5, time.Minute}, Samples: 1, Size: time.Minute}
	s := l.Charge(ObservedState{}, noon.Add(58*time.Second+700*time.Millisecond), 5)
	if got := l.Observed(s, noon.Add(time.Minute-1)); got != 5 {
		t.Errorf("%d observed in the minute, want 5", got)
	}
	if got := l.Observed(s, noon.Add(time.Minute)); got != 0 {
		t.Errorf("%d observed in the next minute", got)
	}
}

// TestC54_LoweredGateAdmitsAgain: 5 a minute with a queue of 10, changed to 1 a minute after 30 s: five in the first minute,
// then one a minute.
func TestC54_LoweredGateAdmitsAgain(t *testing.T) {
	t.Run("tokens", func(t *testing.T) {
		var s TokenWindowState
		admitted := make([]int, 6)
		for second := range 360 {
			l := TokenWindow{Limit: 5, Window: time.Minute}
			if second >= 30 {
				l.Limit = 1
			}
			var d Decision
			if s, d = l.Take(s, noon.Add(time.Duration(second)*time.Second), 1); d.Allowed {
				admitted[second/60]++
			}
		}
		for minute, n := range admitted {
			if want := map[bool]int{true: 5, false: 1}[minute == 0]; n != want {
				t.Errorf("minute %d: %d admitted, want %d", minute, n, want)
			}
		}
	})
	t.Run("token bucket", func(t *testing.T) {
		s, _ := TokenBucket{Rate: Rate{5, time.Minute}, Capacity: 5}.Take(TokenState{}, noon, 8) // owes 3
		low := TokenBucket{Rate: Rate{1, time.Minute}, Capacity: 1}
		now := noon.Add(12 * time.Second) // at 5 a minute, one of them is paid
		s = low.Charge(s, now, 0)         // the change takes effect
		for i, want := range []time.Duration{2 * time.Minute, time.Minute, time.Minute} {
			at := low.Opens(s, now)
			if at.Sub(now) != want {
				t.Errorf("no. %d is admitted after %v, want %v", i, at.Sub(now), want)
			}
			now = at
			s = low.Charge(s, now, 1)
		}
	})
	t.Run("observed", func(t *testing.T) {
		l := ObservedRate{Rate: Rate{5, time.Minute}, Samples: 10, Size: 6 * time.Second}
		s := l.Charge(ObservedState{}, noon, 5)
		low := ObservedRate{Rate: Rate{1, time.Minute}, Samples: 10, Size: 6 * time.Second}
		admitted := make([]int, 6)
		for second := 30; second < 360; second++ {
			var d Decision
			if s, d = low.Take(s, noon.Add(time.Duration(second)*time.Second), 1); d.Allowed {
				admitted[second/60]++
			}
		}
		for minute, n := range admitted { // elastic: T*W and the square root of 2*T*W, with the cap of 30 s
			if n < 1 || n > 2 {
				t.Errorf("minute %d: %d admitted at 1 a minute, want 1 or 2", minute, n)
			}
		}
	})
}

// TestC54_RaisedGateActsAtOnce: who waits for hours at a low limit does not wait them out.
func TestC54_RaisedGateActsAtOnce(t *testing.T) {
	now := noon.Add(time.Minute)
	t.Run("token bucket", func(t *testing.T) {
		s := TokenBucket{Rate: Rate{1, time.Hour}}.Charge(TokenState{}, noon, 11) // owes 10, less a sixtieth
		l := TokenBucket{Rate: Rate{5, time.Second}}
		if wait := l.Opens(s, now).Sub(now); wait < 1990*time.Millisecond || wait > 2*time.Second {
			t.Errorf("waits %v", wait)
		}
	})
	t.Run("observed", func(t *testing.T) {
		s := ObservedRate{Rate: Rate{1, time.Hour}, Cap: time.Hour}.Charge(ObservedState{}, noon, 30)
		l := ObservedRate{Rate: Rate{5, time.Second}, Cap: time.Hour}
		if at := l.Opens(s, now); !at.Equal(now) {
			t.Errorf("opens at %v", at)
		}
	})
	t.Run("tokens", func(t *testing.T) {
		s := TokenWindow{Limit: 10, Window: time.Hour}.Charge(TokenWindowState{}, noon, 95)
		l := TokenWindow{Limit: 100, Window: time.Hour}
		if at := l.Opens(s, now); !at.Equal(now) {
			t.Errorf("opens at %v", at)
		}
	})
}

// TestC54_ScaleForAWhileLeavesNoDebt: a signal that scales a limit and goes leaves the window as it was.
func TestC54_ScaleForAWhileLeavesNoDebt(t *testing.T) {
	l := TokenWindow{Limit: 1000, Window: time.Minute}
	low, ok := l.Scaled(300)
	if !ok || low.Limit != 300 {
		t.Fatalf("scaled to %v, %v", low, ok)
	}
	s := l.Charge(TokenWindowState{}, noon, 900)
	during, d := low.Take(s, noon.Add(20*time.Second), 50)
	if end := noon.Add(time.Minute); d.Allowed || !d.RetryAt.Equal(end) {
		t.Errorf("while it is scaled: %+v, want a retry at the end of the window", d)
	}
	if _, d = l.Peek(during, noon.Add(40*time.Second), 50); !d.Allowed || d.Remaining != 100 {
		t.Errorf("after that: %+v, want 100 remaining", d)
	}
	if rests := low.Rests(during, noon.Add(40*time.Second)); !rests.Equal(noon.Add(time.Minute)) {
		t.Errorf("rests at %v: what the window granted became debt", rests)
	}
}

// TestC57_RefusedByOneIsChargedToNone: a user has 10 a minute, the column 100. A sends 1,010, then B sends 95. Asked as one, the
// column is charged for what passed, and for nothing else; of every kind of limit a column may have.
func TestC57_RefusedByOneIsChargedToNone(t *testing.T) {
	user := FixedWindow{Limit: 10, Window: time.Minute}
	for name, column := range map[string]subject{
		"leaky":    leakySubject(LeakyBucket{Rate: Rate{100, time.Minute}, Burst: time.Minute}),
		"token":    tokenSubject(TokenBucket{Rate: Rate{100, time.Minute}, Capacity: 99}),
		"window":   windowSubject(FixedWindow{Limit: 100, Window: time.Minute}),
		"observed": observedSubject(ObservedRate{Rate: Rate{100, time.Minute}, Samples: 6, Size: 10 * time.Second}),
		"tokens":   tokensSubject(TokenWindow{Limit: 100, Window: time.Minute}),
	} {
		t.Run(name, func(t *testing.T) {
			full := column.peek(noon, 0).Remaining
			refused := 0
			send := func(n int) (admitted int) {
				var s WindowState
				for range n {
					var d Decision
					if s, d = user.Peek(s, noon, 1); !d.Allowed || !column.peek(noon, 1).Allowed {
						refused++
						continue
					}
					s = user.Charge(s, noon, 1)
					column.charge(noon, 1)
					admitted++
				}
				return admitted
			}
			if a := send(1010); a != 10 || refused != 1000 {
				t.Errorf("A: %d admitted, %d refused", a, refused)
			}
			if used := full - column.peek(noon, 0).Remaining; used != 10 {
				t.Errorf("column: %d used before B", used)
			}
			if b := send(95); b != 10 || refused != 1085 {
				t.Errorf("B: %d admitted, %d refused in all", b, refused)
			}
			if used := full - column.peek(noon, 0).Remaining; used != 20 {
				t.Errorf("column: %d used", used)
			}
		})
	}
}
