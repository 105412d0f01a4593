package store

import (
	"encoding/binary"
	"time"
)

// topicVersion 2 added the flag topicAuto, MaxUserBuckets and UnservedTTL.
const topicVersion = 2

// Topic is a parent topic and its settings. The numbers are limits; 0 is the
// broker's default, as at creation.
type Topic struct {
	ID               uint16 // never reused
	Name             string
	TTL              time.Duration // of an idle bucket; 0 is for ever
	ExpireBacklog    bool
	MaxMessages      int
	MaxBytes         int64
	MaxBuckets       int
	MaxWaiters       int
	MaxSubscriptions int
	Created          time.Time
	Auto             bool // created on demand
	MaxUserBuckets   int
	UnservedTTL      time.Duration // TTL of an idle bucket without a served message
}

const (
	topicExpireBacklog = iota
	topicAuto
	topicFlags // number of flags
)

func (t *Topic) appendValue(dst []byte) []byte {
	dst = append(dst, topicVersion, flag(topicExpireBacklog, t.ExpireBacklog)|flag(topicAuto, t.Auto))
	for _, v := range []uint64{
		uint64(t.ID), clamp(int64(t.TTL)), clamp(int64(t.MaxMessages)), clamp(t.MaxBytes),
		clamp(int64(t.MaxBuckets)), clamp(int64(t.MaxWaiters)), clamp(int64(t.MaxSubscriptions)),
	} {
		dst = binary.AppendUvarint(dst, v)
	}
	dst = appendTime(dst, t.Created)
	return binary.AppendUvarint(binary.AppendUvarint(dst, clamp(int64(t.MaxUserBuckets))), clamp(int64(t.UnservedTTL)))
}

func decodeTopic(key, value []byte) (Topic, error) {
	k := keyFields{rest: key}
	k.skipTable()
	t := Topic{Name: k.string()}
	if err := k.err("topic"); err != nil {
		return Topic{}, err
	}
	d := newDecoder(string(value), topicVersion)
	flags := d.byte()
	t.ExpireBacklog = flags&(1<<topicExpireBacklog) != 0
	t.ID = d.uint16()
	t.TTL = d.duration()
	t.MaxMessages = d.int()
	t.MaxBytes = d.int64()
	t.MaxBuckets = d.int()
	t.MaxWaiters = d.int()
	t.MaxSubscriptions = d.int()
	t.Created = d.time()
	if d.version >= 2 {
		t.MaxUserBuckets = d.int()
		t.UnservedTTL = d.duration()
	}
	t.Auto = flags&(1<<topicAuto) != 0
	if flags >= 1<<topicFlags || d.version == 1 && t.Auto {
		d.fail("unknown flags")
	}
	if err := d.err("topic"); err != nil {
		return Topic{}, err
	}
	return t, nil
}

// clamp writes a setting that should not be negative as the 0 it means.
func clamp(v int64) uint64 { return uint64(max(v, 0)) }
