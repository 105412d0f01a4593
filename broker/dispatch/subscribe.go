package dispatch

import (
	"fmt"
	"slices"
	"time"

	"github.com/penstockmq/penstock/broker/lite"
	"github.com/penstockmq/penstock/readyset"
)

// link is the exact subscribers of a name in a group. It exists while there is one.
type link struct {
	name  string
	first *sub
	// cursor is the group's in the bucket of that name; nil while that is not resident.
	cursor *cursor
}

// sub is one client's subscription to one name. Its entry is in the client's own
// set, and is ready iff the cursor's entry in the group's set is.
type sub struct {
	entry  readyset.Entry[*cursor]
	member *member
	link   *link
	next   *sub // of the same link
}

// attach gives the subscription its bucket.
func (s *sub) attach(c *cursor) {
	s.entry.Weight = c.entry.Weight
	s.member.set.Init(&s.entry, c, c.b.cell.Model, readyset.Level(c.b.level))
}

// detach takes it away.
func (s *sub) detach() { s.member.set.Drop(&s.entry) }

// SyncSubscription changes what a client of a group reads. Clients of a wildcard
// group read everything whatever they say; elsewhere lite.Wildcard among the names
// does that. Clients repeat their complete set all the time: one that is as before
// changes nothing.
// Errors: ErrNoGroup, ErrSubscriptionQuota; nothing was changed.
func (m *Machine) SyncSubscription(now time.Time, r SyncRequest) (SyncResult, error) {
	defer m.check(now)
	g := m.group(r.Group)
	if g == nil {
		return SyncResult{}, fmt.Errorf("%w: %d", ErrNoGroup, r.Group)
	}
	mb := m.member(g, m.heard(now, r.Client))
	switch {
	case r.Action == CompleteRemove:
		n := len(mb.subs)
		m.dropMember(mb)
		return SyncResult{Removed: n}, nil
	case g.cfg.Wildcard:
		return SyncResult{Wildcard: true}, nil
	case r.Action == PartialRemove:
		return m.removeNames(mb, r.Names), nil
	default:
		return m.addNames(mb, r.Names, r.Action == CompleteAdd)
	}
}

func (m *Machine) removeNames(mb *member, names []string) SyncResult {
	var res SyncResult
	for _, name := range names {
		delete(mb.evicted, name)
		if name == lite.Wildcard {
			m.setWildcard(mb, false)
		} else if mb.subs[name] != nil {
			m.removeName(mb, name)
			res.Removed++
		}
	}
	if res.Removed > 0 {
		m.touchMember(mb)
	}
	res.Wildcard = mb.wildcard
	return res
}

// addNames adds names, and if the set is complete removes the others.
func (m *Machine) addNames(mb *member, names []string, complete bool) (SyncResult, error) {
	wanted := make(map[string]struct{}, len(names))
	var add, lost []string
	for _, name := range names {
		if _, twice := wanted[name]; twice {
			continue
		}
		wanted[name] = struct{}{}
		_, evicted := mb.evicted[name]
		switch {
		case name == lite.Wildcard || mb.subs[name] != nil:
		case complete && evicted:
			lost = append(lost, name)
		default:
			add = append(add, name)
		}
	}
	var remove []string
	if complete {
		for name := range mb.subs {
			if _, keep := wanted[name]; !keep {
				remove = append(remove, name)
			}
		}
		slices.Sort(remove)
	}
	if err := m.quota(mb, len(add)-len(remove)); err != nil {
		return SyncResult{}, err
	}
	for _, name := range lost {
		m.notify(mb, name)
	}
	for name := range mb.evicted {
		if _, insists := wanted[name]; complete != insists {
			delete(mb.evicted, name) // it asked anew for the name, or has let go of it
		}
	}
	for _, name := range remove {
		m.removeName(mb, name)
	}
	for _, name := range add {
		m.evictOthers(mb, name)
		m.addName(mb, name)
	}
	if len(add)+len(remove) > 0 {
		m.touchMember(mb)
	}
	if _, all := wanted[lite.Wildcard]; all || complete {
		m.setWildcard(mb, all)
	}
	return SyncResult{Added: len(add), Removed: len(remove), Wildcard: mb.wildcard}, nil
}

// quota asks whether a client may have more exact names. Fewer are always allowed.
func (m *Machine) quota(mb *member, more int) error {
	if more <= 0 {
		return nil
	}
	if most := mb.g.cfg.ClientQuota; most > 0 && len(mb.subs)+more > most {
		return fmt.Errorf("%w: client %q would have %d names of at most %d", ErrSubscriptionQuota, mb.client.name, len(mb.subs)+more, most)
	}
	if most := m.cfg.MaxSubscriptions; most > 0 && m.subscriptions+more > most {
		return fmt.Errorf("%w: %q would have %d of at most %d", ErrSubscriptionQuota, m.cfg.Name, m.subscriptions+more, most)
	}
	return nil
}

func (m *Machine) notify(mb *member, name string) {
	m.out.Notices = append(m.out.Notices, Notice{Group: mb.g.cfg.ID, Client: mb.client.name, Name: name})
}

// evictOthers takes a name from whoever has it in an exclusive group: the newest
// subscriber wins.
func (m *Machine) evictOthers(mb *member, name string) {
	l := mb.g.links[name]
	if !mb.g.cfg.Exclusive || l == nil {
		return
	}
	for l.first != nil {
		loser := l.first.member
		m.removeName(loser, name)
		m.touchMember(loser)
		m.notify(loser, name)
		if loser.evicted == nil {
			loser.evicted = map[string]struct{}{}
		}
		loser.evicted[name] = struct{}{}
	}
}

// addName subscribes a client to a name. Whether a bucket of that name exists does
// not matter: it is found through the link when its first message comes.
func (m *Machine) addName(mb *member, name string) {
	if mb.subs == nil {
		mb.subs = map[string]*sub{}
	}
	if mb.set == nil {
		mb.set = readyset.New[*cursor](readyset.Options{Quantum: quantum(mb.g.unit)})
		for t := range mb.g.shut {
			switchUnit(mb.set, t, true)
		}
	}
	s := &sub{member: mb}
	mb.subs[name] = s
	m.subscriptions++
	l := mb.g.links[name]
	if l == nil {
		l = &link{name: name}
		mb.g.links[name] = l
		if len(mb.g.links) == 1 {
			mb.g.openAll() // from now on some readers read only some buckets
		}
		if b := m.byName[name]; b != nil {
			c := b.cursor(mb.g.cfg.ID)
			c.link, l.cursor = l, c
		}
	}
	s.link, s.next, l.first = l, l.first, s
	if c := l.cursor; c != nil {
		s.attach(c)
		if c.entry.Ready() {
			mb.set.Add(&s.entry)
			m.eager(mb)
		}
	}
}

// removeName is the inverse. O(subscribers of the name).
func (m *Machine) removeName(mb *member, name string) {
	s := mb.subs[name]
	l := s.link
	delete(mb.subs, name)
	m.subscriptions--
	for at := &l.first; *at != nil; at = &(*at).next {
		if *at == s {
			*at = s.next
			break
		}
	}
	if l.cursor != nil {
		s.detach()
	}
	if l.first == nil {
		delete(mb.g.links, name)
		if l.cursor != nil {
			l.cursor.link = nil
		}
	}
}

// setWildcard moves a client, with its polls, between the group's set and its own.
func (m *Machine) setWildcard(mb *member, on bool) {
	if mb.wildcard == on {
		return
	}
	mb.wildcard = on
	m.touchMember(mb)
	for w := mb.waiters.head; w != nil; w = w.links[ofMember].next {
		if on {
			mb.g.waiting.push(w, ofGroup)
		} else {
			mb.g.waiting.remove(w, ofGroup)
		}
	}
	m.eager(mb)
}
