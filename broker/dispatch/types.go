package dispatch

import (
	"errors"
	"time"

	"github.com/penstockmq/penstock/broker/lite"
)

type (
	// BucketID is the topic's id << 48 | a sequence. It is never reused: a bucket
	// that was deleted and comes back has another one.
	BucketID uint64
	// GroupID names a consumer group.
	GroupID uint32
	// Offset is the place of a message in its bucket, from 0. It only ever grows.
	Offset uint64
	// Token names one lease. It is TopicConfig.Epoch << 40 | a counter, so that no
	// two leases ever share one, across restarts too. 0 is no lease.
	Token uint64
)

// Errors of events. Each leaves the machine as it was.
var (
	// ErrNoGroup: the group was never added.
	ErrNoGroup = errors.New("no such group")
	// ErrBucketFull: the append would exceed TopicConfig.MaxMessages, or the policy's depth
	// for the cell.
	ErrBucketFull = errors.New("bucket is full")
	// ErrTooLarge: a message alone exceeds the policy's depth_bytes for the cell.
	ErrTooLarge = errors.New("message is too large for its bucket")
	// ErrBucketBytes: the append would exceed TopicConfig.MaxBytes, or the policy's
	// depth_bytes for the cell.
	ErrBucketBytes = errors.New("bucket is full in bytes")
	// ErrTooManyBuckets: the append would create one more than TopicConfig.MaxBuckets.
	ErrTooManyBuckets = errors.New("too many buckets")
	// ErrTooManyUserBuckets: the append would create one more than
	// TopicConfig.MaxUserBuckets for its user.
	ErrTooManyUserBuckets = errors.New("too many buckets of one user")
	// ErrTooManyWaiters: TopicConfig.MaxWaiters polls are parked.
	ErrTooManyWaiters = errors.New("too many waiting polls")
	// ErrTooManyHolds: the group has maxHolds holds.
	ErrTooManyHolds = errors.New("too many suspends")
	// ErrSubscriptionQuota: more exact names than GroupConfig.ClientQuota or
	// TopicConfig.MaxSubscriptions allow.
	ErrSubscriptionQuota = errors.New("lite subscription quota exceeded")
	// ErrStaleHandle: the handle's message is out again under a newer lease, or gone.
	ErrStaleHandle = errors.New("stale receipt handle")
)

// TopicConfig configures the machine of one parent topic. Of a bound, 0 is none.
type TopicConfig struct {
	Name string
	ID   uint16
	// TTL is how long an idle bucket lives. 0 is for ever.
	TTL time.Duration
	// ExpireBacklog lets the TTL, counted from the last append, remove a bucket with
	// its messages, as RocketMQ does. Messages that are out still keep it.
	ExpireBacklog bool
	// MaxMessages and MaxBytes bound one bucket.
	MaxMessages int
	MaxBytes    int64
	// MaxBuckets bounds the buckets that exist, resident or not.
	MaxBuckets int
	// MaxUserBuckets bounds those of one user, see userCounts.
	MaxUserBuckets int
	// UnservedTTL is the TTL of an idle bucket none of whose messages was served, if it is
	// shorter than TTL. 0: TTL applies.
	UnservedTTL time.Duration
	// MaxWaiters bounds the parked polls of all groups.
	MaxWaiters int
	// MaxSubscriptions bounds the exact names of all clients and groups.
	MaxSubscriptions int
	// NextBucket is the first free sequence of bucket ids: what the last
	// ReserveBuckets write said.
	NextBucket uint64
	// Epoch is a number that no earlier run of the machine had. 24 bits are used.
	Epoch uint32
	// CostOf returns the cost of a message whose MessageMeta had none, or that was recovered.
	// It is called when the message is about to be delivered, and only if a limit or fairness
	// counts more than requests. nil: each message costs one request.
	CostOf func(BucketID, Offset) MessageCost
}

// MessageCost is what a message says of its cost. The zero MessageCost is one request.
type MessageCost struct {
	// Requests it counts for; 0 is 1.
	Requests int64
	// Input is its input in tokens, MaxOutput the most output that it asks for; 0: it
	// does not say.
	Input, MaxOutput int64
	// Bytes is what goes to the model.
	Bytes int64
}

// GroupConfig configures a consumer group.
type GroupConfig struct {
	Name string
	ID   GroupID
	// Wildcard makes every client of the group a reader of all buckets.
	Wildcard bool
	// InFlight is how many messages of one bucket may be out at once. 0 is 1, which
	// is strict FIFO; the most is 1024.
	InFlight int
	// MaxAttempts is the last delivery attempt: when its lease ends, the message
	// becomes a dead letter. 0 is 17.
	MaxAttempts int
	// ClientQuota bounds the exact names of one client. 0 is no bound.
	ClientQuota int
	// Exclusive gives a name to the newest of its exact subscribers.
	Exclusive bool
	// MaxSuspend bounds one suspend. 0 is 24 h.
	MaxSuspend time.Duration
	// StartLatest makes a group added to a running machine skip what is there.
	StartLatest bool
	// Unlimited: policies do not apply. Holds do.
	Unlimited bool
}

// BucketState is the record of a bucket.
type BucketState struct {
	ID   BucketID
	Name string
	Cell lite.Cell
	// Level is the importance in force, 0 to 3. Stamped: a sender's message set it,
	// not the policy, which then has no say. See LevelByte.
	Level   uint8
	Stamped bool
	// Head is the lowest retained offset, Tail the next one to be written.
	// Invariant: Head <= every group's floor <= Tail.
	Head, Tail Offset
	// Bytes is the size of the retained bodies.
	Bytes int64
	// Created is in whole seconds.
	Created time.Time
	// LastActive is the last append, or the instant the bucket drained if that is later.
	LastActive time.Time
	// Expiry is the instant of the bucket's one entry in the expiry index, in whole
	// seconds; zero when it has none.
	Expiry time.Time
	// Served reports whether one of its messages was ever served.
	Served bool
}

// stampedBit marks a level that a sender set.
const stampedBit = 0x80

// LevelByte is Level and Stamped in one byte, for the store. Bytes of records that
// know no stamps are levels that the policy has its say about.
func (s *BucketState) LevelByte() byte {
	b := min(s.Level, 3)
	if s.Stamped {
		b |= stampedBit
	}
	return b
}

// SetLevelByte is the inverse of LevelByte.
func (s *BucketState) SetLevelByte(b byte) {
	s.Level, s.Stamped = min(b&^stampedBit, 3), b&stampedBit != 0
}

// CursorState is a group's position in a bucket. The record exists iff Floor is
// above the bucket's Head or one of the lists is not empty; without one the group
// stands at Head.
type CursorState struct {
	Bucket BucketID
	// Floor is the lowest offset that is not settled.
	Floor Offset
	// Settled are the settled offsets above Floor, ascending; bounded, see windowMax.
	Settled []Offset
	// Returned are the messages that came back with attempts that count, ascending.
	// A message that came back without one is as if it had never been out.
	Returned []Return
}

// Return is a message to be delivered again.
type Return struct {
	Offset Offset
	// Attempts is the number of deliveries that count so far.
	Attempts uint32
}

// LeaseState is the record of a message that is out.
type LeaseState struct {
	Group  GroupID
	Bucket BucketID
	Offset Offset
	Until  time.Time
	// Attempt is the delivery attempt of this delivery, from 1.
	Attempt uint32
	Token   Token
	Client  string
	// Ticket is what the delivery was charged, as package quota encodes it.
	Ticket []byte
	// AutoRenew: the lease is renewed while its client lives, for 3 h from First.
	AutoRenew bool
	First     time.Time
}

// SubscriptionState is what a client of a group asked for.
type SubscriptionState struct {
	Group    GroupID
	Client   string
	Wildcard bool
	// Names are the exact names, ascending.
	Names []string
}

// ExpiryEntry is an entry of the expiry index.
type ExpiryEntry struct {
	At     time.Time
	Bucket BucketID
	Name   string
}

// Handle is what a receipt handle says.
type Handle struct {
	Group  GroupID
	Bucket BucketID
	Offset Offset
	Token  Token
}

// AppendRequest are messages for one bucket.
type AppendRequest struct {
	Name string
	// Cell is used when the bucket is created: it keeps it.
	Cell lite.Cell
	// Level is the importance that the sender stamped on the messages, 0 to 3, or -1:
	// what the policy says. A bucket that was empty takes it; one that is not takes
	// the more important of this and its own.
	Level    int8
	Messages []MessageMeta
}

// MessageMeta is what dispatch knows of a message.
type MessageMeta struct {
	// Size is the length of the body in bytes.
	Size int
	// Deadline is the instant from which the message is not delivered any more; zero
	// for none.
	Deadline time.Time
	// Cost is the cost that the message states. With Requests 0, CostOf is called when the
	// message is about to be delivered; otherwise Bytes is Size.
	Cost MessageCost
}

// Appended says where messages went.
type Appended struct {
	Bucket BucketID
	// First is the offset of the first message; the others follow it.
	First   Offset
	Created bool
}

// PullRequest is a poll.
type PullRequest struct {
	Group  GroupID
	Client string
	// Max bounds the messages of the answer. At most one is of a bucket.
	Max int
	// Invisible is the length of the leases; 0 is 60 s.
	Invisible time.Duration
	AutoRenew bool
	// AttemptID, if not empty, makes the poll repeatable: a later one of the same
	// client with the same id gets the messages of the first that are still out.
	AttemptID string
	// Until is when the poll ends empty. The Match that finds it due still tries.
	Until time.Time
}

// CancelResult says what became of a Cancel.
type CancelResult uint8

const (
	// Cancelled: the message was queued and is now settled in every group.
	Cancelled CancelResult = iota
	// Running: a group has it out; nothing was changed.
	Running
	// Gone: it was settled or deleted before, or never was.
	Gone
)

// SyncAction is RocketMQ's LiteSubscriptionAction.
type SyncAction uint8

const (
	// PartialAdd adds names.
	PartialAdd SyncAction = iota
	// PartialRemove removes names.
	PartialRemove
	// CompleteAdd replaces the set of names.
	CompleteAdd
	// CompleteRemove forgets the client's subscription.
	CompleteRemove
)

// SyncRequest changes the subscription of a client.
type SyncRequest struct {
	Group  GroupID
	Client string
	Action SyncAction
	// Names are lite topic names; lite.Wildcard stands for all.
	Names []string
}

// SyncResult is what a SyncSubscription did. Evictions come as Effects.Notices.
type SyncResult struct {
	Added, Removed int
	// Wildcard is whether the client now reads all buckets.
	Wildcard bool
}
