package broker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/penstockmq/penstock/broker/dispatch"
	"github.com/penstockmq/penstock/broker/store"
)

// Topics lists the parent topics by name.
func (b *Broker) Topics() []TopicConfig {
	b.mu.RLock()
	defer b.mu.RUnlock()
	out := make([]TopicConfig, 0, len(b.topics))
	for _, o := range b.topics {
		out = append(out, o.cfg)
	}
	return sortByName(out)
}

func sortByName[T named](list []T) []T {
	slices.SortFunc(list, func(x, y T) int { return cmp.Compare(x.name(), y.name()) })
	return list
}

// Topic returns the settings of a parent topic.
func (b *Broker) Topic(name string) (TopicConfig, bool) {
	o, ok := b.lookup(name)
	if !ok {
		return TopicConfig{}, false
	}
	return o.cfg, true
}

// Groups lists the consumer groups by name.
func (b *Broker) Groups() []GroupConfig {
	b.mu.RLock()
	defer b.mu.RUnlock()
	out := make([]GroupConfig, 0, len(b.groups))
	for _, g := range b.groups {
		out = append(out, g.cfg)
	}
	return sortByName(out)
}

// Group returns the settings of a consumer group.
func (b *Broker) Group(name string) (GroupConfig, bool) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	g, ok := b.groups[name]
	return g.cfg, ok
}

// CreateTopic creates a parent topic and returns when it is durable. Zero fields
// take their defaults. ErrExists when there is one of that name.
func (b *Broker) CreateTopic(_ context.Context, cfg TopicConfig) error {
	cfg = cfg.withDefaults()
	if err := cfg.Validate(); err != nil {
		return err
	}
	b.changing.Lock()
	defer b.changing.Unlock()
	if b.closed {
		return ErrClosed
	}
	if _, ok := b.lookup(cfg.Name); ok {
		return fmt.Errorf("parent topic %q %w", cfg.Name, ErrExists)
	}
	if len(b.topics) >= maxTopics || b.nextTopic == 0 {
		return fmt.Errorf("%w: %d parent topics exist, at most %d", ErrInvalidArgument, len(b.topics), maxTopics)
	}
	id := b.nextTopic
	batch := b.store.NewBatch()
	batch.PutTopic(topicRecord(id, cfg, wall()))
	batch.PutNextTopicID(id + 1)
	if err := commit(b.store, batch); err != nil {
		return err
	}
	b.nextTopic++
	o := b.newOwner(id, cfg, 0)
	now := wall()
	b.join(o, now, func() {
		o.m.Start(now)
		b.mu.Lock()
		b.topics[cfg.Name] = o
		b.mu.Unlock()
	})
	b.start(o)
	return nil
}

// commit writes a batch durably.
func commit(st *store.Store, batch *store.Batch) error {
	if batch.Empty() {
		return batch.Close()
	}
	if err := st.Apply(batch, store.Durable); err != nil {
		return errors.Join(err, batch.Close())
	}
	return batch.Close()
}

func (b *Broker) newOwner(id uint16, cfg TopicConfig, nextBucket uint64) *owner {
	ctx, stop := context.WithCancel(b.runCtx)
	o := &owner{
		id: id, name: cfg.Name, cfg: cfg, ctx: ctx, stop: stop,
		store: b.store, log: b.opts.Logger, observer: b.opts.Observer, metrics: &b.metrics,
		notify: b.opts.OnUnsubscribe, maxDead: b.opts.MaxDeadLetters,
		commands: make(chan command, b.opts.MaxEvents),
		pending:  make(chan *turn, maxTurns),
		held:     make(chan *turn, maxTurns),
		done:     make(chan struct{}),
		groups:   map[dispatch.GroupID]*groupState{},
		cache:    newTailCache(b.opts.TailCacheBytes),
		notices:  b.notices,
		rejected: map[place]struct{}{},
	}
	machine := cfg.dispatch(id, nextBucket, b.store.Epoch())
	machine.CostOf = o.costOf
	o.m = dispatch.New(machine)
	return o
}

// CreateGroup creates a consumer group on its parent topic and returns when it is
// durable. It starts at the oldest retained message of each bucket, unless
// StartLatest says otherwise. ErrExists when there is one of that name.
func (b *Broker) CreateGroup(ctx context.Context, cfg GroupConfig) error {
	cfg = cfg.withDefaults()
	if err := cfg.Validate(); err != nil {
		return err
	}
	b.changing.Lock()
	defer b.changing.Unlock()
	if b.closed {
		return ErrClosed
	}
	if _, ok := b.Group(cfg.Name); ok {
		return fmt.Errorf("consumer group %q %w", cfg.Name, ErrExists)
	}
	o, ok := b.lookup(cfg.Topic)
	if !ok {
		return fmt.Errorf("%w: %q", ErrTopicNotFound, cfg.Topic)
	}
	id := dispatch.GroupID(b.nextGroup)
	err := o.change(ctx, func(t *turn) {
		o.groups[id] = &groupState{cfg: cfg, deadFirst: 1, deadNext: 1}
		o.m.AddGroup(cfg.dispatch(id))
		t.batch.PutGroup(groupRecord(id, cfg, t.now))
		t.batch.PutNextGroupID(uint32(id) + 1)
	})
	if err != nil {
		return err
	}
	b.nextGroup++
	b.mu.Lock()
	b.groups[cfg.Name] = groupEntry{id: id, owner: o, cfg: cfg}
	b.mu.Unlock()
	return nil
}

// DeleteGroup removes a group with its positions, holds and dead letters. Messages
// that only it had still to read go with it.
func (b *Broker) DeleteGroup(ctx context.Context, name string) error {
	b.changing.Lock()
	defer b.changing.Unlock()
	b.mu.Lock()
	g, ok := b.groups[name]
	delete(b.groups, name) // no new requests from here on
	b.mu.Unlock()
	if !ok {
		return fmt.Errorf("%w: %q", ErrGroupNotFound, name)
	}
	return g.owner.change(ctx, func(t *turn) {
		g.owner.m.RemoveGroup(t.now, g.id)
		g.owner.carryOut(t, g.owner.m.Take())
		delete(g.owner.groups, g.id)
		t.batch.DeleteGroup(&store.Group{ID: uint32(g.id), Name: name})
	})
}

// DeleteTopic removes a parent topic with all its buckets. ErrInUse while a group
// reads it.
func (b *Broker) DeleteTopic(_ context.Context, name string) error {
	b.changing.Lock()
	defer b.changing.Unlock()
	b.mu.Lock()
	o, ok := b.topics[name]
	var readers []string
	for _, g := range b.groups {
		if g.owner == o {
			readers = append(readers, g.cfg.Name)
		}
	}
	if ok && len(readers) == 0 {
		delete(b.topics, name)
	}
	b.mu.Unlock()
	switch {
	case !ok:
		return fmt.Errorf("%w: %q", ErrTopicNotFound, name)
	case len(readers) > 0:
		slices.Sort(readers)
		return fmt.Errorf("%w: parent topic %q is read by the groups %q", ErrInUse, name, readers)
	}
	o.stop()
	<-o.done
	batch := b.store.NewBatch()
	batch.DeleteTopic(&store.Topic{ID: o.id, Name: name})
	return commit(b.store, batch)
}

// change runs f in the loop and waits until what it wrote is durable, whatever
// becomes of the caller: the registry has to know how it ended.
func (o *owner) change(ctx context.Context, f func(t *turn)) error {
	return o.call(context.WithoutCancel(ctx), &changeCommand{reply: newReply(), f: f})
}

type changeCommand struct {
	reply
	f func(t *turn)
}

func (c *changeCommand) apply(_ *owner, t *turn) {
	c.f(t)
	t.durable = true
	t.after = append(t.after, c)
}
