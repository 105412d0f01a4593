package dispatch

import (
	"math"
	"time"

	"github.com/penstockmq/penstock/suspend/deadline"
	"github.com/penstockmq/penstock/suspend/policy"
	"github.com/penstockmq/penstock/suspend/signal"
)

const (
	// tokenBits is the part of a Token that counts; the rest is the epoch.
	tokenBits = 40
	// sequenceBits is the part of a BucketID that counts; the rest is the topic's id.
	sequenceBits = 48
	// reserveAhead is how many bucket ids one ReserveBuckets write covers. A restart
	// skips the unused ones.
	reserveAhead = 4096
)

// Machine is the state of one parent topic and its groups. It is driven by events,
// one at a time; see the package comment.
type Machine struct {
	cfg TopicConfig // immutable after New

	// groups is in the order of AddGroup. There are few; the maps below are for what
	// there are many of.
	groups []*group

	// byName and byID hold the resident buckets. They have the same values.
	byName map[string]*bucket
	byID   map[BucketID]*bucket
	// all are the same in no order, for what is done to each of them bit by bit.
	all []*bucket
	// buckets counts the records on disk, resident or not.
	buckets int
	// users counts the buckets by user.
	users userCounts
	// messages and bytes are sums over the resident buckets.
	messages, bytes int64

	// nextBucket is the next free sequence, reserved the first that no
	// ReserveBuckets write covers.
	nextBucket, reserved uint64
	// swept are the records that Sweep changed since the last Take, nil for those it
	// deleted: the store does not know yet.
	swept map[string]*BucketState
	// leased counts the leases this machine has made.
	leased Token

	clients map[string]*client
	// subscriptions counts the exact names of all members.
	subscriptions int

	// What falls due: leases, polls, silent clients, the groups' earliest holds.
	leases deadline.Heap[*lease]
	polls  deadline.Heap[*Waiter]
	living deadline.Heap[*client]
	gates  deadline.Heap[*group]

	// hungry are the groups in which something may be handed out since the last Match.
	hungry []*group

	// doc is the policy in force. signals are the load signals, for groups to come.
	doc     *policy.Document
	signals map[signalKey]signal.Signal
	// signalsFull is the number of signals at which expired signals are dropped.
	signalsFull int
	// signalsAt is when the last of them came.
	signalsAt time.Time
	// costs are the costs of recovered messages, the latest read for each bucket.
	costs    map[BucketID]readCost
	maxHolds int // see maxHolds; tests lower it
	// review is how many of all, from the first on, are still to be brought in line
	// with the policy; reviewAt is when that began.
	review   int
	reviewAt time.Time
	// reach tells which of those to review; nil: all.
	reach *policy.Reach
	// freed are gates to be looked at again by the next Match, as something in flight
	// has ended.
	freed freedQueue

	// pulls counts how often a poll was tried against a ready set, wakeups how often
	// one got something.
	pulls, wakeups uint64

	// dirty lists what has to be written at the next Take, each once.
	dirtyCursors []*cursor
	dirtyBuckets []*bucket
	dirtyMembers []*member

	// out collects effects; spare is what the last Take handed out.
	out, spare *buffer

	// shares are the shares of each turn, left their unused rest in this turn.
	shares, left shares
	// unfinished: the last Match left ready buckets or opening gates to the next Match.
	unfinished bool
	// stalled: a bucket has more overdue messages than this turn may settle.
	stalled bool
	// firstGroup is the group whose limits the next Tick checks first.
	firstGroup int

	pool  pool
	audit audit
	// later is scratch for fill, lost for openNarrow.
	later, lost []*cursor
	// restored are the buckets in the order of their restoring, until Start.
	restored []*bucket
	// stoppedAt is the last instant at which the process before this one is known to have
	// run; zero if it is not known.
	stoppedAt time.Time
	// startHolds are the holds restored, until Start.
	startHolds []restoredHold
	// startAccounts are the accounts restored, until Start.
	startAccounts []restoredAccount
}

// New returns a machine without groups or buckets, and without a policy. Recovery
// follows: SetPolicy, AddGroup, then RestoreBucket, RestoreCursor, RestoreLease,
// RestoreHold, RestoreSubscription and RestoreAccount, CountBucket, and Start.
func New(cfg TopicConfig) *Machine {
	return &Machine{
		cfg:        cfg,
		byName:     map[string]*bucket{},
		byID:       map[BucketID]*bucket{},
		clients:    map[string]*client{},
		doc:        policy.Empty(),
		nextBucket: cfg.NextBucket,
		reserved:   cfg.NextBucket,
		shares:     turnShares,
		left:       turnShares,
		out:        &buffer{},
		spare:      &buffer{},
		maxHolds:   maxHolds,
	}
}

// group finds a group; nil if it was never added.
func (m *Machine) group(id GroupID) *group {
	for _, g := range m.groups {
		if g.cfg.ID == id {
			return g
		}
	}
	return nil
}

// newToken returns a token that no lease has had. 2^40 deliveries of one epoch take
// twelve days at a million a second; a restart begins another.
func (m *Machine) newToken() Token {
	m.leased++
	return Token(m.cfg.Epoch)<<tokenBits | m.leased
}

// newBucketID takes a bucket id, and reserves more of them before the last is used.
func (m *Machine) newBucketID() BucketID {
	if m.nextBucket >= m.reserved {
		m.reserved = m.nextBucket + reserveAhead
		m.write(Write{Op: ReserveBuckets, Sequence: m.reserved})
	}
	id := BucketID(m.cfg.ID)<<sequenceBits | BucketID(m.nextBucket)
	m.nextBucket++
	return id
}

// Tick applies the events that are due, except the ends of polls: Match, which follows,
// tries those polls once more. O(log n) for each event, at most a turn's share of each
// kind: beyond it NextWake is in the past and the next Tick continues.
func (m *Machine) Tick(now time.Time) {
	popDue(&m.living, now, &m.left.clients, func(c *client) { m.clientDue(now, c) })
	for m.left.holds > 0 {
		it := m.gates.PopDue(now)
		if it == nil {
			break
		}
		m.holdsDue(now, it.Value)
	}
	popDue(&m.leases, now, &m.left.leases, func(l *lease) { m.leaseDue(now, l) })
	m.limitsDue(now)
	m.reviewSome(now)
	m.check(now)
}

// popDue calls f for the due items, the earliest first, while the share lasts.
func popDue[T any](h *deadline.Heap[T], now time.Time, left *int, f func(T)) {
	for *left > 0 {
		it := h.PopDue(now)
		if it == nil {
			return
		}
		*left--
		f(it.Value)
	}
}

// NextWake is the instant at which Tick and Match have something to do.
func (m *Machine) NextWake() (time.Time, bool) {
	var wake time.Time
	found := false
	sooner := func(at time.Time, ok bool) {
		if ok && (!found || at.Before(wake)) {
			wake, found = at, true
		}
	}
	sooner(m.leases.Next())
	sooner(m.polls.Next())
	sooner(m.gates.Next())
	sooner(m.living.Next())
	for _, g := range m.groups {
		sooner(g.ledger.Next())
	}
	sooner(m.reviewAt, m.review > 0)
	sooner(time.Time{}, m.unfinished)
	return wake, found
}

// instant converts a wall clock time to the machine's nanoseconds; the zero time is 0. A
// time beyond 64 bits becomes the nearest representable instant: otherwise the year 3000
// would be an instant of the past.
func instant(t time.Time) int64 {
	switch {
	case t.IsZero():
		return 0
	case t.After(lastInstant):
		return math.MaxInt64
	case t.Before(firstInstant):
		return math.MinInt64
	}
	return t.UnixNano()
}

// Bounds of 64 bits of nanoseconds: from 1677 to 2262.
var (
	firstInstant = time.Unix(0, math.MinInt64)
	lastInstant  = time.Unix(0, math.MaxInt64)
)

// moment is the inverse of instant.
func moment(ns int64) time.Time {
	if ns == 0 {
		return time.Time{}
	}
	return time.Unix(0, ns).UTC()
}

// unixSeconds is the Unix time of t in 32 bits, which last until 2106; the zero time
// is 0.
func unixSeconds(t time.Time) uint32 {
	return uint32(min(max(0, t.Unix()), math.MaxUint32))
}

// unixTime is the inverse of unixSeconds, up to the fraction.
func unixTime(s uint32) time.Time {
	if s == 0 {
		return time.Time{}
	}
	return time.Unix(int64(s), 0).UTC()
}
