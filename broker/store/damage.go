package store

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

// damage counts what of the folder could not be read or was cut off since it was opened.
// A counter that is not zero stays so until a restart: damage does not heal by itself.
type damage struct {
	records    atomic.Int64 // reads that met a record which does not decode
	blocks     atomic.Int64 // reads that met a damaged block of a table or log
	cutBytes   atomic.Int64 // of the newest log, cut off by Open
	cutRecords atomic.Int64 // of those that could still be told apart
	synced     atomic.Bool  // whether some of that was reported as safe
	background atomic.Int64 // flushes and compactions that failed
}

// badRecord counts and reports one record that does not decode. It costs that record and
// no other: what reads a range goes on behind it.
func (s *Store) badRecord(key []byte, err error) {
	s.damage.records.Add(1)
	s.log.report(slog.LevelError, "record unreadable", "key", fmt.Sprintf("%x", key), "error", err)
}

// readError counts damaged blocks, and names the error of a read.
func (s *Store) readError(err error) error {
	err = readError(err)
	if errors.Is(err, ErrCorrupt) {
		s.damage.blocks.Add(1)
	}
	return err
}

// Damaged returns nil, or an error that says in one sentence what of the folder is
// damaged or was cut off. It wraps ErrCorrupt.
func (s *Store) Damaged() error {
	var errs []error
	if n := s.damage.records.Load() + s.damage.blocks.Load(); n > 0 {
		errs = append(errs, fmt.Errorf("%w: %d reads met damaged records or blocks, see the log", ErrCorrupt, n))
	}
	if s.damage.synced.Load() {
		errs = append(errs, fmt.Errorf("%w: %d bytes at the end of the log were lost at the start, see the log", ErrCorrupt, s.damage.cutBytes.Load()))
	}
	return errors.Join(errs...)
}

// repeatLog logs what may come very often. Of each message it lets the first few of each
// period through and says with the next one how many it left out.
type repeatLog struct {
	log *slog.Logger
	now func() time.Time

	mu   sync.Mutex
	seen map[string]*repeats // by message, which are constants: they are few. Guarded by mu.
}

type repeats struct {
	began       time.Time
	logged, out int
}

const (
	repeatPeriod = 10 * time.Second
	repeatBurst  = 5 // messages of one kind in a period
)

func newRepeatLog(log *slog.Logger) *repeatLog {
	return &repeatLog{log: log, now: time.Now, seen: map[string]*repeats{}}
}

// report logs msg, which must be constant, or counts it as left out.
func (l *repeatLog) report(level slog.Level, msg string, args ...any) {
	out, ok := l.admit(msg)
	if !ok {
		return
	}
	if out > 0 {
		args = append(args, "left_out_before", out)
	}
	l.log.Log(context.Background(), level, msg, args...) //nolint:sloglint // callers pass constants
}

func (l *repeatLog) admit(msg string) (out int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.seen[msg]
	if r == nil {
		r = &repeats{}
		l.seen[msg] = r
	}
	if now := l.now(); now.Sub(r.began) >= repeatPeriod {
		r.began, r.logged = now, 0
	}
	if r.logged >= repeatBurst {
		r.out++
		return 0, false
	}
	out, r.out = r.out, 0
	r.logged++
	return out, true
}
