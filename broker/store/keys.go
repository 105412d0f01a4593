package store

import (
	"encoding/binary"
	"math"
	"time"
)

// A key is one byte that names the table and then the fields of the key in
// big-endian, so that Pebble's byte order is the order of the fields. A string is
// always the last field and needs no terminator.
//
// If you add a table: take the next byte, never one that was used; add it to
// DESIGN.md, to the golden test, and, if its keys hold a topic or group id, to
// Batch.DeleteTopic or Batch.DeleteGroup.
const (
	tableMeta         byte = 0x01
	tableTopic        byte = 0x02
	tableGroup        byte = 0x03
	tableBucket       byte = 0x04
	tableMessage      byte = 0x05
	tableCursor       byte = 0x06
	tableLease        byte = 0x07
	tableHold         byte = 0x08
	tableExpiry       byte = 0x09
	tableDeadLetter   byte = 0x0a
	tableSubscription byte = 0x0b
	tableAccount      byte = 0x0c
	tableDead         byte = 0x0d
)

// topicShift is where the topic id sits in a bucket id: a bucket id is the topic's
// id and, below it, a sequence that never repeats. All messages of a topic are one
// range of keys.
const topicShift = 48

// TopicOf returns the id of the topic that a bucket belongs to.
func TopicOf(bucket uint64) uint16 { return uint16(bucket >> topicShift) }

// REQUIRES for all key functions: dst is empty or a prefix the caller wants.

func appendTopicKey(dst []byte, name string) []byte {
	return append(append(dst, tableTopic), name...)
}

func appendGroupKey(dst []byte, name string) []byte {
	return append(append(dst, tableGroup), name...)
}

func appendBucketKey(dst []byte, topic uint16, name string) []byte {
	dst = binary.BigEndian.AppendUint16(append(dst, tableBucket), topic)
	return append(dst, name...)
}

func appendMessageKey(dst []byte, bucket, offset uint64) []byte {
	return appendUint64s(append(dst, tableMessage), bucket, offset)
}

func appendDeadKey(dst []byte, bucket, start uint64) []byte {
	return appendUint64s(append(dst, tableDead), bucket, start-start%DeadPageSize)
}

func appendCursorKey(dst []byte, group uint32, bucket uint64) []byte {
	return appendUint64s(appendGroupID(dst, tableCursor, group), bucket)
}

func appendLeaseKey(dst []byte, group uint32, bucket, offset uint64) []byte {
	return appendUint64s(appendGroupID(dst, tableLease, group), bucket, offset)
}

func appendHoldKey(dst []byte, group uint32, scope uint8, name string) []byte {
	return append(append(appendGroupID(dst, tableHold, group), scope), name...)
}

func appendExpiryKey(dst []byte, at time.Time, bucket uint64) []byte {
	return appendUint64s(append(dst, tableExpiry), expirySecond(at), bucket)
}

func appendDeadLetterKey(dst []byte, group uint32, seq uint64) []byte {
	return appendUint64s(appendGroupID(dst, tableDeadLetter, group), seq)
}

func appendSubscriptionKey(dst []byte, group uint32, client string) []byte {
	return append(appendGroupID(dst, tableSubscription, group), client...)
}

func appendAccountKey(dst []byte, group uint32, scope uint8, name string) []byte {
	return append(append(appendGroupID(dst, tableAccount, group), scope), name...)
}

// appendGroupID begins the key of every table whose records belong to a group.
func appendGroupID(dst []byte, table byte, group uint32) []byte {
	return binary.BigEndian.AppendUint32(append(dst, table), group)
}

func appendUint64s(dst []byte, vs ...uint64) []byte {
	for _, v := range vs {
		dst = binary.BigEndian.AppendUint64(dst, v)
	}
	return dst
}

// expirySecond rounds up: a bucket is never looked at before its time.
func expirySecond(at time.Time) uint64 {
	if at.After(maxTime) {
		return uint64(maxMillis / 1000)
	}
	s := at.Unix()
	if at.Nanosecond() > 0 {
		s++
	}
	return uint64(max(s, 0))
}

// after returns the first key behind all keys with the prefix, for use as an
// exclusive upper bound. It writes over prefix.
// REQUIRES: not all bytes of prefix are 0xff; table bytes see to that.
func after(prefix []byte) []byte {
	for i := len(prefix) - 1; i >= 0; i-- {
		if prefix[i] < math.MaxUint8 {
			prefix[i]++
			return prefix[:i+1]
		}
	}
	return nil
}
