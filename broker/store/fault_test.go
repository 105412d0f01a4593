package store

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/penstockmq/penstock/broker/lite"
)

// failing is a disk that refuses operations of some kinds on files whose names end
// in a suffix, while it is on.
func failing(on *errorfs.Toggle, suffix string, kinds ...errorfs.OpKind) {
	on.Injector = errorfs.InjectorFunc(func(op errorfs.Op) error {
		if !strings.HasSuffix(op.Path, suffix) {
			return nil
		}
		if slices.Contains(kinds, op.Kind) {
			return errorfs.ErrInjected
		}
		return nil
	})
}

// TestLogFaults: when the log cannot be written or synced, Wait says so, nothing
// more is accepted, and what was promised before is there after a restart.
func TestLogFaults(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		class Durability
		kind  errorfs.OpKind
	}{
		{"write, Written", Written, errorfs.OpFileWrite},
		{"write, Durable", Durable, errorfs.OpFileWrite},
		{"sync, Durable", Durable, errorfs.OpFileSyncData},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			mem := vfs.NewCrashableMem()
			var disk errorfs.Toggle
			failing(&disk, ".log", c.kind)
			s, err := Open(Options{Dir: "data", FS: errorfs.Wrap(mem, &disk)})
			if err != nil {
				t.Fatal(err)
			}
			for off := range uint64(10) {
				write(t, s, c.class, func(b *Batch) { b.PutMessage(1, off, message(fmt.Sprint(off))) })
			}
			disk.On()
			// The failed log is given several batches: none may be called safe.
			for off := uint64(10); off < 15; off++ {
				b := s.NewBatch()
				b.PutMessage(1, off, message("lost"))
				err := s.Apply(b, c.class)
				if err == nil {
					err = b.Wait()
				}
				if !errors.Is(err, ErrFailed) {
					t.Errorf("batch %d: got error %v, want ErrFailed", off, err)
				}
				_ = b.Close()
			}
			disk.Off() // a disk that recovers does not make it good again
			b := s.NewBatch()
			b.PutMessage(1, 15, message("late"))
			if err := s.Apply(b, c.class); !errors.Is(err, ErrFailed) {
				t.Errorf("apply after the fault: got error %v, want ErrFailed", err)
			}
			_ = b.Close()
			if n := s.Metrics().DurablePending; n != 0 {
				t.Errorf("%d Durable batches pending", n)
			}

			percent := vfs.CrashCloneCfg{} // a power cut
			if c.class == Written {
				percent = vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: newWorkload(1).rng} // kill -9
			}
			after := openMem(t, mem.CrashClone(percent))
			for off := range uint64(10) {
				if m, err := after.Message(1, off); err != nil || m.ID != fmt.Sprint(off) {
					t.Errorf("message %d was promised: %v", off, err)
				}
			}
			_ = s.Close() // reports the broken log once more
		})
	}
}

// TestConcurrentSyncFault: of many batches in flight when a sync fails, none is
// called durable that is not.
func TestConcurrentSyncFault(t *testing.T) {
	t.Parallel()
	mem := vfs.NewCrashableMem()
	var disk errorfs.Toggle
	failing(&disk, ".log", errorfs.OpFileSyncData)
	s, err := Open(Options{Dir: "data", FS: errorfs.Wrap(mem, &disk)})
	if err != nil {
		t.Fatal(err)
	}
	const writers = 8
	promised := make([]uint64, writers)
	var wg sync.WaitGroup
	for w := range uint64(writers) {
		wg.Go(func() {
			for off := uint64(0); ; off++ { // ends with the fault
				if w == 0 && off == 50 {
					disk.On()
				}
				b := s.NewBatch()
				b.PutMessage(w, off, message("m"))
				err := s.Apply(b, Durable)
				if err == nil {
					err = b.Wait()
				}
				_ = b.Close()
				if err != nil {
					return
				}
				promised[w] = off + 1
			}
		})
	}
	wg.Wait()
	after := openMem(t, mem.CrashClone(vfs.CrashCloneCfg{}))
	for w := range uint64(writers) {
		for off := range promised[w] {
			if _, err := after.Message(w, off); err != nil {
				t.Fatalf("writer %d: message %d of %d promised: %v", w, off, promised[w], err)
			}
		}
	}
	_ = s.Close()
}

// syncWriter lets a test read what other goroutines log.
type syncWriter struct {
	want string // immutable
	mu   sync.Mutex
	all  strings.Builder
	hit  chan struct{} // closed, and nil, when want was seen
}

func (w *syncWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all.Write(p)
	if w.hit != nil && strings.Contains(w.all.String(), w.want) {
		close(w.hit)
		w.hit = nil
	}
	return len(p), nil
}

// TestFlushFault: a memtable that cannot become a table is reported and tried
// again; meanwhile the log holds all, so promises stay true.
func TestFlushFault(t *testing.T) {
	t.Parallel()
	mem := vfs.NewCrashableMem()
	var disk errorfs.Toggle
	failing(&disk, ".sst", errorfs.OpCreate, errorfs.OpFileWrite)
	seen := make(chan struct{})
	log := &syncWriter{hit: seen, want: "background error"}
	s, err := Open(Options{
		Dir: "data", FS: errorfs.Wrap(mem, &disk), MemTableBytes: 256 << 10,
		Logger: slog.New(slog.NewTextHandler(log, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	disk.On()
	body := make([]byte, 8<<10)
	const n = 60 // more than one memtable, less than where writers stall
	for off := range uint64(n) {
		write(t, s, Durable, func(b *Batch) { b.PutMessage(1, off, &Message{Body: body}) })
	}
	<-seen
	crashed := openMem(t, mem.CrashClone(vfs.CrashCloneCfg{}))
	disk.Off()
	if err := s.db.Flush(); err != nil {
		t.Fatal(err)
	}
	for _, s := range []*Store{s, crashed} {
		if ms, err := s.messages(1, 0, 1000); err != nil || len(ms) != n {
			t.Errorf("%d messages, %v, want %d", len(ms), err, n)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestReadFault: an error of the disk is neither "not found" nor success.
func TestReadFault(t *testing.T) {
	t.Parallel()
	mem := vfs.NewMem()
	fill := openMem(t, mem)
	big := strings.Repeat("x", 100<<10) // ends a block, so Open does not read the next
	write(t, fill, Durable, func(b *Batch) {
		b.PutTopic(&Topic{Name: big})
		b.PutMessage(1, 1, &Message{ID: "m", Body: []byte(big)})
		b.PutBucket(&Bucket{ID: bucketID(1, 1), Name: "n", Cell: lite.Cell{User: big}})
		b.PutHold(&Hold{Group: 1, Reason: big})
	})
	if err := errors.Join(fill.db.Flush(), fill.Close()); err != nil {
		t.Fatal(err)
	}
	var disk errorfs.Toggle
	failing(&disk, ".sst", errorfs.OpFileReadAt, errorfs.OpFileRead, errorfs.OpOpen)
	s, err := Open(Options{Dir: "data", FS: errorfs.Wrap(mem, &disk)})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	disk.On()
	if _, err := s.Message(1, 1); !errors.Is(err, errorfs.ErrInjected) {
		t.Errorf("message: %v", err)
	}
	if _, ok, err := s.Bucket(1, "n"); ok || !errors.Is(err, errorfs.ErrInjected) {
		t.Errorf("bucket: %v, %v", ok, err)
	}
	if _, err := s.messages(1, 0, 9); !errors.Is(err, errorfs.ErrInjected) {
		t.Errorf("messages: %v", err)
	}
	if err := s.EachHold(1, func(Hold) bool { return true }); !errors.Is(err, errorfs.ErrInjected) {
		t.Errorf("holds: %v", err)
	}
	disk.Off()
	if m, err := s.Message(1, 1); err != nil || m.ID != "m" {
		t.Errorf("after the fault: %v", err)
	}
}

// TestRotationFaultEndsProcess: when the sync of a finished log file fails, Pebble
// cannot tell who lost what. The process must end, as by kill -9, and not go on.
func TestRotationFaultEndsProcess(t *testing.T) {
	t.Parallel()
	if os.Getenv(childEnv) == "rotation" {
		rotationFaultChild(t)
		return
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestRotationFaultEndsProcess$")
	cmd.Env = append(os.Environ(), childEnv+"=rotation")
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || !strings.Contains(string(out), "log close failed") || strings.Contains(string(out), "went on") {
		t.Errorf("the process ended with %v:\n%s", err, out)
	}
}

func rotationFaultChild(t *testing.T) {
	t.Helper()
	var disk errorfs.Toggle
	failing(&disk, ".log", errorfs.OpFileSyncData)
	s, err := Open(Options{
		Dir: "data", FS: errorfs.Wrap(vfs.NewMem(), &disk), MemTableBytes: 256 << 10,
		Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	disk.On()
	// Written batches never sync; the first sync is that of the finished log.
	for off := range uint64(1000) {
		write(t, s, Written, func(b *Batch) { b.PutMessage(1, off, &Message{Body: make([]byte, 8<<10)}) })
	}
	t.Log("went on")
}
