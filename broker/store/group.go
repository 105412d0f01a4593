package store

import (
	"encoding/binary"
	"time"
)

// groupVersion 2 added the flag groupUnlimited; 3 added groupAuto, Retention and Idle.
const groupVersion = 3

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
	Auto        bool          // created on demand
	Retention   time.Duration // without a client for longer, the group is removed; 0 is never
	Idle        time.Duration // approximate time without a client
}

const (
	groupWildcard = iota
	groupExclusive
	groupStartLatest
	groupUnlimited
	groupAuto
	groupFlags // their number
)

func (g *Group) appendValue(dst []byte) []byte {
	flags := flag(groupWildcard, g.Wildcard) | flag(groupExclusive, g.Exclusive) |
		flag(groupStartLatest, g.StartLatest) | flag(groupUnlimited, g.Unlimited) | flag(groupAuto, g.Auto)
	dst = append(dst, groupVersion, flags)
	dst = appendString(dst, g.Topic)
	for _, v := range []uint64{
		uint64(g.ID), clamp(int64(g.InFlight)), clamp(int64(g.MaxAttempts)),
		clamp(int64(g.ClientQuota)), clamp(int64(g.MaxSuspend)),
	} {
		dst = binary.AppendUvarint(dst, v)
	}
	dst = appendTime(dst, g.Created)
	return binary.AppendUvarint(binary.AppendUvarint(dst, clamp(int64(g.Retention))), clamp(int64(g.Idle)))
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
	g.Auto = flags&(1<<groupAuto) != 0
	if d.version >= 3 {
		g.Retention = d.duration()
		g.Idle = d.duration()
	}
	if flags >= 1<<groupFlags || d.version == 1 && g.Unlimited || d.version < 3 && g.Auto {
		d.fail("unknown flags")
	}
	if err := d.err("group"); err != nil {
		return Group{}, err
	}
	return g, nil
}
