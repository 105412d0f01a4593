package store

import "encoding/binary"

const cursorVersion = 1

// Cursor is how far a group is in a bucket. One exists only where the group is past
// the bucket's head, or has settled or returned something.
type Cursor struct {
	Group  uint32
	Bucket uint64
	// Floor is the lowest offset that the group has not settled.
	Floor uint64
	// Settled are offsets above Floor that are settled all the same, ascending.
	Settled []uint64
	// Returned are offsets to deliver again, in that order.
	Returned []Return
}

// Return is a message that came back.
type Return struct {
	Offset   uint64
	Attempts uint32 // deliveries that count so far
}

// Offsets are written as the difference to the one before, which is one or two bytes
// each when they are close; the arithmetic wraps, so any order survives.
func (c *Cursor) appendValue(dst []byte) []byte {
	dst = append(dst, cursorVersion)
	dst = binary.AppendUvarint(dst, c.Floor)
	dst = binary.AppendUvarint(dst, uint64(len(c.Settled)))
	last := c.Floor
	for _, off := range c.Settled {
		dst = binary.AppendUvarint(dst, off-last)
		last = off
	}
	dst = binary.AppendUvarint(dst, uint64(len(c.Returned)))
	last = c.Floor
	for _, r := range c.Returned {
		dst = binary.AppendVarint(dst, int64(r.Offset-last))
		dst = binary.AppendUvarint(dst, uint64(r.Attempts))
		last = r.Offset
	}
	return dst
}

func decodeCursor(key, value []byte) (Cursor, error) {
	k := keyFields{rest: key}
	k.skipTable()
	c := Cursor{Group: k.uint32(), Bucket: k.uint64()}
	if err := k.err("cursor"); err != nil {
		return Cursor{}, err
	}
	d := newDecoder(string(value), cursorVersion)
	c.Floor = d.uvarint()
	if n := d.count(); n > 0 {
		c.Settled = make([]uint64, n)
		last := c.Floor
		for i := range c.Settled {
			last += d.uvarint()
			c.Settled[i] = last
		}
	}
	if n := d.count(); n > 0 {
		c.Returned = make([]Return, n)
		last := c.Floor
		for i := range c.Returned {
			last += uint64(d.varint())
			c.Returned[i] = Return{Offset: last, Attempts: d.uint32()}
		}
	}
	if err := d.err("cursor"); err != nil {
		return Cursor{}, err
	}
	return c, nil
}
