package dispatch

import (
	"math"
	"strings"
	"time"

	"github.com/penstockmq/penstock/broker/lite"
)

// bucket is a resident bucket: one that holds messages. It is laid out for a million
// of them.
//
//	    head                         durable        tail
//	     │ retained ──────────────────│── pending ───│
//	gone │ delivered, settled, queued │ not yet seen │ to come
//
// Invariant: head ≤ every cursor's floor ≤ durable ≤ tail, head = min of the floors
// if there are any cursors, and live ≤ retained.
type bucket struct {
	id   BucketID
	name string
	cell lite.Cell

	tail Offset
	// retained is tail - head, pending is tail - durable.
	retained, pending uint32
	// live is how many of the retained messages are not dead.
	live uint32
	// expiry is BucketState.Expiry in Unix seconds.
	expiry uint32
	// bytes is the size of the live messages.
	bytes int64
	// active is BucketState.LastActive.
	active int64
	// created is BucketState.Created in Unix seconds.
	created uint32
	// at is its index in Machine.all.
	at uint32
	// stamped is the level that a sender gave it, -1 if none did, level the one in
	// force: that, or what the policy says.
	stamped int8
	level   uint8
	// queued: it is in dirtyBuckets. changed: its record has to be written. gone: it
	// was deleted while in a list.
	queued, changed, gone bool
	// served: a worker has served one of its messages.
	served bool

	runs runs
	// deep is nil until the bucket has dead messages or many deadlines.
	deep  *deep
	first *cursor // one for each group
}

// deep is the state that most buckets do not need.
type deep struct {
	dead deadSet
	// dues are the deadlines of its runs; nil while it has fewer than dueFloor runs.
	dues dues
}

func (b *bucket) head() Offset    { return b.tail - Offset(b.retained) }
func (b *bucket) durable() Offset { return b.tail - Offset(b.pending) }

// cursor is the group's cursor in b; nil if there is none.
func (b *bucket) cursor(id GroupID) *cursor {
	for c := b.first; c != nil; c = c.sibling {
		if c.g.cfg.ID == id {
			return c
		}
	}
	return nil
}

// leased is whether any group has the message out.
func (b *bucket) leased(off Offset) bool {
	for c := b.first; c != nil; c = c.sibling {
		if c.stateAt(off) == out {
			return true
		}
	}
	return false
}

// busy is whether any message of b is out.
func (b *bucket) busy() bool {
	for c := b.first; c != nil; c = c.sibling {
		if c.leased > 0 {
			return true
		}
	}
	return false
}

func (b *bucket) state() BucketState {
	return BucketState{
		ID: b.id, Name: b.name, Cell: b.cell, Level: b.level, Stamped: b.stamped >= 0,
		Head: b.head(), Tail: b.tail, Bytes: b.bytes,
		Created: unixTime(b.created), LastActive: moment(b.active), Expiry: unixTime(b.expiry), Served: b.served,
	}
}

// Resident is whether the bucket is in memory. One that is not is idle or does not exist.
func (m *Machine) Resident(name string) bool { return m.byName[name] != nil }

// Load brings an idle bucket, as the store has it, into memory for the events that
// follow; if they leave it idle the next Take lets it go. No-op if it is resident.
func (m *Machine) Load(s BucketState) {
	if m.byName[s.Name] != nil {
		return
	}
	if newer, ok := m.swept[s.Name]; ok {
		if newer == nil {
			return
		}
		s = *newer
	}
	m.touchBucket(m.adopt(s))
}

// adopt makes the bucket of a record resident. Its messages are one run: their sizes
// are taken for equal, and their deadlines are left to the reader.
func (m *Machine) adopt(s BucketState) *bucket {
	b := m.pool.bucket()
	b.id, b.name, b.cell = s.ID, s.Name, m.slim(s.Name, s.Cell)
	b.stamped = -1
	if s.Stamped {
		b.stamped = int8(min(s.Level, maxLevel))
	}
	b.level = m.importance(b.cell, b.stamped)
	b.tail = max(s.Head, s.Tail)
	b.retained = uint32(min(b.tail-s.Head, math.MaxUint32))
	b.served = s.Served
	b.created, b.active, b.expiry = unixSeconds(s.Created), instant(s.LastActive), unixSeconds(s.Expiry)
	if b.retained > 0 {
		b.live, b.bytes = b.retained, max(0, s.Bytes)
		b.runs.push(b.head(), run{size: b.average()})
		m.messages += int64(b.live)
		m.bytes += b.bytes
	}
	m.byName[b.name], m.byID[b.id] = b, b
	m.enlist(b)
	for _, g := range m.groups {
		m.newCursor(b, g, b.head())
	}
	return b
}

// average returns the mean size of a live message.
func (b *bucket) average() uint32 {
	if b.live == 0 {
		return 0
	}
	return uint32(min(b.bytes/int64(b.live), math.MaxUint32))
}

// slim lets the strings of a cell share memory with the bucket's name and with the
// cells of other buckets.
func (m *Machine) slim(name string, c lite.Cell) lite.Cell {
	if strings.HasPrefix(name, c.User) {
		c.User = name[:len(c.User)]
	}
	return c
}

// touchBucket has the next Take look at b: write it if it changed, let it go if it
// is idle.
func (m *Machine) touchBucket(b *bucket) {
	if !b.queued {
		b.queued = true
		m.dirtyBuckets = append(m.dirtyBuckets, b)
	}
}

func (m *Machine) changed(b *bucket) {
	b.changed = true
	m.touchBucket(b)
}

// trim lets go of the messages that every group is done with.
func (m *Machine) trim(now time.Time, b *bucket) {
	if b.first == nil {
		return // no group: messages stay for the one to come
	}
	head := b.tail
	for c := b.first; c != nil; c = c.sibling {
		head = min(head, c.floor)
	}
	old := b.head()
	if head <= old {
		return
	}
	b.eachLive(old, head, func(from, to Offset, size uint32) {
		m.forget(b, from, to, size)
	})
	b.runs.popTo(head, b.tail)
	b.retained = uint32(b.tail - head)
	m.trimDead(b)
	if b.retained == 0 {
		m.bytes -= b.bytes
		b.bytes = 0 // the remainder of an approximation with equal sizes
		b.active = max(b.active, instant(now))
	}
	for c := b.first; c != nil; c = c.sibling {
		if c.recorded {
			m.touchCursor(c) // its floor may be the head now and need no record
		}
	}
	m.changed(b)
}

// forget deletes live messages. Consecutive messages are one write.
func (m *Machine) forget(b *bucket, from, to Offset, size uint32) {
	m.uncount(b, from, to, size)
	if n := len(m.out.Writes); n > 0 {
		if last := &m.out.Writes[n-1]; last.Op == DeleteMessages && last.Bucket == b.id && last.To == from {
			last.To = to
			return
		}
	}
	m.write(Write{Op: DeleteMessages, Bucket: b.id, Name: b.name, Offset: from, To: to})
}

func (m *Machine) uncount(b *bucket, from, to Offset, size uint32) {
	n := to - from
	b.live -= uint32(n)
	bytes := min(b.bytes, int64(n)*int64(size))
	b.bytes -= bytes
	m.messages -= int64(n)
	m.bytes -= bytes
}

// release takes a bucket out of memory. REQUIRES: nothing of it is out.
func (m *Machine) release(b *bucket) {
	delete(m.byName, b.name)
	delete(m.byID, b.id)
	m.delist(b)
	m.messages -= int64(b.live)
	m.bytes -= b.bytes
	for c := b.first; c != nil; {
		next := c.sibling
		m.dropCursor(c)
		c = next
	}
	b.first = nil
	b.gone = true
	m.shallow(b)
	if !b.queued {
		m.pool.putBucket(b)
	}
}
