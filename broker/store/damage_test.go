package store

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestRepeatedLinesAreLeftOutAndCounted: an error that comes ten thousand times a second
// does not fill the disk with its log.
func TestRepeatedLinesAreLeftOutAndCounted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		l := newRepeatLog(slog.New(slog.NewTextHandler(&out, nil)))
		for range 10_000 {
			l.report(slog.LevelError, "background error", "error", "no space")
		}
		l.report(slog.LevelError, "another", "error", "x")
		if n := strings.Count(out.String(), "\n"); n != repeatBurst+1 {
			t.Errorf("%d lines, want %d of one kind and 1 of another", n, repeatBurst)
		}
		time.Sleep(repeatPeriod)
		l.report(slog.LevelError, "background error", "error", "no space")
		if want := "left_out_before=9995"; !strings.Contains(out.String(), want) {
			t.Errorf("the log does not say %s", want)
		}
	})
}
