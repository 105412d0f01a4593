package reply

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

const (
	// admitFill is the fill of the store up to which new requests are admitted, and runFill the fill up to which requests are
	// run. The rest is for the results of running requests.
	admitFill = 0.90
	runFill   = 0.95

	// roomFresh is the time for which a reading of the store's room is used.
	roomFresh = time.Second
)

// Room is the use and the capacity of the store.
type Room struct {
	Records                     int64 // number
	RecordBytes, RecordBytesMax int64
	ResultBytes, ResultBytesMax int64 // of large results
}

// Fill returns the used part of the fuller bucket, 0 to 1.
func (r Room) Fill() float64 {
	return max(part(r.RecordBytes, r.RecordBytesMax), part(r.ResultBytes, r.ResultBytesMax))
}

func part(n, of int64) float64 {
	if of <= 0 {
		return 0
	}
	return float64(n) / float64(of)
}

// roomCache keeps the latest reading.
type roomCache struct {
	mu   sync.Mutex // guards the following fields
	room Room
	at   time.Time // zero: read again
}

func (c *roomCache) get(now time.Time) (Room, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	age := now.Sub(c.at)
	return c.room, !c.at.IsZero() && age >= 0 && age < roomFresh
}

func (c *roomCache) set(r Room, at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.room, c.at = r, at
}

func (c *roomCache) expire() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = time.Time{}
}

// Room asks JetStream, at most once a second. An error means that the store cannot be read.
func (s *Store) Room(ctx context.Context) (Room, error) {
	now := time.Now()
	if r, ok := s.room.get(now); ok {
		return r, nil
	}
	if err := s.reachable(); err != nil {
		return Room{}, err
	}
	records, err := s.recordStream.Info(ctx)
	if err != nil {
		return Room{}, fmt.Errorf("read %s: %w", recordBucket, err)
	}
	results, err := s.resultStream.Info(ctx)
	if err != nil {
		return Room{}, fmt.Errorf("read %s: %w", resultBucket, err)
	}
	r := Room{Records: int64(records.State.Msgs)}
	r.RecordBytes, r.RecordBytesMax = bytesOf(records)
	r.ResultBytes, r.ResultBytesMax = bytesOf(results)
	s.room.set(r, now)
	return r, nil
}

func bytesOf(i *jetstream.StreamInfo) (used, most int64) {
	return int64(i.State.Bytes), i.Config.MaxBytes
}

// Admit returns nil if the store takes a new request of user. Errors: ErrFull, ErrUserFull, or the reason why the store
// cannot be used. The caller asks before it sends the request, so that a refused request costs nothing.
func (s *Store) Admit(ctx context.Context, user string) error {
	if err := s.writes(ctx); err != nil {
		return err
	}
	r, err := s.Room(ctx)
	if err != nil {
		return err
	}
	if fill := r.Fill(); fill >= admitFill {
		return fmt.Errorf("%w: %.0f %% of it are used", ErrFull, 100*fill)
	}
	records, bytes := s.users.of(user, time.Now())
	most := s.opts.UserBytes
	if most == 0 {
		most = (r.RecordBytesMax + r.ResultBytesMax) / 2
	}
	switch {
	case s.opts.UserRecords > 0 && records >= s.opts.UserRecords:
		return fmt.Errorf("%w: %d requests are kept, the limit is %d", ErrUserFull, records, s.opts.UserRecords)
	case most > 0 && bytes >= most:
		return fmt.Errorf("%w: %d bytes are kept, the limit is %d", ErrUserFull, bytes, most)
	}
	return nil
}

// Check returns an error if the streams of the store cannot be read, or if the latest write failed and a trial fails too.
func (s *Store) Check(ctx context.Context) error {
	s.room.expire()
	if _, err := s.Room(ctx); err != nil {
		return err
	}
	return s.writes(ctx)
}

// failing records since when durable writes have failed.
type failing struct {
	mu    sync.Mutex // guards the following fields
	since time.Time  // zero: the latest write succeeded
	tried time.Time  // time of the latest failure, or start of the latest trial
}

func (f *failing) clear() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.since, f.tried = time.Time{}, time.Time{}
}

func (f *failing) note(now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.since.IsZero() {
		f.since = now
	}
	f.tried = now
}

// trial returns since when writes fail, and whether the caller should try one now.
func (f *failing) trial(now time.Time) (since time.Time, try bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.since.IsZero() || now.Sub(f.tried) < trialEvery {
		return f.since, false
	}
	f.tried = now
	return f.since, true
}

const (
	trialEvery = time.Second
	// trialMost bounds a trial. A stream that cannot write does not answer.
	trialMost = 500 * time.Millisecond

	// Subjects of trials: no record and no result has such names.
	trialRecord = "$KV." + recordBucket + ".trial.write"
	trialResult = "$O." + resultBucket + ".C.trial"
)

// writes returns an error while JetStream takes no writes. After a failure a small write is tried from time to time, so that
// requests are refused at once and not each after a timeout.
func (s *Store) writes(ctx context.Context) error {
	since, try := s.failing.trial(time.Now())
	switch {
	case since.IsZero():
		return nil
	case !try:
		return fmt.Errorf("%w since %s", errFailing, since.UTC().Format(time.RFC3339))
	}
	ctx, cancel := context.WithTimeout(ctx, trialMost)
	defer cancel()
	for _, subject := range []string{trialRecord, trialResult} {
		_, err := s.js.Publish(ctx, subject, nil, jetstream.WithRetryAttempts(0))
		if err = s.judge(err); err != nil && !errors.Is(err, ErrFull) {
			return fmt.Errorf("%w since %s: %w", errFailing, since.UTC().Format(time.RFC3339), err)
		}
	}
	s.failing.clear()
	return nil
}
