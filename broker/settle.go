package broker

import (
	"context"
	"fmt"
	"time"

	"github.com/penstockmq/penstock/broker/dispatch"
	"github.com/penstockmq/penstock/suspend"
	"github.com/penstockmq/penstock/suspend/quota"
)

// Ack settles messages. The answer has an entry for each handle: nil,
// ErrInvalidHandle for one that is not of this topic and group, ErrStaleHandle
// when the message is out again under a newer lease. The second result is for what
// failed as a whole.
//
// An ack is answered when it was written, so kill -9 does not take it back; it
// does not wait for the disk, so a power cut may, and then the message comes again.
func (b *Broker) Ack(ctx context.Context, topic, group string, handles []string) ([]error, error) {
	o, g, err := b.route(ctx, topic, group)
	if err != nil {
		return nil, err
	}
	c := &ackCommand{reply: newReply(), handles: make([]dispatch.Handle, len(handles)), errs: make([]error, len(handles))}
	for i, s := range handles {
		c.handles[i], c.errs[i] = o.handle(g, s)
	}
	if err := o.call(ctx, c); err != nil {
		return nil, err
	}
	return c.errs, nil
}

// handle decodes a receipt handle and checks that it is one of this topic and group.
func (o *owner) handle(g dispatch.GroupID, s string) (dispatch.Handle, error) {
	h, err := decodeReceipt(s)
	if err != nil {
		return h, err
	}
	if h.Group != g || topicOf(h.Bucket) != o.id {
		return h, fmt.Errorf("%w: receipt handle belongs to another group or parent topic", ErrInvalidHandle)
	}
	return h, nil
}

type ackCommand struct {
	reply
	handles []dispatch.Handle
	errs    []error
}

func (c *ackCommand) apply(o *owner, t *turn) {
	for i, h := range c.handles {
		if c.errs[i] != nil {
			continue
		}
		err := o.m.Ack(t.now, h)
		o.countSettled(t.now, h, ThenAck, quota.Settlement{}, err)
		if err != nil {
			c.errs[i] = dispatchError(err)
		}
	}
	t.after = append(t.after, c)
}

// settleCommand is any other settlement of one message.
type settleCommand struct {
	reply
	// settle acts on the machine; its error is the caller's.
	settle func(now time.Time) error
	// durable is whether the caller hears of it only when it is on disk.
	durable bool
}

func (c *settleCommand) apply(o *owner, t *turn) {
	if err := c.settle(t.now); err != nil {
		c.complete(dispatchError(err))
		return
	}
	t.durable = t.durable || c.durable
	t.after = append(t.after, c)
}

// settle routes one handle to its owner.
func (b *Broker) settle(ctx context.Context, topic, group, handle string, durable bool, f func(o *owner, now time.Time, h dispatch.Handle) error) error {
	o, g, err := b.route(ctx, topic, group)
	if err != nil {
		return err
	}
	h, err := o.handle(g, handle)
	if err != nil {
		return err
	}
	return o.call(ctx, &settleCommand{
		reply:   newReply(),
		durable: durable,
		settle:  func(now time.Time) error { return f(o, now, h) },
	})
}

// Suspend gives the message back with its attempt unchanged and holds its bucket
// for d, for this group, at most the group's MaxSuspend. A longer hold stays as it is; d = 0
// releases at once. A stale handle has no effect and is no error: official clients would
// ask again forever.
//
// Errors: ErrInvalidHandle; suspend.ErrNegative; suspend.ErrTooLong for more than MaxSuspend
// and 24 h. Nothing was changed then.
func (b *Broker) Suspend(ctx context.Context, topic, group, handle string, d time.Duration, by, reason string) error {
	return b.settle(ctx, topic, group, handle, false, func(o *owner, now time.Time, h dispatch.Handle) error {
		err := o.m.Suspend(now, h, d, by, reason)
		o.countSettled(now, h, ThenSuspend, quota.Settlement{}, err)
		return err
	})
}

// ChangeInvisible makes the lease end at now + d, 0 to 12 h. The handle stays the same,
// so a caller that lost the answer may repeat the call.
//
// Errors: ErrInvalidArgument, ErrInvalidHandle; ErrStaleHandle when the lease has ended;
// then nothing was changed.
func (b *Broker) ChangeInvisible(ctx context.Context, topic, group, handle string, d time.Duration) error {
	if err := durationInRange("invisible duration", d, 0, maxInvisible); err != nil {
		return err
	}
	return b.settle(ctx, topic, group, handle, false, func(o *owner, now time.Time, h dispatch.Handle) error {
		return o.m.ChangeInvisible(now, h, d)
	})
}

// DeadLetter moves the message to the group's dead letters, in one atomic write. The reason
// is cut to suspend.MaxNoteBytes. A
// stale handle gives ErrStaleHandle and has no effect.
func (b *Broker) DeadLetter(ctx context.Context, topic, group, handle, reason string) error {
	return b.settle(ctx, topic, group, handle, true, func(o *owner, now time.Time, h dispatch.Handle) error {
		o.reject(h)
		err := o.m.DeadLetter(now, h, suspend.Note(reason))
		o.countSettled(now, h, ThenReject, quota.Settlement{}, err)
		return err
	})
}

// Recall cancels a queued message for every group and returns its message id.
// ErrNotQueued says that it is being processed, was settled, or is gone.
func (b *Broker) Recall(ctx context.Context, topic, recallHandle string) (string, error) {
	o, ok := b.lookup(topic)
	if !ok {
		return "", fmt.Errorf("%w: %q", ErrTopicNotFound, topic)
	}
	r, err := decodeRecall(recallHandle)
	if err != nil {
		return "", err
	}
	if topicOf(r.bucket) != o.id {
		return "", fmt.Errorf("%w: recall handle belongs to another parent topic", ErrInvalidHandle)
	}
	m, err := o.store.Message(uint64(r.bucket), uint64(r.offset))
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrNotQueued, err)
	}
	err = o.call(ctx, &settleCommand{reply: newReply(), durable: true, settle: func(now time.Time) error {
		if err := o.load(r.name); err != nil {
			return err
		}
		if o.m.Cancel(now, r.name, r.bucket, r.offset) != dispatch.Cancelled {
			return ErrNotQueued
		}
		o.metrics.Recalled.Add(1)
		return nil
	}})
	return m.ID, err
}
