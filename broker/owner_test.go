package broker_test

import (
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
