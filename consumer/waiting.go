package consumer

import (
	"container/list"
	"time"

	"github.com/penstockmq/penstock/broker/lite"
)

// goneAfter is when a cell that does not come back is forgotten: its bucket went to another pool, or was emptied. With many
// cells waiting they are held for longer, see limiter.hold.
const goneAfter = time.Minute

// waiting is the cells whose last answer was no. The zero value is ready. Not safe for concurrent use.
//
// The list is in order of the last ask, so what is to be forgotten is at its front: no search.
type waiting struct {
	cells map[lite.Cell]*list.Element
	order list.List // of *waiter
}

type waiter struct {
	cell  lite.Cell
	asked time.Time
}

func (w *waiting) len() int { return len(w.cells) }

// note is a no to c.
func (w *waiting) note(c lite.Cell, now time.Time) {
	if w.cells == nil {
		w.cells = make(map[lite.Cell]*list.Element)
	}
	if e := w.cells[c]; e != nil {
		e.Value.(*waiter).asked = now
		w.order.MoveToBack(e)
		return
	}
	w.cells[c] = w.order.PushBack(&waiter{cell: c, asked: now})
	w.drop(now, 2) // one more than was added
}

// forget is a yes to c.
func (w *waiting) forget(c lite.Cell) {
	if e := w.cells[c]; e != nil {
		w.order.Remove(e)
		delete(w.cells, c)
	}
}

// drop forgets up to limit cells that do not come back, and says whether that was all.
func (w *waiting) drop(now time.Time, limit int) bool {
	patience := max(goneAfter, 2*time.Duration(len(w.cells))*recheckEach)
	for range limit {
		front := w.order.Front()
		if front == nil {
			return true
		}
		p := front.Value.(*waiter)
		if now.Sub(p.asked) < patience {
			return true
		}
		w.forget(p.cell)
	}
	return false
}
