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

// damage counts unreadable records and lost bytes of the folder since it was opened. A
// counter stays until a restart: damage does not heal by itself.
type damage struct {
	records    atomic.Int64 // reads that met a record which does not decode
	blocks     atomic.Int64 // reads that met a damaged block of a table or log
	cutBytes   atomic.Int64 // bytes of the newest log that Open cut off
	cutRecords atomic.Int64 // records in them that could still be told apart
	synced     atomic.Bool  // whether some of these bytes were reported as safe
	background atomic.Int64 // flushes and compactions that failed
}

// badRecord counts and reports one record that does not decode. Only that record is lost: a
// range read continues with the next one.
func (s *Store) badRecord(key []byte, err error) {
	s.damage.records.Add(1)
	s.log.report(slog.LevelError, "record unreadable", "key", fmt.Sprintf("%x", key), "error", err)
}

// readError counts a damaged block, and adds the operation to the error of a read.
func (s *Store) readError(err error) error {
	err = readError(err)
	if errors.Is(err, ErrCorrupt) {
		s.damage.blocks.Add(1)
	}
	return err
}

// Damaged returns nil, or an error that says in one sentence which data of the folder is
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

// repeatLog logs messages that may come very often. It lets the first repeatBurst of each
// message in a period through; the next message then tells how many were left out.
type repeatLog struct {
	log *slog.Logger
	now func() time.Time

	mu   sync.Mutex
	seen map[string]*repeats // by message; few, as messages are constants. Guarded by mu.
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

// report logs msg, or counts it as left out. REQUIRES: msg is constant.
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
