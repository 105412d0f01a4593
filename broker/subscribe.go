package broker

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"time"

	"github.com/penstockmq/penstock/broker/dispatch"
	"github.com/penstockmq/penstock/broker/lite"
	"github.com/penstockmq/penstock/broker/store"
)

// SyncRequest changes what a client reads. Names are lite topics; lite.Wildcard
// stands for all buckets of the parent topic, those to come included.
type SyncRequest struct {
	Topic, Group, Client string
	Action               dispatch.SyncAction
	Names                []string
	// Position, when not nil, moves the group in the buckets that are added.
	Position *Position
}

// Position is a place in a bucket. Exactly one of its kinds is meant.
type Position struct {
	Kind PositionKind
	// Offset is for AtOffset, Tail for FromTail (that many from the end), Time for AtTime.
	Offset, Tail int64
	Time         time.Time
}

// PositionKind says how a Position is meant.
type PositionKind uint8

// The positions of RocketMQ's OffsetOption.
const (
	// AtLast stays where the group is.
	AtLast PositionKind = iota
	// AtMin is the oldest retained message.
	AtMin
	// AtMax is after the newest one.
	AtMax
	// AtOffset is a given offset.
	AtOffset
	// FromTail is a number of messages before the end.
	FromTail
	// AtTime is the first message stored at or after an instant.
	AtTime
)

// adds reports whether the request asks for messages, as a receive does: then it creates a
// group that may be created on demand, since clients do not repeat the names that they add.
func (b *Broker) adds(r *SyncRequest) bool {
	if r.Action != dispatch.PartialAdd && r.Action != dispatch.CompleteAdd {
		return false
	}
	cfg, _ := b.planned(r.Topic, r.Group)
	return len(r.Names) > 0 || cfg.Wildcard
}

// SyncSubscription applies one SyncLiteSubscription of a client. A change is
// written before it is confirmed: after a restart clients go on without a new sync.
//
// Errors: lite.ErrName; ErrSubscriptionQuota; those of finding topic and group.
func (b *Broker) SyncSubscription(ctx context.Context, r SyncRequest) error {
	for _, name := range r.Names {
		if name == lite.Wildcard {
			continue
		}
		if err := lite.CheckName(name); err != nil {
			return err
		}
	}
	find, adds := b.route, b.adds(&r)
	if adds {
		find = b.enroll
	}
	o, g, err := find(ctx, r.Topic, r.Group)
	if err != nil && !adds && b.CheckGroup(ctx, r.Topic, r.Group) == nil {
		return nil // nothing to remove; official clients start with an empty set
	}
	if err != nil {
		return err
	}
	err = o.call(ctx, &settleCommand{reply: newReply(), settle: func(now time.Time) error {
		_, err := o.m.SyncSubscription(now, dispatch.SyncRequest{Group: g, Client: r.Client, Action: r.Action, Names: r.Names})
		return err
	}})
	if err != nil || r.Position == nil || r.Action != dispatch.PartialAdd {
		return err
	}
	for _, name := range r.Names {
		if name != lite.Wildcard {
			err = errors.Join(err, o.seek(ctx, g, name, *r.Position))
		}
	}
	return err
}

// Seek moves a group in one bucket.
func (b *Broker) Seek(ctx context.Context, topic, group, name string, p Position) error {
	o, g, err := b.route(ctx, topic, group)
	if err != nil {
		return err
	}
	return o.seek(ctx, g, name, p)
}

func (o *owner) seek(ctx context.Context, g dispatch.GroupID, name string, p Position) error {
	if p.Kind == AtLast {
		return nil
	}
	rec, ok, err := o.record(ctx, name)
	if err != nil || !ok {
		return err
	}
	target, err := o.resolve(rec, p)
	if err != nil {
		return err
	}
	return o.call(ctx, &settleCommand{reply: newReply(), durable: true, settle: func(now time.Time) error {
		if err := o.load(name); err != nil {
			return err
		}
		return o.m.Seek(now, g, name, target)
	}})
}

// record is the bucket as it is now: from memory, or else from the store.
func (o *owner) record(ctx context.Context, name string) (rec dispatch.BucketState, ok bool, err error) {
	err = o.query(ctx, func(now time.Time) {
		var info dispatch.BucketInfo
		if info, ok = o.m.BucketInfo(now, name); ok {
			rec = info.State
		}
	})
	if err != nil || ok {
		return rec, ok, err
	}
	stored, ok, err := o.store.Bucket(o.id, name)
	return bucketState(stored), ok, err
}

// resolve turns a position into an offset of the bucket.
func (o *owner) resolve(rec dispatch.BucketState, p Position) (dispatch.Offset, error) {
	switch p.Kind {
	case AtMin:
		return rec.Head, nil
	case AtMax:
		return rec.Tail, nil
	case AtOffset:
		if p.Offset < 0 {
			return 0, fmt.Errorf("%w: offset %d is negative", ErrInvalidArgument, p.Offset)
		}
		return clamp(dispatch.Offset(p.Offset), rec.Head, rec.Tail), nil
	case FromTail:
		if p.Tail < 0 {
			return 0, fmt.Errorf("%w: tail %d is negative", ErrInvalidArgument, p.Tail)
		}
		return rec.Tail - min(dispatch.Offset(p.Tail), rec.Tail-rec.Head), nil
	case AtTime:
		return o.firstSince(rec, p.Time)
	default:
		return 0, fmt.Errorf("%w: position kind %d", ErrInvalidArgument, p.Kind)
	}
}

// firstSince searches the retained messages, whose store times only grow (but for
// a step of the clock), by halving: about twenty reads for a million messages.
func (o *owner) firstSince(rec dispatch.BucketState, at time.Time) (dispatch.Offset, error) {
	var failed error
	n := sort.Search(int(rec.Tail-rec.Head), func(i int) bool {
		m, err := o.store.Message(uint64(rec.ID), uint64(rec.Head)+uint64(i))
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			failed = err
		}
		// A message that is gone was settled: it lies before what is searched.
		return err == nil && !m.Stored.Before(at)
	})
	return rec.Head + dispatch.Offset(n), failed
}

func clamp(v, lo, hi dispatch.Offset) dispatch.Offset { return max(lo, min(v, hi)) }

// Touch notes a sign of life of a client.
func (b *Broker) Touch(client string) {
	b.toAll(func(o *owner) command { return clientCommand{client: client, alive: true} })
}

// ClientGone notes that a client's last connection ended: its polls end, and its
// leases are not renewed any more. What it subscribed to stays for three minutes.
func (b *Broker) ClientGone(client string) {
	b.toAll(func(o *owner) command { return clientCommand{client: client} })
}

func (b *Broker) toAll(f func(o *owner) command) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	for _, o := range b.topics {
		_ = o.send(f(o)) // a full queue: signs of life come again, polls have a limit
	}
}

type clientCommand struct {
	client string
	alive  bool
}

func (c clientCommand) apply(o *owner, t *turn) {
	if c.alive {
		o.m.Touch(t.now, c.client)
		return
	}
	o.m.ClientGone(t.now, c.client)
}

// Terminate forgets a client of a group: the client said that it goes.
func (b *Broker) Terminate(ctx context.Context, group, client string) error {
	g, err := b.group(group)
	if err != nil {
		return err
	}
	return g.owner.call(ctx, &settleCommand{reply: newReply(), settle: func(now time.Time) error {
		g.owner.m.Terminate(now, g.id, client)
		return nil
	}})
}
