package readyset

// column is the buckets of one model. It exists while an entry belongs to it or it
// is closed.
type column[T any] struct {
	name string
	// entries is how many belong to it, whatever their state.
	entries int
	// ready is how many are in a ring of it.
	ready  int
	closed bool
	// where tells which ring of columns it is in.
	where      whereabouts
	prev, next *column[T]
	// levels are made when first needed.
	levels [Levels]*rounds[T]
	// passed counts, for each level, the turns that more important ones took while
	// it had to wait.
	passed [Levels]uint16
}

type whereabouts uint8

const (
	// away: nothing of it is ready, or it is closed.
	away whereabouts = iota
	// turning: in the ring from which Next takes.
	turning
	// dormant: all it has ready is in closed levels.
	dormant
)

// mask is a set of levels.
type mask uint8

func (m mask) has(l Level) bool { return m&(1<<l) != 0 }

// waiting are the levels that have ready entries.
func (c *column[T]) waiting() mask {
	var m mask
	for l, r := range c.levels {
		if r != nil && r.count > 0 {
			m |= 1 << l
		}
	}
	return m
}

// pick chooses among the open levels the one to serve: the most important, but a
// lower one that was passed over share times comes first. So each level that waits
// gets at least one in share+Levels turns.
func (c *column[T]) pick(open mask, share uint16) (Level, bool) {
	may := c.waiting() & open
	if may == 0 {
		return 0, false
	}
	chosen := Level(Levels)
	for l := range Level(Levels) {
		if may.has(l) && c.passed[l] >= share {
			chosen = l
			break
		}
	}
	for l := range Level(Levels) {
		switch {
		case !may.has(l):
		case chosen == Levels:
			chosen = l
		case l > chosen && c.passed[l] < share:
			c.passed[l]++
		}
	}
	c.passed[chosen] = 0
	return chosen, true
}

// ring is a circular list of columns; head is the one whose turn it is.
type ring[T any] struct{ head *column[T] }

func (r *ring[T]) push(c *column[T]) {
	if r.head == nil {
		c.prev, c.next = c, c
		r.head = c
		return
	}
	tail := r.head.prev
	c.prev, c.next = tail, r.head
	tail.next, r.head.prev = c, c
}

func (r *ring[T]) remove(c *column[T]) {
	if c.next == c {
		r.head = nil
	} else {
		if r.head == c {
			r.head = c.next
		}
		c.prev.next, c.next.prev = c.next, c.prev
	}
	c.prev, c.next = nil, nil
}
