package broker_test

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/penstockmq/penstock/broker"
	"github.com/penstockmq/penstock/broker/datadir"
	"github.com/penstockmq/penstock/suspend"
)

const (
	diskTotal   = 1 << 30
	diskReserve = 256 << 20
)

// openOnDisk opens a broker whose volume has as much room as free says.
func openOnDisk(t *testing.T, free *atomic.Int64) *broker.Broker {
	t.Helper()
	o := options(vfs.NewMem())
	o.DiskReserve = diskReserve
	o.FreeSpace = func() (datadir.Space, error) {
		if free.Load() < 0 {
			return datadir.Space{}, errors.New("not known")
		}
		return datadir.Space{Free: free.Load(), Total: diskTotal}, nil
	}
	return open(t, o)
}

func trySend(t *testing.T, b *broker.Broker, name string, size int) error {
	t.Helper()
	_, err := b.Send(t.Context(), topic, []broker.Message{{Lite: name, ID: "x", Body: make([]byte, size)}})
	return err
}

// TestFullDiskRefusesSendsOnly: below the reserve nothing new is taken, and everything that
// makes room goes on; with room again messages are taken, without a restart.
func TestFullDiskRefusesSendsOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var free atomic.Int64
		free.Store(diskReserve + 10<<20)
		b := openOnDisk(t, &free)
		send(t, b, "1", "a", "b", "c", "d")
		got := poll(t, b, 3, 0)
		free.Store(diskReserve - 1)
		time.Sleep(time.Second)
		err := trySend(t, b, "e", 1)
		if !errors.Is(err, broker.ErrDiskFull) || !strings.Contains(err.Error(), "268435456 are kept in reserve") {
			t.Errorf("send: %v, want ErrDiskFull with the reserve", err)
		}
		if s := b.Space(); !s.Refusing || s.Free != diskReserve-1 || s.Reserve != diskReserve {
			t.Errorf("space is %+v", s)
		}
		if n := b.Metrics().SendRefused.Load(); n != 1 {
			t.Errorf("%d messages are counted as refused, want 1", n)
		}
		ack(t, b, got[0])
		if err := b.DeadLetter(t.Context(), topic, group, got[1].Handle, "test"); err != nil {
			t.Errorf("dead letter: %v", err)
		}
		if _, err := b.HoldFor(t.Context(), topic, group, suspend.Target{Scope: suspend.Column, Name: "m"}, time.Minute, "test", ""); err != nil {
			t.Errorf("hold: %v", err)
		}
		if n, err := b.Purge(t.Context(), topic, "d"); err != nil || n != 1 {
			t.Errorf("purge: %d, %v", n, err)
		}
		dead, err := b.DeadLetters(t.Context(), group, 0, 1)
		if err != nil || len(dead) != 1 {
			t.Fatal(dead, err)
		}
		if _, err := b.Redrive(t.Context(), group, []uint64{dead[0].Seq}); !errors.Is(err, broker.ErrDiskFull) {
			t.Errorf("redrive: %v, want ErrDiskFull", err)
		}
		// Not at the first byte of room: that would be refused and taken by turns.
		free.Store(diskReserve + 1)
		time.Sleep(time.Second)
		if err := trySend(t, b, "e", 1); !errors.Is(err, broker.ErrDiskFull) {
			t.Errorf("with one byte beside the reserve: %v, want ErrDiskFull", err)
		}
		free.Store(diskReserve + diskReserve/8)
		time.Sleep(time.Second)
		if err := trySend(t, b, "e", 1); err != nil || b.Space().Refusing {
			t.Errorf("with room again: %v, %+v", err, b.Space())
		}
		free.Store(-1)
		time.Sleep(time.Second)
		if err := trySend(t, b, "e", 1); err != nil {
			t.Errorf("a volume that cannot be asked is as it was: %v", err)
		}
		closeBroker(t, b)
	})
}

// TestBurstBetweenTwoMeasurementsStaysOutOfTheReserve: admitted messages count before the
// file system reports their space.
func TestBurstBetweenTwoMeasurementsStaysOutOfTheReserve(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var free atomic.Int64
		free.Store(diskReserve + 10<<20)
		b := openOnDisk(t, &free)
		taken := 0
		for range 20 {
			if err := trySend(t, b, "a", 1<<20); err == nil {
				taken++
			} else if !errors.Is(err, broker.ErrDiskFull) {
				t.Fatal(err)
			}
		}
		if taken < 3 || taken > 5 {
			t.Errorf("%d messages of 1 MiB were taken with 10 MiB beside the reserve, each of which is written twice", taken)
		}
		closeBroker(t, b)
	})
}
