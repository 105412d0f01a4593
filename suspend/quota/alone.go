package quota

import (
	"container/list"
	"time"

	"github.com/penstockmq/penstock/suspend"
)

// alone is the cells whose bucket waits by itself: another account's window has room, but not for what its message costs. Its own
// gate's timer is the end of that window. Room that comes before that, as a message was given back or a signal leaves more of
// the window, opens no gate that anybody watches: so those who would fit then are found here.
//
// The zero alone is ready. What waits costs two map entries and a list's element; what does not, nothing.
type alone struct {
	of   map[*account]*list.List    // of waiting, in the order they came, by the account whose window it is
	cell map[*account]*list.Element // the same, by the cell
}

// waiting is one cell that waits.
type waiting struct {
	cell, of *account
	requests int64 // what its message costs
}

// join notes that a cell waits for room for so many requests in the window of another account.
func (w *alone) join(cell, of *account, requests int64) {
	w.leave(cell)
	if w.of == nil {
		w.of, w.cell = make(map[*account]*list.List), make(map[*account]*list.Element)
	}
	l := w.of[of]
	if l == nil {
		l = list.New()
		w.of[of] = l
	}
	w.cell[cell] = l.PushBack(waiting{cell: cell, of: of, requests: requests})
}

// leave notes that a cell does not wait any more.
func (w *alone) leave(cell *account) {
	e := w.cell[cell]
	if e == nil {
		return
	}
	delete(w.cell, cell)
	of := e.Value.(waiting).of
	l := w.of[of]
	l.Remove(e)
	if l.Len() == 0 {
		delete(w.of, of)
		if len(w.of) == 0 {
			*w = alone{} // maps never shrink on their own
		}
	}
}

// fit calls f for each cell whose message costs at most room in the window of an account. It leaves.
func (w *alone) fit(of *account, room int64, f func(cell *account)) {
	l := w.of[of]
	if l == nil {
		return
	}
	for e := l.Front(); e != nil; {
		next := e.Next()
		if x := e.Value.(waiting); x.requests <= room {
			w.leave(x.cell)
			f(x.cell)
		}
		e = next
	}
}

// room is how many requests the account's window has left; false if it has none.
func (a *account) room(now time.Time) (int64, bool) {
	m, ok := a.meter(kindWindow).(*windowMeter)
	if !ok {
		return 0, false
	}
	_, d := m.law.Peek(m.state, now, 0)
	return d.Remaining, true
}

// rejoin has those who wait alone for the account's window look again if they fit into it now.
func (l *Ledger) rejoin(now time.Time, a *account, f func(cell *account)) {
	if l.alone.of[a] == nil {
		return
	}
	room, ok := a.room(now)
	if !ok {
		return // the window is gone with its policy, whose review finds them
	}
	l.alone.fit(a, room, func(cell *account) {
		l.unpark(now, cell)
		f(cell)
	})
}

// reopen lets a cell that does not wait alone any more come out of Free.
func (l *Ledger) reopen(cell *account) {
	l.opened = append(l.opened, suspend.Target{Scope: suspend.Bucket, Name: cell.name})
}
