package dispatch

import (
	"time"

	"github.com/penstockmq/penstock/suspend"
)

// Machine is the state of one parent topic and its groups.
type Machine struct{}

// Waiter is a poll that waits.
type Waiter struct {
	// Tag is the caller's.
	Tag any
}

func New(cfg TopicConfig) *Machine { return &Machine{} }

// Recovery, in this order, before any event: AddGroup, RestoreX, SetBucketCount, Start.

func (m *Machine) AddGroup(cfg GroupConfig)                                {} // also on a running machine
func (m *Machine) RemoveGroup(id GroupID)                                  {} // emits the deletes of all its records of resident buckets, leases, holds, subscriptions
func (m *Machine) RestoreBucket(s BucketState)                             {} // idle ones (Head == Tail) are ignored
func (m *Machine) RestoreCursor(g GroupID, s CursorState)                  {}
func (m *Machine) RestoreLease(s LeaseState)                               {}
func (m *Machine) RestoreHold(g GroupID, h suspend.Hold)                   {}
func (m *Machine) RestoreSubscription(s SubscriptionState)                 {}
func (m *Machine) SetBucketCount(n int)                                    {}
func (m *Machine) Start(now time.Time)                                     {}
func (m *Machine) Resident(name string) bool                               { return false }
func (m *Machine) Load(s BucketState)                                      {}
func (m *Machine) Append(now time.Time, r AppendRequest) (Appended, error) { return Appended{}, nil }
func (m *Machine) Durable(now time.Time, id BucketID, tail Offset)         {}
func (m *Machine) Pull(now time.Time, r PullRequest) (*Waiter, error)      { return nil, nil }
func (m *Machine) CancelPull(w *Waiter)                                    {}

// Match hands out, and afterwards ends the polls whose Until has come. Call it after Tick in each turn.
func (m *Machine) Match(now time.Time)               {}
func (m *Machine) Ack(now time.Time, h Handle) error { return nil }
func (m *Machine) Suspend(now time.Time, h Handle, d time.Duration, by, reason string) error {
	return nil
}
func (m *Machine) ChangeInvisible(now time.Time, h Handle, d time.Duration) (Handle, error) {
	return h, nil
}
func (m *Machine) Release(now time.Time, h Handle)                         {}
func (m *Machine) DeadLetter(now time.Time, h Handle, reason string) error { return nil }
func (m *Machine) Expire(now time.Time, h Handle)                          {}
func (m *Machine) Missing(now time.Time, h Handle)                         {}
func (m *Machine) Cancel(now time.Time, name string, id BucketID, off Offset) CancelResult {
	return Gone
}
func (m *Machine) Purge(now time.Time, name string) int                         { return 0 }
func (m *Machine) Seek(now time.Time, g GroupID, name string, off Offset) error { return nil }
func (m *Machine) SyncSubscription(now time.Time, r SyncRequest) (SyncResult, error) {
	return SyncResult{}, nil
}
func (m *Machine) Touch(now time.Time, client string)                     {}
func (m *Machine) ClientGone(now time.Time, client string)                {} // its polls come back as EmptyPulls
func (m *Machine) Terminate(now time.Time, g GroupID, client string)      {}
func (m *Machine) SetHold(now time.Time, g GroupID, h suspend.Hold) error { return nil } // operator: exact; Until <= now lifts
func (m *Machine) ExtendHold(now time.Time, g GroupID, h suspend.Hold) (suspend.Hold, error) {
	return h, nil
} // worker, any scope: never shortens
func (m *Machine) LiftHold(now time.Time, g GroupID, t suspend.Target) (bool, error) {
	return false, nil
}
func (m *Machine) EachHold(g GroupID, f func(suspend.Hold) bool) {}

// Sweep decides about a due entry of the expiry index. state is the bucket's record as the
// store has it now (found: there is one), read in the owner loop. It says whether the bucket was deleted.
func (m *Machine) Sweep(now time.Time, e ExpiryEntry, state BucketState, found bool) bool {
	return false
}
func (m *Machine) Tick(now time.Time)          {}
func (m *Machine) NextWake() (time.Time, bool) { return time.Time{}, false }
func (m *Machine) Take() Effects               { return Effects{} }

// GroupStats are gauges of one group.
type GroupStats struct {
	ID                     GroupID
	Ready, Parked          int // buckets that may go now; that wait for a gate
	Leases, Returned       int // messages
	Waiters, Holds         int
	Clients, Subscriptions int
}

// Stats are gauges and running counts.
type Stats struct {
	Buckets, Resident               int
	Messages, Bytes                 int64
	Waiters, Clients, Subscriptions int
	Pulls, Wakeups                  uint64 // polls tried against a ready set; polls that got something
	Groups                          []GroupStats
}

func (m *Machine) Stats() Stats { return Stats{} }

// GroupBucket is a resident bucket as one group sees it.
type GroupBucket struct {
	Group                    GroupID
	Floor                    Offset
	Queued, Leased, Returned int
	Hold                     suspend.Hold // the closed gate that opens last; zero Until when none
}

// BucketInfo is a resident bucket.
type BucketInfo struct {
	State  BucketState
	Queued int // live messages
	Groups []GroupBucket
}

func (m *Machine) BucketInfo(now time.Time, name string) (BucketInfo, bool) {
	return BucketInfo{}, false
}
func (m *Machine) EachBucket(now time.Time, f func(BucketInfo) bool) {}
