package broker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/penstockmq/penstock/broker/dispatch"
	"github.com/penstockmq/penstock/broker/store"
)

// Receive hands out messages that may be delivered now, at most one of each
// bucket, and waits up to r.Wait for a first one. No messages and no error means
// that none came.
//
// When ctx ends, messages that were about to be handed over go back uncounted. So
// do those that the caller returns with Release because its client is gone.
//
// Errors: ErrTopicNotFound, ErrGroupNotFound, ErrGroupBound, ErrInvalidArgument,
// ErrTooManyWaiters, ErrBusy, ErrClosed.
func (b *Broker) Receive(ctx context.Context, r ReceiveRequest) ([]Delivery, error) {
	if err := r.validate(); err != nil {
		return nil, err
	}
	o, g, err := b.enroll(ctx, r.Topic, r.Group)
	if err != nil {
		return nil, err
	}
	begin := o.clock().Mono
	for {
		p := &pullCommand{
			request: dispatch.PullRequest{
				Group: g, Client: r.Client, Max: r.Max, Invisible: r.Invisible,
				AutoRenew: r.AutoRenew, AttemptID: r.AttemptID,
			},
			wait:   max(0, r.Wait-(o.clock().Mono-begin)),
			result: make(chan pulled, 1),
		}
		got, err := o.pull(ctx, p)
		if err != nil || len(got.items) == 0 {
			return nil, err
		}
		// Messages whose deadline passed while they were queued are settled here and
		// not delivered; when nothing is left the poll goes on for what remains of it.
		if out := o.read(got); len(out) > 0 {
			return out, nil
		}
	}
}

func (r ReceiveRequest) validate() error {
	return errors.Join(
		inRange("max messages", int64(r.Max), maxMessagesPerPull),
		durationInRange("invisible duration", r.Invisible, time.Millisecond, maxInvisible),
		durationInRange("wait", r.Wait, 0, time.Hour),
	)
}

// pullCommand is one poll. Its result comes once: when messages are leased to it
// and the leases are written, when its time is over, or when it is cancelled.
type pullCommand struct {
	request dispatch.PullRequest
	// wait is the length of the poll. It counts from the turn that takes the poll in and sets
	// its Until: the clock may be set before that turn.
	wait   time.Duration
	result chan pulled
	// waiter and cancelled are owned by the loop. waiter is nil before the loop takes the poll
	// in and after the answer.
	waiter    *dispatch.Waiter
	cancelled bool
}

type pulled struct {
	items []pulledItem
	err   error
}

type pulledItem struct {
	dispatch.Item
	group   string
	message *store.Message // nil when it has to be read from the store
}

func (p *pullCommand) apply(o *owner, t *turn) {
	if p.cancelled {
		p.result <- pulled{}
		return
	}
	p.request.Until = t.now.Add(p.wait)
	w, err := o.m.Pull(t.now, p.request)
	if err != nil {
		p.result <- pulled{err: dispatchError(err)}
		return
	}
	w.Tag = p
	p.waiter = w
}

func (p *pullCommand) complete(err error) { p.result <- pulled{err: err} }

// cancelPull ends a poll whose caller has gone. An answer that is under way is not
// stopped: the caller takes it and gives it back.
type cancelPull struct{ pull *pullCommand }

func (c cancelPull) apply(o *owner, _ *turn) {
	c.pull.cancelled = true // the poll may still be in the queue
	if c.pull.waiter == nil {
		return
	}
	o.m.CancelPull(c.pull.waiter)
	c.pull.waiter = nil
	c.pull.result <- pulled{}
}

// handover is the completion of a delivery: its leases are written, so even after
// a kill -9 nobody else gets the messages before they end.
type handover struct {
	pull *pullCommand
	got  pulled
}

func (h handover) complete(err error) {
	if err != nil {
		h.pull.result <- pulled{err: fmt.Errorf("%w: %w", ErrClosed, err)}
		return
	}
	h.pull.result <- h.got
}

func (o *owner) pull(ctx context.Context, p *pullCommand) (pulled, error) {
	if err := o.send(p); err != nil {
		return pulled{}, err
	}
	select {
	case got := <-p.result:
		return got, got.err
	case <-o.done:
		return pulled{}, ErrClosed
	case <-ctx.Done():
	}
	o.giveBack(cancelPull{p})
	select {
	case got := <-p.result:
		o.release(got.items)
	case <-o.done:
	}
	return pulled{}, ctx.Err()
}

// read turns leased items into deliveries, in the caller's goroutine: reading the
// store is no work for the loop.
func (o *owner) read(got pulled) []Delivery {
	now := o.clock().Wall
	out := make([]Delivery, 0, len(got.items))
	for i := range got.items {
		it := &got.items[i]
		m := it.message
		if m == nil {
			var err error
			m, err = o.store.Message(uint64(it.Handle.Bucket), uint64(it.Handle.Offset))
			switch {
			case errors.Is(err, store.ErrNotFound):
				o.drop(dropCommand{handle: it.Handle})
				continue
			case errors.Is(err, store.ErrCorrupt):
				_ = o.send(unreadableCommand{it.Handle}) // if the loop is full, the lease ends by itself
				continue
			case err != nil:
				// The disk failed to read a message that may be intact. The message must not be lost and
				// must not be retried in a loop: its lease stays until its end.
				o.log.Error("message unreadable", "topic", o.name, "bucket", it.Name, "offset", uint64(it.Handle.Offset), "error", err)
				continue
			}
		}
		if !m.Deadline.IsZero() && !now.Before(m.Deadline) {
			o.drop(dropCommand{handle: it.Handle, name: it.Name, expired: m})
			continue
		}
		o.observer.QueueTime(now.Sub(m.Stored))
		out = append(out, toDelivery(it, m))
		o.released(now, it, m)
	}
	o.metrics.Deliveries.Add(int64(len(out)))
	return out
}

// drop settles a message that will not be delivered.
func (o *owner) drop(c dropCommand) { o.giveBack(c) }

type dropCommand struct {
	handle dispatch.Handle
	name   string
	// expired is the message, if there is one and its deadline has passed.
	expired *store.Message
}

func (c dropCommand) apply(o *owner, t *turn) {
	if c.expired == nil {
		o.m.Missing(t.now, c.handle)
		return
	}
	o.m.Expire(t.now, c.handle)
	o.tellDiscarded(newDiscarded(o.name, c.name, uint64(c.handle.Offset), c.expired, DiscardDeadline))
}

// Release gives messages back that never reached their client: they are
// deliverable at once and the delivery does not count as an attempt.
func (b *Broker) Release(topic string, handles []string) {
	o, ok := b.lookup(topic)
	if !ok {
		return
	}
	c := releaseCommand{handles: make([]dispatch.Handle, 0, len(handles))}
	for _, s := range handles {
		if h, err := decodeReceipt(s); err == nil && topicOf(h.Bucket) == o.id {
			c.handles = append(c.handles, h)
		}
	}
	o.giveBack(c)
}

func (o *owner) release(items []pulledItem) {
	if len(items) == 0 {
		return
	}
	c := releaseCommand{handles: make([]dispatch.Handle, len(items))}
	for i := range items {
		c.handles[i] = items[i].Handle
	}
	o.giveBack(c)
}

type releaseCommand struct{ handles []dispatch.Handle }

func (c releaseCommand) apply(o *owner, t *turn) {
	for _, h := range c.handles {
		o.m.Release(t.now, h)
	}
}
