// Package deadline keeps values in the order of the instants at which they fall due.
//
// It owns an index-tracked min-heap: an item knows its place, so it can be moved or removed in O(log n) without a
// search. It never reads a clock, starts a timer or calls back; the owner asks for what is due and sleeps until Next.
// Leases, suspends, waiters and clients of the broker are kept in such heaps, each by the one goroutine that owns it:
// a Heap is not safe for concurrent use.
package deadline

import (
	"math"
	"time"
)

const (
	// arity is the number of children of a node. Four halve the depth of a binary heap, and four neighbours of 16 bytes
	// fill one cache line, which decides the cost of a million leases.
	arity = 4
	// shrinkFloor is the capacity below which a heap keeps its array. Above it an array three quarters empty is halved,
	// so that a burst of a million suspends does not keep its memory for ever.
	shrinkFloor = 1024
)

// Item is a value with a place in at most one Heap. The zero Item is not armed. It must not be copied while armed.
type Item[T any] struct {
	Value T

	at  int64 // UnixNano; meaningful while armed
	pos int32 // index in the heap's array + 1; 0 = not armed
}

// Armed reports whether the item is in a heap.
func (it *Item[T]) Armed() bool { return it.pos != 0 }

// At is the instant at which an armed item falls due; the zero time if it is not armed.
func (it *Item[T]) At() time.Time {
	if it.pos == 0 {
		return time.Time{}
	}
	return time.Unix(0, it.at).UTC()
}

// Heap holds items by instant, the earliest first. Items with equal instants come out in an order that depends on
// nothing but the sequence of calls. The zero Heap is ready to use.
type Heap[T any] struct {
	// Invariant: nodes[i].item.pos == i+1 and nodes[i].at == nodes[i].item.at for every i, and no child is earlier than
	// its parent. The instant is repeated here so that comparisons do not follow pointers.
	nodes []node[T]
}

type node[T any] struct {
	at   int64
	item *Item[T]
}

// Len is the number of armed items.
func (h *Heap[T]) Len() int { return len(h.nodes) }

// Set arms the item to fall due at the given instant, or moves it there if it is armed already.
// REQUIRES: the item is not armed in another heap.
func (h *Heap[T]) Set(it *Item[T], at time.Time) {
	nanos := unixNano(at)
	if it.pos == 0 {
		it.at = nanos
		h.nodes = append(h.nodes, node[T]{at: nanos, item: it})
		h.up(len(h.nodes)-1, h.nodes[len(h.nodes)-1])
		return
	}
	if !h.holds(it) {
		panic("deadline: item is armed in another heap")
	}
	it.at = nanos
	h.fix(int(it.pos)-1, node[T]{at: nanos, item: it})
}

// Remove disarms the item and reports whether it was armed in this heap.
func (h *Heap[T]) Remove(it *Item[T]) bool {
	if !h.holds(it) {
		return false
	}
	i := int(it.pos) - 1
	it.pos = 0
	end := len(h.nodes) - 1
	moved := h.nodes[end]
	h.nodes[end] = node[T]{} // the array must not keep the item alive
	h.nodes = h.nodes[:end]
	if i != end {
		h.fix(i, moved)
	}
	h.shrink()
	return true
}

// PopDue disarms and returns one item that is due at now (its instant is not after now), the earliest first, or nil.
func (h *Heap[T]) PopDue(now time.Time) *Item[T] {
	if len(h.nodes) == 0 || h.nodes[0].at > unixNano(now) {
		return nil
	}
	it := h.nodes[0].item
	h.Remove(it)
	return it
}

// Next is the earliest instant in the heap; false when the heap is empty.
func (h *Heap[T]) Next() (time.Time, bool) {
	if len(h.nodes) == 0 {
		return time.Time{}, false
	}
	return h.nodes[0].item.At(), true
}

// Shift moves all instants by d, for example when their clock was set. O(n); the order stays.
func (h *Heap[T]) Shift(d time.Duration) {
	for i := range h.nodes {
		n := &h.nodes[i]
		n.at = saturatingAdd(n.at, int64(d))
		n.item.at = n.at
	}
}

// Each calls f for every armed item, in no order. f must not change the heap.
func (h *Heap[T]) Each(f func(*Item[T])) {
	for i := range h.nodes {
		f(h.nodes[i].item)
	}
}

func saturatingAdd(a, b int64) int64 {
	switch sum := a + b; {
	case b > 0 && sum < a:
		return math.MaxInt64
	case b < 0 && sum > a:
		return math.MinInt64
	default:
		return sum
	}
}

func (h *Heap[T]) holds(it *Item[T]) bool {
	return it.pos > 0 && int(it.pos) <= len(h.nodes) && h.nodes[it.pos-1].item == it
}

// fix puts n into the hole at i, then wherever its instant belongs.
func (h *Heap[T]) fix(i int, n node[T]) {
	if i > 0 && n.at < h.nodes[(i-1)/arity].at {
		h.up(i, n)
		return
	}
	h.down(i, n)
}

// up moves the hole at i towards the root until n may fill it.
func (h *Heap[T]) up(i int, n node[T]) {
	for i > 0 {
		parent := (i - 1) / arity
		if h.nodes[parent].at <= n.at {
			break
		}
		h.put(i, h.nodes[parent])
		i = parent
	}
	h.put(i, n)
}

// down moves the hole at i towards the leaves until n may fill it.
func (h *Heap[T]) down(i int, n node[T]) {
	for {
		first := i*arity + 1
		if first >= len(h.nodes) {
			break
		}
		least := first
		for c := first + 1; c < min(first+arity, len(h.nodes)); c++ {
			if h.nodes[c].at < h.nodes[least].at {
				least = c
			}
		}
		if n.at <= h.nodes[least].at {
			break
		}
		h.put(i, h.nodes[least])
		i = least
	}
	h.put(i, n)
}

func (h *Heap[T]) put(i int, n node[T]) {
	h.nodes[i] = n
	n.item.pos = int32(i + 1)
}

func (h *Heap[T]) shrink() {
	if c := cap(h.nodes); c > shrinkFloor && len(h.nodes) < c/4 {
		h.nodes = append(make([]node[T], 0, c/2), h.nodes...)
	}
}

// unixNano is t.UnixNano for every t: instants that int64 cannot express (before 1678, after 2262, the zero time) become
// the nearest one it can, where the standard library leaves the result undefined.
func unixNano(t time.Time) int64 {
	const edge = math.MaxInt64 / int64(time.Second)
	switch s := t.Unix(); {
	case s >= edge:
		return math.MaxInt64
	case s <= -edge:
		return math.MinInt64
	}
	return t.UnixNano()
}
