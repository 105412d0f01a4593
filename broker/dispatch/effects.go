package dispatch

import (
	"time"

	"github.com/penstockmq/penstock/broker/lite"
	"github.com/penstockmq/penstock/suspend"
	"github.com/penstockmq/penstock/suspend/quota"
)

// Effects is what followed from the events since the last Take. Its writes are one
// atomic batch, in order. Deliveries may be answered when that batch holds. All
// slices, and what Write points to, are valid until the next Take.
type Effects struct {
	Writes     []Write
	Deliveries []Delivery
	// EmptyPulls are polls that ended without a message. A poll is ended once: by a
	// Delivery, here, or by its caller's CancelPull.
	EmptyPulls []*Waiter
	Notices    []Notice
	// Discards are messages that were queued and are settled without having been
	// delivered to anybody. They are in the store until this batch. Dead letters are
	// among the writes, and whoever cancels knows what.
	Discards []Discard
	Counters Counters
}

// Delivery is the answer to a poll: one message or more, each of another bucket.
type Delivery struct {
	Waiter *Waiter
	Items  []Item
}

// Item is one delivered message. Its body is the caller's to fetch.
type Item struct {
	Handle  Handle
	Name    string
	Cell    lite.Cell
	Attempt uint32
	Until   time.Time
}

// Notice tells a client that it lost a name to another one.
type Notice struct {
	Group  GroupID
	Client string
	Name   string
}

// Discard is messages Offset ≤ o < To of a bucket.
type Discard struct {
	Bucket     BucketID
	Name       string
	Offset, To Offset
	Reason     DiscardReason
}

// DiscardReason says why messages were settled undelivered.
type DiscardReason uint8

const (
	// DiscardExpired: their deadline passed.
	DiscardExpired DiscardReason = iota
	// DiscardPurged: an operator emptied the bucket.
	DiscardPurged
	// DiscardBacklog: the bucket's TTL passed and its backlog with it.
	DiscardBacklog
	// untold: who caused it knows of it.
	untold
)

// Counters count what happened between two Takes.
type Counters struct {
	Delivered, Redelivered      int
	Settled, Expired, Missing   int
	DeadLettered                int
	LeasesEnded, LeasesRenewed  int
	BucketsCreated, BucketsGone int
	HoldsEnded                  int
	// UserRefused counts appends that were refused with ErrTooManyUserBuckets.
	UserRefused int
}

// Op is the kind of a Write.
type Op uint8

// The writes, each with the fields of Write that it uses.
const (
	// PutBucket: State.
	PutBucket Op = iota
	// DeleteBucket: Bucket, Name.
	DeleteBucket
	// DeleteMessages: Bucket, offsets Offset ≤ o < To. Each was written once and is
	// deleted once, but a message without a record of its death may be deleted
	// again after it.
	DeleteMessages
	// PutCursor: Group, Bucket, Cursor.
	PutCursor
	// DeleteCursor: Group, Bucket.
	DeleteCursor
	// PutLease: Lease.
	PutLease
	// DeleteLease: Group, Bucket, Offset.
	DeleteLease
	// PutHold: Group, Hold.
	PutHold
	// DeleteHold: Group, Hold.Target.
	DeleteHold
	// DeadLetter: Group, Bucket, Name, Offset, Attempt, Reason. The message is still
	// in the store as it was before this batch.
	DeadLetter
	// ReserveBuckets: Sequence is the new TopicConfig.NextBucket.
	ReserveBuckets
	// PutSubscription: Subscription.
	PutSubscription
	// DeleteSubscription: Subscription.Group and Client.
	DeleteSubscription
	// PutExpiry and DeleteExpiry: At, Bucket, Name.
	PutExpiry
	DeleteExpiry
	// PutDead: Dead.
	PutDead
	// DeleteDead: Bucket, Offset is the record's Start.
	DeleteDead
	// PutAccount: Group, Account.
	PutAccount
	// DeleteAccount: Group, Account.Target.
	DeleteAccount
)

// Write is one change of the store.
type Write struct {
	Op         Op
	Attempt    uint32
	Group      GroupID
	Bucket     BucketID
	Offset, To Offset
	Sequence   uint64
	Name       string
	Reason     string
	At         time.Time

	State        *BucketState
	Cursor       *CursorState
	Lease        *LeaseState
	Hold         *suspend.Hold
	Subscription *SubscriptionState
	Account      *quota.Record
	Dead         *DeadState
}
