package reply

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	recordBucket = "penstock_requests" // key-value bucket: request id → Record
	resultBucket = "penstock_results"  // object store: bodies that are large

	// updateTries bounds compare-and-set: gateway and pool change one record a handful of times in its life.
	updateTries = 16

	// chunkBytes is the size of one message of a large result: each is one synced write, and one read of [Store.Open].
	chunkBytes = 512 << 10
)

// Headers of a stored record, for [Store.Run], which reads headers only.
const (
	headerUser  = "Penstock-User"  // owner, escaped as in a URL's query
	headerBytes = "Penstock-Bytes" // size of record and result
	headerGrew  = "Penstock-Grew"  // change of headerBytes against the version before; absent from the first version
)

// Store keeps the state and results of asynchronous requests in JetStream. Every durable change is a compare-and-set, so
// exactly one of a racing cancel and answer wins.
//
// A request costs two durable writes: its record, and its outcome. The running state is a note in memory (see notes): a lost
// note makes a running request look queued, and changes nothing else.
//
// A missing record proves nothing: the message of a request is the promise that the request will be answered. The pool makes
// the record again (see Running). A request that must not run has a record in a final state.
type Store struct {
	opts         StoreOptions
	nc           *nats.Conn
	js           jetstream.JetStream
	records      jetstream.KeyValue
	results      jetstream.ObjectStore
	recordStream jetstream.Stream
	resultStream jetstream.Stream
	notes        notes
	room         roomCache
	users        *userUse
	failing      failing
}

// Create stores a new record, queued if r names no state. ErrExists if there is one under its id.
func (s *Store) Create(ctx context.Context, r Record) error {
	if err := CheckID(r.ID); err != nil {
		return err
	}
	if r.State == "" {
		r.State = StateQueued
	}
	err := s.write(ctx, r, version{})
	if errors.Is(err, errConflict) {
		return ErrExists
	}
	if err != nil {
		return fmt.Errorf("create record: %w", err)
	}
	return nil
}

// Get returns the record of request id if user owns it; else ErrNotFound, so that nobody learns which ids exist.
func (s *Store) Get(ctx context.Context, id, user string) (Record, error) {
	r, _, err := s.load(ctx, id)
	if err != nil {
		return Record{}, err
	}
	if r.User != user {
		return Record{}, ErrNotFound
	}
	if r.State.Final() {
		return r, nil
	}
	return s.notes.apply(ctx, r), nil
}

// Running notes that a worker has delivery attempt of the request in r; r is made from the request's message.
//
// A missing record is made anew from r: it was lost in a power cut of a NATS that does not sync or with a damaged file, or
// its gateway ended before writing it. The message exists, so the request was accepted and has not ended.
//
// ErrFinal: the request was cancelled or has expired; do not run it. ErrFull: there is no room for a result; do not run it now.
func (s *Store) Running(ctx context.Context, r Record, attempt int) error {
	if err := CheckID(r.ID); err != nil {
		return err
	}
	for range updateTries {
		was, err := s.await(ctx, r)
		if errors.Is(err, ErrNotFound) {
			err = s.Create(ctx, r)
			if errors.Is(err, ErrExists) { // its gateway wrote it meanwhile
				continue
			}
		}
		if err != nil {
			return err
		}
		if was.State.Final() {
			return ErrFinal
		}
		if room, err := s.Room(ctx); err == nil && room.Fill() >= runFill {
			return fmt.Errorf("%w: %.0f %% of it are used", ErrFull, 100*room.Fill())
		}
		s.notes.put(ctx, r.ID, note{Attempt: attempt, Started: time.Now().Round(0)})
		return nil
	}
	return ErrContend
}

const (
	// lateMost bounds the wait for the record of a message that was just sent: its gateway writes the record after the broker
	// stored the message, with a handle that workers do not know.
	lateMost = 250 * time.Millisecond
	lateStep = 5 * time.Millisecond
	// lateAge is the age of a request after which its gateway has written the record or never will.
	lateAge = time.Second
)

// await reads the record of the request in r, and waits for a record that its gateway may be about to write.
func (s *Store) await(ctx context.Context, r Record) (Record, error) {
	for end := time.Now().Add(lateMost); ; {
		found, _, err := s.load(ctx, r.ID)
		if !errors.Is(err, ErrNotFound) || time.Since(r.Created) > lateAge || time.Now().After(end) {
			return found, err
		}
		timer := time.NewTimer(lateStep)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return Record{}, context.Cause(ctx)
		}
	}
}

// Queued notes that the request went back to its bucket.
func (s *Store) Queued(ctx context.Context, id string) { s.notes.drop(ctx, id) }

// Finish stores the answer. ErrFinal: a cancel or an earlier answer won, and res is dropped. ErrFull: there is no room for
// it now.
//
// The body is written before the record that names it. A crash between the two leaves an object that nobody names; it
// goes with its TTL. It is named after the attempt too, so that a late worker cannot overwrite what a record names.
func (s *Store) Finish(ctx context.Context, id string, attempt int, res Result) error {
	if len(res.Body) > s.opts.ResultBytes {
		return fmt.Errorf("%w: %d bytes, limit %d", ErrTooLarge, len(res.Body), s.opts.ResultBytes)
	}
	if len(res.Body) <= s.opts.InlineBytes {
		err := s.finish(ctx, id, attempt, res, "")
		if len(res.Body) == 0 || !errors.Is(err, ErrFull) {
			return err
		}
		// The bucket of records is full; the bucket of results may have room.
	}
	if r, _, err := s.load(ctx, id); err != nil {
		return err
	} else if r.State.Final() {
		return ErrFinal // before the object of a finished request is overwritten
	}
	object := fmt.Sprintf("%s.%d", id, attempt)
	if err := s.putResult(ctx, object, res.Body); err != nil {
		return fmt.Errorf("write result: %w", err)
	}
	err := s.finish(ctx, id, attempt, res, object)
	if errors.Is(err, ErrFinal) || errors.Is(err, ErrFull) {
		if dropErr := s.results.Delete(ctx, object); dropErr != nil {
			return errors.Join(err, fmt.Errorf("drop result: %w", dropErr))
		}
	}
	return err
}

func (s *Store) putResult(ctx context.Context, object string, body []byte) error {
	if err := s.reachable(); err != nil {
		return err
	}
	meta := jetstream.ObjectMeta{Name: object, Opts: &jetstream.ObjectMetaOptions{
		ChunkSize: uint32(min(chunkBytes, max(s.nc.MaxPayload()/2, 1))),
	}}
	_, err := s.results.Put(ctx, meta, bytes.NewReader(body))
	return s.judge(err)
}

func (s *Store) finish(ctx context.Context, id string, attempt int, res Result, object string) error {
	now := time.Now().Round(0)
	_, err := s.update(ctx, id, func(r Record) (Record, error) {
		r, err := r.finished(now, res)
		if err != nil {
			return r, err
		}
		r.Attempt = attempt
		if r.Object = object; object == "" {
			r.Body = res.Body
		}
		return r, nil
	})
	if err == nil {
		s.notes.drop(ctx, id)
	}
	return err
}

// Fail stores the reason why there is no answer. attempt is the delivery that failed; 0: the request was not delivered.
func (s *Store) Fail(ctx context.Context, id string, attempt int, f Failure) error {
	now := time.Now().Round(0)
	_, err := s.update(ctx, id, func(r Record) (Record, error) {
		r.Attempt = max(r.Attempt, attempt)
		return r.failed(now, f)
	})
	if err == nil {
		s.notes.drop(ctx, id)
	}
	return err
}

// Bury prevents the request in r from running when it is unknown whether its message was stored: it ends the record with the
// failure f, and makes a missing record. ErrFinal: the request has ended.
func (s *Store) Bury(ctx context.Context, r Record, f Failure) error {
	failed, err := r.failed(time.Now().Round(0), f)
	if err != nil {
		return err
	}
	if err := s.Create(ctx, failed); !errors.Is(err, ErrExists) {
		return err
	}
	return s.Fail(ctx, r.ID, 0, f)
}

// Cancel ends the request if it has not ended; only user, its owner, may. The returned record is the one before, with
// its RecallHandle and State: the caller takes the message out of its bucket or stops its run. ErrFinal comes with the
// record as it is.
func (s *Store) Cancel(ctx context.Context, id, user string) (Record, error) {
	now := time.Now().Round(0)
	return s.update(ctx, id, func(r Record) (Record, error) {
		if r.User != user {
			return Record{}, ErrNotFound
		}
		return r.ended(now, StateCancelled)
	})
}

// Expire ends the request because its deadline passed.
func (s *Store) Expire(ctx context.Context, id string) error {
	now := time.Now().Round(0)
	_, err := s.update(ctx, id, func(r Record) (Record, error) { return r.ended(now, StateExpired) })
	return err
}

// version is the stored version of a record. The zero version means that there is none.
type version struct {
	revision uint64
	bytes    int64 // as in headerBytes
}

func (s *Store) load(ctx context.Context, id string) (Record, version, error) {
	if CheckID(id) != nil {
		return Record{}, version{}, ErrNotFound
	}
	if err := s.reachable(); err != nil {
		return Record{}, version{}, err
	}
	entry, err := s.records.Get(ctx, id)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return Record{}, version{}, ErrNotFound
	}
	if err != nil {
		return Record{}, version{}, fmt.Errorf("read record: %w", err)
	}
	r, err := decodeRecord(entry.Value())
	return r, version{revision: entry.Revision(), bytes: int64(len(entry.Value())) + r.objectBytes()}, err
}

// objectBytes returns the size of r in the bucket of results.
func (r Record) objectBytes() int64 {
	if r.Object == "" {
		return 0
	}
	return int64(r.Size)
}

// errConflict: the stored version is not the one to be replaced.
var errConflict = errors.New("record was changed in between")

// write stores r in place of was.
func (s *Store) write(ctx context.Context, r Record, was version) error {
	if err := s.reachable(); err != nil {
		return err
	}
	value, err := encodeRecord(r)
	if err != nil {
		return err
	}
	m := nats.NewMsg("$KV." + recordBucket + "." + r.ID)
	m.Data = value
	total := int64(len(value)) + r.objectBytes()
	m.Header.Set(headerUser, url.QueryEscape(r.User))
	m.Header.Set(headerBytes, strconv.FormatInt(total, 10))
	if was.revision > 0 {
		m.Header.Set(headerGrew, strconv.FormatInt(total-was.bytes, 10))
	}
	_, err = s.js.PublishMsg(ctx, m, jetstream.WithExpectLastSequencePerSubject(was.revision), jetstream.WithRetryAttempts(0))
	return s.judge(err)
}

// errAway: NATS is unreachable. Nothing was changed.
var errAway = errors.New("NATS cannot be reached")

// reachable must be called before each call. The client would keep a write until NATS is back, long after the caller was told
// that it failed, and would let a read wait for as long as its caller waits.
func (s *Store) reachable() error {
	if !s.nc.IsConnected() {
		return errAway
	}
	return nil
}

// update applies change to the record until nobody else changed it in between, and returns the record before the change;
// if change refuses, also that.
//
// In a full bucket the end of a request is written into the space of the previous version, with as much of the failure's
// message as fits.
func (s *Store) update(ctx context.Context, id string, change func(Record) (Record, error)) (Record, error) {
	for range updateTries {
		before, was, err := s.load(ctx, id)
		if err != nil {
			return Record{}, err
		}
		after, err := change(before)
		if errors.Is(err, ErrNotFound) {
			return Record{}, err
		}
		if err != nil {
			return before, err
		}
		err = s.write(ctx, after, was)
		if errors.Is(err, ErrFull) && after.Failure != nil {
			short := *after.Failure
			short.Message = clip(short.Message, shortMessage)
			after.Failure = &short
			err = s.write(ctx, after, was)
		}
		if err == nil {
			return before, nil
		}
		if !errors.Is(err, errConflict) {
			return before, fmt.Errorf("write record: %w", err)
		}
	}
	return Record{}, ErrContend
}

// shortMessage is the part of a failure's message, in bytes, that fits into recordPad in the worst case: each byte is escaped.
const shortMessage = 24

// judge maps errors of JetStream to the errors of this package, and notes whether JetStream writes.
func (s *Store) judge(err error) error {
	api, ok := errors.AsType[*jetstream.APIError](err)
	switch {
	case err == nil:
		s.failing.clear()
	case ok && (api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence || api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant):
		return errConflict
	case ok && api.ErrorCode == codeStoreFailed && isLimit(api):
		s.room.expire()
		return fmt.Errorf("%w: %w", ErrFull, err)
	case !errors.Is(err, context.Canceled): // a stream that has met a write error does not even answer
		s.failing.note(time.Now())
	}
	return err
}
