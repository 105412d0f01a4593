package store

import (
	"encoding/binary"
	"fmt"
	"math"
	"time"
)

// Values begin with the version of their record, then its fields in a fixed order:
// integers as varints, strings with their length before them, instants in Unix
// milliseconds (0 is none), booleans as bits of a flags byte.
//
// If you change a record: raise its version, let its decode function accept both, add
// the old bytes to the golden test as a second row, and describe both in DESIGN.md. A
// change that an older program must not run on also raises formatVersion.

func appendString(dst []byte, s string) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(s))), s...)
}

// minTime and maxTime are the first and last instant that a record can hold.
var (
	minTime = time.UnixMilli(1).UTC()
	maxTime = time.UnixMilli(maxMillis).UTC()
)

// ClampTime returns t, or the nearest instant that a record can hold: from 1970 to 2262.
// The zero time stays zero.
//
// Invariant: every time goes through ClampTime on its way into a record, so every written
// record is readable. A sender's clock may show any time, up to the year 9999.
func ClampTime(t time.Time) time.Time {
	switch {
	case t.IsZero():
		return time.Time{}
	case t.Before(minTime):
		return minTime
	case t.After(maxTime):
		return maxTime
	}
	return t
}

// appendTime rounds down to the millisecond: for instants that have passed.
func appendTime(dst []byte, t time.Time) []byte {
	t = ClampTime(t)
	return appendMillis(dst, t, t.UnixMilli())
}

// appendUntil rounds up to the millisecond: for instants before which something
// must not happen.
func appendUntil(dst []byte, t time.Time) []byte {
	t = ClampTime(t)
	ms := t.UnixMilli()
	if t.Nanosecond()%int(time.Millisecond) != 0 {
		ms++
	}
	return appendMillis(dst, t, ms)
}

func appendMillis(dst []byte, t time.Time, ms int64) []byte {
	if t.IsZero() {
		return append(dst, 0)
	}
	return binary.AppendUvarint(dst, uint64(ms))
}

func flag(bit uint, set bool) byte {
	if set {
		return 1 << bit
	}
	return 0
}

// A decoder takes a value apart. The value is a string so that the strings of a
// record share one allocation with it. After the first fault all its methods return
// zero values, and err reports it: decode functions check once, at the end.
type decoder struct {
	rest    string
	fault   string
	version byte
}

// newDecoder reads the record's version and refuses what is newer than the newest
// this program knows. A record's decode function handles all versions from 1 on.
func newDecoder(value string, newest byte) *decoder {
	d := &decoder{rest: value}
	if d.version = d.byte(); d.fault == "" && (d.version < 1 || d.version > newest) {
		d.fail("unknown record version")
	}
	return d
}

func (d *decoder) fail(fault string) {
	if d.fault == "" {
		d.fault = fault
	}
	d.rest = ""
}

// err wraps ErrCorrupt when the value was not what the record's encoder writes.
func (d *decoder) err(record string) error {
	if d.fault == "" && d.rest != "" {
		d.fail("bytes after the last field")
	}
	if d.fault != "" {
		return fmt.Errorf("%w: %s: %s", ErrCorrupt, record, d.fault)
	}
	return nil
}

func (d *decoder) byte() byte {
	if d.rest == "" {
		d.fail("value is too short")
		return 0
	}
	b := d.rest[0]
	d.rest = d.rest[1:]
	return b
}

func (d *decoder) uvarint() uint64 {
	var v uint64
	for i := range binary.MaxVarintLen64 {
		if i >= len(d.rest) {
			d.fail("value is too short")
			return 0
		}
		b := d.rest[i]
		if i == binary.MaxVarintLen64-1 && b > 1 {
			break
		}
		v |= uint64(b&0x7f) << (7 * i)
		if b < 0x80 {
			d.rest = d.rest[i+1:]
			return v
		}
	}
	d.fail("varint overflows")
	return 0
}

func (d *decoder) uint32() uint32 { return uint32(d.bounded(math.MaxUint32)) }
func (d *decoder) uint16() uint16 { return uint16(d.bounded(math.MaxUint16)) }
func (d *decoder) int64() int64   { return int64(d.bounded(math.MaxInt64)) }
func (d *decoder) int() int       { return int(d.bounded(math.MaxInt)) }

func (d *decoder) bounded(limit uint64) uint64 {
	v := d.uvarint()
	if v > limit {
		d.fail("number out of range")
		return 0
	}
	return v
}

func (d *decoder) varint() int64 {
	u := d.uvarint()
	return int64(u>>1) ^ -int64(u&1)
}

// count reads the number of elements that follow. Each takes at least one byte, so
// a larger count is a fault, and no allocation is sized by a corrupt number.
func (d *decoder) count() int {
	n := d.uvarint()
	if n > uint64(len(d.rest)) {
		d.fail("count exceeds the value")
		return 0
	}
	return int(n)
}

func (d *decoder) string() string {
	n := d.count()
	s := d.rest[:n]
	d.rest = d.rest[n:]
	return s
}

// bytes is nil when there are none.
func (d *decoder) bytes() []byte {
	s := d.string()
	if s == "" {
		return nil
	}
	return []byte(s)
}

func (d *decoder) strings() []string {
	n := d.count()
	if n == 0 {
		return nil
	}
	out := make([]string, 0, n)
	for range n {
		out = append(out, d.string())
	}
	return out
}

func (d *decoder) duration() time.Duration { return time.Duration(d.int64()) }

// maxMillis keeps instants where time.Time and int64 nanoseconds can both hold them
// (the year 2262), so that no later arithmetic overflows.
const maxMillis = math.MaxInt64 / int64(time.Millisecond)

// time reads an instant. An earlier version of this package also wrote instants after 2262,
// which a sender may name; they are read as maxTime.
func (d *decoder) time() time.Time {
	ms := min(d.uvarint(), uint64(maxMillis))
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(int64(ms)).UTC()
}

// keyFields takes a key apart; its faults are those of a decoder.
type keyFields struct {
	rest []byte
	bad  bool
}

func (k *keyFields) take(n int) []byte {
	if len(k.rest) < n {
		k.bad = true
		return make([]byte, n)
	}
	b := k.rest[:n]
	k.rest = k.rest[n:]
	return b
}

func (k *keyFields) skipTable()     { k.take(1) }
func (k *keyFields) uint8() uint8   { return k.take(1)[0] }
func (k *keyFields) uint16() uint16 { return binary.BigEndian.Uint16(k.take(2)) }
func (k *keyFields) uint32() uint32 { return binary.BigEndian.Uint32(k.take(4)) }
func (k *keyFields) uint64() uint64 { return binary.BigEndian.Uint64(k.take(8)) }

// string takes the rest: strings are last.
func (k *keyFields) string() string {
	s := string(k.rest)
	k.rest = nil
	return s
}

func (k *keyFields) err(record string) error {
	if k.bad || len(k.rest) > 0 {
		return fmt.Errorf("%w: %s: key has a wrong length", ErrCorrupt, record)
	}
	return nil
}
