package store

import (
	"encoding/binary"
	"time"
)

const subscriptionVersion = 1

// Subscription is what one client of a group reads.
type Subscription struct {
	Group    uint32
	Client   string
	Wildcard bool
	Names    []string // lite topics
	Version  int64    // the client's own count of its changes
	Updated  time.Time
}

const subscriptionWildcard = 0

func (s *Subscription) appendValue(dst []byte) []byte {
	dst = append(dst, subscriptionVersion, flag(subscriptionWildcard, s.Wildcard))
	dst = binary.AppendVarint(dst, s.Version)
	dst = appendTime(dst, s.Updated)
	dst = binary.AppendUvarint(dst, uint64(len(s.Names)))
	for _, n := range s.Names {
		dst = appendString(dst, n)
	}
	return dst
}

func decodeSubscription(key, value []byte) (Subscription, error) {
	k := keyFields{rest: key}
	k.skipTable()
	s := Subscription{Group: k.uint32(), Client: k.string()}
	if err := k.err("subscription"); err != nil {
		return Subscription{}, err
	}
	d := newDecoder(string(value), subscriptionVersion)
	flags := d.byte()
	s.Wildcard = flags&(1<<subscriptionWildcard) != 0
	s.Version = d.varint()
	s.Updated = d.time()
	s.Names = d.strings()
	if flags >= 1<<(subscriptionWildcard+1) {
		d.fail("unknown flags")
	}
	if err := d.err("subscription"); err != nil {
		return Subscription{}, err
	}
	return s, nil
}
