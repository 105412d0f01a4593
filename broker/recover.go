package broker

import (
	"errors"
	"fmt"
	"time"

	"github.com/penstockmq/penstock/broker/dispatch"
	"github.com/penstockmq/penstock/broker/store"
)

// recover reads the state of all topics and groups. It reads bucket and position
// records in key order and no message. A record below those of topics and groups that
// does not decode is reported and left out; it does not stop the start.
func (b *Broker) recover() error {
	var err error
	if b.nextTopic, err = b.store.NextTopicID(); err != nil {
		return err
	}
	if b.nextGroup, err = b.store.NextGroupID(); err != nil {
		return err
	}
	changes := b.store.NewBatch()
	if err := errors.Join(b.recoverTopics(changes), b.recoverGroups(changes)); err != nil {
		return errors.Join(err, changes.Close())
	}
	if err := commit(b.store, changes); err != nil {
		return err
	}
	now := b.opts.Clock().Wall
	last, back, err := b.sinceLastWrite(now)
	if err != nil {
		return err
	}
	if back > 0 {
		b.opts.Logger.Warn("wall clock was set back while the broker was away; leases and holds keep their length", "step", -back)
	}
	for _, o := range b.topics {
		begin := time.Now()
		if err := o.recover(now, last, back); err != nil {
			return fmt.Errorf("parent topic %q: %w", o.name, err)
		}
		s := o.m.Stats()
		b.opts.Logger.Info("parent topic recovered", "topic", o.name, "buckets", s.Buckets, "resident", s.Resident,
			"messages", s.Messages, "took_ms", time.Since(begin).Milliseconds())
	}
	return nil
}

func (b *Broker) recoverTopics(changes *store.Batch) error {
	var failed error
	err := b.store.EachTopic(func(r store.Topic) bool {
		var next uint64
		next, failed = b.store.NextBucket(r.ID)
		if failed == nil {
			cfg := configured(b.opts.Topics, topicConfig(r))
			o := b.newOwner(r.ID, cfg, next)
			b.join(o, b.opts.Clock().Wall, func() { b.topics[r.Name] = o }) // limits before groups and their accounts
			changes.PutTopic(topicRecord(r.ID, cfg, r.Created))
		}
		return failed == nil
	})
	return errors.Join(err, failed)
}

func (b *Broker) recoverGroups(changes *store.Batch) error {
	var failed error
	err := b.store.EachGroup(func(r store.Group) bool {
		o, ok := b.topics[r.Topic]
		if !ok {
			failed = fmt.Errorf("%w: group %q reads the parent topic %q, which is not there", store.ErrCorrupt, r.Name, r.Topic)
			return false
		}
		id, cfg := dispatch.GroupID(r.ID), configured(b.opts.Groups, groupConfig(r))
		if cfg.Topic != r.Topic {
			failed = fmt.Errorf("%w: group %q reads %q and is configured for %q", ErrGroupBound, r.Name, r.Topic, cfg.Topic)
			return false
		}
		g := &groupState{cfg: cfg, created: r.Created, idle: r.Idle, savedIdle: r.Idle}
		changes.PutGroup(g.record(id))
		o.groups[id] = g
		o.m.AddGroup(cfg.dispatch(id))
		b.groups[r.Name] = groupEntry{id: id, owner: o, cfg: cfg}
		return true
	})
	return errors.Join(err, failed)
}

// recover gives the machine what the store knows of one parent topic. Buckets that
// are idle are counted and not kept.
//
// The process before this one last wrote at the instant last; since then the wall clock was
// set back by back.
func (o *owner) recover(now, last time.Time, back time.Duration) error {
	var stale []store.Bucket // at most reindexBatch
	var failed error
	errs := []error{o.store.EachBucket(o.id, "", func(r store.Bucket) bool {
		o.m.CountBucket(r.Cell.User)
		switch {
		case r.Tail > r.Head:
			o.m.RestoreBucket(bucketState(r))
		case o.expiresSooner(r):
			if stale = append(stale, r); len(stale) == reindexBatch {
				failed = o.reindex(stale)
				stale = stale[:0]
			}
		}
		return failed == nil
	})}
	errs = append(errs, failed, o.reindex(stale),
		o.store.EachDead(o.id, func(r store.Dead) bool { o.m.RestoreDead(deadState(r)); return true }))
	for id, g := range o.groups {
		errs = append(errs, o.recoverGroup(id, g))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if back > 0 {
		o.m.ClockStepped(now, -back)
	}
	o.m.StoppedAt(last)
	o.m.Start(now)
	return nil
}

// expiresSooner is whether an idle bucket's entry in the expiry index is missing or
// too late for the topic's TTL, which may have been changed since it was written.
func (o *owner) expiresSooner(r store.Bucket) bool {
	life := o.m.Life(r.Served)
	return life > 0 && (r.Expiry.IsZero() || r.Expiry.After(dispatch.Expiry(r.LastActive, life)))
}

// reindexBatch bounds the buckets of one batch of reindex, and so the memory of recovery
// when the TTL of millions of idle buckets was lowered.
const reindexBatch = 1000

// reindex moves idle buckets to their place in the expiry index.
func (o *owner) reindex(buckets []store.Bucket) error {
	if len(buckets) == 0 {
		return nil
	}
	batch := o.store.NewBatch()
	for _, r := range buckets {
		if !r.Expiry.IsZero() {
			batch.DeleteExpiry(r.Expiry, r.ID)
		}
		r.Expiry = dispatch.Expiry(r.LastActive, o.m.Life(r.Served))
		batch.PutBucket(&r)
		batch.PutExpiry(&store.Expiry{At: r.Expiry, Bucket: r.ID, Name: r.Name})
	}
	return commit(o.store, batch)
}

func (o *owner) recoverGroup(id dispatch.GroupID, g *groupState) error {
	next, err := o.store.NextDeadLetter(uint32(id))
	if err != nil {
		return err
	}
	g.deadFirst, g.deadNext = next, next
	oldest, found, err := o.store.OldestDeadLetter(uint32(id))
	if err != nil {
		return err
	}
	if found {
		g.deadFirst = oldest
	}
	return errors.Join(
		o.store.EachCursor(uint32(id), func(r store.Cursor) bool { o.m.RestoreCursor(id, cursorState(r)); return true }),
		o.store.EachLease(uint32(id), func(r store.Lease) bool { o.m.RestoreLease(leaseState(r)); return true }),
		o.store.EachHold(uint32(id), func(r store.Hold) bool { o.m.RestoreHold(id, hold(r)); return true }),
		o.store.EachAccount(uint32(id), func(r store.Account) bool { o.m.RestoreAccount(id, account(r)); return true }),
		o.store.EachSubscription(uint32(id), func(r store.Subscription) bool {
			o.m.RestoreSubscription(subscriptionState(r))
			return true
		}),
	)
}
