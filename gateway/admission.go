package gateway

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/penstockmq/penstock/broker/lite"
	"github.com/penstockmq/penstock/suspend/deadline"
)

// admission decides whether a request may enter its bucket: the fixed windows as hard caps, and the depth caps as the
// bucket's rim. All windows that hold for the request and the rim are asked as one: it takes its share of all of them, or
// of none. Shadow rules are asked beside, as one as well; what they would refuse is counted.
//
// Windows hold for all gateways together: what this one may let in it is granted from an account of all, see sharedWindows.
// Depths and shadow rules are counted by this gateway alone. A Penstock broker checks the depths for all senders; this count
// saves calls that the broker would refuse, and replaces its check with a RocketMQ cluster.
//
// A place is held from before the send until the gateway hears of a worker that has the request: with the head of its
// answer at the latest. An asynchronous request has nobody who waits for that moment; its place is looked after when it is
// needed: a cell that is full asks for the records of its oldest asynchronous requests before it refuses (see oldest). A
// bucket is first in, first out, so the oldest leave first.
//
// A cell is kept only while it holds places, an account only until its window ends, so memory follows what is there and not
// how many names were ever seen.
type admission struct {
	metrics *Metrics
	log     *slog.Logger
	shared  *sharedWindows // counts for all gateways; nil: this one counts alone

	mu       sync.Mutex // guards the following fields; held for O(log n), never across a call that waits
	cells    map[lite.Cell]*cell
	drop     deadline.Heap[*cell] // cells by the latest deadline of their asynchronous places
	accounts accounts
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

func newAdmission(m *Metrics, log *slog.Logger, s *sharedWindows) *admission {
	return &admission{metrics: m, log: log, shared: s, cells: make(map[lite.Cell]*cell), accounts: newAccounts(s != nil)}
}

// claimMost bounds how often one request gets a grant that others then use up before it.
const claimMost = 64

// admit is take with the grants that it needs. It waits for them, and holds nothing while it does.
func (a *admission) admit(ctx context.Context, q ask) (pass, error) {
	for range claimMost {
		p, err := a.take(time.Now().Round(0), q)
		c, ok := errors.AsType[*claim](err)
		if !ok {
			return p, err
		}
		a.fetch(ctx, c)
		if ctx.Err() != nil {
			return pass{}, reason(context.Cause(ctx))
		}
	}
	return pass{}, after(errBusy, time.Second, "too many requests ask for the same limit at once")
}

// take gives q a place and charges its windows, or says why not: all or nothing. A *claim says that it cannot tell yet.
//
// The windows come before the rim: they know the instant at which they open, and a caller that is told less than that
// would be refused again.
func (a *admission) take(now time.Time, q ask) (pass, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.dropDue(now)
	binds, refused, need := a.accounts.ask(now, q.place, &q.windows, false)
	if refused != 0 {
		a.metrics.Limited[binds.scope].Add(1)
		return pass{}, binds.refusal(now, q.caller)
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
	if need != nil {
		return pass{}, need
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
	_, w.limit, _ = a.accounts.ask(now, q.place, &q.shadowWindows, true)
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
