package gateway

import (
	"errors"
	"sync"
	"time"

	"github.com/penstockmq/penstock/broker/lite"
	"github.com/penstockmq/penstock/suspend/deadline"
)

// admission decides whether a request may enter its bucket: the fixed windows as hard caps, and the depth caps as the
// bucket's rim. All windows that hold for the request and the rim are asked as one: it takes its share of all of them, or
// of none. Shadow rules are asked beside, as one as well; what they would refuse is counted.
//
// It counts what this gateway let in: several gateways each have the whole of a window and of a depth. What is exact for
// any number of gateways is what the broker asks: limits at release, and its own caps. See the package comment.
//
// A place is held from before the send until the gateway hears of a worker that has the request: with the head of its
// answer at the latest. An asynchronous request has nobody who waits for that moment; its place is looked after when it is
// needed: a cell that is full asks for the records of its oldest asynchronous requests before it refuses (see oldest). A
// bucket is first in, first out, so the oldest leave first.
//
// A cell is kept only while it holds places, an account only while something of its window is used, so memory follows what
// is there and not how many names were ever seen.
type admission struct {
	metrics *Metrics

	mu       sync.Mutex // guards the following fields; held for O(log n), never across a call that waits
	cells    map[lite.Cell]*cell
	drop     deadline.Heap[*cell] // cells by the latest deadline of their asynchronous places
	accounts accounts
}

// cell is what the gateway knows about one user and model. Invariant: it is in admission.cells iff it holds places.
type cell struct {
	key    lite.Cell
	queued int64     // places held
	bytes  int64     // body bytes of them
	async  []*place  // those of asynchronous requests, in order of arrival; some may be free already
	until  time.Time // the latest deadline of those
	drain  drain
	drop   deadline.Item[*cell]
}

// place is one request's share of its cell.
type place struct {
	cell  *cell
	bytes int64
	id    string    // of an asynchronous request, else empty
	until time.Time // its deadline
	free  bool
}

// ask is one request for a place.
type ask struct {
	rules
	caller caller
	bytes  int64
	async  string    // id of an asynchronous request, else empty
	until  time.Time // its deadline
}

func (q *ask) key() lite.Cell { return lite.Cell{User: q.place.User, Model: q.place.Model} }

// pass is what a request that was let in has taken.
type pass struct {
	place   *place
	charges []charge // for a refund
	tight   quota    // the limit that is nearest to refusing
	would   would
}

// would is what shadow rules would have done. The zero value would have let the request in.
type would struct {
	limit scopeSet
	fill  bool
}

func newAdmission(m *Metrics) *admission {
	return &admission{metrics: m, cells: make(map[lite.Cell]*cell), accounts: newAccounts()}
}

// take gives q a place and charges its windows, or says why not: all or nothing.
//
// The windows come before the rim: they know the instant at which they open, and a caller that is told less than that
// would be refused again.
func (a *admission) take(now time.Time, q ask) (pass, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.dropDue(now)
	if c, refused := a.accounts.ask(now, q.place, &q.windows, false); refused != 0 {
		a.metrics.Limited[c.scope].Add(1)
		return pass{}, c.refusal(now, q.caller)
	}
	c := a.cells[q.key()]
	if c == nil {
		c = &cell{key: q.key()}
		c.drop.Value = c
	}
	if err := c.full(now, q); err != nil {
		if errors.Is(err, errQueueFull) {
			a.metrics.Full.Add(1)
		}
		return pass{}, err
	}
	p := pass{place: &place{cell: c, bytes: q.bytes, id: q.async, until: q.until}}
	p.would = a.shadow(now, q, c, &p)
	list, tight := a.accounts.charge(now, q.place, &q.windows, false)
	p.charges, p.tight = append(p.charges, list...), tight
	c.hold(now, p.place)
	if p.tight.isZero() && q.cell.Depth > 0 {
		p.tight = depthQuota(q.cell.Depth, c.queued, time.Time{})
	}
	a.cells[c.key] = c
	a.review(c)
	return p, nil
}

// shadow asks the shadow rules as one. If all of them would let q in, it is charged to them. REQUIRES: mu is held.
func (a *admission) shadow(now time.Time, q ask, c *cell, p *pass) (w would) {
	l := &q.shadow
	w.fill = l.Depth > 0 && c.queued >= l.Depth || l.DepthBytes > 0 && c.bytes+q.bytes > l.DepthBytes
	_, w.limit = a.accounts.ask(now, q.place, &q.shadowWindows, true)
	if w == (would{}) {
		p.charges, _ = a.accounts.charge(now, q.place, &q.shadowWindows, true)
	}
	return w
}

// refusal is what a caller is told of a closed window.
func (c closed) refusal(now time.Time, who caller) error {
	err := after(errRate, c.account.crowd.wait(now, c.until, who), "rate limit reached: %s for %s", c.window, whose(c.scope))
	err.quota = windowQuota(c.scope, c.window, 0, c.until)
	return err
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
	l := &q.cell
	if l.Depth == 0 && l.DepthBytes == 0 {
		return false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	c := a.cells[q.key()]
	return c != nil && (l.Depth > 0 && c.queued >= l.Depth || l.DepthBytes > 0 && c.bytes+q.bytes > l.DepthBytes)
}

// full checks the depth caps. A refusal is a promise, see drain.
func (c *cell) full(now time.Time, q ask) error {
	l := &q.cell
	switch {
	case l.Depth > 0 && c.queued >= l.Depth:
		d := c.retry(now, q)
		err := after(errQueueFull, d, "the queue of this user and model holds %d requests, its maximum", l.Depth)
		err.quota = depthQuota(l.Depth, c.queued, now.Add(d))
		return err
	case l.DepthBytes > 0 && q.bytes > l.DepthBytes:
		return refuse(errTooLarge, "", "the body has %d bytes, the queue of this user and model takes %d", q.bytes, l.DepthBytes)
	case l.DepthBytes > 0 && c.bytes+q.bytes > l.DepthBytes:
		return after(errQueueFull, c.retry(now, q), "the queue of this user and model holds %d of %d bytes", c.bytes, l.DepthBytes)
	}
	return nil
}

func (c *cell) retry(now time.Time, q ask) time.Duration {
	return c.drain.promise(now, paceOf(q.cell, now), c.queued, q.caller)
}

// brokerFull is when to try again after the broker has said that the bucket of p, which q got, is full.
func (a *admission) brokerFull(now time.Time, p *place, q ask) time.Duration {
	a.metrics.Full.Add(1)
	a.mu.Lock()
	defer a.mu.Unlock()
	return p.cell.retry(now, q)
}

// leave frees p: its request is with a worker, or gone. It may be called more than once.
func (a *admission) leave(now time.Time, p *place) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if p.release() {
		p.cell.drain.freed(now)
		a.review(p.cell)
	}
}

// refund takes p back as if it had never been given: the send failed. It may be called more than once.
func (a *admission) refund(p pass) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if p.place.release() {
		a.accounts.refund(p.charges)
		a.review(p.place.cell)
	}
}

// untrack frees p without a worker having taken its request: the pace of the cell is not known from it.
func (a *admission) untrack(p *place) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if p.release() {
		a.review(p.cell)
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
func (a *admission) review(c *cell) {
	c.trim()
	switch {
	case len(c.async) > 0:
		a.drop.Set(&c.drop, c.until)
	case c.queued > 0:
		a.drop.Remove(&c.drop)
	default:
		a.drop.Remove(&c.drop)
		delete(a.cells, c.key)
	}
}

// dropDue looks at what the clock alone has changed: windows that ended, and asynchronous requests whose deadline passed,
// which hold no place any more. REQUIRES: mu is held.
func (a *admission) dropDue(now time.Time) {
	a.accounts.dropDue(now)
	for it := a.drop.PopDue(now); it != nil; it = a.drop.PopDue(now) {
		c := it.Value
		for _, p := range c.async { // all are due: c.until is the latest
			if p.release() {
				c.drain.freed(now)
			}
		}
		a.review(c)
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

// counts returns how many cells and accounts are known and how many places are held.
func (a *admission) counts() (cells, accounts int, queued int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, c := range a.cells {
		queued += c.queued
	}
	return len(a.cells), len(a.accounts.open), queued
}
