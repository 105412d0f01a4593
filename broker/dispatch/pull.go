package dispatch

import (
	"fmt"
	"time"

	"github.com/penstockmq/penstock/suspend/deadline"
)

// Waiter is a poll that waits. It is the machine's until it is ended, see Effects.
type Waiter struct {
	// Tag is the caller's.
	Tag any

	item      deadline.Item[*Waiter] // armed while it waits
	member    *member
	max       int
	invisible time.Duration
	autoRenew bool
	attemptID string
	links     [queues]waiterLinks
}

// The two queues a waiter can be in.
const (
	// ofMember: all waiters of a client in a group.
	ofMember = iota
	// ofGroup: those of the group's wildcard clients.
	ofGroup
	queues
)

type waiterLinks struct {
	prev, next *Waiter
	linked     bool
}

// waitQueue is a list of waiters, oldest first, through their links of one kind.
type waitQueue struct {
	head, tail *Waiter
	len        int
}

func (q *waitQueue) push(w *Waiter, kind int) {
	w.links[kind] = waiterLinks{prev: q.tail, linked: true}
	if q.tail == nil {
		q.head = w
	} else {
		q.tail.links[kind].next = w
	}
	q.tail = w
	q.len++
}

func (q *waitQueue) remove(w *Waiter, kind int) {
	l := w.links[kind]
	if !l.linked {
		return
	}
	if l.prev == nil {
		q.head = l.next
	} else {
		l.prev.links[kind].next = l.next
	}
	if l.next == nil {
		q.tail = l.prev
	} else {
		l.next.links[kind].prev = l.prev
	}
	w.links[kind] = waiterLinks{}
	q.len--
}

// Pull takes a poll in. The next Match answers it, if it can, and a later one if not.
// A poll that repeats an attempt id is answered at once when messages of the first
// one are still out.
// Errors: ErrNoGroup, ErrTooManyWaiters.
func (m *Machine) Pull(now time.Time, r PullRequest) (*Waiter, error) {
	defer m.check(now)
	g := m.group(r.Group)
	if g == nil {
		return nil, fmt.Errorf("%w: %d", ErrNoGroup, r.Group)
	}
	if m.cfg.MaxWaiters > 0 && m.polls.Len() >= m.cfg.MaxWaiters {
		return nil, fmt.Errorf("%w: %d on %q", ErrTooManyWaiters, m.polls.Len(), m.cfg.Name)
	}
	w := &Waiter{max: max(1, r.Max), invisible: r.Invisible, autoRenew: r.AutoRenew, attemptID: r.AttemptID}
	if w.invisible <= 0 {
		w.invisible = defaultInvisible
	}
	w.item.Value = w
	w.member = m.member(g, m.heard(now, r.Client))
	if m.replay(now, w) {
		return w, nil
	}
	m.polls.Set(&w.item, r.Until)
	w.member.waiters.push(w, ofMember)
	if w.member.wildcard {
		g.waiting.push(w, ofGroup)
		m.wake(g)
	} else {
		m.eager(w.member)
	}
	return w, nil
}

// replay answers a poll that repeats an earlier one with what of that is still out:
// the client did not get the answer. Nothing is counted as a delivery.
func (m *Machine) replay(now time.Time, w *Waiter) bool {
	if w.attemptID == "" {
		return false
	}
	b := w.member.client.batches[batchKey{w.member.g.cfg.ID, w.attemptID}]
	if b == nil {
		return false
	}
	first := len(m.out.items)
	for _, l := range b.leases {
		if until := now.Add(w.invisible); until.After(l.item.At()) {
			m.leases.Set(&l.item, until)
			m.putLease(l)
		}
		m.out.items = append(m.out.items, l.itemOut())
	}
	m.deliver(w, first)
	return true
}

// deliver answers a poll with the items from index first on.
func (m *Machine) deliver(w *Waiter, first int) {
	n := len(m.out.items)
	m.out.Deliveries = append(m.out.Deliveries, Delivery{Waiter: w, Items: m.out.items[first:n:n]})
}

// CancelPull ends a poll whose caller has gone. No-op if it was ended before.
func (m *Machine) CancelPull(w *Waiter) { m.unqueue(w) }

// unqueue takes a waiter out of everything; false if it does not wait any more.
func (m *Machine) unqueue(w *Waiter) bool {
	if !m.polls.Remove(&w.item) && !w.links[ofMember].linked {
		return false
	}
	w.member.waiters.remove(w, ofMember)
	w.member.g.waiting.remove(w, ofGroup)
	return true
}

// endPoll ends a poll without a message.
func (m *Machine) endPoll(w *Waiter) {
	if m.unqueue(w) {
		m.out.EmptyPulls = append(m.out.EmptyPulls, w)
	}
}
