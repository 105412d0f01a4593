package suspend_test

import (
	"fmt"
	"time"

	"github.com/penstockmq/penstock/suspend"
)

// A worker suspends a bucket for a second; an upstream asks for two seconds without any request to the model.
func ExampleTable_Blocking() {
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	table := suspend.New(suspend.DefaultMax)
	cell := suspend.Target{Scope: suspend.Bucket, Name: "alice__gpt-4o"}
	column := suspend.Target{Scope: suspend.Column, Name: "gpt-4o"}
	for _, h := range []suspend.Hold{
		{Target: cell, Until: now.Add(time.Second), By: "pool-1", Reason: "rate 1/s"},
		{Target: column, Until: now.Add(2 * time.Second), By: "pool-2", Reason: "429 from upstream"},
	} {
		if _, _, err := table.Extend(now, h); err != nil {
			fmt.Println(err)
		}
	}
	place := suspend.Place{Bucket: "alice__gpt-4o", User: "alice", Model: "gpt-4o", Level: 1}
	h, held := table.Blocking(now, place)
	fmt.Println(held, h.Target, "by", h.By)
	table.Lift(column)
	h, held = table.Blocking(now, place)
	fmt.Println(held, h.Target, "by", h.By)
	// Output:
	// true column gpt-4o by pool-2
	// true bucket alice__gpt-4o by pool-1
}
