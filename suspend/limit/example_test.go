package limit_test

import (
	"fmt"
	"time"

	"github.com/penstockmq/penstock/suspend/limit"
)

// A burst of 560 on a bucket of 500 passes, and is paid for afterwards: 60 tokens at five per second.
func ExampleTokenBucket() {
	quota := limit.TokenBucket{Rate: limit.Rate{Events: 5, Per: time.Second}, Capacity: 500}
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	state, burst := quota.Take(limit.TokenState{}, now, 560)
	fmt.Println("burst", burst.Allowed, "balance", quota.Balance(state, now))
	_, next := quota.Take(state, now, 1)
	fmt.Println("next", next.Allowed, "wait", next.Wait(now))
	// Output:
	// burst true balance -60
	// next false wait 12s
}

// 1000 tokens a minute, where a call is known to have had 300 only when it has ended.
func ExampleTokenWindow() {
	tokens := limit.TokenWindow{Limit: 1000, Window: time.Minute}
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	var state limit.TokenWindowState
	var output limit.Estimate
	for call := 1; call <= 5; call++ {
		reserved := output.Expect(500) // max_tokens, until something is known
		_, d := tokens.Peek(state, now, reserved)
		if !d.Allowed {
			fmt.Println("call", call, "waits", d.Wait(now))
			break
		}
		state = tokens.Charge(state, now, reserved)
		now = now.Add(time.Second)
		state = tokens.Charge(state, now, 300-reserved)
		output = output.Observe(300)
		fmt.Println("call", call, "reserved", reserved, "used", tokens.Used(state, now))
	}
	// Output:
	// call 1 reserved 500 used 300
	// call 2 reserved 300 used 600
	// call 3 reserved 300 used 900
	// call 4 reserved 300 used 1200
	// call 5 waits 56s
}

// Two per second with a hard cap of three per minute, asked as one: each is peeked at, and all are charged or none.
func ExampleLeakyBucket_Peek() {
	rate := limit.LeakyBucket{Rate: limit.Rate{Events: 2, Per: time.Second}}
	minute := limit.FixedWindow{Limit: 3, Window: time.Minute}
	var paced limit.LeakyState
	var used limit.WindowState
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	for range 6 {
		_, byRate := rate.Peek(paced, now, 1)
		_, byWindow := minute.Peek(used, now, 1)
		if byRate.Allowed && byWindow.Allowed {
			paced, used = rate.Charge(paced, now, 1), minute.Charge(used, now, 1)
			fmt.Println(now.Format("05.000"), "go")
			continue
		}
		binds := byRate
		if byWindow.RetryAt.After(byRate.RetryAt) {
			binds = byWindow
		}
		fmt.Println(now.Format("05.000"), "wait", binds.Wait(now))
		now = binds.RetryAt
	}
	// Output:
	// 00.000 go
	// 00.000 wait 500ms
	// 00.500 go
	// 00.500 wait 500ms
	// 01.000 go
	// 01.000 wait 59s
}
