package broker_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/penstockmq/penstock/broker"
)

// TestCloseAfterAStallOfTheDiskWithAllTurnsOutstanding closes a broker while more turns
// are outstanding than the loop takes commands for: 64 sends in a turn each, and a
// lease that ended. A hang is seen by the time limit of the test binary.
func TestCloseAfterAStallOfTheDiskWithAllTurnsOutstanding(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := &gatedFS{FS: vfs.NewMem(), gate: make(chan struct{})}
		b := open(t, options(fs))
		send(t, b, "x", "leased")
		one(t, b, 0)
		fs.closed.Store(true)
		var sends sync.WaitGroup
		for i := range 64 {
			sends.Go(func() {
				_, _ = b.Send(t.Context(), topic, []broker.Message{{Lite: fmt.Sprint("s", i), Body: []byte("x")}})
			})
			synctest.Wait() // so that each send has a turn of its own
		}
		time.Sleep(time.Minute) // the lease ends: one turn more
		synctest.Wait()
		closed := make(chan error, 1)
		go func() { closed <- b.Close() }()
		synctest.Wait()
		close(fs.gate)
		if err := <-closed; err != nil {
			t.Error(err)
		}
		sends.Wait()
	})
}

// TestSendsOnTheirWayAreBoundedInBytes stalls the disk. Without a bound on bytes, waiting
// sends are bounded by the number of events alone: 65,536 requests of up to 16 MiB, and a
// batch of 4 GiB makes the store's engine panic.
func TestSendsOnTheirWayAreBoundedInBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := &gatedFS{FS: vfs.NewMem(), gate: make(chan struct{})}
		o := options(fs)
		o.MaxEventBytes = 1 << 20
		b := open(t, o)
		fs.closed.Store(true)
		const size = 100_000
		one := func(i int) error {
			_, err := b.Send(t.Context(), topic, []broker.Message{{Lite: fmt.Sprint("s", i), Body: make([]byte, size)}})
			return err
		}
		var sends sync.WaitGroup
		const fit = (1 << 20) / (size + 600)
		for i := range fit {
			sends.Go(func() {
				if err := one(i); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		if err := one(fit); !errors.Is(err, broker.ErrBusy) {
			t.Errorf("a send over the bound: %v, want ErrBusy", err)
		}
		fs.closed.Store(false)
		close(fs.gate)
		sends.Wait()
		for i := range 3 * fit { // complete sends do not count
			if err := one(i); err != nil {
				t.Fatal(err)
			}
		}
		// One send that is larger than the bound is not refused forever.
		if _, err := b.Send(t.Context(), topic, []broker.Message{{Lite: "l", Body: make([]byte, 2<<20)}}); err != nil {
			t.Error(err)
		}
		closeBroker(t, b)
	})
}

// TestATurnEndsWhenItsBatchIsLarge sends 96 MiB that wait for the loop at one moment.
func TestATurnEndsWhenItsBatchIsLarge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := &gatedFS{FS: vfs.NewMem(), gate: make(chan struct{})}
		o := options(fs)
		b := open(t, o)
		fs.closed.Store(true)
		var sends sync.WaitGroup
		for i := range 64 {
			sends.Go(func() { send(t, b, "x", fmt.Sprint("s", i)) })
			synctest.Wait() // so that each send has a turn of its own
		}
		before := b.Metrics().Turns.Load()
		body := make([]byte, 1<<20)
		for i := range 96 {
			sends.Go(func() {
				if _, err := b.Send(t.Context(), topic, []broker.Message{{Lite: fmt.Sprint("l", i), Body: body}}); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait() // all are queued: the loop takes no commands
		fs.closed.Store(false)
		close(fs.gate)
		sends.Wait()
		if turns := b.Metrics().Turns.Load() - before; turns < 2 {
			t.Errorf("96 MiB in %d batches, want 2 or more", turns)
		}
		closeBroker(t, b)
	})
}
