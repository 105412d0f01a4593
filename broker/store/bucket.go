package store

import (
	"encoding/binary"
	"time"

	"github.com/penstockmq/penstock/broker/lite"
)

// bucketVersion 2 added the flag bucketServed; buckets of version 1 count as served.
const bucketVersion = 2

// Bucket is the state of one lite topic that all groups share. It is keyed by topic
// and name, so that looking for a name that does not exist yet is one point read.
type Bucket struct {
	ID    uint64 // topic id << 48 | sequence; never reused
	Name  string // of the lite topic
	Cell  lite.Cell
	Level uint8
	// Head is the lowest offset that is still kept, Tail the next to be given out.
	// Invariant: Head <= Tail.
	Head, Tail uint64
	Bytes      int64 // of the bodies from Head to Tail
	Created    time.Time
	LastActive time.Time
	// Expiry is the time of the bucket's one entry in the expiry table; zero if it
	// has none.
	Expiry time.Time
	// Served reports whether a consumer has ever served one of its messages.
	Served bool
}

// Topic returns the id of the topic that the bucket belongs to.
func (b *Bucket) Topic() uint16 { return TopicOf(b.ID) }

const (
	bucketHasCell = iota
	bucketServed
	bucketFlags // number of flags
)

func (b *Bucket) appendValue(dst []byte) []byte {
	// Most names say which cell they are; only hashed ones need it written out.
	c, err := lite.Resolve(b.Name, "", "")
	derived := err == nil && c == b.Cell
	dst = append(dst, bucketVersion, flag(bucketHasCell, !derived)|flag(bucketServed, b.Served))
	if !derived {
		dst = appendString(dst, b.Cell.User)
		dst = appendString(dst, b.Cell.Model)
	}
	dst = binary.AppendUvarint(dst, b.ID)
	dst = append(dst, b.Level)
	dst = binary.AppendUvarint(dst, b.Tail)
	dst = binary.AppendUvarint(dst, b.Tail-min(b.Head, b.Tail))
	dst = binary.AppendUvarint(dst, uint64(max(b.Bytes, 0)))
	dst = appendTime(dst, b.Created)
	dst = appendTime(dst, b.LastActive)
	return appendUntil(dst, b.Expiry)
}

func decodeBucket(key, value []byte) (Bucket, error) {
	k := keyFields{rest: key}
	k.skipTable()
	topic := k.uint16()
	b := Bucket{Name: k.string()}
	if err := k.err("bucket"); err != nil {
		return Bucket{}, err
	}
	d := newDecoder(string(value), bucketVersion)
	flags := d.byte()
	b.Served = d.version == 1 || flags&(1<<bucketServed) != 0
	switch {
	case flags >= 1<<bucketFlags || d.version == 1 && flags >= 1<<bucketServed:
		d.fail("unknown flags")
	case flags&(1<<bucketHasCell) != 0:
		b.Cell = lite.Cell{User: d.string(), Model: d.string()}
	default:
		b.Cell, _ = lite.Resolve(b.Name, "", "") // cannot fail without properties
	}
	b.ID = d.uvarint()
	b.Level = d.byte()
	b.Tail = d.uvarint()
	backlog := d.bounded(b.Tail)
	b.Head = b.Tail - backlog
	b.Bytes = d.int64()
	b.Created = d.time()
	b.LastActive = d.time()
	b.Expiry = d.time()
	if TopicOf(b.ID) != topic {
		d.fail("bucket id belongs to another topic")
	}
	if err := d.err("bucket"); err != nil {
		return Bucket{}, err
	}
	return b, nil
}
