package dispatch

import (
	"time"

	"github.com/penstockmq/penstock/suspend"
	"github.com/penstockmq/penstock/suspend/quota"
)

// Stats are gauges and running counts.
type Stats struct {
	// Buckets exist, Resident of them are in memory.
	Buckets, Resident int
	// Messages and Bytes are what the resident buckets hold.
	Messages, Bytes                 int64
	Waiters, Clients, Subscriptions int
	// Pulls counts how often a poll was tried against a ready set, Wakeups how often
	// one got something.
	Pulls, Wakeups uint64
	Groups         []GroupStats
}

// GroupStats are gauges of one group.
type GroupStats struct {
	ID GroupID
	// Ready buckets may go now; Parked ones wait for a gate.
	Ready, Parked int
	// Leases are messages that are out, Returned those that wait to go again.
	Leases, Returned int
	// Waiters are parked polls.
	Waiters int
	Holds   int
	// Quota is what its limits did.
	Quota quota.Stats
	// Clients are its members, Subscriptions their exact names.
	Clients, Subscriptions int
}

// Stats costs O(groups + clients).
func (m *Machine) Stats() Stats {
	s := Stats{
		Buckets: m.buckets, Resident: len(m.byID), Messages: m.messages, Bytes: m.bytes,
		Waiters: m.polls.Len(), Clients: len(m.clients), Subscriptions: m.subscriptions,
		Pulls: m.pulls, Wakeups: m.wakeups,
	}
	for _, g := range m.groups {
		gs := GroupStats{
			ID: g.cfg.ID, Ready: g.set.Ready(), Parked: g.set.Parked(),
			Leases: g.leases, Returned: g.returned, Holds: g.holds.Len(), Clients: len(g.members),
			Quota: g.ledger.Stats(),
		}
		for _, mb := range g.members {
			gs.Waiters += mb.waiters.len
			gs.Subscriptions += len(mb.subs)
		}
		s.Groups = append(s.Groups, gs)
	}
	return s
}

// BucketInfo is a resident bucket.
type BucketInfo struct {
	State BucketState
	// Queued is how many messages it holds, those that are out included.
	Queued int
	Groups []GroupBucket
}

// GroupBucket is a bucket as one group sees it.
type GroupBucket struct {
	Group GroupID
	Floor Offset
	// Queued messages were never out or came back; Returned are the latter.
	Queued, Leased, Returned int
	// Hold is the closed gate that opens last; its Until is zero when none is closed.
	Hold suspend.Hold
}

// BucketInfo describes a bucket; false if it is not resident.
func (m *Machine) BucketInfo(now time.Time, name string) (BucketInfo, bool) {
	b := m.byName[name]
	if b == nil {
		return BucketInfo{}, false
	}
	return m.info(now, b), true
}

func (m *Machine) info(now time.Time, b *bucket) BucketInfo {
	info := BucketInfo{State: b.state(), Queued: int(b.live)}
	for c := b.first; c != nil; c = c.sibling {
		gb := GroupBucket{
			Group: c.g.cfg.ID, Floor: c.floor, Leased: int(c.leased), Returned: int(c.returned),
			Queued: int(c.returned) + b.liveBetween(c.next(), b.tail),
		}
		gb.Hold, _ = c.g.holds.Blocking(now, c.where())
		info.Groups = append(info.Groups, gb)
	}
	return info
}
