package store

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/wal"
)

// killed returns the folder that kill -9 leaves of a store into which fill has written,
// as real files, so that a test can damage them.
func killed(t *testing.T, fill func(s *Store)) string {
	t.Helper()
	mem := vfs.NewCrashableMem()
	s := openMem(t, mem)
	fill(s)
	clone := mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rand.New(rand.NewPCG(1, 1))})
	dir := filepath.Join(t.TempDir(), "store")
	if ok, err := vfs.Clone(clone, vfs.Default, "data", dir, vfs.CloneSync); err != nil || !ok {
		t.Fatal("copy of the store:", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return dir
}

// messagesOf writes n messages, one a batch.
func messagesOf(t *testing.T, d Durability, n, size int) func(*Store) {
	return func(s *Store) {
		for off := range uint64(n) {
			write(t, s, d, func(b *Batch) {
				b.PutMessage(1, off, &Message{ID: fmt.Sprint(off), Body: bytes.Repeat([]byte{byte(off)}, size)})
			})
		}
	}
}

// reopen opens a folder and returns the number of its messages, the log lines, and the
// result of Damaged.
func reopen(t *testing.T, dir string) (n int, log string, m Metrics, damaged, err error) {
	t.Helper()
	var out strings.Builder
	s, err := Open(Options{Dir: dir, Logger: slog.New(slog.NewTextHandler(&out, nil))})
	if err != nil {
		return 0, out.String(), m, nil, err
	}
	ms, err := s.messages(1, 0, math.MaxInt)
	m, damaged = s.Metrics(), s.Damaged()
	return len(ms), out.String(), m, damaged, errors.Join(err, s.Close())
}

func newestPath(t *testing.T, dir string) string {
	t.Helper()
	_, name, err := newestLog(vfs.Default, dir)
	if err != nil || name == "" {
		t.Fatal("no log:", err)
	}
	return filepath.Join(dir, name)
}

func readFile(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func writeFile(t *testing.T, path string, b []byte) {
	t.Helper()
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestFlippedBitInTheNewestLogIsNeverSilent flips one bit of the log of 300 acknowledged
// messages at many places. Each time the start stops and names the repair, or no message is
// missing, or the missing messages are counted and the store reports damage.
func TestFlippedBitInTheNewestLogIsNeverSilent(t *testing.T) {
	t.Parallel()
	const n = 300
	dir := killed(t, messagesOf(t, Durable, n, 700))
	path := newestPath(t, dir)
	whole := readFile(t, path)
	rng := rand.New(rand.NewPCG(3, 4))
	stopped := 0
	for range 40 {
		damaged := slices.Clone(whole)
		at := rng.IntN(len(whole))
		damaged[at] ^= 1 << rng.IntN(8)
		writeFile(t, path, damaged)
		copied := copyDir(t, dir)
		got, log, m, state, err := reopen(t, copied)
		switch {
		case errors.Is(err, ErrLogDamaged) && errors.Is(err, ErrCorrupt) && strings.Contains(err.Error(), "penstock store repair"):
			stopped++
		case err != nil:
			t.Errorf("bit at %d of %d: %v", at, len(whole), err)
		case got == n && state == nil:
		case got == n-1 && m.CutBytes > 0 && m.CutRecords == 1 && errors.Is(state, ErrCorrupt) && strings.Contains(log, "reported as safe are lost"):
		default:
			t.Errorf("bit at %d of %d: %d of %d messages, damaged is %v, cut %d, log %s", at, len(whole), got, n, state, m.CutBytes, log)
		}
	}
	if stopped < 32 {
		t.Errorf("%d of 40 starts were stopped", stopped)
	}
}

func copyDir(t *testing.T, dir string) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), "store")
	if ok, err := vfs.Clone(vfs.Default, vfs.Default, dir, to); err != nil || !ok {
		t.Fatal("copy of the store:", err)
	}
	return to
}

// TestTornEndIsCutOffAndReported cuts the log within batches that were not acknowledged.
func TestTornEndIsCutOffAndReported(t *testing.T) {
	t.Parallel()
	const n = 50
	dir := killed(t, messagesOf(t, Written, n, 700))
	path := newestPath(t, dir)
	whole := readFile(t, path)
	for _, cut := range []int{1, 500, 5000} {
		writeFile(t, path, whole[:len(whole)-cut])
		got, log, m, damaged, err := reopen(t, copyDir(t, dir))
		if err != nil || got >= n || got < n-1-cut/700 || damaged != nil {
			t.Errorf("%d bytes cut: %d messages, damaged %v, %v", cut, got, damaged, err)
		}
		if m.CutBytes <= 0 || m.CutBytes > 800 || !strings.Contains(log, "torn end of the log cut off") {
			t.Errorf("%d bytes cut: %d bytes counted, log %s", cut, m.CutBytes, log)
		}
	}
	writeFile(t, path, whole)
	if got, log, m, _, err := reopen(t, dir); err != nil || got != n || m.CutBytes != 0 || strings.Contains(log, "cut off") {
		t.Errorf("a whole log: %d messages, %d bytes counted, %v, log %s", got, m.CutBytes, err, log)
	}
}

// TestLostEndOfASyncedLogIsReportedAsLoss: nothing lies behind it, so the start goes on.
func TestLostEndOfASyncedLogIsReportedAsLoss(t *testing.T) {
	t.Parallel()
	dir := killed(t, messagesOf(t, Durable, 50, 700))
	path := newestPath(t, dir)
	whole := readFile(t, path)
	writeFile(t, path, whole[:len(whole)-5000])
	got, log, m, damaged, err := reopen(t, dir)
	if err != nil || got >= 50 || m.CutBytes < 5000 || !errors.Is(damaged, ErrCorrupt) || !strings.Contains(log, "reported as safe are lost") {
		t.Errorf("%d messages, %d bytes counted, damaged %v, %v, log %s", got, m.CutBytes, damaged, err, log)
	}
}

// TestScanFindsTheEndThatPebbleFinds reads logs that were cut and damaged with Pebble's
// reader and with ours.
func TestScanFindsTheEndThatPebbleFinds(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(5, 6))
	dir := killed(t, func(s *Store) {
		for off := range uint64(60) {
			write(t, s, Written, func(b *Batch) { b.PutMessage(1, off, &Message{Body: make([]byte, rng.IntN(90_000))}) })
		}
	})
	path := newestPath(t, dir)
	whole := readFile(t, path)
	for i := range 60 {
		b := slices.Clone(whole)
		switch i % 4 {
		case 1:
			b = b[:rng.IntN(len(b))]
		case 2:
			b[rng.IntN(len(b))] ^= 1 << rng.IntN(8)
		case 3:
			b = append(b, make([]byte, rng.IntN(100_000))...)
		}
		writeFile(t, path, b)
		want := pebbleEnd(t, dir)
		got, err := readLog(vfs.Default, dir, logFile{number: logNumber(t, path), name: filepath.Base(path)})
		if err != nil || got.batches != want {
			t.Errorf("log %d of %d bytes: %d batches, %v, Pebble finds %d; %+v", i, len(b), got.batches, err, want, got)
		}
	}
}

func logNumber(t *testing.T, path string) uint64 {
	t.Helper()
	n, _, ok := wal.ParseLogFilename(filepath.Base(path))
	if !ok {
		t.Fatal(path)
	}
	return uint64(n)
}

// pebbleEnd is how many batches Pebble reads from the newest log.
func pebbleEnd(t *testing.T, dir string) (n int) {
	t.Helper()
	logs, err := wal.Scan(wal.Dir{FS: vfs.Default, Dirname: dir})
	if err != nil {
		t.Fatal(err)
	}
	r := logs[len(logs)-1].OpenForRead()
	defer r.Close()
	for {
		b, _, err := r.NextRecord()
		if err == nil {
			_, err = io.Copy(io.Discard, b)
		}
		if err != nil {
			return n
		}
		n++
	}
}

// TestClosedLogHasNoTornEnd: a log that was closed ends in a trailer, which is no batch.
func TestClosedLogHasNoTornEnd(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for range 2 {
		s, err := Open(Options{Dir: dir})
		if err != nil {
			t.Fatal(err)
		}
		messagesOf(t, Durable, 3, 100)(s)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	n, log, m, damaged, err := reopen(t, dir)
	if err != nil || n != 3 || m.CutBytes != 0 || damaged != nil || log != "" {
		t.Errorf("%d messages, %d bytes cut, damaged %v, %v, log %q", n, m.CutBytes, damaged, err, log)
	}
}

// TestRecycledLogHasNoTornEnd: behind the end of a log lie batches of the one whose file
// it took over. They are not its own.
func TestRecycledLogHasNoTornEnd(t *testing.T) {
	t.Parallel()
	dir := killed(t, func(s *Store) {
		messagesOf(t, Durable, 200, 3000)(s)
		for range 4 { // each flush begins a log; the second of them may take an old file
			if err := s.db.Flush(); err != nil {
				t.Fatal(err)
			}
			write(t, s, Durable, func(b *Batch) { b.PutCursor(&Cursor{Group: 1, Bucket: 1, Floor: 1}) })
		}
	})
	s, err := readLog(vfs.Default, dir, logFile{logNumber(t, newestPath(t, dir)), filepath.Base(newestPath(t, dir))})
	if size := int64(len(readFile(t, newestPath(t, dir)))); err != nil || size < 10*s.end {
		t.Fatalf("the log has %d bytes, %d of them its own, %v: no file was used again", size, s.end, err)
	}
	n, log, m, damaged, err := reopen(t, dir)
	if err != nil || n != 200 || m.CutBytes != 0 || damaged != nil {
		t.Errorf("%d messages, %d bytes cut, damaged %v, %v, log %s", n, m.CutBytes, damaged, err, log)
	}
}

// TestRepairCutsAtTheDamage damages the newest log, and an earlier log, and lets the tool cut
// the log at the damage.
func TestRepairCutsAtTheDamage(t *testing.T) {
	t.Parallel()
	const n = 100
	for _, c := range []struct {
		name string
		old  bool // the damage is in a log before the newest
	}{{"newest", false}, {"older", true}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dir := killed(t, messagesOf(t, Durable, n, 700))
			path := newestPath(t, dir)
			b := readFile(t, path)
			if c.old { // as if a crash had come after the next log was begun
				next := filepath.Join(dir, fmt.Sprintf("%06d.log", logNumber(t, path)+1))
				writeFile(t, next, nil)
			}
			b[len(b)/2] ^= 1
			writeFile(t, path, b)
			if _, _, _, _, err := reopen(t, dir); !errors.Is(err, ErrLogDamaged) {
				t.Fatalf("before the repair: %v, want ErrLogDamaged", err)
			}
			for _, cut := range []bool{false, true} {
				d, err := Repair(dir, cut)
				if err != nil || d == nil || d.Log != filepath.Base(path) || d.Offset <= 0 || d.LostBytes < int64(len(b)/2-2000) || d.LostBatches < n/2-3 {
					t.Fatalf("cut %v: %+v, %v", cut, d, err)
				}
				kept, err := os.ReadFile(filepath.Join(dir, d.Files[0]))
				if cut != (err == nil) || cut && !bytes.Equal(kept, b[d.Offset:]) {
					t.Errorf("cut %v: %d bytes are kept, %v, want those from %d on", cut, len(kept), err, d.Offset)
				}
			}
			got, _, _, damaged, err := reopen(t, dir)
			if err != nil || got < n/2-3 || got > n/2+3 || damaged != nil {
				t.Errorf("after the repair: %d messages, damaged %v, %v", got, damaged, err)
			}
			if d, err := Repair(dir, true); d != nil || err != nil {
				t.Errorf("a second repair: %+v, %v", d, err)
			}
		})
	}
}

// TestMissingLogStopsTheStart: the file is gone, and with it all that was acknowledged
// since the last flush.
func TestMissingLogStopsTheStart(t *testing.T) {
	t.Parallel()
	dir := killed(t, messagesOf(t, Durable, 50, 700))
	path := newestPath(t, dir)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, _, _, _, err := reopen(t, dir); !errors.Is(err, ErrLogDamaged) || !strings.Contains(err.Error(), filepath.Base(path)) {
			t.Fatalf("got error %v, want ErrLogDamaged with the log's name", err)
		}
	}
	for _, cut := range []bool{false, true} {
		if d, err := Repair(dir, cut); err != nil || d == nil || d.Log != filepath.Base(path) || d.LostBytes < 50*700 {
			t.Errorf("cut %v: %+v, %v", cut, d, err)
		}
	}
	if _, _, _, _, err := reopen(t, dir); err != nil {
		t.Errorf("after the repair: %v", err)
	}
}

// TestRepairLeavesAWholeStoreAlone, and one that another process has open.
func TestRepairLeavesAWholeStoreAlone(t *testing.T) {
	t.Parallel()
	dir := killed(t, messagesOf(t, Durable, 10, 100))
	if d, err := Repair(dir, true); d != nil || err != nil {
		t.Errorf("%+v, %v", d, err)
	}
	s, err := Open(Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Repair(dir, true); !errors.Is(err, ErrInUse) {
		t.Errorf("of a store in use: %v, want ErrInUse", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := Repair(filepath.Join(dir, "none"), true); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("of no folder: %v", err)
	}
}

// TestDamagedBlockOfATableIsCountedAndTold: only the messages in the block are lost; the
// others are read, and the store reports damage.
func TestDamagedBlockOfATableIsCountedAndTold(t *testing.T) {
	t.Parallel()
	const n = 200
	dir := killed(t, func(s *Store) {
		for off := range uint64(n) {
			body := make([]byte, 4096)
			_, _ = rand.NewChaCha8([32]byte{byte(off)}).Read(body)
			write(t, s, Durable, func(b *Batch) { b.PutMessage(1, off, &Message{Body: body}) })
		}
		if err := s.db.Flush(); err != nil {
			t.Fatal(err)
		}
	})
	tables, err := filepath.Glob(filepath.Join(dir, "*.sst"))
	if err != nil || len(tables) == 0 {
		t.Fatal(tables, err)
	}
	largest := slices.MaxFunc(tables, func(a, b string) int { return len(readFile(t, a)) - len(readFile(t, b)) })
	table := readFile(t, largest)
	table[len(table)/2] ^= 0x40
	writeFile(t, largest, table)
	s, err := Open(Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	bad := 0
	for off := range uint64(n) {
		if _, err := s.Message(1, off); errors.Is(err, ErrCorrupt) {
			bad++
		} else if err != nil {
			t.Error(err)
		}
	}
	if bad == 0 || bad > n/10 {
		t.Errorf("%d of %d messages are unreadable", bad, n)
	}
	if m := s.Metrics(); m.BadBlocks < int64(bad) || !errors.Is(s.Damaged(), ErrCorrupt) {
		t.Errorf("%d damaged blocks are counted of %d reads, damaged is %v", m.BadBlocks, bad, s.Damaged())
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestNewStoreTakesLittleRoom counts the blocks of the files, not their sizes: logs used to
// set aside a memtable's size each.
func TestNewStoreTakesLittleRoom(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s, err := Open(Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	messagesOf(t, Written, 5000, 1000)(s)
	var bytes int64
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		info, ierr := e.Info()
		err = errors.Join(err, ierr)
		if ierr == nil {
			bytes += info.Sys().(*syscall.Stat_t).Blocks * 512
		}
	}
	if err != nil || bytes > 50<<20 {
		t.Errorf("5 MB of messages take %d MiB of the volume, %v", bytes>>20, err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}
