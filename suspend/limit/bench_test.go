package limit

import (
	"testing"
	"time"
	"unsafe"
)

// TestStatesStaySmall: there are a million of them.
func TestStatesStaySmall(t *testing.T) {
	for name, size := range map[string][2]uintptr{
		"LeakyState":       {unsafe.Sizeof(LeakyState{}), 40},
		"WindowState":      {unsafe.Sizeof(WindowState{}), 16},
		"TokenState":       {unsafe.Sizeof(TokenState{}), 40},
		"ObservedState":    {unsafe.Sizeof(ObservedState{}), 72},
		"TokenWindowState": {unsafe.Sizeof(TokenWindowState{}), 32},
		"Estimate":         {unsafe.Sizeof(Estimate{}), 8},
		"AdaptiveState":    {unsafe.Sizeof(AdaptiveState{}), 32},
	} {
		if size[0] > size[1] {
			t.Errorf("%s has %d bytes, at most %d", name, size[0], size[1])
		}
	}
}

var second = Rate{Events: 50, Per: time.Second}

// laws are the limits that the benchmarks and the count of allocations go through.
var laws = map[string]subject{
	"leaky":    leakySubject(LeakyBucket{Rate: second, Burst: time.Second}),
	"token":    tokenSubject(TokenBucket{Rate: second}),
	"observed": observedSubject(ObservedRate{Rate: second}),
	"window":   windowSubject(FixedWindow{Limit: 50, Window: time.Second}),
	"tokens":   tokensSubject(TokenWindow{Limit: 50, Window: time.Second}),
}

// TestNothingIsAllocated: neither an ask nor a charge, and no wait.
func TestNothingIsAllocated(t *testing.T) {
	for name, law := range laws {
		h, now := law.fresh(), noon
		if n := testing.AllocsPerRun(100, func() {
			now = now.Add(time.Millisecond)
			h.take(now, 1)
			h.charge(now, 1)
			h.charge(now, -1)
			h.opens(now)
			h.rests(now)
		}); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
	l, s, now := Adaptive{Max: 10}, AdaptiveState{}, noon
	if n := testing.AllocsPerRun(100, func() { s = l.Observe(s, now, Good, 0, l.Window(s)) }); n != 0 {
		t.Errorf("adaptive: %v allocations", n)
	}
}

// BenchmarkTake asks every millisecond: most are refused, as of a bucket that is in demand.
func BenchmarkTake(b *testing.B) {
	for name, law := range laws {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			h, now := law.fresh(), noon
			for b.Loop() {
				now = now.Add(time.Millisecond)
				h.take(now, 1)
			}
		})
	}
}

// BenchmarkCharge is what a ledger does per message: a charge, and when it opens.
func BenchmarkCharge(b *testing.B) {
	for name, law := range laws {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			h, now := law.fresh(), noon
			for b.Loop() {
				now = now.Add(20 * time.Millisecond)
				h.charge(now, 1)
				h.opens(now)
			}
		})
	}
}

// BenchmarkChangeOfRate is what a signal costs that scales a limit at every step.
func BenchmarkChangeOfRate(b *testing.B) {
	low := Rate{Events: 9, Per: 2 * time.Second}
	for name, pair := range map[string][2]subject{
		"leaky": {leakySubject(LeakyBucket{Rate: second}), leakySubject(LeakyBucket{Rate: low})},
		"token": {tokenSubject(TokenBucket{Rate: second}), tokenSubject(TokenBucket{Rate: low})},
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			pair[0].charge(noon, 100)
			for b.Loop() {
				switch h := pair[0].(type) {
				case *held[LeakyState, LeakyBucket]:
					other := pair[1].(*held[LeakyState, LeakyBucket])
					h.s = h.l.Charge(other.l.Charge(h.s, noon, 0), noon, 0)
				case *held[TokenState, TokenBucket]:
					other := pair[1].(*held[TokenState, TokenBucket])
					h.s = h.l.Charge(other.l.Charge(h.s, noon, 0), noon, 0)
				}
			}
		})
	}
}

func BenchmarkAdaptive(b *testing.B) {
	b.ReportAllocs()
	l, s, now := Adaptive{Min: 4, Max: 64}, AdaptiveState{}, noon
	for b.Loop() {
		now = now.Add(time.Millisecond)
		s = l.Observe(s, now, Good, time.Second, l.Window(s))
	}
}
