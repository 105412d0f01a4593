package store

import (
	"encoding/binary"
	"math/bits"
)

const deadVersion = 1

const (
	// DeadPageSize is the number of offsets of one Dead record.
	DeadPageSize = 4096
	deadWords    = DeadPageSize / 64
)

// Dead records which of the DeadPageSize messages of a bucket from Start on are settled by
// every group and deleted, while a message below them is not. Without the record a start
// would have to look up every message between head and tail to count them.
type Dead struct {
	Bucket uint64
	Start  uint64 // a multiple of DeadPageSize
	Page   [deadWords]uint64
}

// appendValue writes the number of ranges of dead messages, and for each range the number of
// live messages before it and its length.
func (r *Dead) appendValue(dst []byte) []byte {
	n := 0
	r.each(func(int, int) { n++ })
	dst = binary.AppendUvarint(append(dst, deadVersion), uint64(n))
	r.each(func(alive, dead int) {
		dst = binary.AppendUvarint(binary.AppendUvarint(dst, uint64(alive)), uint64(dead))
	})
	return dst
}

func (r *Dead) each(f func(alive, dead int)) {
	for at := 0; ; {
		dead := r.next(at, true)
		if dead == DeadPageSize {
			return
		}
		end := r.next(dead, false)
		f(dead-at, end-dead)
		at = end
	}
}

// next returns the first index from at on that is dead, or live, as dead says; else DeadPageSize.
func (r *Dead) next(at int, dead bool) int {
	for at < DeadPageSize {
		word := r.Page[at/64]
		if !dead {
			word = ^word
		}
		if word >>= at % 64; word != 0 {
			return at + bits.TrailingZeros64(word)
		}
		at = (at/64 + 1) * 64
	}
	return DeadPageSize
}

func decodeDead(key, value []byte) (Dead, error) {
	k := keyFields{rest: key}
	k.skipTable()
	r := Dead{Bucket: k.uint64(), Start: k.uint64()}
	if err := k.err("dead"); err != nil {
		return Dead{}, err
	}
	d := newDecoder(string(value), deadVersion)
	if r.Start%DeadPageSize != 0 {
		d.fail("start is not that of a page")
	}
	for n, at := d.bounded(DeadPageSize/2), uint64(0); n > 0; n-- {
		alive, dead := d.bounded(DeadPageSize), d.bounded(DeadPageSize)
		if dead == 0 || alive == 0 && at > 0 || at+alive+dead > DeadPageSize {
			d.fail("stretches do not fit into a page")
			break
		}
		for at += alive; dead > 0; dead-- {
			r.Page[at/64] |= 1 << (at % 64)
			at++
		}
	}
	if err := d.err("dead"); err != nil {
		return Dead{}, err
	}
	return r, nil
}
