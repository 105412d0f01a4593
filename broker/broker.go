// Package broker keeps durable buckets and says which message goes next.
//
// It owns the life of parent topics, groups and buckets: each parent topic has one
// owner loop (owner.go), which drives the pure machine of broker/dispatch and
// writes what it decides through broker/store. It knows nothing of gRPC or HTTP:
// broker/rpc and broker/admin call it.
//
// All methods of Broker are safe for concurrent use and wait for the disk or for
// messages only as their comments say. See DESIGN.md for the path of a message.
package broker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/penstockmq/penstock/broker/dispatch"
	"github.com/penstockmq/penstock/broker/store"
)

// Broker is a message broker over one data folder.
type Broker struct {
	// Immutable after Open.
	opts    Options
	store   *store.Store
	metrics Metrics
	notices *notices // nil when nobody wants to hear any

	// runCtx bounds the owner loops; it is cancelled by Close and by a loop's failure.
	runCtx context.Context
	stop   context.CancelFunc
	loops  *errgroup.Group

	mu sync.RWMutex
	// mu guards the following fields. It is not held while a loop or the disk is
	// waited for; changing is.
	topics map[string]*owner
	groups map[string]groupEntry

	// changing serialises creation and deletion of topics and groups.
	changing sync.Mutex
	// nextTopic, nextGroup and closed are guarded by changing; the first two are the
	// next free ids.
	nextTopic uint16
	nextGroup uint32
	closed    bool

	// steering is the policy and the signals in force; it has its own lock.
	steering steering

	// waiting is the size of sends not yet on disk, in bytes, see Options.MaxEventBytes.
	waiting atomic.Int64
	// space is nil when free space is not measured.
	space *space

	// redriving serialises Redrive.
	redriving sync.Mutex

	closeOnce sync.Once
	closeErr  error
}

type groupEntry struct {
	id    dispatch.GroupID
	owner *owner
	cfg   GroupConfig
}

// Open is OpenContext without a limit on the opening of the store.
func Open(opts Options) (*Broker, error) { return OpenContext(context.Background(), opts) }

// OpenContext opens the data folder, reads its state and starts an owner loop for each
// parent topic. The caller must Close the broker. opening bounds the opening of the store
// only: when opening is done first, the process should end.
func OpenContext(opening context.Context, opts Options) (*Broker, error) {
	opts = opts.withDefaults()
	if err := opts.validate(); err != nil {
		return nil, err
	}
	st, err := store.OpenContext(opening, store.Options{
		Dir: opts.Dir, FS: opts.FS, CacheBytes: opts.CacheBytes, AsyncFlush: opts.AsyncFlush, Logger: opts.Logger,
	})
	if err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	ctx, stop := context.WithCancel(context.Background())
	loops, runCtx := errgroup.WithContext(ctx)
	b := &Broker{
		steering: steering{policy: opts.Policy},
		opts:     opts, store: st, runCtx: runCtx, stop: stop, loops: loops,
		topics: map[string]*owner{}, groups: map[string]groupEntry{}, nextTopic: 1, nextGroup: 1,
	}
	b.space = newSpace(opts)
	b.notices = newNotices(opts, &b.metrics.NoticesDropped)
	if err := b.recover(); err != nil {
		stop()
		return nil, errors.Join(fmt.Errorf("recover: %w", err), st.Close())
	}
	for _, o := range b.topics {
		b.start(o)
	}
	loops.Go(func() error { return b.sweep(runCtx) })
	loops.Go(func() error { return b.space.run(runCtx) })
	loops.Go(func() error { return b.watchGroups(runCtx) })
	go b.notices.run()
	if err := b.createConfigured(ctx); err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return b, nil
}

// createConfigured creates the topics and groups of the options that are not there.
func (b *Broker) createConfigured(ctx context.Context) error {
	for _, c := range b.opts.Topics {
		if err := b.CreateTopic(ctx, c); err != nil && !errors.Is(err, ErrExists) {
			return err
		}
	}
	for _, c := range b.opts.Groups {
		if err := b.CreateGroup(ctx, c); err != nil && !errors.Is(err, ErrExists) {
			return err
		}
	}
	return nil
}

func (b *Broker) start(o *owner) {
	b.loops.Go(func() error { return o.run() })
}

// Run blocks until ctx is done or a part of the broker failed. It does not close
// the broker.
func (b *Broker) Run(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-b.runCtx.Done():
		return b.Close()
	}
}

// Close ends all polls, waits until accepted writes hold, and closes the store. It
// may be called twice and returns the error that stopped the broker, if one did.
func (b *Broker) Close() error {
	b.closeOnce.Do(func() {
		b.changing.Lock()
		b.closed = true
		b.changing.Unlock()
		b.stop()
		err := b.loops.Wait()
		b.notices.close() // it may still read the store
		b.closeErr = errors.Join(err, b.store.Close())
	})
	return b.closeErr
}

// Metrics are the counters of this broker.
func (b *Broker) Metrics() *Metrics { return &b.metrics }

// owners are the owner loops there are, in no order.
func (b *Broker) owners() []*owner {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return slices.Collect(maps.Values(b.topics))
}

// lookup finds the owner of a parent topic.
func (b *Broker) lookup(topic string) (*owner, bool) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	o, ok := b.topics[topic]
	return o, ok
}

// topic returns the owner of a parent topic, and creates the topic if that is allowed. It
// is for sends and receives: a query creates nothing.
func (b *Broker) topic(ctx context.Context, name string) (*owner, error) {
	if o, ok := b.lookup(name); ok {
		return o, nil
	}
	if !b.opts.AutoCreate {
		return nil, fmt.Errorf("%w: %q", ErrTopicNotFound, name)
	}
	cfg := b.opts.AutoTopic
	cfg.Name, cfg.Auto = name, true
	if err := b.CreateTopic(ctx, cfg); err != nil && !errors.Is(err, ErrExists) {
		return nil, err
	}
	if o, ok := b.lookup(name); ok {
		return o, nil
	}
	return nil, fmt.Errorf("%w: %q", ErrTopicNotFound, name)
}

// route returns the owner and the group's id for a request about a group. It creates no
// topic and no group: a group keeps every message that it has not read, so a query, a hold
// or a settlement with a mistyped name must not create one.
func (b *Broker) route(_ context.Context, topic, group string) (*owner, dispatch.GroupID, error) {
	o, ok := b.lookup(topic)
	if !ok {
		return nil, 0, fmt.Errorf("%w: %q", ErrTopicNotFound, topic)
	}
	g, err := b.group(group)
	if err != nil {
		return nil, 0, err
	}
	if g.owner != o {
		return nil, 0, fmt.Errorf("%w: group %q reads %q, the request names %q", ErrGroupBound, group, g.cfg.Topic, topic)
	}
	return o, g.id, nil
}

// enroll is route for a consumer that requests messages: with AutoCreate it creates the
// parent topic and the group. A group from the options that was removed for want of a
// client is always created again.
func (b *Broker) enroll(ctx context.Context, topic, group string) (*owner, dispatch.GroupID, error) {
	if _, err := b.topic(ctx, topic); err != nil {
		return nil, 0, err
	}
	if _, err := b.group(group); err != nil {
		cfg, ok := b.planned(topic, group)
		if !ok {
			return nil, 0, err
		}
		if err := b.CreateGroup(ctx, cfg); err != nil && !errors.Is(err, ErrExists) {
			return nil, 0, err
		}
	}
	return b.route(ctx, topic, group)
}

// planned returns the settings with which the group would be created on demand; false if
// it would not be created.
func (b *Broker) planned(topic, group string) (GroupConfig, bool) {
	for _, c := range b.opts.Groups {
		if c.Name == group {
			return c, true
		}
	}
	cfg := b.opts.AutoGroup
	cfg.Name, cfg.Topic, cfg.Auto = group, topic, true
	return cfg, b.opts.AutoCreate
}

// group finds a consumer group; it never creates one.
func (b *Broker) group(name string) (groupEntry, error) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	g, ok := b.groups[name]
	if !ok {
		return g, fmt.Errorf("%w: %q", ErrGroupNotFound, name)
	}
	return g, nil
}

// PlannedGroup returns the settings of an existing group, or those with which its first
// receive would create it; false if the group may not be created.
func (b *Broker) PlannedGroup(topic, group string) (GroupConfig, bool) {
	if cfg, ok := b.Group(group); ok {
		return cfg, true
	}
	cfg, ok := b.planned(topic, group)
	return cfg.withDefaults(), ok
}

// CheckTopic returns nil when the parent topic exists or the next send or receive would
// create it. It creates nothing.
func (b *Broker) CheckTopic(name string) error {
	if _, ok := b.lookup(name); ok {
		return nil
	}
	if !b.opts.AutoCreate {
		return fmt.Errorf("%w: %q", ErrTopicNotFound, name)
	}
	return b.roomForTopic(TopicConfig{Name: name, Auto: true})
}

// CheckGroup returns nil when the group reads the parent topic, or the next receive would
// create a group that does. It creates nothing: official clients ask for their assignment
// before they ask for messages, and never ask for messages when the answer is an error.
func (b *Broker) CheckGroup(ctx context.Context, topic, group string) error {
	if err := b.CheckTopic(topic); err != nil {
		return err
	}
	if _, err := b.group(group); err == nil {
		_, _, err := b.route(ctx, topic, group)
		return err
	}
	cfg, ok := b.planned(topic, group)
	switch {
	case !ok:
		return fmt.Errorf("%w: %q", ErrGroupNotFound, group)
	case cfg.Topic != topic:
		return fmt.Errorf("%w: group %q reads %q, the request names %q", ErrGroupBound, group, cfg.Topic, topic)
	}
	return b.roomForGroup(cfg)
}
