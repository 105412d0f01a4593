package store

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/cockroachdb/pebble/v2"
)

// get returns a copy of a value, or ErrNotFound.
func (s *Store) get(key []byte) (out []byte, err error) {
	err = s.view(key, func(value []byte) error { out = bytes.Clone(value); return nil })
	return out, err
}

// view calls fn with a value, which is only good during the call, or returns ErrNotFound.
func (s *Store) view(key []byte, fn func(value []byte) error) error {
	if !s.users.enter() {
		return ErrClosed
	}
	defer s.users.leave()
	value, closer, err := s.db.Get(key)
	switch {
	case errors.Is(err, pebble.ErrNotFound):
		return ErrNotFound
	case err != nil:
		return s.readError(err)
	}
	return errors.Join(fn(value), closer.Close())
}

// errBlock is wrapped by errors of reads of a damaged block, and not by errors of a record
// that does not decode.
var errBlock = fmt.Errorf("%w: read", ErrCorrupt)

func readError(err error) error {
	if pebble.IsCorruptionError(err) {
		return fmt.Errorf("%w: %w", errBlock, err)
	}
	return fmt.Errorf("read: %w", err)
}

// scan calls fn for the keys from lower to before upper, until it returns false or
// an error. key and value are only good during the call.
func (s *Store) scan(lower, upper []byte, fn func(key, value []byte) (bool, error)) error {
	if !s.users.enter() {
		return ErrClosed
	}
	defer s.users.leave()
	return s.countDamage(scan(s.db, lower, upper, fn))
}

// countDamage counts the damaged block that ended a scan.
func (s *Store) countDamage(err error) error {
	if errors.Is(err, errBlock) {
		s.damage.blocks.Add(1)
	}
	return err
}

// scan is Store.scan over the engine or one of its snapshots.
func scan(r pebble.Reader, lower, upper []byte, fn func(key, value []byte) (bool, error)) (err error) {
	it, err := r.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: upper})
	if err != nil {
		return readError(err)
	}
	// Close also reports what stopped the iteration.
	defer func() {
		if cerr := it.Close(); cerr != nil {
			err = errors.Join(err, readError(cerr))
		}
	}()
	for ok := it.First(); ok; ok = it.Next() {
		value, err := it.ValueAndErr() // from the block of the key: it costs no read
		if err != nil {
			return readError(err)
		}
		if more, err := fn(it.Key(), value); err != nil || !more {
			return err
		}
	}
	return nil
}

// each decodes all records from lower to before upper. A record that does not decode is
// counted, reported and left out.
func each[T any](s *Store, lower, upper []byte, decode func(key, value []byte) (T, error), fn func(T) bool) error {
	return s.scan(lower, upper, func(key, value []byte) (bool, error) {
		r, err := decode(key, value)
		if err != nil {
			s.badRecord(key, err)
			return true, nil
		}
		return fn(r), nil
	})
}

// eachStrict is each for records that are indispensable: it ends at the first record that
// does not decode.
func eachStrict[T any](s *Store, prefix []byte, decode func(key, value []byte) (T, error), fn func(T) bool) error {
	return s.scan(prefix, after(bytes.Clone(prefix)), func(key, value []byte) (bool, error) {
		r, err := decode(key, value)
		if err != nil {
			return false, err
		}
		return fn(r), nil
	})
}

// eachPrefix decodes all records under a prefix.
func eachPrefix[T any](s *Store, prefix []byte, decode func(key, value []byte) (T, error), fn func(T) bool) error {
	return each(s, prefix, after(bytes.Clone(prefix)), decode, fn)
}

func (s *Store) empty() (bool, error) {
	empty := true
	err := s.scan(nil, nil, func(_, _ []byte) (bool, error) {
		empty = false
		return false, nil
	})
	return empty, err
}

// Message returns the message at a bucket's offset, or ErrNotFound.
func (s *Store) Message(bucket, offset uint64) (*Message, error) {
	key := appendMessageKey(make([]byte, 0, 17), bucket, offset)
	value, err := s.get(key)
	if err != nil {
		return nil, err
	}
	m, err := decodeMessage(value)
	if err != nil {
		s.badRecord(key, err)
	}
	return m, err
}

// RawMessage returns the bytes of a message's record, for a record that does not decode.
func (s *Store) RawMessage(bucket, offset uint64) ([]byte, error) {
	return s.get(appendMessageKey(make([]byte, 0, 17), bucket, offset))
}

// MessageHeader is Message without the body, of which it returns the length. It copies
// the header alone: for a body that a cached block holds this is the cheaper by far.
func (s *Store) MessageHeader(bucket, offset uint64) (m *Message, bodyBytes int, err error) {
	err = s.view(appendMessageKey(make([]byte, 0, 17), bucket, offset), func(value []byte) error {
		var err error
		m, err = decodeMessage(value)
		if err != nil {
			return err
		}
		bodyBytes, m.Body = len(m.Body), nil // the body is the engine's
		return nil
	})
	return m, bodyBytes, err
}

// MessageAt is a message with its place in a bucket.
type MessageAt struct {
	Offset  uint64
	Message *Message
}

func messageOffset(key []byte) (uint64, error) {
	k := keyFields{rest: key[1+8:]}
	off := k.uint64()
	return off, k.err("message")
}

// FindProperty looks for the first of up to limit messages of a bucket, from an offset
// on, that has the property. It returns that message's offset, or else where to go on,
// and how many it looked at: fewer than limit at the bucket's end.
//
// REQUIRES: from is the bucket's head or above. Below it are the tombstones of
// what was deleted, and an iteration walks over each of them.
func (s *Store) FindProperty(bucket, from uint64, p Property, limit int) (off uint64, found bool, seen int, err error) {
	off = from
	if limit <= 0 {
		return off, false, 0, nil
	}
	err = s.scan(appendMessageKey(nil, bucket, from), appendMessageKey(nil, bucket, math.MaxUint64), func(key, value []byte) (bool, error) {
		var err error
		if off, err = messageOffset(key); err != nil {
			return false, err
		}
		seen++
		found, err = hasProperty(value, p)
		if err != nil { // only this one cannot be found
			s.badRecord(key, err)
		}
		if found {
			return false, nil
		}
		off++
		return seen < limit, nil
	})
	return off, found, seen, err
}

// hasProperty looks into an encoded message. Almost none has the value anywhere, and
// those are not taken apart.
func hasProperty(value []byte, p Property) (bool, error) {
	header, _, err := splitMessage(value)
	if err != nil || !bytes.Contains(header, []byte(p.Value)) {
		return false, err
	}
	m, err := decodeMessage(value)
	if err != nil {
		return false, err
	}
	v, ok := m.Property(p.Key)
	return ok && v == p.Value, nil
}

// Bucket returns the record of a bucket, and whether there is one. Most calls are
// for names that do not exist yet; the tables' filters answer most of those.
func (s *Store) Bucket(topic uint16, name string) (Bucket, bool, error) {
	key := appendBucketKey(make([]byte, 0, 80), topic, name)
	value, err := s.get(key)
	switch {
	case errors.Is(err, ErrNotFound):
		return Bucket{}, false, nil
	case err != nil:
		return Bucket{}, false, err
	}
	b, err := decodeBucket(key, value)
	return b, err == nil, err
}

// EachBucket calls fn for the buckets of a topic in the order of their names, from a
// name on, until it returns false.
func (s *Store) EachBucket(topic uint16, from string, fn func(Bucket) bool) error {
	return each(s, appendBucketKey(nil, topic, from), after(appendBucketKey(nil, topic, "")), decodeBucket, fn)
}

// BucketsByPrefix returns up to limit buckets of a topic whose names begin with
// prefix and come after a name, which is empty for the first.
func (s *Store) BucketsByPrefix(topic uint16, prefix, afterName string, limit int) ([]Bucket, error) {
	if limit <= 0 {
		return nil, nil
	}
	from := prefix
	if afterName >= prefix && afterName != "" {
		from = afterName + "\x00" // the first name that comes after it
	}
	var out []Bucket
	err := s.EachBucket(topic, from, func(b Bucket) bool {
		if !strings.HasPrefix(b.Name, prefix) {
			return false
		}
		out = append(out, b)
		return len(out) < limit
	})
	return out, err
}

// EachTopic calls fn for all topics in the order of their names. Unlike with other records,
// a topic or group that does not decode is an error: all data below it would be lost.
func (s *Store) EachTopic(fn func(Topic) bool) error {
	return eachStrict(s, []byte{tableTopic}, decodeTopic, fn)
}

// EachGroup calls fn for all groups in the order of their names.
func (s *Store) EachGroup(fn func(Group) bool) error {
	return eachStrict(s, []byte{tableGroup}, decodeGroup, fn)
}

// EachDead calls fn for the pages of dead messages of a topic in the order of bucket ids
// and offsets.
func (s *Store) EachDead(topic uint16, fn func(Dead) bool) error {
	return eachPrefix(s, appendDeadKey(nil, uint64(topic)<<topicShift, 0)[:1+2], decodeDead, fn)
}

// EachCursor calls fn for a group's cursors in the order of bucket ids.
func (s *Store) EachCursor(group uint32, fn func(Cursor) bool) error {
	return eachPrefix(s, appendGroupID(nil, tableCursor, group), decodeCursor, fn)
}

// EachLease calls fn for a group's leases in the order of bucket ids and offsets.
func (s *Store) EachLease(group uint32, fn func(Lease) bool) error {
	return eachPrefix(s, appendGroupID(nil, tableLease, group), decodeLease, fn)
}

// EachHold calls fn for a group's holds in the order of scopes and names.
func (s *Store) EachHold(group uint32, fn func(Hold) bool) error {
	return eachPrefix(s, appendGroupID(nil, tableHold, group), decodeHold, fn)
}

// EachAccount calls fn for a group's accounts in the order of scopes and names.
func (s *Store) EachAccount(group uint32, fn func(Account) bool) error {
	return eachPrefix(s, appendGroupID(nil, tableAccount, group), decodeAccount, fn)
}

// EachSubscription calls fn for a group's subscriptions in the order of clients.
func (s *Store) EachSubscription(group uint32, fn func(Subscription) bool) error {
	return eachPrefix(s, appendGroupID(nil, tableSubscription, group), decodeSubscription, fn)
}

// ExpiryPlace is a place in the expiry table. The zero value is its beginning.
type ExpiryPlace struct{ key string }

// DueExpiry returns up to limit entries of the expiry table whose time is not after now,
// the oldest first, beginning at a place, and the place behind them. The entries stay until
// DeleteExpiry. From the beginning of the table it walks over the tombstones of all
// deleted entries that are not compacted yet, which may be millions.
func (s *Store) DueExpiry(from ExpiryPlace, now time.Time, limit int) ([]Expiry, ExpiryPlace, error) {
	if limit <= 0 || now.Unix() < 0 {
		return nil, from, nil
	}
	lower := []byte(from.key)
	if len(lower) == 0 {
		lower = []byte{tableExpiry}
	}
	// now is rounded down where entries are rounded up: never early.
	upper := appendUint64s([]byte{tableExpiry}, uint64(now.Unix())+1)
	if bytes.Compare(lower, upper) >= 0 {
		return nil, from, nil
	}
	var out []Expiry
	behind := from
	err := s.scan(lower, upper, func(key, value []byte) (bool, error) {
		behind.key = string(key) + "\x00" // the smallest key after key
		e, err := decodeExpiry(key, value)
		if err != nil {
			s.badRecord(key, err)
			return true, nil
		}
		out = append(out, e)
		return len(out) < limit, nil
	})
	return out, behind, err
}

// DeadLetter returns one dead letter of a group, or ErrNotFound.
func (s *Store) DeadLetter(group uint32, seq uint64) (*DeadLetter, error) {
	key := appendDeadLetterKey(nil, group, seq)
	value, err := s.get(key)
	if err != nil {
		return nil, err
	}
	l, err := decodeDeadLetter(key, value)
	if err != nil {
		s.badRecord(key, err)
	}
	return l, err
}

// OldestDeadLetter returns the lowest sequence of a group's dead letters, and whether
// there is one. It reads keys only, so a damaged record does not matter.
func (s *Store) OldestDeadLetter(group uint32) (seq uint64, found bool, err error) {
	prefix := appendGroupID(nil, tableDeadLetter, group)
	err = s.scan(prefix, after(bytes.Clone(prefix)), func(key, _ []byte) (bool, error) {
		k := keyFields{rest: key[len(prefix):]}
		seq = k.uint64()
		found = k.err("dead letter") == nil
		return !found, nil
	})
	return seq, found, err
}

// DeadLetters returns up to limit dead letters of a group whose sequence is from or
// higher, in the order of their arrival. A record that does not decode
// is returned with only its key, an empty message, and the reason in Unreadable.
func (s *Store) DeadLetters(group uint32, from uint64, limit int) ([]*DeadLetter, error) {
	if limit <= 0 {
		return nil, nil
	}
	var out []*DeadLetter
	upper := after(appendGroupID(nil, tableDeadLetter, group))
	err := s.scan(appendDeadLetterKey(nil, group, from), upper, func(key, value []byte) (bool, error) {
		l, err := decodeDeadLetter(key, bytes.Clone(value))
		if err != nil {
			s.badRecord(key, err)
			k := keyFields{rest: key[1+4:]}
			l = &DeadLetter{Group: group, Seq: k.uint64(), Message: &Message{}, Unreadable: err}
		}
		out = append(out, l)
		return len(out) < limit, nil
	})
	return out, err
}
