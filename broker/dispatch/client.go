package dispatch

import (
	"slices"
	"time"

	"github.com/penstockmq/penstock/readyset"
	"github.com/penstockmq/penstock/suspend/deadline"
)

// clientTimeout is how long a client may be silent before it is forgotten, with its
// subscriptions: RocketMQ's liteSubscriptionCheckTimeoutMills.
const clientTimeout = 3 * time.Minute

// client is a consumer that was heard of lately.
type client struct {
	name string
	// seen is when.
	seen int64
	// gone: it said goodbye, or its connection broke, and it was not heard of since.
	gone bool
	// item is armed at an instant at which it may have been silent for too long.
	item    deadline.Item[*client]
	members []*member
	batches map[batchKey]*batch
}

// member is a client in a group.
type member struct {
	client *client
	g      *group
	// wildcard: it reads all buckets, from the group's set.
	wildcard bool
	// subs are its exact names, set what is ready of them; nil before the first.
	subs map[string]*sub
	set  *readyset.Set[*cursor]
	// evicted are names it lost to a newer subscriber of an exclusive group. Its
	// complete set still contains them and must not take them back.
	evicted map[string]struct{}
	// waiters are its polls.
	waiters waitQueue

	// eager: it is in group.eager. dirty: it is in dirtyMembers. recorded: its
	// subscription is on disk. gone: it was dropped.
	eager, dirty, recorded, gone bool
}

// heard takes note of a sign of life.
func (m *Machine) heard(now time.Time, name string) *client {
	c := m.clients[name]
	if c == nil {
		c = &client{name: name}
		c.item.Value = c
		m.clients[name] = c
		m.living.Set(&c.item, now.Add(clientTimeout))
	}
	c.seen = max(c.seen, instant(now))
	c.gone = false
	return c
}

// Touch says that a client was heard of.
func (m *Machine) Touch(now time.Time, client string) {
	m.heard(now, client)
	m.check(now)
}

// ClientGone says that a client has ended or its connection broke: its polls end and
// its leases are not renewed. Its subscriptions stay until it has been silent for
// clientTimeout; it may come back.
func (m *Machine) ClientGone(now time.Time, client string) {
	if c := m.clients[client]; c != nil {
		c.gone = true
		for _, mb := range c.members {
			m.endPolls(mb)
		}
	}
	m.check(now)
}

// Terminate forgets a client of a group at once. What it has out stays out.
func (m *Machine) Terminate(now time.Time, id GroupID, client string) {
	if g := m.group(id); g != nil {
		if mb := g.members[client]; mb != nil {
			m.dropMember(mb)
		}
	}
	m.check(now)
}

// alive is whether leases of the client are to be renewed.
func (m *Machine) alive(now time.Time, name string) bool {
	c := m.clients[name]
	return c != nil && !c.gone && instant(now)-c.seen <= int64(renewSeen)
}

// clientDue forgets a client that has been silent for too long. A poll that waits is
// a sign of life: that of a broken connection is cancelled.
func (m *Machine) clientDue(now time.Time, c *client) {
	seen := moment(c.seen)
	for _, mb := range c.members {
		if mb.waiters.len > 0 {
			seen = now
		}
	}
	if due := seen.Add(clientTimeout); due.After(now) {
		m.living.Set(&c.item, due)
		return
	}
	delete(m.clients, c.name)
	for len(c.members) > 0 {
		m.dropMember(c.members[0])
	}
}

// member is the client in the group; it becomes one if it was not.
func (m *Machine) member(g *group, c *client) *member {
	if mb := g.members[c.name]; mb != nil {
		return mb
	}
	mb := &member{client: c, g: g, wildcard: g.cfg.Wildcard}
	g.members[c.name] = mb
	c.members = append(c.members, mb)
	return mb
}

func (m *Machine) endPolls(mb *member) {
	for mb.waiters.head != nil {
		m.endPoll(mb.waiters.head)
	}
}

func (m *Machine) dropMember(mb *member) {
	m.endPolls(mb)
	for name := range mb.subs {
		m.removeName(mb, name)
	}
	mb.gone = true
	m.touchMember(mb)
	delete(mb.g.members, mb.client.name)
	mb.client.members = slices.DeleteFunc(mb.client.members, func(x *member) bool { return x == mb })
}

func (m *Machine) touchMember(mb *member) {
	if !mb.dirty {
		mb.dirty = true
		m.dirtyMembers = append(m.dirtyMembers, mb)
	}
}

// flushMembers writes the subscriptions that changed. In a wildcard group there is
// nothing to remember: every client that polls reads all.
func (m *Machine) flushMembers() {
	for i, mb := range m.dirtyMembers {
		m.dirtyMembers[i] = nil
		mb.dirty = false
		s := SubscriptionState{Group: mb.g.cfg.ID, Client: mb.client.name, Wildcard: mb.wildcard}
		switch needed := !mb.gone && !mb.g.cfg.Wildcard && (mb.wildcard || len(mb.subs) > 0); {
		case needed:
			mb.recorded = true
			s.Names = sortedNames(mb.subs)
			m.write(Write{Op: PutSubscription, Group: s.Group, Subscription: put(&m.out.subscriptions, s)})
		case mb.recorded:
			mb.recorded = false
			m.write(Write{Op: DeleteSubscription, Group: s.Group, Subscription: put(&m.out.subscriptions, s)})
		}
	}
	m.dirtyMembers = m.dirtyMembers[:0]
}

func sortedNames(subs map[string]*sub) []string {
	names := make([]string, 0, len(subs))
	for name := range subs {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
