package broker

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/penstockmq/penstock/broker/dispatch"
	"github.com/penstockmq/penstock/broker/lite"
	"github.com/penstockmq/penstock/broker/store"
	"github.com/penstockmq/penstock/suspend"
)

// BucketInfo is what an operator sees of a bucket.
type BucketInfo struct {
	Topic, Name string
	Cell        lite.Cell
	Level       uint8
	Head, Tail  uint64
	// Queued counts the messages that are kept, Bytes their bodies.
	Queued     int
	Bytes      int64
	Created    time.Time
	LastActive time.Time
	// Groups is empty for an idle bucket: every group is at its end.
	Groups []BucketGroupInfo
}

// BucketGroupInfo is one group's place in a bucket.
type BucketGroupInfo struct {
	Group string
	Floor uint64
	// Queued are the messages still to be delivered, Leased those that are out,
	// Returned those of the queued ones that came back.
	Queued, Leased, Returned int
	// Hold is the closed gate that opens last; its Until is zero when none is closed.
	Hold suspend.Hold
}

// describeChunk is the number of buckets or suspends of a list that one turn describes.
const describeChunk = 256

// Buckets lists up to limit buckets whose name begins with prefix and comes after
// the name after, by name.
func (b *Broker) Buckets(ctx context.Context, topic, prefix, after string, limit int) ([]BucketInfo, error) {
	o, ok := b.lookup(topic)
	if !ok {
		return nil, fmt.Errorf("%w: %q", ErrTopicNotFound, topic)
	}
	if err := inRange("limit", int64(limit), 10_000); err != nil {
		return nil, err
	}
	records, err := o.store.BucketsByPrefix(o.id, prefix, after, limit)
	if err != nil {
		return nil, err
	}
	out := make([]BucketInfo, len(records))
	for from := 0; from < len(records) && err == nil; from += describeChunk {
		to := min(len(records), from+describeChunk)
		err = o.query(ctx, func(now time.Time) {
			for i := from; i < to; i++ {
				out[i] = o.describe(now, bucketState(records[i]))
			}
		})
	}
	return out, err
}

// Bucket describes one bucket, or gives ErrBucketNotFound.
func (b *Broker) Bucket(ctx context.Context, topic, name string) (BucketInfo, error) {
	if err := lite.CheckName(name); err != nil {
		return BucketInfo{}, err
	}
	found, err := b.Buckets(ctx, topic, name, "", 1)
	if err != nil {
		return BucketInfo{}, err
	}
	if len(found) == 0 || found[0].Name != name {
		return BucketInfo{}, fmt.Errorf("%w: %q under %q", ErrBucketNotFound, name, topic)
	}
	return found[0], nil
}

// describe runs in the loop. What the machine holds in memory is newer than the record.
func (o *owner) describe(now time.Time, s dispatch.BucketState) BucketInfo {
	info, resident := o.m.BucketInfo(now, s.Name)
	if resident {
		s = info.State
	}
	out := BucketInfo{
		Topic: o.name, Name: s.Name, Cell: s.Cell, Level: s.Level, Head: uint64(s.Head), Tail: uint64(s.Tail),
		Queued: info.Queued, Bytes: s.Bytes, Created: s.Created, LastActive: s.LastActive,
	}
	for _, g := range info.Groups {
		if known, ok := o.groups[g.Group]; ok {
			out.Groups = append(out.Groups, BucketGroupInfo{
				Group: known.cfg.Name, Floor: uint64(g.Floor), Queued: g.Queued, Leased: g.Leased, Returned: g.Returned, Hold: g.Hold,
			})
		}
	}
	return out
}

// Purge settles all queued messages of a bucket in every group, durably, and
// returns how many. Messages that are out stay with their consumers.
func (b *Broker) Purge(ctx context.Context, topic, name string) (int, error) {
	if _, err := b.Bucket(ctx, topic, name); err != nil {
		return 0, err
	}
	o, ok := b.lookup(topic)
	if !ok {
		return 0, fmt.Errorf("%w: %q", ErrTopicNotFound, topic)
	}
	n := 0
	err := o.change(ctx, func(t *turn) { n = o.m.Purge(t.now, name) })
	return n, err
}

// Holds lists the suspends in force in a group whose target's name begins with
// prefix, up to limit, in the order of their scopes and names. Their names come from the
// store: there may be a million, and the loop has other things to do than to look at all.
func (b *Broker) Holds(ctx context.Context, group, prefix string, limit int) ([]suspend.Hold, error) {
	g, err := b.group(group)
	if err != nil {
		return nil, err
	}
	if err := inRange("limit", int64(limit), 10_000); err != nil {
		return nil, err
	}
	var targets []suspend.Target
	err = g.owner.store.EachHold(uint32(g.id), func(r store.Hold) bool {
		if strings.HasPrefix(r.Name, prefix) {
			targets = append(targets, hold(r).Target)
		}
		return len(targets) < limit && ctx.Err() == nil
	})
	var out []suspend.Hold
	for from := 0; from < len(targets) && err == nil; from += describeChunk {
		err = g.owner.query(ctx, func(time.Time) {
			for _, t := range targets[from:min(len(targets), from+describeChunk)] {
				if h, ok := g.owner.m.Hold(g.id, t); ok {
					out = append(out, h)
				}
			}
		})
	}
	return out, errors.Join(err, ctx.Err())
}

// SetHold sets an operator's hold exactly, shorter or longer than one in force, and
// returns when it is durable. A hold may name a bucket, row, column or level that
// does not exist yet.
func (b *Broker) SetHold(ctx context.Context, group string, h suspend.Hold) error {
	g, err := b.group(group)
	if err != nil {
		return err
	}
	return g.owner.call(ctx, &settleCommand{reply: newReply(), durable: true, settle: func(now time.Time) error {
		return g.owner.m.SetHold(now, g.id, h)
	}})
}

// LiftHold ends a hold now and says whether there was one.
func (b *Broker) LiftHold(ctx context.Context, group string, target suspend.Target) (bool, error) {
	g, err := b.group(group)
	if err != nil {
		return false, err
	}
	lifted := false
	err = g.owner.call(ctx, &settleCommand{reply: newReply(), durable: true, settle: func(now time.Time) error {
		var err error
		lifted, err = g.owner.m.LiftHold(now, g.id, target)
		return err
	}})
	return lifted, err
}

// DeadLetter is a message that a group gave up.
type DeadLetter struct {
	Seq      uint64
	Topic    string
	Offset   uint64
	Attempts int
	Reason   string
	At       time.Time
	Message  Message
	// Unreadable is the error of reading the record; then all other fields but Seq are empty.
	Unreadable error
}

// DeadLetters lists up to limit dead letters of a group from the sequence from on,
// oldest first.
func (b *Broker) DeadLetters(_ context.Context, group string, from uint64, limit int) ([]DeadLetter, error) {
	g, err := b.group(group)
	if err != nil {
		return nil, err
	}
	if err := inRange("limit", int64(limit), 10_000); err != nil {
		return nil, err
	}
	records, err := g.owner.store.DeadLetters(uint32(g.id), from, limit)
	if err != nil {
		return nil, err
	}
	out := make([]DeadLetter, len(records))
	for i, r := range records {
		out[i] = DeadLetter{
			Seq: r.Seq, Topic: r.Topic, Offset: r.Offset, Attempts: int(r.Attempts), Reason: r.Reason, At: r.At,
			Message: fromStored(r.Message, r.Lite), Unreadable: r.Unreadable,
		}
	}
	return out, nil
}

// Redriven counts the outcomes of one Redrive.
type Redriven struct {
	Sent int
	// Unreadable counts the dead letters that stay because their records are damaged.
	Unreadable int
}

// Redrive sends dead letters of a group to their buckets again, in the order given,
// each in one atomic write with its removal from the dead letters. Their attempts
// start anew. The error is the reason for an early end; missing sequences and damaged
// records are skipped.
func (b *Broker) Redrive(ctx context.Context, group string, seqs []uint64) (Redriven, error) {
	var done Redriven
	g, err := b.group(group)
	if err != nil {
		return done, err
	}
	b.redriving.Lock() // so that none is sent twice
	defer b.redriving.Unlock()
	for _, seq := range seqs {
		l, err := g.owner.store.DeadLetter(uint32(g.id), seq)
		if errors.Is(err, store.ErrNotFound) {
			continue
		}
		if errors.Is(err, store.ErrCorrupt) {
			done.Unreadable++
			continue
		}
		if err != nil {
			return done, err
		}
		m := fromStored(l.Message, l.Lite)
		delete(m.Properties, lite.PropertyDeadline) // it has passed, or soon will have
		c, err := b.newSend([]Message{m})
		if err != nil {
			return done, fmt.Errorf("dead letter %d: %w", seq, err)
		}
		if err := b.admit([]Message{m}); err != nil {
			return done, fmt.Errorf("dead letter %d: %w", seq, err)
		}
		if err := b.callSend(ctx, g.owner, c, &redriveCommand{sendCommand: c, group: g.id, seq: seq}); err != nil {
			return done, fmt.Errorf("dead letter %d: %w", seq, err)
		}
		done.Sent++
	}
	return done, nil
}

// redriveCommand is a send that takes a dead letter's place.
type redriveCommand struct {
	*sendCommand
	group dispatch.GroupID
	seq   uint64
}

func (c *redriveCommand) apply(o *owner, t *turn) {
	before := len(t.after)
	c.sendCommand.apply(o, t)
	if len(t.after) > before { // accepted
		t.batch.DeleteDeadLetter(uint32(c.group), c.seq)
	}
}

// Stats are gauges of the broker.
type Stats struct {
	Topics []TopicStats
	Store  store.Metrics
}

// StoreMetrics returns the metrics of the store, without those of the owner loops.
func (b *Broker) StoreMetrics() store.Metrics { return b.store.Metrics() }

// Damaged returns nil, or an error that says in one sentence which part of the store is
// damaged or was lost at the start. The broker serves nevertheless: damage costs only the
// damaged records.
func (b *Broker) Damaged() error { return b.store.Damaged() }

// TopicStats are gauges of one parent topic.
type TopicStats struct {
	Topic string
	dispatch.Stats
	// Uses are the uses of Stats.Groups, in the same order.
	Uses []GroupUse
}

// Stats asks every owner loop for its gauges.
func (b *Broker) Stats(ctx context.Context) (Stats, error) {
	out := Stats{Store: b.store.Metrics()}
	for _, o := range b.owners() {
		var s TopicStats
		err := o.query(ctx, func(time.Time) {
			s = TopicStats{Topic: o.name, Stats: o.m.Stats()}
			for _, g := range s.Groups {
				state := o.groups[g.ID]
				s.Uses = append(s.Uses, GroupUse{Name: state.cfg.Name, Clients: g.Clients, Idle: state.idle, Kept: state.kept})
			}
		})
		if err != nil {
			return Stats{}, err
		}
		out.Topics = append(out.Topics, s)
	}
	return out, nil
}

// dispatchError names the machine's errors as this package's callers know them.
func dispatchError(err error) error {
	for _, e := range []struct{ from, to error }{
		{dispatch.ErrBucketFull, ErrBucketFull},
		{dispatch.ErrBucketBytes, ErrBucketBytes},
		{dispatch.ErrTooLarge, ErrBodyTooLarge},
		{dispatch.ErrTooManyBuckets, ErrTooManyBuckets},
		{dispatch.ErrTooManyUserBuckets, ErrTooManyUserBuckets},
		{dispatch.ErrTooManyWaiters, ErrTooManyWaiters},
		{dispatch.ErrTooManyHolds, ErrTooManyHolds},
		{dispatch.ErrSubscriptionQuota, ErrSubscriptionQuota},
		{dispatch.ErrStaleHandle, ErrStaleHandle},
		{dispatch.ErrNoGroup, ErrGroupNotFound},
	} {
		if errors.Is(err, e.from) {
			return fmt.Errorf("%w: %w", e.to, err)
		}
	}
	return err
}
