package readyset

import "math/bits"

// slots is how many rounds ahead an entry in debt is placed at most. A power of two.
const slots = 16

// rounds orders the entries of one level of one column: deficit round robin with
// the entries that have to sit out set aside.
//
// Plain deficit round robin (Shreedhar and Varghese, SIGCOMM 1995) keeps one ring
// and passes over an entry that is in debt once per round. With costs of thousands
// of tokens and a thousand entries in debt, finding the next one would be a scan.
// So the ring is cut into rounds: an entry whose debt takes k rounds to pay off lies
// in the list of the k-th round from now, and a round that is empty is skipped by
// looking at a bit. A debt over slots-1 rounds is looked at again that much later.
//
// An entry that becomes ready joins the next round, never the current one: a stream
// of new entries cannot keep those that had their turn waiting.
type rounds[T any] struct {
	list [slots]list[T]
	// filled has bit i set iff list[i] is not empty.
	filled uint16
	// round is the current round; its list is list[round%slots]. It may wrap.
	round uint32
	count int
}

// push makes e ready. REQUIRES: e is in no list.
func (r *rounds[T]) push(e *Entry[T], quantum int64) {
	fresh := r.grant(e, quantum)
	r.count++
	switch {
	case e.credit <= 0:
		r.place(e, r.sitOut(e, quantum))
	case fresh:
		r.place(e, 1)
	default: // it has weight for another turn in this round
		r.place(e, 0)
	}
}

// resume makes e ready before all others of this round, if it has credit left in it.
// What it may cause in a round stays what it is: resuming changes the order within a
// round and nobody's share. REQUIRES: e is in no list.
func (r *rounds[T]) resume(e *Entry[T], quantum int64) {
	r.grant(e, quantum)
	r.count++
	if e.credit <= 0 {
		r.place(e, r.sitOut(e, quantum))
		return
	}
	r.place(e, 0)
	r.list[e.slot-1].head = e // of a circular list the last is before the first
}

// join makes e, which comes from another level, ready in the next round, or later if
// it has a debt to pay off. REQUIRES: e is in no list and its round is r.round.
func (r *rounds[T]) join(e *Entry[T], quantum int64) {
	r.count++
	ahead := 1
	if e.credit <= 0 {
		ahead = r.sitOut(e, quantum)
	}
	r.place(e, ahead)
}

// replace moves e, which lies here, to where its debt puts it now. One that has credit
// stays. REQUIRES: e is in one of the lists.
func (r *rounds[T]) replace(e *Entry[T], quantum int64) {
	if r.grant(e, quantum); e.credit <= 0 {
		r.unplace(e)
		r.place(e, r.sitOut(e, quantum))
	}
}

// pop takes the entry whose turn it is. REQUIRES: count > 0.
func (r *rounds[T]) pop(quantum int64) *Entry[T] {
	for {
		at := int(r.round % slots)
		r.round += uint32(bits.TrailingZeros16(bits.RotateLeft16(r.filled, -at)))
		e := r.list[r.round%slots].head
		r.unplace(e)
		r.grant(e, quantum)
		if e.credit > 0 {
			r.count--
			return e
		}
		r.place(e, r.sitOut(e, quantum)) // it was charged while it lay here
	}
}

// remove takes e out. REQUIRES: e is in one of the lists.
func (r *rounds[T]) remove(e *Entry[T]) {
	r.unplace(e)
	r.count--
}

// refundMax is how many rounds' worth of credit an entry may hold that was given some
// back. Without that it holds one.
const refundMax = 2

// grant gives e its quantum for each round since the last grant, up to one
// quantum: who was away does not hoard, but who was in debt pays it off. What was given
// back beyond that stays. It reports whether a round has passed.
func (r *rounds[T]) grant(e *Entry[T], quantum int64) bool {
	passed := int64(r.round - e.round)
	if passed == 0 {
		return false
	}
	e.round = r.round
	full := quantum * e.weight()
	switch {
	case e.credit >= full:
		e.credit = min(e.credit, refundMax*full)
	case passed > (full-e.credit)/full:
		e.credit = full
	default:
		e.credit = min(full, e.credit+passed*full)
	}
	return true
}

// sitOut is the number of rounds until e has credit again.
func (r *rounds[T]) sitOut(e *Entry[T], quantum int64) int {
	return int(min(slots-1, -e.credit/(quantum*e.weight())+1))
}

func (r *rounds[T]) place(e *Entry[T], ahead int) {
	i := (int(r.round%slots) + ahead) % slots
	r.list[i].push(e)
	r.filled |= 1 << i
	e.slot = uint8(i + 1)
}

func (r *rounds[T]) unplace(e *Entry[T]) {
	i := e.slot - 1
	r.list[i].remove(e)
	if r.list[i].empty() {
		r.filled &^= 1 << i
	}
	e.slot = 0
}
