package dispatch

import (
	"time"

	"github.com/penstockmq/penstock/suspend"
)

// Sweep decides about a due entry of the expiry index. state is the bucket's record
// as the store has it now, found whether there is one; the caller reads it between
// the last Take and this call. It reports whether the bucket was deleted.
//
// The index has one entry for a bucket, written when the bucket becomes idle and not
// moved when it is used: a bucket in use costs its index nothing. So an entry that
// is due says only that it is time to look.
func (m *Machine) Sweep(now time.Time, e ExpiryEntry, state BucketState, found bool) bool {
	defer m.check(now)
	m.write(Write{Op: DeleteExpiry, At: e.At, Bucket: e.Bucket, Name: e.Name})
	if b := m.byName[e.Name]; b != nil {
		return b.id == e.Bucket && m.sweepResident(now, b)
	}
	if newer, ok := m.swept[e.Name]; ok {
		found = newer != nil
		if found {
			state = *newer
		}
	}
	if !found || state.ID != e.Bucket || state.Tail > state.Head {
		return false // another bucket of that name, or none: the entry was a leftover
	}
	ttl := m.Life(state.Served)
	due := m.expires(state.Name, state.LastActive, ttl)
	if ttl > 0 && !due.After(now) {
		m.deleteBucket(state.ID, state.Name, state.Cell.User)
		return true
	}
	state.Expiry = time.Time{}
	if ttl > 0 {
		state.Expiry = wholeSeconds(due)
		m.write(Write{Op: PutExpiry, At: state.Expiry, Bucket: state.ID, Name: state.Name})
	}
	m.setSwept(state.Name, put(&m.out.states, state))
	m.write(Write{Op: PutBucket, Bucket: state.ID, Name: state.Name, State: m.swept[state.Name]})
	return false
}

// sweepResident decides about a bucket in use: it stays, unless backlog may expire.
func (m *Machine) sweepResident(now time.Time, b *bucket) bool {
	b.expiry = 0
	m.changed(b) // the next Take enters it again, if it needs an entry
	if m.cfg.TTL <= 0 || !m.cfg.ExpireBacklog || b.retained == 0 {
		return false
	}
	due := m.expires(b.name, moment(b.active), m.cfg.TTL)
	if b.busy() || b.pending > 0 {
		due = now.Add(m.cfg.TTL)
	}
	if due.After(now) {
		m.index(b, due)
		return false
	}
	m.destroy(b)
	return true
}

// expires is when a bucket has been without use for ttl. A hold on its own
// name is use: the bucket outlives it.
func (m *Machine) expires(name string, active time.Time, ttl time.Duration) time.Time {
	for _, g := range m.groups {
		if h, ok := g.holds.Get(suspend.Target{Scope: suspend.Bucket, Name: name}); ok && h.Until.After(active) {
			active = h.Until
		}
	}
	return active.Add(ttl)
}

// destroy deletes a bucket with its messages. REQUIRES: nothing of it is out.
func (m *Machine) destroy(b *bucket) {
	b.eachLive(b.head(), b.tail, func(from, to Offset, size uint32) {
		m.out.Counters.Expired += int(to - from)
		m.discarded(b, from, to, DiscardBacklog)
		m.forget(b, from, to, size)
	})
	for c := b.first; c != nil; c = c.sibling {
		m.deleteCursor(c)
	}
	m.deleteDead(b)
	m.deleteBucket(b.id, b.name, b.cell.User)
	m.release(b)
}

func (m *Machine) deleteBucket(id BucketID, name, user string) {
	m.write(Write{Op: DeleteBucket, Bucket: id, Name: name})
	m.buckets--
	if m.cfg.MaxUserBuckets > 0 {
		m.users.deleted(user)
	}
	m.out.Counters.BucketsGone++
	m.setSwept(name, nil)
}

func (m *Machine) setSwept(name string, s *BucketState) {
	if m.swept == nil {
		m.swept = map[string]*BucketState{}
	}
	m.swept[name] = s
}
