package signal_test

import (
	"fmt"
	"time"

	"github.com/penstockmq/penstock/suspend"
	"github.com/penstockmq/penstock/suspend/signal"
)

// An alarm halves a column for ten seconds; its end lets go of it gradually.
func ExampleBoard() {
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	column := suspend.Target{Scope: suspend.Column, Name: "gpt-4o"}
	var board signal.Board
	board.Put(now, signal.Signal{
		Target: column, Source: "busy/f1", Kind: signal.Alarm, Permille: 500, At: now, Until: now.Add(10 * time.Second),
	})
	for _, after := range []time.Duration{0, 10 * time.Second, 12 * time.Second, 15 * time.Second} {
		permille, next := board.Factor(now.Add(after), column)
		fmt.Println(after, permille, !next.IsZero())
	}
	// Output:
	// 0s 500 true
	// 10s 500 true
	// 12s 700 true
	// 15s 1000 false
}
