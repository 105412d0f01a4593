package gateway

import (
	"sync"
	"time"

	"github.com/penstockmq/penstock/broker/lite"
	"github.com/penstockmq/penstock/suspend/deadline"
	"github.com/penstockmq/penstock/suspend/limit"
	"github.com/penstockmq/penstock/suspend/policy"
)

// admission decides whether a request may enter its bucket: the fixed window as a hard cap, and the depth caps as the
// bucket's rim. It counts what this gateway let in: several gateways each have the whole of a cell's window and caps,
// and the broker's own cap is the one for all of them.
//
// A place is held from before the send until the gateway hears of a worker that has the request: with the head of its
// answer at the latest. An asynchronous request has nobody who waits for that moment; its place is looked after when it is
// needed: a cell that is full asks for the records of its oldest asynchronous requests before it refuses (see oldest). A
// bucket is first in, first out, so the oldest leave first.
//
// A cell is kept only while it holds places or a window with something used, so memory follows what is queued and not
// how many names were ever seen.
type admission struct {
	mu    sync.Mutex // guards the following fields; held for O(log n), never across a call that waits
	cells map[lite.Cell]*cell
	drop  deadline.Heap[*cell] // cells by the instant at which to look whether they are still needed
}

// cell is what the gateway knows about one user and model.
//
// Invariant: it is in admission.cells iff it holds places or charges of a window that has not ended.
type cell struct {
	key    lite.Cell
	window limit.WindowState
	ends   time.Time // end of the window charged last; zero: never charged
	queued int64     // places held
	bytes  int64     // body bytes of them
	async  []*place  // those of asynchronous requests, in order of arrival; some may be free already
	until  time.Time // the latest deadline of those
	drain  drain
	drop   deadline.Item[*cell]
}

// place is one request's share of its cell.
type place struct {
	cell     *cell
	bytes    int64
	window   *limit.FixedWindow // charged; nil: none
	windowAt int64              // UnixNano of the charge
	id       string             // of an asynchronous request, else empty
	until    time.Time          // its deadline
	free     bool
}

// ask is one request for a place.
type ask struct {
	cell   lite.Cell
	bytes  int64
	limits policy.Limits
	async  string    // id of an asynchronous request, else empty
	until  time.Time // its deadline
}

func newAdmission() *admission {
	return &admission{cells: make(map[lite.Cell]*cell)}
}

// take gives q a place and charges its window, or says why not: all or nothing.
func (a *admission) take(now time.Time, q ask) (*place, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.dropDue(now)
	c := a.cells[q.cell]
	if c == nil {
		c = &cell{key: q.cell}
		c.drop.Value = c
	}
	if err := c.full(now, q); err != nil {
		return nil, err
	}
	p := &place{cell: c, bytes: q.bytes, id: q.async, until: q.until}
	if w := q.limits.Window; w != nil && q.limits.WindowAt == policy.Admission {
		state, d := w.Take(c.window, now, 1)
		c.window = state
		if !d.Allowed {
			return nil, after(errRate, d.RetryAt.Sub(now), "rate limit reached: %s for this user and model", w)
		}
		p.window, p.windowAt = w, state.At
		c.ends = windowEnd(*w, time.Unix(0, state.At))
	}
	c.hold(now, p)
	a.cells[c.key] = c
	a.review(now, c)
	return p, nil
}

func (c *cell) hold(now time.Time, p *place) {
	if c.queued == 0 {
		c.drain.last = now // an empty bucket frees no places: the pause says nothing about the pace
	}
	c.queued++
	c.bytes += p.bytes
	if p.id == "" {
		return
	}
	c.async = append(c.async, p)
	if p.until.After(c.until) {
		c.until = p.until
	}
}

// isFull reports whether q's cell has no room for it: then it is worth looking for places that are held in vain. It promises
// nothing.
func (a *admission) isFull(q ask) bool {
	l := q.limits
	if l.Depth == 0 && l.DepthBytes == 0 {
		return false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	c := a.cells[q.cell]
	return c != nil && (l.Depth > 0 && c.queued >= l.Depth || l.DepthBytes > 0 && c.bytes+q.bytes > l.DepthBytes)
}

// full checks the depth caps. A refusal is a promise, see drain.
func (c *cell) full(now time.Time, q ask) error {
	l := q.limits
	switch {
	case l.Depth > 0 && c.queued >= l.Depth:
		return after(errQueueFull, c.retry(now, l), "the queue of this user and model holds %d requests, its maximum", l.Depth)
	case l.DepthBytes > 0 && q.bytes > l.DepthBytes:
		return refuse(errTooLarge, "", "the body has %d bytes, the queue of this user and model takes %d", q.bytes, l.DepthBytes)
	case l.DepthBytes > 0 && c.bytes+q.bytes > l.DepthBytes:
		return after(errQueueFull, c.retry(now, l), "the queue of this user and model holds %d of %d bytes", c.bytes, l.DepthBytes)
	}
	return nil
}

func (c *cell) retry(now time.Time, l policy.Limits) time.Duration {
	return c.drain.promise(now, paceOf(l, now), c.queued)
}

// retryAfter is when to try again after the broker has said that p's bucket is full.
func (a *admission) retryAfter(now time.Time, p *place, l policy.Limits) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	return p.cell.retry(now, l)
}

// leave frees p: its request is with a worker, or gone. It may be called more than once.
func (a *admission) leave(now time.Time, p *place) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if p.release() {
		p.cell.drain.freed(now)
		a.review(now, p.cell)
	}
}

// refund frees p as if it had never been taken: the send failed. What it was charged goes back to its window, unless
// that has ended.
func (a *admission) refund(now time.Time, p *place) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !p.release() {
		return
	}
	c := p.cell
	if w := p.window; w != nil && c.window.Used > 0 && windowIndex(*w, p.windowAt) == windowIndex(*w, c.window.At) {
		c.window.Used--
	}
	a.review(now, c)
}

// untrack frees p without a worker having taken its request: the pace of the cell is not known from it.
func (a *admission) untrack(now time.Time, p *place) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if p.release() {
		a.review(now, p.cell)
	}
}

// release gives the place back to its cell, once. REQUIRES: admission.mu is held.
func (p *place) release() bool {
	if p.free {
		return false
	}
	p.free = true
	p.cell.queued--
	p.cell.bytes -= p.bytes
	return true
}

// review sees to it that c is looked at again when something about it changes by itself, and forgets it when nothing is
// left of it. REQUIRES: mu is held.
func (a *admission) review(now time.Time, c *cell) {
	c.trim()
	switch {
	case len(c.async) > 0:
		a.drop.Set(&c.drop, c.until)
	case c.queued > 0:
		a.drop.Remove(&c.drop)
	case c.ends.After(now) && c.window.Used > 0:
		a.drop.Set(&c.drop, c.ends)
	default:
		a.drop.Remove(&c.drop)
		delete(a.cells, c.key)
	}
}

// dropDue looks at the cells whose instant has come: asynchronous requests whose deadline passed hold no place any more.
// REQUIRES: mu is held.
func (a *admission) dropDue(now time.Time) {
	for it := a.drop.PopDue(now); it != nil; it = a.drop.PopDue(now) {
		c := it.Value
		for _, p := range c.async { // all are due: c.until is the latest
			if p.release() {
				c.drain.freed(now)
			}
		}
		a.review(now, c)
	}
}

// trim forgets asynchronous places that are free, from the front.
func (c *cell) trim() {
	for len(c.async) > 0 && c.async[0].free {
		c.async[0] = nil
		c.async = c.async[1:]
	}
	if len(c.async) == 0 {
		c.async, c.until = nil, time.Time{}
	}
}

// oldest returns up to n of the cell's places that asynchronous requests hold, the oldest first.
func (a *admission) oldest(key lite.Cell, n int) []*place {
	a.mu.Lock()
	defer a.mu.Unlock()
	c := a.cells[key]
	if c == nil {
		return nil
	}
	c.trim()
	return append([]*place(nil), c.async[:min(n, len(c.async))]...)
}

// find returns the place of asynchronous request id, nil if it has none here.
func (a *admission) find(key lite.Cell, id string) *place {
	a.mu.Lock()
	defer a.mu.Unlock()
	c := a.cells[key]
	if c == nil {
		return nil
	}
	for _, p := range c.async {
		if p.id == id {
			return p
		}
	}
	return nil
}

// counts returns how many cells are known and how many places are held.
func (a *admission) counts() (cells int, queued int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, c := range a.cells {
		queued += c.queued
	}
	return len(a.cells), queued
}
