package store

import (
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
)

// pebbleLogger hands Pebble's messages on. Its routine reports are dropped: what is
// worth watching is in Metrics.
type pebbleLogger struct {
	log *repeatLog
}

func (l pebbleLogger) Infof(string, ...any) {}

func (l pebbleLogger) Errorf(format string, args ...any) {
	l.log.report(slog.LevelError, "pebble error", "error", fmt.Sprintf(format, args...))
}

// Fatalf is called when Pebble can neither go on nor tell a caller: the manifest or
// a new log file cannot be written. The process ends, as by kill -9, and the next
// start recovers as from that. Continuing would report lost writes as success. It is no
// panic: the stacks of all goroutines do not help with a full disk.
func (l pebbleLogger) Fatalf(format string, args ...any) {
	l.log.log.Error("pebble fatal: the process ends", "error", fmt.Sprintf(format, args...))
	os.Exit(1)
}

// flushBackoff slows down failing flushes and compactions: Pebble retries at once, ten
// thousand times a second. Safe for concurrent use.
type flushBackoff struct{ failed atomic.Int64 } // in a row

const (
	minFlushBackoff = 10 * time.Millisecond
	maxFlushBackoff = time.Second
	// stuckAfter is the number of consecutive failing flushes after which an open gives up:
	// about 0.6 s with the pauses between them.
	stuckAfter = 7
)

// wait is called before a table is created, without a lock of the engine.
func (f *flushBackoff) wait() {
	if n := f.failed.Load(); n > 0 {
		time.Sleep(min(minFlushBackoff<<min(n-1, 10), maxFlushBackoff))
	}
}

// eventListener logs the events that need a person.
func (s *Store) eventListener(log *slog.Logger) *pebble.EventListener {
	return &pebble.EventListener{
		// A flush or compaction failed; Pebble tries again. The log keeps the data.
		BackgroundError: func(err error) {
			s.damage.background.Add(1)
			n := s.flushes.failed.Add(1)
			if pebble.IsCorruptionError(err) {
				s.damage.blocks.Add(1)
			}
			s.log.report(slog.LevelError, "background error", "error", err)
			if n >= stuckAfter && s.opening.Load() {
				select {
				case s.stuck <- err:
				default: // already reported
				}
			}
		},
		FlushEnd: func(i pebble.FlushInfo) {
			if i.Err == nil {
				s.flushes.failed.Store(0)
			}
		},
		WriteStallBegin: func(i pebble.WriteStallBeginInfo) {
			s.log.report(slog.LevelWarn, "write stall begin", "reason", i.Reason)
		},
		WriteStallEnd: func() {
			s.log.report(slog.LevelInfo, "write stall end")
		},
		// Two messages were stored under one key; see Batch.PutMessage.
		PossibleAPIMisuse: func(i pebble.PossibleAPIMisuseInfo) {
			if i.Kind == pebble.NondeterministicSingleDelete {
				log.Error("message stored twice", "key", fmt.Sprintf("%x", i.UserKey))
			}
		},
		DataCorruption: func(i pebble.DataCorruptionInfo) {
			s.damage.blocks.Add(1)
			s.log.report(slog.LevelError, "data corruption", "path", i.Path, "error", i.Details)
		},
	}
}
