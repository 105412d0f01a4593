package limit_test

import (
	"fmt"
	"time"

	"github.com/penstockmq/penstock/suspend/limit"
)

// A cell at two per second with a hard cap of three per minute: even release first, then the cap binds.
func ExampleCell_Take() {
	cell := limit.Cell{
		Leaky:  &limit.LeakyBucket{Rate: limit.Rate{Events: 2, Per: time.Second}},
		Window: &limit.FixedWindow{Limit: 3, Window: time.Minute},
	}
	var state limit.CellState
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	for range 6 {
		var v limit.Verdict
		state, v = cell.Take(state, now, 1)
		if v.Allowed {
			fmt.Println(now.Format("05.000"), "go")
			continue
		}
		fmt.Println(now.Format("05.000"), "wait", v.Wait(now), "for the", v.Binds)
		now = v.RetryAt
	}
	// Output:
	// 00.000 go
	// 00.000 wait 500ms for the rate
	// 00.500 go
	// 00.500 wait 500ms for the rate
	// 01.000 go
	// 01.000 wait 59s for the window
}
