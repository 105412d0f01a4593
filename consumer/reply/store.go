package reply

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	recordBucket = "penstock_requests" // key-value bucket: request id → Record
	resultBucket = "penstock_results"  // object store: bodies that are large

	// updateTries bounds compare-and-set: gateway and pool change one record a handful of times in its life.
	updateTries = 16
)

// StoreOptions configures a [Store].
type StoreOptions struct {
	// TTL is how long a record and its result are kept after their last change. 0 means 24 h.
	TTL time.Duration
	// InlineBytes is the largest body kept in the record itself. 0 means 64 KiB.
	InlineBytes int
	// ResultBytes bounds a body. 0 means 64 MiB.
	ResultBytes int
	// TotalBytes bounds the disk space of all records, and again of all large results; JetStream sets it aside. 0
	// means 1 GiB.
	TotalBytes int64
	// Replicas of both buckets in a NATS cluster. 0 means 1.
	Replicas int
}

func (o *StoreOptions) fill() error {
	if o.TTL < 0 || o.InlineBytes < 0 || o.ResultBytes < 0 || o.TotalBytes < 0 || o.Replicas < 0 {
		return errors.New("reply: ttl, inline_bytes, result_bytes, total_bytes, replicas: want 0 or more")
	}
	if o.TTL == 0 {
		o.TTL = 24 * time.Hour
	}
	if o.InlineBytes == 0 {
		o.InlineBytes = 64 << 10
	}
	if o.ResultBytes == 0 {
		o.ResultBytes = 64 << 20
	}
	if o.TotalBytes == 0 {
		o.TotalBytes = 1 << 30
	}
	if o.Replicas == 0 {
		o.Replicas = 1
	}
	return nil
}

// Store keeps the state and results of asynchronous requests in JetStream. Every change is a compare-and-set, so that of
// a cancel and an answer that race exactly one wins.
type Store struct {
	opts    StoreOptions
	records jetstream.KeyValue
	results jetstream.ObjectStore
}

// OpenStore makes the buckets if they do not exist, or sets them to opts if they do.
func OpenStore(ctx context.Context, nc *nats.Conn, opts StoreOptions) (*Store, error) {
	if err := opts.fill(); err != nil {
		return nil, err
	}
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("open request store: %w", err)
	}
	records, err := js.CreateOrUpdateKeyValue(ctx, jetstream.KeyValueConfig{
		Bucket:   recordBucket,
		TTL:      opts.TTL,
		History:  1,
		MaxBytes: opts.TotalBytes,
		Replicas: opts.Replicas,
	})
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", recordBucket, err)
	}
	results, err := js.CreateOrUpdateObjectStore(ctx, jetstream.ObjectStoreConfig{
		Bucket:   resultBucket,
		TTL:      opts.TTL,
		MaxBytes: opts.TotalBytes,
		Replicas: opts.Replicas,
	})
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", resultBucket, err)
	}
	return &Store{opts: opts, records: records, results: results}, nil
}

// Create stores a new record, queued if r names no state. ErrExists if there is one under its id.
func (s *Store) Create(ctx context.Context, r Record) error {
	if err := CheckID(r.ID); err != nil {
		return err
	}
	if r.State == "" {
		r.State = StateQueued
	}
	value, err := encodeRecord(r)
	if err != nil {
		return err
	}
	_, err = s.records.Create(ctx, r.ID, value)
	if errors.Is(err, jetstream.ErrKeyExists) {
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
	return r, nil
}

// Body returns the answer's bytes, of a record that Get returned.
func (s *Store) Body(ctx context.Context, r Record) ([]byte, error) {
	if r.Object == "" {
		return r.Body, nil
	}
	body, err := s.results.GetBytes(ctx, r.Object)
	if errors.Is(err, jetstream.ErrObjectNotFound) {
		return nil, ErrNotFound // its TTL ended a moment before the record's
	}
	if err != nil {
		return nil, fmt.Errorf("read result: %w", err)
	}
	return body, nil
}

// SetRecallHandle notes how to take the message out of its bucket. The record is created before the message is sent, so
// that no worker can finish a request that has none; the handle is known only after.
func (s *Store) SetRecallHandle(ctx context.Context, id, handle string) error {
	_, err := s.update(ctx, id, func(r Record) (Record, error) {
		if r.State.Final() {
			return r, ErrFinal
		}
		r.RecallHandle = handle
		return r, nil
	})
	return err
}

// Running notes that delivery attempt is with a worker. ErrFinal: do not run it, it was cancelled or has expired.
func (s *Store) Running(ctx context.Context, id string, attempt int) error {
	now := time.Now().Round(0)
	_, err := s.update(ctx, id, func(r Record) (Record, error) { return r.running(now, attempt) })
	return err
}

// Queued notes that the request went back to its bucket.
func (s *Store) Queued(ctx context.Context, id string) error {
	_, err := s.update(ctx, id, Record.queued)
	return err
}

// Finish stores the answer. ErrFinal: a cancel or an earlier answer won, and res is dropped.
//
// The body is written before the record that names it. A crash between the two leaves an object that nobody names; it
// goes with its TTL. It is named after the attempt too, so that a late worker cannot overwrite what a record names.
func (s *Store) Finish(ctx context.Context, id string, attempt int, res Result) error {
	if len(res.Body) > s.opts.ResultBytes {
		return fmt.Errorf("%w: %d bytes, limit %d", ErrTooLarge, len(res.Body), s.opts.ResultBytes)
	}
	var object string
	if len(res.Body) > s.opts.InlineBytes {
		object = fmt.Sprintf("%s.%d", id, attempt)
		if r, _, err := s.load(ctx, id); err != nil {
			return err
		} else if r.State.Final() {
			return ErrFinal // before the object of a finished request is overwritten
		}
		if _, err := s.results.PutBytes(ctx, object, res.Body); err != nil {
			return fmt.Errorf("write result: %w", err)
		}
	}
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
	if errors.Is(err, ErrFinal) && object != "" {
		if dropErr := s.results.Delete(ctx, object); dropErr != nil {
			return errors.Join(err, fmt.Errorf("drop result: %w", dropErr))
		}
	}
	return err
}

// Fail stores why there is no answer.
func (s *Store) Fail(ctx context.Context, id string, f Failure) error {
	now := time.Now().Round(0)
	_, err := s.update(ctx, id, func(r Record) (Record, error) { return r.failed(now, f) })
	return err
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

func (s *Store) load(ctx context.Context, id string) (Record, uint64, error) {
	if CheckID(id) != nil {
		return Record{}, 0, ErrNotFound
	}
	entry, err := s.records.Get(ctx, id)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return Record{}, 0, ErrNotFound
	}
	if err != nil {
		return Record{}, 0, fmt.Errorf("read record: %w", err)
	}
	r, err := decodeRecord(entry.Value())
	return r, entry.Revision(), err
}

// update applies change to the record until nobody else changed it in between, and returns the record before the change;
// if change refuses, also that.
func (s *Store) update(ctx context.Context, id string, change func(Record) (Record, error)) (Record, error) {
	for range updateTries {
		before, revision, err := s.load(ctx, id)
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
		value, err := encodeRecord(after)
		if err != nil {
			return before, err
		}
		_, err = s.records.Update(ctx, id, value, revision)
		if err == nil {
			return before, nil
		}
		if !errors.Is(err, jetstream.ErrKeyRevisionMismatch) {
			return before, fmt.Errorf("write record: %w", err)
		}
	}
	return Record{}, ErrContend
}
