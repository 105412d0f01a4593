package dispatch

import (
	"time"

	"github.com/penstockmq/penstock/suspend"
	"github.com/penstockmq/penstock/suspend/quota"
)

// buffer holds the effects of one Take and what they point to. There are two, so
// that events can be collected while the last Effects are still in use.
type buffer struct {
	Effects
	// Records are appended here and pointed to. When one of these slices grows, the
	// pointers given out before keep the old array alive.
	states        []BucketState
	cursors       []CursorState
	leases        []LeaseState
	holds         []suspend.Hold
	subscriptions []SubscriptionState
	items         []Item
	offsets       []Offset
	returns       []Return
	accounts      []quota.Record
	dead          []DeadState
	bytes         []byte
}

// bufferMax is the number of elements of a kind above which a buffer's memory is
// not kept for the next time.
const bufferMax = 1 << 16

func (b *buffer) reset() {
	b.Counters = Counters{}
	reuse(&b.Writes)
	reuse(&b.Deliveries)
	reuse(&b.EmptyPulls)
	reuse(&b.Notices)
	reuse(&b.states)
	reuse(&b.cursors)
	reuse(&b.leases)
	reuse(&b.holds)
	reuse(&b.subscriptions)
	reuse(&b.items)
	reuse(&b.offsets)
	reuse(&b.returns)
	reuse(&b.Discards)
	reuse(&b.accounts)
	reuse(&b.dead)
	reuse(&b.bytes)
}

func reuse[T any](s *[]T) {
	if cap(*s) > bufferMax {
		*s = nil
		return
	}
	clear(*s)
	*s = (*s)[:0]
}

// stash keeps what append adds to a slice.
func (b *buffer) stash(add func([]byte) []byte) []byte {
	from := len(b.bytes)
	b.bytes = add(b.bytes)
	return b.bytes[from:len(b.bytes):len(b.bytes)]
}

func put[T any](s *[]T, x T) *T {
	*s = append(*s, x)
	return &(*s)[len(*s)-1]
}

// Take returns what followed from the events since the last Take, and lets go of
// buckets that have become idle. What an earlier Take returned is not valid any more.
func (m *Machine) Take() Effects {
	m.flushMembers()
	m.flushCursors()
	m.flushBuckets()
	m.flushAccounts()
	m.swept = nil
	m.left = m.shares
	taken := m.out
	m.spare.reset()
	m.out, m.spare = m.spare, taken
	return taken.Effects
}

func (m *Machine) write(w Write) { m.out.Writes = append(m.out.Writes, w) }

func (m *Machine) flushCursors() {
	for i, c := range m.dirtyCursors {
		m.dirtyCursors[i] = nil
		c.queued = false
		if c.b == nil { // dropped meanwhile, its record with it
			m.pool.putCursor(c)
			continue
		}
		m.flushCursor(c)
		c.changed = false
	}
	m.dirtyCursors = m.dirtyCursors[:0]
}

func (m *Machine) flushCursor(c *cursor) {
	if !c.changed && c.floor > c.b.head() {
		return
	}
	s := m.cursorState(c)
	if c.floor == c.b.head() && len(s.Settled)+len(s.Returned) == 0 {
		m.deleteCursor(c)
		return
	}
	if c.changed || !c.recorded {
		c.recorded = true
		m.write(Write{Op: PutCursor, Group: c.g.cfg.ID, Bucket: c.b.id, Cursor: put(&m.out.cursors, s)})
	}
}

func (m *Machine) deleteCursor(c *cursor) {
	if c.recorded {
		c.recorded = false
		m.write(Write{Op: DeleteCursor, Group: c.g.cfg.ID, Bucket: c.b.id})
	}
}

// cursorState lays out the window in the current buffer.
func (m *Machine) cursorState(c *cursor) CursorState {
	o, r := len(m.out.offsets), len(m.out.returns)
	for i := range c.window {
		switch p := &c.window[i]; {
		case p.state == settled:
			m.out.offsets = append(m.out.offsets, c.floor+Offset(i))
		case p.state == back && p.attempts > 0:
			m.out.returns = append(m.out.returns, Return{Offset: c.floor + Offset(i), Attempts: p.attempts})
		}
	}
	s := CursorState{Bucket: c.b.id, Floor: c.floor}
	if n := len(m.out.offsets); n > o {
		s.Settled = m.out.offsets[o:n:n]
	}
	if n := len(m.out.returns); n > r {
		s.Returned = m.out.returns[r:n:n]
	}
	return s
}

func (m *Machine) flushBuckets() {
	for i, b := range m.dirtyBuckets {
		m.dirtyBuckets[i] = nil
		b.queued = false
		if b.gone {
			m.pool.putBucket(b)
			continue
		}
		m.flushBucket(b)
	}
	m.dirtyBuckets = m.dirtyBuckets[:0]
}

func (m *Machine) flushBucket(b *bucket) {
	idle := b.retained == 0
	if b.changed {
		m.enter(b, idle)
		m.write(Write{Op: PutBucket, Bucket: b.id, Name: b.name, State: put(&m.out.states, b.state())})
		m.flushDead(b)
		b.changed = false
	}
	if idle {
		m.release(b)
	}
}

// enter gives a bucket its entry in the expiry index, if it needs one and has none. An entry
// made while the bucket had a backlog is too late for an idle bucket that was never served.
func (m *Machine) enter(b *bucket, idle bool) {
	ttl := m.Life(b.served || !idle)
	if ttl == 0 || !idle && !m.cfg.ExpireBacklog {
		return
	}
	at := wholeSeconds(moment(b.active).Add(ttl))
	if idle && !b.served && b.expiry > unixSeconds(at) {
		m.write(Write{Op: DeleteExpiry, At: unixTime(b.expiry), Bucket: b.id, Name: b.name})
		b.expiry = 0
	}
	if b.expiry == 0 {
		m.index(b, at)
	}
}

// index enters a bucket that is not in the expiry index.
func (m *Machine) index(b *bucket, at time.Time) {
	at = wholeSeconds(at)
	b.expiry = unixSeconds(at)
	m.write(Write{Op: PutExpiry, At: at, Bucket: b.id, Name: b.name})
}

// Expiry is when a bucket that was last active then is over its TTL, as the expiry
// index has it.
func Expiry(active time.Time, ttl time.Duration) time.Time { return wholeSeconds(active.Add(ttl)) }

// wholeSeconds rounds up, so that an instant survives the store's key unchanged and
// is never early.
func wholeSeconds(t time.Time) time.Time {
	whole := time.Unix(t.Unix(), 0).UTC()
	if whole.Before(t) {
		whole = whole.Add(time.Second)
	}
	return whole
}
