package reply

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// StoreOptions configures a [Store].
type StoreOptions struct {
	// Adopt leaves existing buckets as they are; TTL and TotalBytes apply to new buckets only. The gateway's process alone
	// decides on the settings.
	Adopt bool
	// TTL is the time for which a record and its result are kept after their last change. It must not be shorter than the
	// longest wait of a request: without its record a request cannot be queried, and its cancel is forgotten. 0 means 24 h.
	TTL time.Duration
	// InlineBytes is the largest body kept in the record itself. 0 means 64 KiB.
	InlineBytes int
	// ResultBytes bounds a body. 0 means 64 MiB.
	ResultBytes int
	// TotalBytes bounds the disk space of all records, and again of all large results; JetStream reserves it. 0 means 1 GiB,
	// or the largest of a half, a quarter, and so on down to 8 MiB for which JetStream has room.
	TotalBytes int64
	// UserRecords bounds the records of one user. 0 means no bound.
	UserRecords int64
	// UserBytes bounds the records and results of one user, in bytes. 0 means half of the available room.
	UserBytes int64
	// Replicas of both buckets in a NATS cluster. 0 means 1.
	Replicas int
}

const (
	autoBytesMost  = 1 << 30
	autoBytesLeast = 8 << 20
)

func (o *StoreOptions) fill() error {
	if o.TTL < 0 || o.InlineBytes < 0 || o.ResultBytes < 0 || o.TotalBytes < 0 || o.Replicas < 0 || o.UserRecords < 0 || o.UserBytes < 0 {
		return errors.New("reply: ttl, inline_bytes, result_bytes, total_bytes, user_records, user_bytes, replicas: want 0 or more")
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
	if o.Replicas == 0 {
		o.Replicas = 1
	}
	return nil
}

// OpenStore creates the buckets or changes them to opts (but see Adopt).
func OpenStore(ctx context.Context, nc *nats.Conn, opts StoreOptions) (*Store, error) {
	if err := opts.fill(); err != nil {
		return nil, err
	}
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("open request store: %w", err)
	}
	s := &Store{opts: opts, nc: nc, js: js, users: newUserUse(opts.TTL)}
	if err := s.openBuckets(ctx); err != nil {
		return nil, err
	}
	if s.recordStream, err = js.Stream(ctx, "KV_"+recordBucket); err != nil {
		return nil, fmt.Errorf("open %s: %w", recordBucket, err)
	}
	if s.resultStream, err = js.Stream(ctx, "OBJ_"+resultBucket); err != nil {
		return nil, fmt.Errorf("open %s: %w", resultBucket, err)
	}
	s.notes = openNotes(ctx, js, opts.TTL, opts.Replicas)
	return s, nil
}

// openBuckets creates or changes both buckets. Without a configured size it halves the size until JetStream has room for
// both: JetStream reserves the space, and a fixed size would keep the process from starting on a small volume. An existing
// bucket is never made smaller: its data may not fit any more.
func (s *Store) openBuckets(ctx context.Context) error {
	if s.opts.Adopt {
		var recordErr, resultErr error
		s.records, recordErr = s.js.KeyValue(ctx, recordBucket)
		s.results, resultErr = s.js.ObjectStore(ctx, resultBucket)
		if recordErr == nil && resultErr == nil {
			return nil
		}
		if err := errors.Join(recordErr, resultErr); !errors.Is(err, jetstream.ErrBucketNotFound) && !errors.Is(err, jetstream.ErrStreamNotFound) {
			return fmt.Errorf("open request store: %w", err)
		}
	}
	if s.opts.TotalBytes > 0 {
		err := s.makeBuckets(ctx, s.opts.TotalBytes, s.opts.TotalBytes)
		if IsNoRoom(err) {
			return fmt.Errorf("async-bytes: JetStream has no room for twice %d bytes (records, and large results): "+
				"lower the setting, or free space on the volume of NATS: %w", s.opts.TotalBytes, err)
		}
		return err
	}
	records, results := s.sizeOf(ctx, "KV_"+recordBucket), s.sizeOf(ctx, "OBJ_"+resultBucket)
	for size := int64(autoBytesMost); ; size /= 2 {
		err := s.makeBuckets(ctx, max(size, records), max(size, results))
		if !IsNoRoom(err) {
			return err
		}
		if size/2 < autoBytesLeast {
			return fmt.Errorf("JetStream has no room for twice %d bytes, the least that asynchronous requests need: "+
				"free space on the volume of NATS (its server uses three quarters of what is free at its start): %w", size, err)
		}
	}
}

func (s *Store) makeBuckets(ctx context.Context, recordBytes, resultBytes int64) (err error) {
	s.records, err = s.js.CreateOrUpdateKeyValue(ctx, jetstream.KeyValueConfig{
		Bucket:   recordBucket,
		TTL:      s.opts.TTL,
		History:  1,
		MaxBytes: recordBytes,
		Replicas: s.opts.Replicas,
	})
	if err != nil {
		return fmt.Errorf("open %s: %w", recordBucket, err)
	}
	s.results, err = s.js.CreateOrUpdateObjectStore(ctx, jetstream.ObjectStoreConfig{
		Bucket:   resultBucket,
		TTL:      s.opts.TTL,
		MaxBytes: resultBytes,
		Replicas: s.opts.Replicas,
	})
	if err != nil {
		return fmt.Errorf("open %s: %w", resultBucket, err)
	}
	return nil
}

// sizeOf returns the reserved size of a stream; 0 if it does not exist.
func (s *Store) sizeOf(ctx context.Context, stream string) int64 {
	found, err := s.js.Stream(ctx, stream)
	if err != nil {
		return 0
	}
	return max(found.CachedInfo().Config.MaxBytes, 0)
}

// Error codes of JetStream that nats.go has no names for; see errors.json of nats-server.
const (
	codeAccountResources jetstream.ErrorCode = 10002
	codeInsufficient     jetstream.ErrorCode = 10023
	codeStorageResources jetstream.ErrorCode = 10047
	codeStoreFailed      jetstream.ErrorCode = 10077
)

// IsNoRoom reports whether JetStream refused a stream because it cannot reserve the requested space.
func IsNoRoom(err error) bool {
	api, ok := errors.AsType[*jetstream.APIError](err)
	return ok && (api.ErrorCode == codeAccountResources || api.ErrorCode == codeInsufficient || api.ErrorCode == codeStorageResources)
}

// isLimit reports whether api is the refusal of a full stream, which works on, and not of a stream that cannot write.
// JetStream has one code for both.
func isLimit(api *jetstream.APIError) bool { return strings.HasPrefix(api.Description, "maximum ") }
