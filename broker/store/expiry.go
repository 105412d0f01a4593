package store

import "time"

const expiryVersion = 1

// Expiry is a note to look at a bucket at a time: it may be idle for its TTL then.
// Whether it is says the bucket itself. Times are whole seconds, rounded up.
type Expiry struct {
	At     time.Time
	Bucket uint64
	Name   string // of the bucket
}

func (e *Expiry) appendValue(dst []byte) []byte {
	return appendString(append(dst, expiryVersion), e.Name)
}

func decodeExpiry(key, value []byte) (Expiry, error) {
	k := keyFields{rest: key}
	k.skipTable()
	second := k.uint64()
	e := Expiry{Bucket: k.uint64()}
	if err := k.err("expiry"); err != nil {
		return Expiry{}, err
	}
	d := newDecoder(string(value), expiryVersion)
	e.Name = d.string()
	if second > uint64(maxMillis/1000) {
		d.fail("time out of range")
	}
	if err := d.err("expiry"); err != nil {
		return Expiry{}, err
	}
	e.At = time.Unix(int64(second), 0).UTC()
	return e, nil
}
