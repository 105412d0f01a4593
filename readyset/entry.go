package readyset

// Level is the importance of an entry; L0 goes first.
type Level uint8

// The levels.
const (
	L0 Level = iota
	L1
	L2
	L3

	// Levels is their number.
	Levels = 4
)

// Entry is a place in a Set. It is idle, or ready (in a ring), or parked on one
// gate. The zero Entry becomes usable with Set.Init; it must not be copied after
// that and belongs to that Set until Drop.
type Entry[T any] struct {
	// Value is the caller's.
	Value T
	// Weight is the entry's share in its level, relative to the others; 0 counts as 1.
	// It is read whenever credit is granted. Set.SetWeight changes that of an entry that
	// may be paying off a debt.
	Weight uint16

	level Level
	// slot is the index of its round's list + 1 while the entry is ready, else 0.
	slot uint8
	// round is the round of its level up to which credit was granted.
	round uint32
	// credit is the cost the entry may still cause in this round; ≤ 0 when it has to
	// sit out.
	credit int64

	col        *column[T]
	gate       *gate[T]  // non-nil while parked
	prev, next *Entry[T] // in the list it is in; circular
}

// Ready is whether the entry is in a ring.
func (e *Entry[T]) Ready() bool { return e.slot != 0 }

// Parked is whether the entry waits for a gate.
func (e *Entry[T]) Parked() bool { return e.gate != nil }

// Level is the level given to Init or SetLevel.
func (e *Entry[T]) Level() Level { return e.level }

func (e *Entry[T]) weight() int64 { return max(1, int64(e.Weight)) }

// list is a circular list of entries; nil head is empty.
type list[T any] struct{ head *Entry[T] }

func (l *list[T]) empty() bool { return l.head == nil }

func (l *list[T]) push(e *Entry[T]) {
	if l.head == nil {
		e.prev, e.next = e, e
		l.head = e
		return
	}
	tail := l.head.prev
	e.prev, e.next = tail, l.head
	tail.next, l.head.prev = e, e
}

func (l *list[T]) remove(e *Entry[T]) {
	switch {
	case e.next == e:
		l.head = nil
	case l.head == e:
		l.head = e.next
		fallthrough
	default:
		e.prev.next, e.next.prev = e.next, e.prev
	}
	e.prev, e.next = nil, nil
}
