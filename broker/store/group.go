package store

import (
	"encoding/binary"
	"time"
)

// groupVersion 2 has the flag groupUnlimited, which 1 had not.
const groupVersion = 2

// Group is a consumer group and its settings.
type Group struct {
	ID          uint32 // never reused
	Name        string
	Topic       string // the one parent topic it reads
	Wildcard    bool
	Exclusive   bool
	StartLatest bool
	Unlimited   bool // policies do not apply
	InFlight    int  // per bucket
	MaxAttempts int
	ClientQuota int
	MaxSuspend  time.Duration
	Created     time.Time
}

const (
	groupWildcard = iota
	groupExclusive
	groupStartLatest
	groupUnlimited
	groupFlags // their number
)

func (g *Group) appendValue(dst []byte) []byte {
	flags := flag(groupWildcard, g.Wildcard) | flag(groupExclusive, g.Exclusive) |
		flag(groupStartLatest, g.StartLatest) | flag(groupUnlimited, g.Unlimited)
	dst = append(dst, groupVersion, flags)
	dst = appendString(dst, g.Topic)
	for _, v := range []uint64{
		uint64(g.ID), clamp(int64(g.InFlight)), clamp(int64(g.MaxAttempts)),
		clamp(int64(g.ClientQuota)), clamp(int64(g.MaxSuspend)),
	} {
		dst = binary.AppendUvarint(dst, v)
	}
	return appendTime(dst, g.Created)
}

func decodeGroup(key, value []byte) (Group, error) {
	k := keyFields{rest: key}
	k.skipTable()
	g := Group{Name: k.string()}
	if err := k.err("group"); err != nil {
		return Group{}, err
	}
	d := newDecoder(string(value), groupVersion)
	flags := d.byte()
	g.Wildcard = flags&(1<<groupWildcard) != 0
	g.Exclusive = flags&(1<<groupExclusive) != 0
	g.StartLatest = flags&(1<<groupStartLatest) != 0
	g.Unlimited = flags&(1<<groupUnlimited) != 0
	g.Topic = d.string()
	g.ID = d.uint32()
	g.InFlight = d.int()
	g.MaxAttempts = d.int()
	g.ClientQuota = d.int()
	g.MaxSuspend = d.duration()
	g.Created = d.time()
	if flags >= 1<<groupFlags || d.version == 1 && g.Unlimited {
		d.fail("unknown flags")
	}
	if err := d.err("group"); err != nil {
		return Group{}, err
	}
	return g, nil
}
