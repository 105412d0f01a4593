package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// Options configure a store.
type Options struct {
	// Dir is the folder; it is created when it does not exist. One process at a
	// time may have it open.
	Dir string
	// FS is where Dir is; nil is the disk.
	FS vfs.FS
	// CacheBytes bounds the cache of table blocks. Default 128 MiB.
	CacheBytes int64
	// MemTableBytes is how much is gathered in memory before it becomes a table; up
	// to four of them exist at once. Default 64 MiB, and no more than a 32nd of the volume.
	MemTableBytes int64
	// AsyncFlush lets Durable promise no more than Written, as RocketMQ's default
	// ASYNC_FLUSH does.
	AsyncFlush bool
	// Logger receives what an operator should know of the disk; nil discards it.
	Logger *slog.Logger
}

func (o Options) withDefaults() Options {
	if o.CacheBytes <= 0 {
		o.CacheBytes = 128 << 20
	}
	if o.MemTableBytes <= 0 {
		o.MemTableBytes = 64 << 20
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

// formatMajorVersion is the newest format of Pebble whose log does not write down
// how far it was synced; walfs.go says why that must not be. It also rules out
// value separation; DESIGN.md has the measurements.
const formatMajorVersion = pebble.FormatColumnarBlocks

// On a small volume memtables are smaller, one in memTableShare of it: up to five logs of
// a memtable's size are kept for reuse, and a flush needs room for as much.
const (
	memTableShare = 32
	minMemTable   = 4 << 20
)

// diskSlowAfter is how long an operation on a file may take before it is logged.
const diskSlowAfter = 5 * time.Second

// Store is an open folder.
type Store struct {
	// Immutable after Open.
	db       *pebble.DB
	async    bool
	epoch    uint32
	fsCloser io.Closer // stops the watch over slow disks
	walFS    *walFS
	lock     *pebble.Lock
	synced   *syncedMark

	// Safe for concurrent use, each in its own way.
	gate    syncGate
	batches sync.Pool // of *Batch
	failure atomic.Pointer[error]
	closed  atomic.Bool
	users   users
	damage  damage
	log     *repeatLog
	flushes flushBackoff
	opening atomic.Bool
	stuck   chan error // capacity 1: the reason for which the engine is stuck while it opens
}

// Open is OpenContext without a limit on the time.
func Open(o Options) (*Store, error) { return OpenContext(context.Background(), o) }

// OpenContext opens or creates the folder, recovers the state of the last process and
// begins a new epoch. A torn end of the log is cut off, counted in Metrics and logged.
//
// Errors wrap ErrVersion when a newer version of the program wrote the folder, ErrLogDamaged
// when the log is damaged before its end, ErrCorrupt when the bytes are foreign or are
// damaged elsewhere, ErrInUse when another process has the folder open, ErrStuck when the
// recovered data cannot be written to tables, and the context's cause when the context is
// done first. In the last two cases the engine still runs: the process should end.
func OpenContext(ctx context.Context, o Options) (*Store, error) {
	s, err := open(ctx, o.withDefaults(), nil)
	if err != nil {
		return nil, fmt.Errorf("open store %s: %w", o.Dir, err)
	}
	return s, nil
}

// openError says in this package's words why Pebble did not open.
func openError(err error) error {
	switch {
	case pebble.IsCorruptionError(err) && strings.Contains(err.Error(), "replaying WAL"):
		return fmt.Errorf("%w: a log before the newest is damaged: restore the folder from a copy, "+
			"or give up what is behind the damage with penstock store repair: %w", ErrLogDamaged, err)
	case pebble.IsCorruptionError(err):
		return fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	return err
}

// open lets benchmarks change Pebble's options.
func open(ctx context.Context, o Options, tune func(*pebble.Options)) (*Store, error) {
	s := &Store{
		async: o.AsyncFlush, users: users{idle: make(chan struct{}, 1)},
		log: newRepeatLog(o.Logger), stuck: make(chan error, 1),
	}
	s.batches.New = func() any { return new(Batch) }
	po := s.pebbleOptions(o)
	if tune != nil {
		tune(po)
	}
	s.opening.Store(true)
	defer s.opening.Store(false)
	// A disk may stall forever, and Pebble retries a flush forever: neither may block the
	// caller, which wants to report, or to stop.
	opened := make(chan error, 1)
	go func() { opened <- s.start(o, po) }()
	var err error
	select {
	case err = <-opened:
		if err == nil {
			return s, nil
		}
		return nil, errors.Join(err, s.Close())
	case err = <-s.stuck:
		err = fmt.Errorf("%w: %w", ErrStuck, err)
	case <-ctx.Done():
		err = fmt.Errorf("given up: %w", context.Cause(ctx))
	}
	go func() { // in case the open ends after all
		_ = errors.Join(<-opened, s.Close())
	}()
	return nil, err
}

// start does the work of open. It turns panics of the engine about the files into errors: a
// damaged folder is no reason for a stack trace.
func (s *Store) start(o Options, po *pebble.Options) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%w: the engine cannot read it: %v", ErrCorrupt, r)
		}
	}()
	if err := po.FS.MkdirAll(o.Dir, 0o755); err != nil {
		return fmt.Errorf("make folder: %w", err)
	}
	// The engine's own lock, before the first file is read.
	if s.lock, err = pebble.LockDirectory(o.Dir, po.FS); err != nil {
		if errors.Is(err, syscall.EAGAIN) {
			return ErrInUse
		}
		return fmt.Errorf("lock folder: %w", err)
	}
	po.Lock = s.lock
	if usage, err := po.FS.GetDiskUsage(o.Dir); err == nil { // unknown for a file system in memory
		po.MemTableSize = min(po.MemTableSize, max(minMemTable, usage.TotalBytes/memTableShare))
	}
	tail, err := checkTail(po.FS, o.Dir)
	if err != nil {
		return err
	}
	if s.synced, err = openSynced(po.FS, o.Dir, o.Logger); err != nil {
		return err
	}
	s.walFS.synced = s.synced
	if s.db, err = pebble.Open(o.Dir, po); err != nil {
		return openError(err)
	}
	version, err := s.checkVersion()
	if err != nil {
		return err
	}
	if err := s.beginEpoch(version); err != nil {
		return err
	}
	s.reportTail(&tail, o.Logger)
	return nil
}

func (s *Store) pebbleOptions(o Options) *pebble.Options {
	fs := o.FS
	s.fsCloser = nopCloser{}
	if fs == nil {
		fs, s.fsCloser = vfs.WithDiskHealthChecks(vfs.Default, diskSlowAfter, nil, func(i vfs.DiskSlowInfo) {
			o.Logger.Warn("disk slow", "operation", i.OpType.String(), "path", i.Path, "duration", i.Duration)
		})
	}
	s.walFS = &walFS{FS: fs, gate: &s.gate, log: o.Logger, flushes: &s.flushes}
	po := &pebble.Options{
		FS:                          s.walFS,
		FormatMajorVersion:          formatMajorVersion,
		CacheSize:                   o.CacheBytes,
		MemTableSize:                uint64(o.MemTableBytes),
		MemTableStopWritesThreshold: 4,
		L0CompactionThreshold:       2,
		L0StopWritesThreshold:       1000, // slow reads are better than stalled writers
		LBaseMaxBytes:               64 << 20,
		CompactionConcurrencyRange:  func() (int, int) { return 1, 2 },
		FlushDelayDeleteRange:       10 * time.Second, // give the space of purged buckets back
		Logger:                      pebbleLogger{s.log},
		EventListener:               s.eventListener(o.Logger),
	}
	for i := range po.Levels {
		// Ten bits a key: one lookup of a new bucket in a hundred reads a block
		// for nothing.
		po.Levels[i].FilterPolicy = bloom.FilterPolicy(10)
		po.Levels[i].FilterType = pebble.TableFilter
	}
	return po
}

// Epoch is the number of this start; it only ever grows, and is durable.
func (s *Store) Epoch() uint32 { return s.epoch }

// Close syncs what was applied, waits for calls that are running, and closes the
// folder; later calls return ErrClosed. Applied batches are to be waited for before. It may be called twice.
func (s *Store) Close() error {
	if s.closed.Swap(true) {
		return nil
	}
	s.users.close()
	var errs []error
	if s.db != nil {
		errs = append(errs, s.db.Close())
	}
	if s.synced != nil { // after the engine, which syncs its log once more
		errs = append(errs, s.synced.close())
	}
	if s.lock != nil {
		errs = append(errs, s.lock.Close())
	}
	return errors.Join(append(errs, s.fsCloser.Close())...)
}

// fail makes the first failure of the log the answer to all later writes: Pebble
// never writes to that log again, and a sync that failed once must not be tried
// again, since the kernel may have dropped the pages and would report success.
func (s *Store) fail(err error) error {
	err = fmt.Errorf("%w: %w", ErrFailed, err)
	s.failure.CompareAndSwap(nil, &err)
	return *s.failure.Load()
}

type nopCloser struct{}

func (nopCloser) Close() error { return nil }
