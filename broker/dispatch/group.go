package dispatch

import (
	"slices"
	"time"

	"github.com/penstockmq/penstock/readyset"
	"github.com/penstockmq/penstock/suspend"
	"github.com/penstockmq/penstock/suspend/deadline"
	"github.com/penstockmq/penstock/suspend/policy"
	"github.com/penstockmq/penstock/suspend/quota"
)

// defaultMaxAttempts is RocketMQ's 16 retries after the first delivery.
const defaultMaxAttempts = 17

// group is a consumer group.
type group struct {
	// Immutable after AddGroup.
	cfg         GroupConfig
	inFlight    int
	maxAttempts int
	// onWide makes a unit agree with what the ledger says of it.
	onWide func(t suspend.Target, closed bool, until time.Time)

	holds *suspend.Table
	// item is armed with the earliest end of a hold.
	item deadline.Item[*group]
	// shut are the wide gates that are closed, each with why.
	shut map[suspend.Target]cause

	// ledger is what the group has used of the limits, unit what a turn costs.
	ledger *quota.Ledger
	unit   policy.CostUnit
	// forgive: the unit has changed, and the debts of buckets not reviewed yet mean
	// nothing.
	forgive bool

	// set is the ready matrix of all resident buckets. Wildcard clients take from it.
	// Buckets are parked in it alone.
	set *readyset.Set[*cursor]
	// waiting are the polls of wildcard clients.
	waiting waitQueue

	members map[string]*member
	// links are the names somebody subscribed to exactly, whether or not a bucket of
	// that name exists.
	links map[string]*link
	// openings are the rows that offer only some of their waiting buckets.
	openings
	// eager are members with a set of their own who may find something there.
	eager []*member
	// hungry: it is in Machine.hungry.
	hungry bool

	leases, returned int
}

// AddGroup makes a group known. On a running machine it begins at the head of every
// bucket, or at the tail if it is StartLatest; that takes time in proportion to the
// resident buckets. No-op if the id is known.
func (m *Machine) AddGroup(cfg GroupConfig) {
	if m.group(cfg.ID) != nil {
		return
	}
	g := &group{
		cfg:         cfg,
		inFlight:    min(max(1, cfg.InFlight), maxInFlight),
		maxAttempts: cfg.MaxAttempts,
		holds:       suspend.New(cfg.MaxSuspend),
		set:         readyset.New[*cursor](readyset.Options{}),
		shut:        map[suspend.Target]cause{},
		members:     map[string]*member{},
		links:       map[string]*link{},
	}
	m.openLedger(g)
	if g.maxAttempts <= 0 {
		g.maxAttempts = defaultMaxAttempts
	}
	g.item.Value = g
	m.groups = append(m.groups, g)
	for _, b := range m.inOrder() {
		floor := b.head()
		if cfg.StartLatest {
			floor = b.durable()
		}
		c := m.newCursor(b, g, floor)
		c.skipDead()
		m.moved(c)
		m.trim(moment(b.active), b)
		if c.deliverable() { // no hold can be in force, and nothing is used
			c.since = b.active
			m.offer(c)
		}
	}
}

// RemoveGroup forgets a group and what it has out. Its polls end empty. Dead letters
// are not the machine's. No-op if it is not known.
func (m *Machine) RemoveGroup(now time.Time, id GroupID) {
	g := m.group(id)
	if g == nil {
		return
	}
	for _, mb := range g.members {
		m.dropMember(mb)
	}
	g.holds.Each(func(h suspend.Hold) bool {
		m.write(Write{Op: DeleteHold, Group: id, Hold: put(&m.out.holds, h)})
		return true
	})
	m.gates.Remove(&g.item)
	m.groups = slices.DeleteFunc(m.groups, func(x *group) bool { return x == g })
	for _, b := range m.inOrder() {
		m.removeCursor(now, b, g)
	}
	m.freed.drop(g)
	m.hungry = slices.DeleteFunc(m.hungry, func(x *group) bool { return x == g })
	m.check(now)
}

// removeCursor takes a group out of a bucket.
func (m *Machine) removeCursor(now time.Time, b *bucket, g *group) {
	for at := &b.first; *at != nil; at = &(*at).sibling {
		c := *at
		if c.g != g {
			continue
		}
		m.emptyWindow(now, c)
		m.deleteCursor(c)
		*at = c.sibling
		m.dropCursor(c)
		break
	}
	m.buryDone(b)
	m.trim(now, b)
}

// inOrder are the resident buckets in the order of their ids, for what is done to
// all of them: rare, and with the same outcome each time.
func (m *Machine) inOrder() []*bucket {
	all := make([]*bucket, 0, len(m.byID))
	for _, b := range m.byID {
		all = append(all, b)
	}
	slices.SortFunc(all, func(x, y *bucket) int {
		if x.id < y.id {
			return -1
		}
		return 1
	})
	return all
}
