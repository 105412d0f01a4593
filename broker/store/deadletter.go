package store

import (
	"encoding/binary"
	"fmt"
	"time"
)

const deadLetterVersion = 1

// DeadLetter is a message that a group gave up, with where it came from. It holds
// the message itself: the bucket may be gone by the time somebody looks.
type DeadLetter struct {
	Group    uint32
	Seq      uint64 // in the order of arrival; never reused
	Topic    string
	Lite     string
	Bucket   uint64
	Offset   uint64
	Attempts uint32
	Reason   string
	At       time.Time
	Message  *Message
	// Unreadable is the error of a record that did not decode; see Store.DeadLetters. It is not stored.
	Unreadable error
}

// The value is: version, length of the origin (uvarint), origin, a message's value.
func (l *DeadLetter) appendValue(dst []byte) []byte {
	origin := l.appendOrigin(nil)
	dst = append(dst, deadLetterVersion)
	dst = binary.AppendUvarint(dst, uint64(len(origin)))
	dst = append(dst, origin...)
	return l.Message.appendValue(dst)
}

func (l *DeadLetter) appendOrigin(dst []byte) []byte {
	dst = appendString(dst, l.Topic)
	dst = appendString(dst, l.Lite)
	dst = binary.AppendUvarint(dst, l.Bucket)
	dst = binary.AppendUvarint(dst, l.Offset)
	dst = binary.AppendUvarint(dst, uint64(l.Attempts))
	dst = appendString(dst, l.Reason)
	return appendTime(dst, l.At)
}

// decodeDeadLetter takes ownership of value: the message's body is a part of it.
func decodeDeadLetter(key, value []byte) (*DeadLetter, error) {
	k := keyFields{rest: key}
	k.skipTable()
	l := &DeadLetter{Group: k.uint32(), Seq: k.uint64()}
	if err := k.err("dead letter"); err != nil {
		return nil, err
	}
	if len(value) == 0 || value[0] != deadLetterVersion {
		return nil, fmt.Errorf("%w: dead letter: unknown record version", ErrCorrupt)
	}
	n, used := binary.Uvarint(value[1:])
	if used <= 0 || n > uint64(len(value)-1-used) {
		return nil, fmt.Errorf("%w: dead letter: origin length exceeds the value", ErrCorrupt)
	}
	begin, end := 1+used, 1+used+int(n)
	d := &decoder{rest: string(value[begin:end])}
	l.Topic = d.string()
	l.Lite = d.string()
	l.Bucket = d.uvarint()
	l.Offset = d.uvarint()
	l.Attempts = d.uint32()
	l.Reason = d.string()
	l.At = d.time()
	if err := d.err("dead letter"); err != nil {
		return nil, err
	}
	var err error
	if l.Message, err = decodeMessage(value[end:]); err != nil {
		return nil, fmt.Errorf("dead letter: %w", err)
	}
	return l, nil
}
