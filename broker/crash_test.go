package broker_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/penstockmq/penstock/broker"
	"github.com/penstockmq/penstock/suspend"
)

// gatedFS holds back the syncs of log files until the gate is opened.
type gatedFS struct {
	vfs.FS
	closed atomic.Bool
	gate   chan struct{}
}

type gatedFile struct {
	vfs.File
	fs *gatedFS
}

func (f *gatedFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	file, err := f.FS.Create(name, c)
	return gatedFile{file, f}, err
}

func (f gatedFile) SyncData() error {
	if f.fs.closed.Load() {
		<-f.fs.gate
	}
	return f.File.SyncData()
}

// TestMessageIsDurableBeforeAnybodySeesIt holds the disk back while a poll waits.
func TestMessageIsDurableBeforeAnybodySeesIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := &gatedFS{FS: vfs.NewMem(), gate: make(chan struct{})}
		b := open(t, options(fs))
		fs.closed.Store(true)
		var sent, received atomic.Bool
		var wg sync.WaitGroup
		wg.Go(func() { send(t, b, "x", "a"); sent.Store(true) })
		wg.Go(func() { one(t, b, time.Minute); received.Store(true) })
		time.Sleep(10 * time.Second)
		if sent.Load() || received.Load() {
			t.Errorf("before the disk had it: sender heard OK %v, consumer saw it %v", sent.Load(), received.Load())
		}
		close(fs.gate)
		wg.Wait()
		closeBroker(t, b)
	})
}

// TestPollIsAnsweredWhenItsLeaseIsWritten holds the log back while a message is
// leased to a poll. The poll must not be answered: a kill now would forget the lease.
// Its caller gives up meanwhile, and the message is another's at once.
func TestPollIsAnsweredWhenItsLeaseIsWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := &gatedFS{FS: vfs.NewMem(), gate: make(chan struct{})}
		b := open(t, options(fs))
		target := suspend.Target{Scope: suspend.Bucket, Name: "held"}
		if err := b.SetHold(t.Context(), group, suspend.Hold{Target: target, Until: time.Now().Add(10 * time.Second)}); err != nil {
			t.Fatal(err)
		}
		send(t, b, "x", "held")
		ctx, cancel := context.WithCancel(t.Context())
		answered := make(chan int, 1)
		go func() {
			got, _ := b.Receive(ctx, request("c", 1, time.Minute))
			answered <- len(got)
		}()
		fs.closed.Store(true)
		var sends sync.WaitGroup
		sends.Go(func() { send(t, b, "y", "other") }) // its sync keeps the log busy
		time.Sleep(12 * time.Second)                  // the hold has ended
		select {
		case n := <-answered:
			t.Errorf("the poll was answered with %d messages before the lease was written", n)
		default:
		}
		if leases := stats(t, b).Groups[0].Leases; leases != 1 {
			t.Fatalf("%d leases, want the one of the poll", leases)
		}
		cancel()
		synctest.Wait()
		close(fs.gate)
		if n := <-answered; n != 0 {
			t.Errorf("a poll that was given up returned %d messages", n)
		}
		sends.Wait()
		got := poll(t, b, 2, 0)
		if len(got) != 2 || got[0].Attempt != 1 || got[1].Attempt != 1 {
			t.Errorf("after the poll was given up: %d messages, want both in their first attempt", len(got))
		}
		closeBroker(t, b)
	})
}

// TestCrashKeepsWhatWasConfirmed cuts the power at random points of a random load
// and looks at what a broker finds on the disk: every message whose sender heard OK,
// unless it was acked, and in order.
func TestCrashKeepsWhatWasConfirmed(t *testing.T) {
	for round := range 12 {
		t.Run(fmt.Sprint(round), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rng := rand.New(rand.NewPCG(uint64(round), 1))
				fs := vfs.NewCrashableMem()
				b := open(t, options(fs))
				confirmed := map[string][]string{}
				acked := map[string]bool{}
				for i := range 50 + rng.IntN(100) {
					name := fmt.Sprintf("b%d", rng.IntN(8))
					switch rng.IntN(4) {
					case 0, 1:
						body := fmt.Sprint(i)
						send(t, b, body, name)
						confirmed[name] = append(confirmed[name], body)
					case 2:
						for _, d := range poll(t, b, 1+rng.IntN(4), 0) {
							ack(t, b, d)
							acked[string(d.Body)] = true
						}
					case 3:
						for _, d := range poll(t, b, 1, 0) {
							if err := b.Suspend(t.Context(), topic, group, d.Handle, 0, "test", ""); err != nil {
								t.Fatal(err)
							}
						}
					}
				}
				disk := fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: rng.IntN(101), RNG: rng})
				closeBroker(t, b)
				after := open(t, options(disk))
				got := drainAll(t, after)
				closeBroker(t, after)
				for _, name := range slices.Sorted(maps.Keys(confirmed)) {
					checkKept(t, name, confirmed[name], got[name], acked)
				}
			})
		})
	}
}

// drainAll also waits out the leases of messages whose ack the power cut took back.
func drainAll(t *testing.T, b *broker.Broker) map[string][]string {
	t.Helper()
	out := drain(t, b)
	time.Sleep(61 * time.Second)
	for name, bodies := range drain(t, b) {
		out[name] = append(out[name], bodies...)
	}
	return out
}

// checkKept compares a bucket after the crash with what was confirmed: acks may be
// forgotten by a power cut, messages may not, and the order stays.
func checkKept(t *testing.T, name string, confirmed, got []string, acked map[string]bool) {
	t.Helper()
	if !slices.Equal(confirmed[len(confirmed)-len(got):], got) {
		t.Errorf("bucket %s: confirmed %v, found %v", name, confirmed, got)
		return
	}
	for _, lost := range confirmed[:len(confirmed)-len(got)] {
		if !acked[lost] {
			t.Errorf("bucket %s: message %s was confirmed, not acked, and is lost", name, lost)
		}
	}
}

// TestC122_SuspendsOutliveARestart suspends 100 buckets for a minute and restarts
// within it, and after it.
func TestC122_SuspendsOutliveARestart(t *testing.T) {
	for _, down := range []time.Duration{2 * time.Second, 89 * time.Second} {
		t.Run(down.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				fs := vfs.NewMem()
				b := open(t, options(fs))
				send(t, b, "x", bucketNames(100)...)
				begin := time.Now()
				for _, d := range poll(t, b, 100, 0) {
					if err := b.Suspend(t.Context(), topic, group, d.Handle, time.Minute, "test", ""); err != nil {
						t.Fatal(err)
					}
				}
				time.Sleep(time.Second)
				closeBroker(t, b)
				time.Sleep(down)
				started := time.Now()
				b = open(t, options(fs))
				earliest := begin.Add(time.Minute)
				for n := 0; n < 100; {
					got := poll(t, b, 100, 2*time.Minute)
					now := time.Now()
					if now.Before(earliest) || now.After(later(earliest, started).Add(time.Second)) {
						t.Fatalf("delivered %v after the suspend, %v after the start", now.Sub(begin), now.Sub(started))
					}
					n += len(got)
					ack(t, b, got...)
				}
				closeBroker(t, b)
			})
		})
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// TestLeasesAndAttemptsOutliveARestart: a request that is still running is not sent
// again before its lease ends, and the delivery counts.
func TestLeasesAndAttemptsOutliveARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := vfs.NewMem()
		b := open(t, options(fs))
		send(t, b, "x", "a")
		begin := time.Now()
		first := one(t, b, 0)
		closeBroker(t, b)
		b = open(t, options(fs))
		d := one(t, b, 2*time.Minute)
		if after := time.Since(begin); after < time.Minute {
			t.Errorf("sent again after %v of a lease of a minute", after)
		}
		if d.Attempt != 2 {
			t.Errorf("attempt %d, want 2", d.Attempt)
		}
		errs, err := b.Ack(t.Context(), topic, group, []string{first.Handle})
		if err != nil || !errors.Is(errs[0], broker.ErrStaleHandle) {
			t.Errorf("ack with the handle of the first life: %v, %v", errs, err)
		}
		closeBroker(t, b)
		b = open(t, options(fs))
		ack(t, b, d) // a current handle is good after a restart
		none(t, b, 5*time.Minute)
		closeBroker(t, b)
	})
}

// TestC124_PositionsOutliveARestart acks everything and restarts.
func TestC124_PositionsOutliveARestart(t *testing.T) {
	fs := vfs.NewMem()
	b := open(t, options(fs))
	for i := range 10 {
		send(t, b, fmt.Sprint(i), bucketNames(100)...)
	}
	drain(t, b)
	closeBroker(t, b)
	b = open(t, options(fs))
	none(t, b, 0)
	if s := stats(t, b); s.Resident != 0 || s.Buckets != 100 {
		t.Errorf("%d buckets in memory of %d, want 0 of 100", s.Resident, s.Buckets)
	}
	// Offsets go on where they were.
	if r := send(t, b, "next", "b000000"); r[0].Offset != 10 {
		t.Errorf("offset %d after the restart, want 10", r[0].Offset)
	}
}

// TestFailedDiskRefusesSends makes the log fail: nobody hears OK from then on.
func TestFailedDiskRefusesSends(t *testing.T) {
	var fail atomic.Bool
	fs := errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		if fail.Load() && op.Kind.ReadOrWrite() == errorfs.OpIsWrite {
			return errorfs.ErrInjected
		}
		return nil
	}))
	b := open(t, options(fs))
	send(t, b, "good", "a")
	fail.Store(true)
	for range 3 {
		if _, err := b.Send(t.Context(), topic, []broker.Message{{Lite: "a", Body: []byte("x")}}); err == nil {
			t.Fatal("a send was confirmed that the disk does not have")
		}
	}
	if err := b.Run(t.Context()); err == nil {
		t.Error("Run ended without the disk's error")
	}
}

// TestC33_IdleBucketGoesAndABusyOneStays walks through the life of a bucket with a
// TTL of a minute.
func TestC33_IdleBucketGoesAndABusyOneStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := options(vfs.NewMem())
		o.Topics[0].TTL = time.Minute
		b := open(t, o)
		send(t, b, "x", "a")
		d := one(t, b, 0)
		if err := b.Suspend(t.Context(), topic, group, d.Handle, 5*time.Minute, "test", ""); err != nil {
			t.Fatal(err)
		}
		time.Sleep(4 * time.Minute)
		if s := stats(t, b); s.Buckets != 1 || s.Messages != 1 {
			t.Fatalf("while suspended: %d buckets, %d messages", s.Buckets, s.Messages)
		}
		r := request("c", 1, 2*time.Minute)
		r.Invisible = 10 * time.Minute
		got, err := b.Receive(t.Context(), r)
		if err != nil || len(got) != 1 {
			t.Fatalf("after the suspend: %v, %v", got, err)
		}
		time.Sleep(5 * time.Minute)
		if s := stats(t, b); s.Buckets != 1 {
			t.Fatalf("while in flight: %d buckets", s.Buckets)
		}
		ack(t, b, got...)
		time.Sleep(58 * time.Second)
		if s := stats(t, b); s.Buckets != 1 {
			t.Fatalf("58 s after the ack: %d buckets", s.Buckets)
		}
		time.Sleep(5 * time.Second)
		if s := stats(t, b); s.Buckets != 0 {
			t.Fatalf("63 s after the ack: %d buckets", s.Buckets)
		}
		// It comes back clean.
		if r := send(t, b, "y", "a"); r[0].Offset != 0 {
			t.Errorf("offset %d in a new bucket", r[0].Offset)
		}
		ack(t, b, one(t, b, 0))
		closeBroker(t, b)
	})
}

// TestOperatorsHold sets a hold on a bucket that does not exist yet, restarts, and
// lifts it.
func TestOperatorsHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := vfs.NewMem()
		b := open(t, options(fs))
		target := suspend.Target{Scope: suspend.Bucket, Name: "a"}
		if err := b.SetHold(t.Context(), group, suspend.Hold{Target: target, Until: time.Now().Add(time.Hour), By: "op", Reason: "test"}); err != nil {
			t.Fatal(err)
		}
		send(t, b, "x", "a", "b")
		ack(t, b, one(t, b, 0))
		none(t, b, time.Minute)
		closeBroker(t, b)
		b = open(t, options(fs))
		none(t, b, time.Minute)
		holds, err := b.Holds(t.Context(), group, "", 10)
		if err != nil || len(holds) != 1 || holds[0].Target != target || holds[0].By != "op" {
			t.Errorf("holds %+v, %v", holds, err)
		}
		if lifted, err := b.LiftHold(t.Context(), group, target); !lifted || err != nil {
			t.Errorf("lift: %v, %v", lifted, err)
		}
		ack(t, b, one(t, b, 0))
		closeBroker(t, b)
	})
}

// TestChangedTTLReachesIdleBuckets: buckets that became idle under no TTL go when the
// broker comes back with one.
func TestChangedTTLReachesIdleBuckets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := vfs.NewMem()
		o := options(fs)
		b := open(t, o)
		send(t, b, "x", bucketNames(3)...)
		drain(t, b)
		closeBroker(t, b)
		for _, ttl := range []time.Duration{time.Hour, time.Minute} {
			o.Topics[0].TTL = ttl
			b = open(t, o)
			time.Sleep(10 * time.Second)
			if s := stats(t, b); s.Buckets != 3 {
				t.Fatalf("with a TTL of %v: %d buckets after 10 s", ttl, s.Buckets)
			}
			closeBroker(t, b)
		}
		b = open(t, o)
		time.Sleep(time.Minute)
		if s := stats(t, b); s.Buckets != 0 {
			t.Errorf("%d buckets are left", s.Buckets)
		}
		closeBroker(t, b)
	})
}
