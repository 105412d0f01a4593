package store

import (
	"fmt"
	"log/slog"

	"github.com/cockroachdb/pebble/v2"
)

// pebbleLogger hands Pebble's messages on. Its routine reports are dropped: what is
// worth watching is in Metrics.
type pebbleLogger struct {
	log *slog.Logger
}

func (l pebbleLogger) Infof(string, ...any) {}

func (l pebbleLogger) Errorf(format string, args ...any) {
	l.log.Error("pebble error", "error", fmt.Sprintf(format, args...))
}

// Fatalf is called when Pebble can neither go on nor tell a caller: the manifest or
// a new log file cannot be written. The process ends, as by kill -9, and the next
// start recovers as from that. Going on would report lost writes as success.
func (l pebbleLogger) Fatalf(format string, args ...any) {
	msg := fmt.Sprintf(format, args...)
	l.log.Error("pebble fatal", "error", msg)
	panic("pebble cannot go on: " + msg)
}

// eventListener logs the events that need a person.
func eventListener(log *slog.Logger) *pebble.EventListener {
	return &pebble.EventListener{
		// A flush or compaction failed; Pebble tries again. The log keeps the data.
		BackgroundError: func(err error) {
			log.Error("background error", "error", err)
		},
		WriteStallBegin: func(i pebble.WriteStallBeginInfo) {
			log.Warn("write stall begin", "reason", i.Reason)
		},
		WriteStallEnd: func() {
			log.Info("write stall end")
		},
		// Two messages were stored under one key; see Batch.PutMessage.
		PossibleAPIMisuse: func(i pebble.PossibleAPIMisuseInfo) {
			if i.Kind == pebble.NondeterministicSingleDelete {
				log.Error("message stored twice", "key", fmt.Sprintf("%x", i.UserKey))
			}
		},
		DataCorruption: func(i pebble.DataCorruptionInfo) {
			log.Error("data corruption", "path", i.Path, "error", i.Details)
		},
	}
}
