package broker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
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
	if err := b.roomForTopic(cfg); err != nil {
		return err
	}
	id := b.nextTopic
	if id == 0 {
		return fmt.Errorf("%w: %d parent topics were created in this data folder, the maximum: ids of deleted topics are not used again; start with a new folder",
			ErrInvalidArgument, math.MaxUint16)
	}
	batch := b.store.NewBatch()
	batch.PutTopic(topicRecord(id, cfg, b.opts.Clock().Wall))
	batch.PutNextTopicID(id + 1)
	if err := commit(b.store, batch); err != nil {
		return err
	}
	b.nextTopic++
	o := b.newOwner(id, cfg, 0)
	now := b.opts.Clock().Wall
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
		clock: b.opts.Clock, notify: b.opts.OnUnsubscribe, maxDead: b.opts.MaxDeadLetters,
		commands: make(chan command, b.opts.MaxEvents),
		returns:  newReturns(),
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
	if err := b.roomForGroup(cfg); err != nil {
		return err
	}
	id := dispatch.GroupID(b.nextGroup)
	err := o.change(ctx, func(t *turn) {
		g := &groupState{cfg: cfg, created: t.now, deadFirst: 1, deadNext: 1}
		o.groups[id] = g
		o.m.AddGroup(cfg.dispatch(id))
		t.batch.PutGroup(g.record(id))
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

// roomForTopic returns nil when one more parent topic may be created. cfg says whether an
// operator creates it or a request does, on demand.
func (b *Broker) roomForTopic(cfg TopicConfig) error {
	b.mu.RLock()
	defer b.mu.RUnlock()
	auto := 0
	for _, o := range b.topics {
		if o.cfg.Auto {
			auto++
		}
	}
	switch {
	case len(b.topics) >= maxTopics:
		return fmt.Errorf("%w: %d parent topics exist, at most %d", ErrInvalidArgument, len(b.topics), maxTopics)
	case cfg.Auto && auto >= b.opts.MaxAutoTopics:
		return fmt.Errorf("%w: %q is not created: %d parent topics were created on demand, at most %d (max-auto-topics)",
			ErrTopicNotFound, cfg.Name, auto, b.opts.MaxAutoTopics)
	}
	return nil
}

// roomForGroup is roomForTopic for a consumer group. Each group has a position in every
// bucket of its topic, so memory follows groups times buckets.
func (b *Broker) roomForGroup(cfg GroupConfig) error {
	b.mu.RLock()
	defer b.mu.RUnlock()
	auto := 0
	for _, g := range b.groups {
		if g.cfg.Auto {
			auto++
		}
	}
	switch {
	case len(b.groups) >= maxGroups:
		return fmt.Errorf("%w: %d consumer groups exist, at most %d", ErrInvalidArgument, len(b.groups), maxGroups)
	case cfg.Auto && auto >= b.opts.MaxAutoGroups:
		return fmt.Errorf("%w: %q is not created: %d groups were created on demand, at most %d (max-auto-groups)",
			ErrGroupNotFound, cfg.Name, auto, b.opts.MaxAutoGroups)
	}
	return nil
}

// DeleteGroup removes a group with its positions, holds and dead letters. Messages
// that only it had still to read go with it.
func (b *Broker) DeleteGroup(ctx context.Context, name string) error {
	_, err := b.removeGroup(ctx, name, func(*groupState, dispatch.GroupUse) bool { return true })
	return err
}

// removed is the result of the removal of a group.
type removed struct {
	done     bool
	messages int64
	dead     uint64
}

// removeGroup removes a group if the loop agrees in the turn of the removal. A consumer
// that was about to poll gets ErrGroupNotFound, and its next poll creates the group again
// where that is allowed.
func (b *Broker) removeGroup(ctx context.Context, name string, agrees func(*groupState, dispatch.GroupUse) bool) (removed, error) {
	b.changing.Lock()
	defer b.changing.Unlock()
	g, err := b.group(name)
	if err != nil {
		return removed{}, err
	}
	o, r := g.owner, removed{}
	err = o.change(ctx, func(t *turn) {
		state := o.groups[g.id]
		if !agrees(state, o.m.GroupUse(g.id)) {
			return
		}
		before := o.m.Stats().Messages
		o.m.RemoveGroup(t.now, g.id)
		o.carryOut(t, o.m.Take())
		delete(o.groups, g.id)
		t.batch.DeleteGroup(&store.Group{ID: uint32(g.id), Name: name})
		r = removed{done: true, messages: before - o.m.Stats().Messages, dead: state.deadNext - state.deadFirst}
	})
	// The group is dropped after an error as well: then the loop has ended, or is about to.
	if err != nil || r.done {
		b.mu.Lock()
		delete(b.groups, name)
		b.mu.Unlock()
	}
	return r, err
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
//
// It waits for room in the queue: if a busy loop refused a change, the registry and the
// loop would disagree.
func (o *owner) change(ctx context.Context, f func(t *turn)) error {
	ctx = context.WithoutCancel(ctx)
	c := &changeCommand{reply: newReply(), f: f}
	if err := o.sendWait(ctx, c); err != nil {
		return err
	}
	return o.await(ctx, c.reply)
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
