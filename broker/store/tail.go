package store

import (
	"errors"
	"fmt"
	"log/slog"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// ErrLogDamaged: the newest log has a damaged batch before batches that were reported as
// safe. It wraps ErrCorrupt.
var ErrLogDamaged = fmt.Errorf("%w: log damaged", ErrCorrupt)

// logTail is the result of checkTail: the end of the newest log.
type logTail struct {
	logFile
	logScan
	synced int64 // offset up to which the log is known to be synced; 0: unknown
}

// missing reports whether batches that were reported as safe are lost with this tail.
func (t *logTail) missing() bool { return t.synced > t.stop }

// checkTail reads the framing of the newest log. The error wraps ErrLogDamaged when the
// damage is not the log's end: good, synced batches follow a damaged one.
func checkTail(fs vfs.FS, dir string) (logTail, error) {
	var t logTail
	var err error
	if t.number, t.name, err = newestLog(fs, dir); err != nil {
		return t, err
	}
	number, offset, err := readSynced(fs, dir)
	if err != nil {
		return t, err
	}
	if number > t.number {
		// A log is deleted when the manifest no longer needs it.
		if needed, err := minUnflushed(fs, dir); err != nil || number >= needed {
			t.logFile, t.synced = logFile{number, fmt.Sprintf("%06d.log", number)}, offset
			return t, errors.Join(err, fmt.Errorf("%w: %s is missing, and %d bytes of it were reported as safe: "+
				"restore the folder from a copy, or give them up with penstock store repair", ErrLogDamaged, t.name, offset))
		}
	}
	if t.number == 0 {
		return t, nil
	}
	if t.logScan, err = readLog(fs, dir, t.logFile); err != nil {
		return t, err
	}
	if number == t.number {
		t.synced = offset
	}
	if t.missing() && t.behind > 0 {
		return t, fmt.Errorf("%w: %s: the batch at offset %d is damaged, and %d batches behind it, up to offset %d, are good and were reported as safe: "+
			"restore the folder from a copy, or give them up with penstock store repair",
			ErrLogDamaged, t.name, t.end, t.behind, t.behindEnd)
	}
	return t, nil
}

// reportTail logs a torn end, if there is one. Pebble does not report it.
func (s *Store) reportTail(t *logTail, log *slog.Logger) {
	lost := t.lost
	if t.missing() {
		lost = max(lost, t.synced-t.end)
	}
	if lost <= 0 {
		return
	}
	records := int64(t.behind)
	if t.missing() {
		records++ // the damaged batch
	}
	s.damage.cutBytes.Store(lost)
	s.damage.cutRecords.Store(records)
	args := []any{"log", t.name, "offset", t.end, "bytes", lost, "batches", records}
	if t.missing() {
		s.damage.synced.Store(true)
		log.Error("end of the log cut off: batches that were reported as safe are lost", args...)
		return
	}
	log.Warn("torn end of the log cut off: a crash interrupted its last writes, which were not reported as safe", args...)
}
