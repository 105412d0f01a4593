package mq

import (
	"container/list"
	"context"
	"errors"
	"sync"
	"time"
)

const (
	// renewals bounds the concurrent renewals.
	renewals = 64
	// outagePatience is the time past its end for which a lease counts as held while a broker with honest renewals does not
	// answer. A broker that was paused or restarted prolongs leases by its downtime, so the lease most likely goes on; and if
	// the broker did deliver the message again, ending this call would not undo the second delivery.
	outagePatience = 2 * time.Minute
)

// lease is the claim on one delivered message. Its first two fields never change.
type lease struct {
	id, lite string

	// The following fields belong to leases.mu.
	handle  string
	until   time.Time // end of the lease; the broker may deliver the message again after it, unless the broker was down
	renewAt time.Time
	lose    context.CancelCauseFunc
	place   *list.Element // in leases.running; nil when it is not there
	renewed chan struct{} // not nil while a renewal is under way; closed at its end
}

// renewFunc extends a lease and returns the new handle.
type renewFunc func(ctx context.Context, handle string, l *lease) (string, error)

// leases keeps the leases of running messages alive: each is renewed when a third of it is over, so that two renewals in
// a row may fail.
//
// All renewals have one period, so a list in order of renewal is a queue and no heap is needed. With a broker without
// penstock.v1's Renew a renewal may make the old handle stale, so a message is settled only while no renewal is running (see end).
type leases struct {
	// Immutable.
	invisible time.Duration
	renew     renewFunc
	patience  func() time.Duration // time past its end for which a lease counts as held while the broker does not answer

	mu      sync.Mutex // guards the following field and the leases in it; not held over a renewal
	running *list.List // of *lease, by renewAt
	// soon wakes run when another lease became the first.
	soon chan struct{}
}

func newLeases(invisible time.Duration, renew renewFunc, patience func() time.Duration) *leases {
	return &leases{invisible: invisible, renew: renew, patience: patience, running: list.New(), soon: make(chan struct{}, 1)}
}

func (ls *leases) period() time.Duration { return ls.invisible / 3 }

// confirm returns the instant from which the lease of a delivery counts, or false if the lease has ended. A delivery may have
// waited in the network, or in the socket of a process or machine that was stopped, and only the broker knows for how long:
// its lease is at most as old as the request for it. If the first renewal would be due by that, the delivery does not begin
// before the renewal. The wall clock is checked as well, since the monotonic clock stands still while a machine sleeps.
//
// An unreachable broker is asked again until the lease would have ended. A refusal of the call does not prove that the lease
// has ended: then the lease counts from the arrival of the delivery. The broker is not asked again after ctx has ended.
func (ls *leases) confirm(ctx context.Context, l *lease, asked, received time.Time) (from time.Time, ok bool) {
	age := max(received.Sub(asked), received.Round(0).Sub(asked.Round(0)))
	if age < ls.period() {
		return asked, true
	}
	for n := 1; ctx.Err() == nil; n++ {
		from := time.Now()
		handle, err := ls.renew(context.WithoutCancel(ctx), l.handle, l)
		switch {
		case err == nil:
			if handle != "" {
				l.handle = handle // no other goroutine knows l before begin
			}
			return from, true
		case errors.Is(err, errStale):
			return time.Time{}, false
		case hopeless(err):
			return received, true
		}
		if time.Since(received) >= ls.invisible {
			return time.Time{}, false
		}
		pause(ctx, retryDelay(n))
	}
	return received, true // it is given back
}

// begin keeps l alive from now on; lose is called if that fails.
func (ls *leases) begin(l *lease, now time.Time, lose context.CancelCauseFunc) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	l.until, l.lose = now.Add(ls.invisible), lose
	ls.pushLocked(l, now.Add(ls.period()))
}

// pushLocked puts l into the queue. A retry of a failed renewal is sooner than a period; it walks the queue from the back,
// which is as long as the outage is wide and only then.
func (ls *leases) pushLocked(l *lease, at time.Time) {
	l.renewAt = at
	e := ls.running.Back()
	for e != nil && e.Value.(*lease).renewAt.After(at) {
		e = e.Prev()
	}
	if e != nil {
		l.place = ls.running.InsertAfter(l, e)
		return
	}
	l.place = ls.running.PushFront(l)
	select {
	case ls.soon <- struct{}{}:
	default:
	}
}

// end stops the renewal of l, waits up to callTimeout for a running renewal, and returns the handle to settle with and the
// time for which settling is worth a try.
func (ls *leases) end(l *lease) (handle string, until time.Time) {
	for {
		ls.mu.Lock()
		if l.place != nil {
			ls.running.Remove(l.place)
			l.place = nil
		}
		renewed := l.renewed
		handle, until = l.handle, l.until
		if renewed == nil {
			l.lose = nil
			ls.mu.Unlock()
			return handle, until.Add(ls.patience())
		}
		ls.mu.Unlock()
		<-renewed
	}
}

// run renews until ctx ends.
func (ls *leases) run(ctx context.Context) {
	limit := make(chan struct{}, renewals)
	var wg sync.WaitGroup
	defer wg.Wait()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		// A lease leaves the queue only when its renewal can begin at once: end waits for running renewals, and must not wait
		// behind those of other leases.
		select {
		case limit <- struct{}{}:
		case <-ctx.Done():
			return
		}
		l, next := ls.due(time.Now())
		if l != nil {
			wg.Go(func() {
				defer func() { <-limit }()
				ls.renewOne(ctx, l)
			})
			continue
		}
		<-limit
		timer.Reset(next)
		select {
		case <-ctx.Done():
			return
		case <-ls.soon:
		case <-timer.C:
		}
	}
}

// due takes the first lease out of the queue if its renewal is due; otherwise it returns the instant to look again.
func (ls *leases) due(now time.Time) (l *lease, next time.Duration) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	e := ls.running.Front()
	if e == nil {
		return nil, time.Hour
	}
	l = e.Value.(*lease)
	if wait := l.renewAt.Sub(now); wait > 0 {
		return nil, wait
	}
	ls.running.Remove(e)
	l.place, l.renewed = nil, make(chan struct{})
	return l, 0
}

func (ls *leases) renewOne(ctx context.Context, l *lease) {
	ls.mu.Lock()
	handle, until := l.handle, l.until
	ls.mu.Unlock()

	asked := time.Now()
	patience := ls.patience()
	call, cancel := context.WithCancel(ctx)
	if patience == 0 { // the broker would answer OK to a renewal after the end
		call, cancel = context.WithDeadline(ctx, until)
	}
	next, err := ls.renew(call, handle, l)
	cancel()
	if passes(err) {
		until = until.Add(patience)
	}

	ls.mu.Lock()
	defer ls.mu.Unlock()
	close(l.renewed)
	l.renewed = nil
	now := time.Now()
	switch {
	case err == nil:
		if next != "" {
			l.handle = next
		}
		l.until = asked.Add(ls.invisible)
		ls.pushLocked(l, asked.Add(ls.period()))
	case errors.Is(err, errStale) || !now.Before(until):
		if l.lose != nil {
			l.lose(ErrLeaseLost)
		}
	default:
		ls.pushLocked(l, now.Add(min(time.Second, ls.period(), max(until.Sub(now), 0))))
	}
	// end may be waiting; then the lease goes out of the queue again at once.
}
