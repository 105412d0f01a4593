package store

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
)

func TestEpochRises(t *testing.T) {
	t.Parallel()
	fs := vfs.NewCrashableMem()
	for want := uint32(1); want <= 5; want++ {
		s, err := Open(Options{Dir: "data", FS: fs, AsyncFlush: want%2 == 0})
		if err != nil {
			t.Fatal(err)
		}
		if s.Epoch() != want {
			t.Errorf("epoch %d, want %d", s.Epoch(), want)
		}
		// The power fails at once: the epoch must have been durable when Open
		// returned, in both flush modes.
		next := fs.CrashClone(vfs.CrashCloneCfg{})
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		fs = next
	}
}

// rewrite changes one key behind the store's back.
func rewrite(t *testing.T, fs vfs.FS, key, value []byte) {
	t.Helper()
	db, err := pebble.Open("data", &pebble.Options{FS: fs, FormatMajorVersion: formatMajorVersion, Logger: pebbleLogger{newRepeatLog(Options{}.withDefaults().Logger)}})
	if err != nil {
		t.Fatal(err)
	}
	if value == nil {
		err = db.Delete(key, pebble.Sync)
	} else {
		err = db.Set(key, value, pebble.Sync)
	}
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
}

func TestOpenRefuses(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name       string
		key, value []byte
		want       error
		says       string
	}{
		{"newer version", []byte{tableMeta, metaVersion}, encodeVersion(formatVersion + 1), ErrVersion, "the folder has version 4, this program reads 1 to 3"},
		{"version 0", []byte{tableMeta, metaVersion}, encodeVersion(0), ErrVersion, "version 0"},
		{"damaged version", []byte{tableMeta, metaVersion}, []byte("PENSTOCX\x00\x00\x00\x01"), ErrCorrupt, "version record"},
		{"missing version", []byte{tableMeta, metaVersion}, nil, ErrCorrupt, "no version record"},
		{"damaged epoch", []byte{tableMeta, metaEpoch}, []byte{1}, ErrCorrupt, "epoch record"},
		{"missing epoch", []byte{tableMeta, metaEpoch}, nil, ErrCorrupt, "no epoch record"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			fs := vfs.NewMem()
			if err := openMem(t, fs).Close(); err != nil {
				t.Fatal(err)
			}
			rewrite(t, fs, c.key, c.value)
			for range 2 { // the refusal changes nothing: the second try ends the same
				_, err := Open(Options{Dir: "data", FS: fs})
				if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) {
					t.Errorf("got error %v, want %q", err, c.says)
				}
			}
		})
	}
}

// TestOpenRaisesOlderVersion: a folder of the version before this one opens with what
// is in it, and says at once that the older program must not open it any more.
func TestOpenRaisesOlderVersion(t *testing.T) {
	t.Parallel()
	fs := vfs.NewCrashableMem()
	if err := openMem(t, fs).Close(); err != nil {
		t.Fatal(err)
	}
	rewrite(t, fs, []byte{tableMeta, metaVersion}, encodeVersion(1))
	lease, value := unhex(t, oldLease.key), unhex(t, oldLease.value)
	rewrite(t, fs, lease, value)
	s := openMem(t, fs)
	if s.Epoch() != 2 {
		t.Errorf("epoch %d, want 2", s.Epoch())
	}
	disk := fs.CrashClone(vfs.CrashCloneCfg{}) // the power fails before anything is written
	var got []Lease
	if err := s.EachLease(5, func(l Lease) bool { got = append(got, l); return true }); err != nil || len(got) != 1 || got[0].Ticket != nil {
		t.Errorf("leases %+v, %v, want the old one without a ticket", got, err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openMem(t, disk)
	version, err := s.get([]byte{tableMeta, metaVersion})
	if err != nil || !bytes.Equal(version, encodeVersion(formatVersion)) {
		t.Errorf("version record %x, %v, want that of version %d", version, err, formatVersion)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestOpenForeignFolder(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	rewrite(t, fs, []byte("somebody"), []byte("else"))
	if _, err := Open(Options{Dir: "data", FS: fs}); !errors.Is(err, ErrCorrupt) {
		t.Errorf("got error %v", err)
	}
}

// TestOpenInUse stands for two processes: a memory file system refuses the second
// lock as the kernel does.
func TestOpenInUse(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	s, err := Open(Options{Dir: "data", FS: fs})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Open(Options{Dir: "data", FS: fs}); !errors.Is(err, ErrInUse) {
		t.Errorf("second open: %v, want %v", err, ErrInUse)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestOpenTwice(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s, err := Open(Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	if second, err := Open(Options{Dir: dir}); err == nil {
		t.Error("opened twice")
		_ = second.Close()
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if s, err = Open(Options{Dir: dir}); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestOpenOfAStoreThatCannotBeFlushedEnds: Pebble tries a flush again for ever, and an
// open waits for it. The start has to end and say why, without filling the log.
func TestOpenOfAStoreThatCannotBeFlushedEnds(t *testing.T) {
	t.Parallel()
	mem := vfs.NewMem()
	fill := openMem(t, mem)
	for off := range uint64(200) {
		write(t, fill, Durable, func(b *Batch) { b.PutMessage(1, off, &Message{Body: make([]byte, 8<<10)}) })
	}
	if err := fill.Close(); err != nil {
		t.Fatal(err)
	}
	var disk errorfs.Toggle
	failing(&disk, ".sst", errorfs.OpCreate, errorfs.OpFileWrite)
	disk.On()
	var log strings.Builder
	_, err := Open(Options{Dir: "data", FS: errorfs.Wrap(mem, &disk), MemTableBytes: 256 << 10, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if !errors.Is(err, ErrStuck) || !strings.Contains(err.Error(), errorfs.ErrInjected.Error()) {
		t.Errorf("got error %v, want ErrStuck with its cause", err)
	}
	disk.Off() // lets the engine end
}

// TestOpenIsBoundedByItsContext: a disk that stalls does not hold up a stop.
func TestOpenIsBoundedByItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancelCause(t.Context())
	stalled, told := make(chan struct{}), errors.New("told to stop")
	var once sync.Once
	disk := errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind == errorfs.OpFileSyncData || op.Kind == errorfs.OpFileSync {
			once.Do(func() { cancel(told) })
			<-stalled
		}
		return nil
	}))
	if _, err := OpenContext(ctx, Options{Dir: "data", FS: disk}); !errors.Is(err, told) {
		t.Errorf("got error %v, want that of the context", err)
	}
	close(stalled)
}
