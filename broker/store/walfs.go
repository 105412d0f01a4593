package store

import (
	"errors"
	"log/slog"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/wal"
)

// The two durability classes on one log
//
// Pebble knows two ways to commit. With Sync the batch is written to the log file
// and the file is synced. Without, it stays in this process's memory until a block
// of 32 KiB is full, so kill -9 loses it. The class Written needs the middle: handed
// to the operating system, which outlives the process, but no wait for the disk.
//
// So every batch is committed with Sync, and the file system beneath Pebble skips
// the sync of a log file when nobody asked for power-cut safety. The counter
// syncGate.durable says whether somebody does: Apply raises it before it commits a
// Durable batch, Batch.Wait lowers it after that batch's sync has returned.
//
// Invariant: the sync that completes a Durable batch B is real.
//
//	apply goroutine            log's flush goroutine
//	1 durable++
//	2 copy B into the log
//	3 put B on the sync queue
//	                           4 take a snapshot of the queue, which has B
//	                           5 write what was copied before 4, B included
//	                           6 file.SyncData: skip only if durable == 0
//	                           7 complete the batches of the snapshot
//	8 Wait returns
//	9 durable--
//
// Pebble orders 3 before 4 for every batch that 7 completes, so 1 happens before 6;
// 9 happens after 7. Between 1 and 9 this batch keeps the counter above zero, whatever other batches do. A
// sync that ran while the counter was zero therefore completed Written batches
// only, and for those step 5 is all that is promised.
//
// Invariant: what is on disk is a prefix of what was committed, across log files. A
// Durable batch's sync covers all that was written before it to the same file. When
// Pebble turns to a new file it closes the old one first, and closing makes up for
// the syncs that were skipped (walFile.Close). Without that a power cut could lose
// the end of the old file and keep the new one: Pebble then takes the old file for
// corrupt, rightly, and the store would not open.
//
// A skipped sync must not be believed by anybody else. Pebble does, from format
// FormatWALSyncChunks on: each later record names the offset up to which the file
// was synced, and replay takes a damaged record before that offset for corruption
// instead of the end of the log. After a power cut, pages that were never synced may
// be missing before pages that are there, and such a log would be refused.
// formatMajorVersion stays below it for that reason; TestPowerCutTornTail fails
// otherwise.

// syncGate decides whether the sync of a log file is real.
type syncGate struct {
	durable atomic.Int64 // Durable batches between Apply and the end of Wait
	real    atomic.Int64 // syncs made, for Metrics
	skipped atomic.Int64 // syncs left out, for Metrics
}

// walFS wraps the log files that Pebble writes, and nothing else: tables, manifest
// and directories are synced as Pebble wants.
type walFS struct {
	vfs.FS
	gate   *syncGate
	log    *slog.Logger
	synced *syncedMark // nil until the folder is open
	// flushes slows down the creation of tables while flushes fail; nil: no slowdown.
	flushes *flushBackoff
}

// walCategory is what Pebble calls its log files when it creates them.
const walCategory vfs.DiskWriteCategory = "pebble-wal"

func (fs *walFS) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	if fs.flushes != nil && (category == "pebble-memtable-flush" || category == "pebble-compaction") {
		fs.flushes.wait()
	}
	f, err := fs.FS.Create(name, category)
	return fs.wrap(name, f, category, err)
}

func (fs *walFS) ReuseForWrite(oldname, newname string, category vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := fs.FS.ReuseForWrite(oldname, newname, category)
	return fs.wrap(newname, f, category, err)
}

func (fs *walFS) wrap(name string, f vfs.File, category vfs.DiskWriteCategory, err error) (vfs.File, error) {
	if err != nil || category != walCategory {
		return f, err
	}
	number, _, _ := wal.ParseLogFilename(fs.PathBase(name))
	return &walFile{File: f, gate: fs.gate, log: fs.log, number: uint64(number), synced: fs.synced}, nil
}

func (fs *walFS) Unwrap() vfs.FS { return fs.FS }

// walFile is one log file. Pebble writes and syncs it from one goroutine, and closes
// it when that goroutine has ended.
type walFile struct {
	vfs.File
	gate    *syncGate
	log     *slog.Logger
	number  uint64
	synced  *syncedMark
	written int64 // bytes from the start of the file
	owed    bool  // a sync was skipped since the last real one
	failed  error // error of a real sync
}

func (f *walFile) Write(p []byte) (int, error) {
	n, err := f.File.Write(p)
	f.written += int64(n)
	return n, err //nolint:wrapcheck // Pebble looks at it
}

// maxPreallocate is the space that is reserved when a log is begun, in bytes.
const maxPreallocate = 4 << 20

// Preallocate reserves less than Pebble asks for, which is a memtable's size for each log: a
// new store begins six logs while its memtable grows, and keeps them for reuse, so 7 MB of
// messages took 420 MiB of the volume.
func (f *walFile) Preallocate(offset, length int64) error {
	return f.File.Preallocate(offset, min(length, maxPreallocate)) //nolint:wrapcheck // Pebble looks at it
}

func (f *walFile) Sync() error {
	if f.skip() {
		return nil
	}
	return f.settle(f.File.Sync)
}

// SyncData is what Pebble calls for each group of commits.
func (f *walFile) SyncData() error {
	if f.skip() {
		return nil
	}
	return f.settle(f.File.SyncData)
}

func (f *walFile) skip() bool {
	if f.gate.durable.Load() > 0 {
		return false
	}
	f.owed = true
	f.gate.skipped.Add(1)
	return true
}

// settle makes a real sync. One that failed is never tried again: the kernel may
// have dropped the pages, and would report success for what is left.
func (f *walFile) settle(sync func() error) error {
	if f.failed != nil {
		return f.failed
	}
	if f.failed = sync(); f.failed != nil {
		return f.failed
	}
	f.owed = false
	f.gate.real.Add(1)
	if f.synced != nil {
		f.synced.put(f.number, f.written)
	}
	return nil
}

// Close makes up for skipped syncs; see the second invariant above. Pebble ends the
// process when it fails while turning to a new file, which is right: what Wait vouched for is
// on disk, and with no newer file the next start takes the damage for the log's end.
func (f *walFile) Close() error {
	err := f.failed
	if f.owed {
		err = f.settle(f.File.SyncData)
	}
	if err != nil {
		f.log.Error("log close failed", "error", err)
	}
	return errors.Join(err, f.File.Close())
}
