package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"
)

// The meta table: what is known of the folder as a whole, and the numbers that must
// never be given out twice.
//
//	0x01 'v'          format version: "PENSTOCK" and a uint32
//	0x01 'e'          epoch: uint32, one higher at each start
//	0x01 't'          wall clock at a late write: uvarint of Unix milliseconds
//	0x01 'c' kind id  counter: the next number to give out, uvarint
const (
	metaVersion = 'v'
	metaEpoch   = 'e'
	metaClock   = 't'
	metaCounter = 'c'

	magic = "PENSTOCK"
	// formatVersion is that of the tables and records of this package. A program
	// refuses what is newer, and raises what is older when it opens the folder: from
	// then on records may be in it that an older program does not know.
	//
	//	1  the first
	//	2  accounts, leases with tickets, groups without limits
	//	3  topics and groups that were created on demand, buckets that were served
	formatVersion = 3
)

// Counters.
const (
	counterTopic      byte = 1 // id 0: the next topic id
	counterGroup      byte = 2 // id 0: the next group id
	counterBucket     byte = 3 // id topic: the next sequence of a bucket id
	counterDeadLetter byte = 4 // id group: the next sequence of a dead letter
)

func appendCounterKey(dst []byte, kind byte, id uint32) []byte {
	return binary.BigEndian.AppendUint32(append(dst, tableMeta, metaCounter, kind), id)
}

func encodeVersion(v uint32) []byte {
	return binary.BigEndian.AppendUint32([]byte(magic), v)
}

func decodeVersion(value []byte) (uint32, error) {
	if len(value) != len(magic)+4 || string(value[:len(magic)]) != magic {
		return 0, fmt.Errorf("%w: version record", ErrCorrupt)
	}
	return binary.BigEndian.Uint32(value[len(magic):]), nil
}

func decodeEpoch(value []byte) (uint32, error) {
	if len(value) != 4 {
		return 0, fmt.Errorf("%w: epoch record", ErrCorrupt)
	}
	return binary.BigEndian.Uint32(value), nil
}

func decodeCounter(value []byte) (uint64, error) {
	v, n := binary.Uvarint(value)
	if n <= 0 || n != len(value) {
		return 0, fmt.Errorf("%w: counter record", ErrCorrupt)
	}
	return v, nil
}

func (b *Batch) putCounter(kind byte, id uint32, next uint64) {
	b.set(appendCounterKey(b.key[:0], kind, id), binary.AppendUvarint(b.value[:0], next))
}

// PutNextTopicID notes the next topic id to give out. It goes into the batch that
// uses the id before it, or an earlier one.
func (b *Batch) PutNextTopicID(next uint16) { b.putCounter(counterTopic, 0, uint64(next)) }

// PutNextGroupID is the same for group ids.
func (b *Batch) PutNextGroupID(next uint32) { b.putCounter(counterGroup, 0, uint64(next)) }

// PutNextBucket is the same for the sequence of a topic's bucket ids, of which a topic
// reserves many at a time.
func (b *Batch) PutNextBucket(topic uint16, next uint64) {
	b.putCounter(counterBucket, uint32(topic), next)
}

// NextTopicID returns the next free topic id; the first is 1.
func (s *Store) NextTopicID() (uint16, error) {
	v, err := s.counter(counterTopic, 0)
	return uint16(v), err
}

// NextGroupID returns the next free group id; the first is 1.
func (s *Store) NextGroupID() (uint32, error) {
	v, err := s.counter(counterGroup, 0)
	return uint32(v), err
}

// NextBucket returns the next free sequence of a topic's bucket ids; the first is 1.
func (s *Store) NextBucket(topic uint16) (uint64, error) {
	return s.counter(counterBucket, uint32(topic))
}

// NextDeadLetter returns the next free sequence of a group's dead letters; the first
// is 1. PutDeadLetter moves it.
func (s *Store) NextDeadLetter(group uint32) (uint64, error) {
	return s.counter(counterDeadLetter, group)
}

func (s *Store) counter(kind byte, id uint32) (uint64, error) {
	value, err := s.get(appendCounterKey(nil, kind, id))
	if errors.Is(err, ErrNotFound) {
		return 1, nil
	}
	if err != nil {
		return 0, err
	}
	return decodeCounter(value)
}

// checkVersion reads the version record and returns it; 0 is a new folder. A folder
// with keys but without the record is not ours to write to.
func (s *Store) checkVersion() (uint32, error) {
	value, err := s.get([]byte{tableMeta, metaVersion})
	if errors.Is(err, ErrNotFound) {
		empty, err := s.empty()
		if err != nil {
			return 0, err
		}
		if !empty {
			return 0, fmt.Errorf("%w: there is data but no version record", ErrCorrupt)
		}
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	v, err := decodeVersion(value)
	if err != nil {
		return 0, err
	}
	if v < 1 || v > formatVersion {
		return 0, fmt.Errorf("%w: the folder has version %d, this program reads 1 to %d", ErrVersion, v, formatVersion)
	}
	return v, nil
}

// beginEpoch raises the epoch and waits until the disk has it, whatever the flush
// mode: receipt handles carry it, and one of an earlier life must never look fresh. The
// folder's version goes with it, so no record is written before it says what it must.
func (s *Store) beginEpoch(version uint32) error {
	value, err := s.get([]byte{tableMeta, metaEpoch})
	switch {
	case err == nil:
		if s.epoch, err = decodeEpoch(value); err != nil {
			return err
		}
	case !errors.Is(err, ErrNotFound):
		return err
	case version != 0:
		return fmt.Errorf("%w: there is no epoch record", ErrCorrupt)
	}
	s.epoch++
	b := s.NewBatch()
	if version != formatVersion {
		b.set([]byte{tableMeta, metaVersion}, encodeVersion(formatVersion))
	}
	b.set([]byte{tableMeta, metaEpoch}, binary.BigEndian.AppendUint32(nil, s.epoch))
	if err := s.apply(b, true); err != nil {
		return errors.Join(err, b.Close())
	}
	return b.Close()
}

// PutClock records the wall clock. It joins a batch that is written anyway.
func (b *Batch) PutClock(now time.Time) {
	b.set([]byte{tableMeta, metaClock}, appendTime(nil, now))
}

// Clock returns the recorded wall clock; zero if there is none.
func (s *Store) Clock() (time.Time, error) {
	value, err := s.get([]byte{tableMeta, metaClock})
	if errors.Is(err, ErrNotFound) {
		return time.Time{}, nil
	}
	if err != nil {
		return time.Time{}, err
	}
	d := decoder{rest: string(value)}
	at := d.time()
	return at, d.err("clock")
}
