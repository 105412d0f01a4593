package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"log/slog"
	"os"
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// The mark of the synced offset
//
// An incomplete chunk is the end of the log if nothing behind it was promised, and damage
// otherwise. The log itself does not record that (walfs.go: it must not). So after each real
// sync, the log's number and the synced offset are written to a small file beside the logs,
// without a sync of that file.
//
// Invariant: the mark is true. It is written after the sync has returned, so on disk it may
// lag by the system's write-back, and is never ahead of the log. A crash that loses the
// mark loses no data: then damage counts as the log's end, and is reported as such.
//
//	log:8 offset:8 crc32c:4, big-endian
const (
	syncedName  = "SYNCED"
	syncedBytes = 8 + 8 + 4
)

// syncedMark is the open file. Safe for concurrent use: a log may be closed while the next
// one is written.
type syncedMark struct {
	log *slog.Logger

	mu     sync.Mutex
	file   vfs.File // guarded by mu; nil when it could not be opened or written
	number uint64   // guarded by mu
}

// openSynced opens the file, or creates it.
func openSynced(fs vfs.FS, dir string, log *slog.Logger) (*syncedMark, error) {
	f, err := fs.OpenReadWrite(fs.PathJoin(dir, syncedName), vfs.WriteCategoryUnspecified)
	if err != nil {
		return nil, fmt.Errorf("open mark of synced log: %w", err)
	}
	return &syncedMark{log: log, file: f}, nil
}

// put records that a log is synced up to an offset.
func (m *syncedMark) put(number uint64, offset int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.file == nil || number < m.number {
		return
	}
	m.number = number
	if _, err := m.file.WriteAt(encodeSynced(number, offset), 0); err != nil {
		// After a crash less is known, and nothing is lost, so one warning is enough.
		m.log.Warn("mark of synced log not written", "error", err)
		_ = m.file.Close()
		m.file = nil
	}
}

func (m *syncedMark) close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.file == nil {
		return nil
	}
	f := m.file
	m.file = nil
	return errors.Join(f.Sync(), f.Close())
}

func encodeSynced(number uint64, offset int64) []byte {
	b := appendUint64s(make([]byte, 0, syncedBytes), number, uint64(offset))
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// readSynced returns the content of the mark; zeros if the file is missing or incomplete.
func readSynced(fs vfs.FS, dir string) (number uint64, offset int64, err error) {
	f, err := fs.Open(fs.PathJoin(dir, syncedName))
	if errors.Is(err, os.ErrNotExist) {
		return 0, 0, nil
	}
	if err != nil {
		return 0, 0, fmt.Errorf("read mark of synced log: %w", err)
	}
	defer f.Close() //nolint:errcheck // it was read
	b := make([]byte, syncedBytes)
	n, _ := f.ReadAt(b, 0)
	if n < syncedBytes || binary.BigEndian.Uint32(b[16:]) != crc32.Checksum(b[:16], castagnoli) {
		return 0, 0, nil
	}
	return binary.BigEndian.Uint64(b), int64(binary.BigEndian.Uint64(b[8:])), nil
}
