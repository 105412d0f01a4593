package dispatch

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/penstockmq/penstock/suspend"
	"github.com/penstockmq/penstock/suspend/policy"
	"github.com/penstockmq/penstock/suspend/quota"
	"github.com/penstockmq/penstock/suspend/signal"
)

// tester is what of testing.T and rapid.T the helpers need.
type tester interface {
	Helper()
	Fatalf(format string, args ...any)
}

var _ tester = (*testing.T)(nil)

type (
	messageKey struct {
		bucket BucketID
		off    Offset
	}
	cursorKey struct {
		group  GroupID
		bucket BucketID
	}
	leaseKey struct {
		group  GroupID
		bucket BucketID
		off    Offset
	}
	holdKey struct {
		group  GroupID
		target suspend.Target
	}
	accountKey struct {
		group  GroupID
		target suspend.Target
	}
	subscriptionKey struct {
		group  GroupID
		client string
	}
)

// disk is the store as the writes of a machine make it. It refuses a write that a
// store would not stand: the deletion of a message that is not there.
type disk struct {
	stepped time.Duration
	// stoppedAt is the last write before a restart; zero if it is not known.
	stoppedAt     time.Time // by how much the clock was set since the last write
	t             tester
	topic         TopicConfig
	groups        []GroupConfig
	buckets       map[string]BucketState
	messages      map[messageKey]bool
	cursors       map[cursorKey]CursorState
	leases        map[leaseKey]LeaseState
	holds         map[holdKey]suspend.Hold
	subscriptions map[subscriptionKey]SubscriptionState
	expiry        map[BucketID]ExpiryEntry
	accounts      map[accountKey]quota.Record
	// costs are what messages say of their cost: their bodies, as it were.
	costs map[messageKey]MessageCost
	// policy and signals are kept elsewhere; a machine that starts is told of them.
	policy  *policy.Document
	signals []signal.Signal
	dead    []Write
	// ghosts are deleted messages without a record of their deletion: a machine that
	// starts takes them for present until they are read.
	ghosts map[messageKey]bool
	// tombs are the records of dead messages.
	tombs map[messageKey]DeadState
}

func newDisk(t tester, topic TopicConfig, groups ...GroupConfig) *disk {
	d := &disk{
		t: t, groups: groups, policy: policy.Empty(),
		accounts: map[accountKey]quota.Record{}, costs: map[messageKey]MessageCost{},
		buckets: map[string]BucketState{}, messages: map[messageKey]bool{},
		cursors: map[cursorKey]CursorState{}, leases: map[leaseKey]LeaseState{},
		holds: map[holdKey]suspend.Hold{}, subscriptions: map[subscriptionKey]SubscriptionState{},
		expiry: map[BucketID]ExpiryEntry{}, ghosts: map[messageKey]bool{}, tombs: map[messageKey]DeadState{},
	}
	topic.CostOf = func(b BucketID, off Offset) MessageCost { return d.costs[messageKey{b, off}] }
	d.topic = topic
	return d
}

func (d *disk) apply(writes []Write) {
	d.t.Helper()
	for i := range writes {
		d.write(&writes[i])
	}
}

func (d *disk) write(w *Write) {
	d.t.Helper()
	switch w.Op {
	case PutBucket:
		d.buckets[w.State.Name] = *w.State
	case DeleteBucket:
		if d.buckets[w.Name].ID != w.Bucket {
			d.t.Fatalf("delete bucket %q with id %d, have %d", w.Name, w.Bucket, d.buckets[w.Name].ID)
		}
		delete(d.buckets, w.Name)
		for key := range d.messages { // no message outlives its bucket
			if key.bucket == w.Bucket {
				d.t.Fatalf("message %d is left of %q, which is gone", key.off, w.Name)
			}
		}
	case DeleteMessages:
		for off := w.Offset; off < w.To; off++ {
			if key := (messageKey{w.Bucket, off}); d.messages[key] {
				delete(d.messages, key)
				delete(d.costs, key)
			} else if !d.ghosts[key] {
				d.t.Fatalf("delete of message %d in %q, which is not there", off, w.Name)
			}
		}
	case PutCursor:
		c := *w.Cursor
		c.Settled, c.Returned = slices.Clone(c.Settled), slices.Clone(c.Returned)
		d.cursors[cursorKey{w.Group, w.Bucket}] = c
	case DeleteCursor:
		delete(d.cursors, cursorKey{w.Group, w.Bucket})
	case PutLease:
		l := *w.Lease
		l.Ticket = slices.Clone(l.Ticket)
		d.leases[leaseKey{l.Group, l.Bucket, l.Offset}] = l
	case DeleteLease:
		delete(d.leases, leaseKey{w.Group, w.Bucket, w.Offset})
	case PutHold:
		d.holds[holdKey{w.Group, w.Hold.Target}] = *w.Hold
	case DeleteHold:
		delete(d.holds, holdKey{w.Group, w.Hold.Target})
	case DeadLetter:
		if !d.messages[messageKey{w.Bucket, w.Offset}] {
			d.t.Fatalf("dead letter of message %d in %q, which is not there", w.Offset, w.Name)
		}
		d.dead = append(d.dead, *w)
	case ReserveBuckets:
		d.topic.NextBucket = w.Sequence
	case PutSubscription:
		d.subscriptions[subscriptionKey{w.Group, w.Subscription.Client}] = *w.Subscription
	case DeleteSubscription:
		delete(d.subscriptions, subscriptionKey{w.Group, w.Subscription.Client})
	case PutExpiry:
		if old, twice := d.expiry[w.Bucket]; twice {
			d.t.Fatalf("second expiry entry of %q: %v and %v", w.Name, old.At, w.At)
		}
		d.expiry[w.Bucket] = ExpiryEntry{At: w.At, Bucket: w.Bucket, Name: w.Name}
	case DeleteExpiry:
		delete(d.expiry, w.Bucket)
	case PutDead:
		d.tombs[messageKey{w.Dead.Bucket, w.Dead.Start}] = *w.Dead
	case DeleteDead:
		delete(d.tombs, messageKey{w.Bucket, w.Offset})
	case PutAccount:
		if len(w.Account.Data) == 0 {
			d.t.Fatalf("account of %v without data", w.Account.Target)
		}
		a := *w.Account
		a.Data = slices.Clone(a.Data)
		d.accounts[accountKey{w.Group, a.Target}] = a
	case DeleteAccount:
		delete(d.accounts, accountKey{w.Group, w.Account.Target})
	default:
		d.t.Fatalf("unknown op %d", w.Op)
	}
}

// start is a machine as a broker would rebuild it from this disk.
func (d *disk) start(now time.Time) *Machine {
	d.topic.Epoch++
	m := New(d.topic)
	m.SetPolicy(now, d.policy)
	for _, s := range d.signals {
		m.SetSignal(now, s)
	}
	for _, g := range d.groups {
		m.AddGroup(g)
	}
	for _, name := range slices.Sorted(maps.Keys(d.buckets)) {
		for s, off := d.buckets[name], d.buckets[name].Head; off < s.Tail; off++ {
			if key := (messageKey{s.ID, off}); !d.messages[key] && !d.entombed(key) {
				d.ghosts[key] = true
			}
		}
		m.RestoreBucket(d.buckets[name])
	}
	for _, k := range sorted(d.tombs) {
		m.RestoreDead(d.tombs[k])
	}
	for _, k := range sorted(d.cursors) {
		m.RestoreCursor(k.group, d.cursors[k])
	}
	for _, k := range sorted(d.leases) {
		m.RestoreLease(d.leases[k])
	}
	for _, k := range sorted(d.holds) {
		m.RestoreHold(k.group, d.holds[k])
	}
	for _, k := range sorted(d.subscriptions) {
		m.RestoreSubscription(d.subscriptions[k])
	}
	for _, k := range sorted(d.accounts) {
		m.RestoreAccount(k.group, d.accounts[k])
	}
	for _, s := range d.buckets {
		m.CountBucket(s.Cell.User)
	}
	if d.stepped != 0 {
		m.ClockStepped(now, d.stepped)
	}
	m.StoppedAt(d.stoppedAt)
	m.Start(now)
	return m
}

// entombed reports whether a record says that a message is dead.
func (d *disk) entombed(key messageKey) bool {
	at := key.off & (pageSize - 1)
	page := d.tombs[messageKey{key.bucket, key.off - at}].Page
	return page[at>>6]&(1<<(at&63)) != 0
}

// forgetDead leaves the state of an earlier program, which kept no record of the dead.
func (d *disk) forgetDead() { clear(d.tombs) }

// sorted are a map's keys in a fixed order.
func sorted[K comparable, V any](m map[K]V) []K {
	keys := slices.Collect(maps.Keys(m))
	slices.SortFunc(keys, func(a, b K) int { return cmp.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
	return keys
}
