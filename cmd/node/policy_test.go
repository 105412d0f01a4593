package node

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstockmq/penstock/suspend"
	"github.com/penstockmq/penstock/suspend/signal"
)

// TestAChangeOfASignalIsTriedUntilItIsApplied: the loops were busy, and the signal was lost
// until its source sent it again, which an alarm may do hours later.
func TestAChangeOfASignalIsTriedUntilItIsApplied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newSignalQueue()
		var applied []int64
		failures := 3
		var tries []time.Duration
		begin := time.Now()
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			q.run(ctx, func(_ context.Context, c signalChange) error {
				tries = append(tries, time.Since(begin))
				if failures--; failures >= 0 {
					return errors.New("busy")
				}
				applied = append(applied, c.signal.Permille)
				return nil
			})
		}()
		put := func(permille int64) {
			q.put(signal.Signal{Target: suspend.Target{Scope: suspend.Column, Name: "m"}, Source: "s", Permille: permille}, false)
		}
		put(500)
		time.Sleep(1500 * time.Millisecond)
		put(300) // takes the place of the one that waits
		time.Sleep(time.Minute)
		cancel()
		<-ended
		if want := []time.Duration{0, time.Second, 1500 * time.Millisecond, 2500 * time.Millisecond}; !slices.Equal(tries, want) {
			t.Errorf("tried at %v, want %v", tries, want)
		}
		if !slices.Equal(applied, []int64{300}) {
			t.Errorf("applied %v, want the later one, once", applied)
		}
	})
}
