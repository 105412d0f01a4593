package broker_test

import (
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// commitTimes is an Observer that keeps the commit times.
type commitTimes struct {
	mu    sync.Mutex
	times []time.Duration // guarded by mu
}

func (*commitTimes) QueueTime(time.Duration) {}

func (*commitTimes) Turn(time.Duration) {}

func (c *commitTimes) Commit(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.times = append(c.times, d)
}

// TestCommitTimeBeginsWhenTheStoreGetsTheBatch holds the disk back. The time of a batch that
// stands behind another in the committer's line is its own, from its hand-over.
func TestCommitTimeBeginsWhenTheStoreGetsTheBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := &gatedFS{FS: vfs.NewMem(), gate: make(chan struct{})}
		o := options(fs)
		var seen commitTimes
		o.Observer = &seen
		b := open(t, o)
		seen.times = nil // those of the start; no loop writes now
		fs.closed.Store(true)
		var sends sync.WaitGroup
		sends.Go(func() { send(t, b, "x", "a") })
		time.Sleep(6 * time.Second)
		sends.Go(func() { send(t, b, "y", "b") })
		time.Sleep(4 * time.Second)
		close(fs.gate)
		sends.Wait()
		closeBroker(t, b)
		if want := []time.Duration{10 * time.Second, 4 * time.Second}; !slices.Equal(seen.times, want) {
			t.Errorf("commit times are %v, want %v", seen.times, want)
		}
	})
}
