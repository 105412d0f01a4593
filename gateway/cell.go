package gateway

import (
	"time"

	"github.com/penstockmq/penstock/broker/lite"
	"github.com/penstockmq/penstock/suspend/deadline"
)

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
