package gateway

import (
	"time"

	"github.com/penstockmq/penstock/suspend/policy"
)

const (
	// drainMax bounds a Retry-After: beyond an hour an estimate is a guess about tomorrow.
	drainMax = time.Hour

	// drainWeight is how much one more interval counts in the smoothed one: 1/drainWeight.
	drainWeight = 8
)

// drain estimates when places in a full bucket become free, and promises each to one refused caller.
//
// A place is freed when a worker takes a request out of the bucket, so places come at the pace of the cell: that of its
// limit if it has one, and never faster than was measured. If none has come for longer than that, a suspend or a
// busy model holds the bucket, and the silence so far is the best guess of the interval.
//
// Each refused caller is told the instant of the next place that nobody was told yet. Were all told the same one, they
// would come back together, and all but one would be refused again. The caller who was promised the latest place and asks
// again before its time, over the same connection, is told the same instant and takes no second place.
type drain struct {
	last     time.Time     // a place was freed, or the measuring began
	every    time.Duration // smoothed interval between freed places; 0: none measured
	promised time.Time     // the latest instant that was promised
	to       caller        // who it was promised to
}

// freed notes that a place was freed at the instant now.
func (d *drain) freed(now time.Time) {
	since := max(now.Sub(d.last), 0)
	d.last = now
	if d.every == 0 {
		d.every = since
		return
	}
	d.every += (since - d.every) / drainWeight
}

// promise returns how long to wait for the next place that nobody was told yet. depth is how many requests are queued:
// once all of them have gone, there is room in any case.
func (d *drain) promise(now time.Time, p pace, depth int64, who caller) time.Duration {
	if d.promised.After(now) && who.conn == d.to.conn {
		return min(d.promised.Sub(now), drainMax)
	}
	interval := max(d.every, p.interval)
	if silence := now.Sub(d.last); d.every == 0 && p.interval == 0 || silence > 2*interval {
		interval = silence
	}
	interval = max(interval, time.Millisecond)

	next := d.last.Add(interval)
	if !next.After(now) {
		next = now.Add(interval)
	}
	if p.opens.After(next) {
		next = p.opens
	}
	empty := next.Add(times(interval, max(depth-1, 0)))
	if later := d.promised.Add(interval); later.After(next) {
		next = later
	}
	if next.After(empty) {
		next = empty
	}
	d.promised, d.to = next, who
	return min(next.Sub(now), drainMax)
}

// times is n·d, at most drainMax.
func times(d time.Duration, n int64) time.Duration {
	if n > 0 && d > drainMax/time.Duration(n) {
		return drainMax
	}
	return d * time.Duration(n)
}

// pace is how fast a policy lets a cell's requests out of the bucket.
type pace struct {
	interval time.Duration // between two; 0: as fast as the workers take them
	opens    time.Time     // none may come before; zero: any time
}

// paceOf reads the pace from the limits that keep a request in its bucket. A window may be used up, which the gateway cannot
// see, so with one only its end is a sure time.
func paceOf(l policy.Limits, now time.Time) pace {
	var p pace
	if l.Leaky != nil {
		p.interval = ceilDiv(l.Leaky.Rate.Per, l.Leaky.Rate.Events)
	}
	if l.Window != nil && l.WindowAt == policy.Release {
		p.interval = max(p.interval, ceilDiv(l.Window.Window, l.Window.Limit))
		p.opens = l.Window.End(now)
	}
	return p
}

func ceilDiv(d time.Duration, n int64) time.Duration {
	if n <= 0 {
		return d
	}
	return (d + time.Duration(n) - 1) / time.Duration(n)
}
