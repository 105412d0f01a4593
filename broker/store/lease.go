package store

import (
	"encoding/binary"
	"time"
)

// leaseVersion 2 has the ticket, which 1 had not.
const leaseVersion = 2

// Lease says that a message is with a consumer and until when.
type Lease struct {
	Group          uint32
	Bucket, Offset uint64
	Until          time.Time
	First          time.Time // when this delivery began
	Attempt        uint32
	Token          uint64
	Client         string
	AutoRenew      bool
	// Ticket is what the delivery was charged, to be settled when the lease ends. It
	// belongs to whoever keeps the accounts; the store does not look.
	Ticket []byte
}

const leaseAutoRenew = 0

func (l *Lease) appendValue(dst []byte) []byte {
	dst = append(dst, leaseVersion, flag(leaseAutoRenew, l.AutoRenew))
	dst = appendUntil(dst, l.Until)
	dst = appendTime(dst, l.First)
	dst = binary.AppendUvarint(dst, uint64(l.Attempt))
	dst = binary.AppendUvarint(dst, l.Token)
	dst = appendString(dst, l.Client)
	dst = binary.AppendUvarint(dst, uint64(len(l.Ticket)))
	return append(dst, l.Ticket...)
}

func decodeLease(key, value []byte) (Lease, error) {
	k := keyFields{rest: key}
	k.skipTable()
	l := Lease{Group: k.uint32(), Bucket: k.uint64(), Offset: k.uint64()}
	if err := k.err("lease"); err != nil {
		return Lease{}, err
	}
	d := newDecoder(string(value), leaseVersion)
	flags := d.byte()
	l.AutoRenew = flags&(1<<leaseAutoRenew) != 0
	l.Until = d.time()
	l.First = d.time()
	l.Attempt = d.uint32()
	l.Token = d.uvarint()
	l.Client = d.string()
	if d.version >= 2 {
		l.Ticket = d.bytes()
	}
	if flags >= 1<<(leaseAutoRenew+1) {
		d.fail("unknown flags")
	}
	if err := d.err("lease"); err != nil {
		return Lease{}, err
	}
	return l, nil
}
