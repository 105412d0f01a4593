package broker_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/penstockmq/penstock/broker"
)

// busy stalls the disk until the loop takes no commands any more and its queue of one is
// full, runs f, lets the disk go on and waits for it. It returns how many messages were sent.
func busy(t *testing.T, b *broker.Broker, fs *gatedFS, f func()) int {
	t.Helper()
	var sent atomic.Int64
	fs.closed.Store(true)
	var sends sync.WaitGroup
	var full atomic.Bool
	for i := 0; !full.Load(); i++ {
		sends.Go(func() {
			_, err := b.Send(t.Context(), topic, []broker.Message{{Lite: fmt.Sprint("s", i), Body: []byte("busy")}})
			if err == nil {
				sent.Add(1)
			}
			full.Store(errors.Is(err, broker.ErrBusy))
		})
		synctest.Wait() // so that each send has a turn of its own
	}
	f()
	fs.closed.Store(false)
	close(fs.gate)
	sends.Wait()
	return int(sent.Load())
}

// A message that its client did not get stayed leased for up to 3 h when the queue of the
// loop was full at the moment of the return and the broker itself renewed the lease.
func TestWhatWasNotHandedOverIsFreeAlthoughTheQueueWasFull(t *testing.T) {
	for _, how := range []string{"release", "cancelled poll"} {
		t.Run(how, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				fs := &gatedFS{FS: vfs.NewMem(), gate: make(chan struct{})}
				o := options(fs)
				o.MaxEvents = 1
				b := open(t, o)
				r := request("c", 1, 0)
				r.AutoRenew = true
				var polls sync.WaitGroup
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				giveBack := cancel
				if how == "release" {
					send(t, b, "x", "a")
					got, err := b.Receive(t.Context(), r)
					if err != nil || len(got) != 1 {
						t.Fatalf("%d messages, %v", len(got), err)
					}
					giveBack = func() { b.Release(topic, []string{got[0].Handle}) }
				} else {
					r.Wait = time.Hour
					polls.Go(func() {
						if got, err := b.Receive(ctx, r); err == nil {
							t.Errorf("a cancelled poll got %d messages", len(got))
						}
					})
					synctest.Wait()
				}
				sent := busy(t, b, fs, func() { giveBack(); synctest.Wait() })
				polls.Wait()
				if how == "release" {
					sent++
				}
				if got := poll(t, b, 100, 0); len(got) != sent {
					t.Errorf("%d messages are free, want all %d", len(got), sent)
				}
				closeBroker(t, b)
			})
		})
	}
}
