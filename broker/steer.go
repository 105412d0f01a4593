package broker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/penstockmq/penstock/suspend"
	"github.com/penstockmq/penstock/suspend/policy"
	"github.com/penstockmq/penstock/suspend/signal"
)

// steering is what an operator and the back-pressure say to all parent topics alike.
// It is kept here so that a topic that is created later hears it too.
type steering struct {
	mu sync.Mutex
	// mu guards the following fields, and the order in which changes reach the loops:
	// it is held while they are posted, which never blocks.
	policy *policy.Document
	board  signal.Board
}

// Policy is the policy in force; nil if none was ever set.
func (b *Broker) Policy() *policy.Document {
	b.steering.mu.Lock()
	defer b.steering.mu.Unlock()
	return b.steering.policy
}

// SetPolicy puts a policy in force in all parent topics, those to come included, and
// returns when every owner loop has it. It acts on what is queued: closed gates that
// it opens are open when it returns, buckets are reviewed within a second.
//
// The document is shared and must not be changed. When ctx ends first, the error names
// the topics that are not known to have it: those whose loop was too busy to take it
// go on with the old one until the next change.
func (b *Broker) SetPolicy(ctx context.Context, doc *policy.Document) error {
	if doc == nil {
		return fmt.Errorf("%w: policy is nil, want a document", ErrInvalidArgument)
	}
	// The comparison may take a while, and so it is made here and not in a loop. If
	// another change comes in between, the loops see that it is not about what they
	// have, and review everything.
	old := b.Policy()
	var reach *policy.Reach
	if old != nil {
		reach = policy.ReachOf(old, doc)
	}
	return b.steer(ctx,
		func(time.Time) { b.steering.policy = doc },
		func(o *owner, now time.Time) { o.m.ChangePolicy(now, doc, old, reach) })
}

// SetSignal scales a column or level in all parent topics, those to come included, and
// returns when every owner loop has it. It replaces what the same source said of the
// same target. Signals are not stored: who sends them sends them again after a start.
func (b *Broker) SetSignal(ctx context.Context, s signal.Signal) error {
	if err := s.Validate(); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalidArgument, err)
	}
	return b.steer(ctx, func(now time.Time) { b.steering.board.Put(now, s) }, func(o *owner, now time.Time) { o.m.SetSignal(now, s) })
}

// DropSignal forgets what a source said of a target; the target's limits come back
// gradually. No-op if it said nothing.
func (b *Broker) DropSignal(ctx context.Context, target suspend.Target, source string) error {
	return b.steer(ctx,
		func(now time.Time) { b.steering.board.Drop(now, target, source) },
		func(o *owner, now time.Time) { o.m.DropSignal(now, target, source) })
}

// steer notes a change and queues it for every loop, in one order for all callers,
// then waits for the loops.
func (b *Broker) steer(ctx context.Context, note func(now time.Time), apply func(o *owner, now time.Time)) error {
	replies, err := b.postSteer(note, apply)
	for o, r := range replies {
		err = errors.Join(err, b.steered(o, o.await(ctx, r)))
	}
	return err
}

// steered is the error of one topic. That it was deleted meanwhile is none.
func (b *Broker) steered(o *owner, err error) error {
	if err == nil || errors.Is(err, ErrClosed) && b.runCtx.Err() == nil {
		return nil
	}
	return fmt.Errorf("parent topic %q: %w", o.name, err)
}

func (b *Broker) postSteer(note func(now time.Time), apply func(o *owner, now time.Time)) (map[*owner]reply, error) {
	b.steering.mu.Lock()
	defer b.steering.mu.Unlock()
	note(b.opts.Clock().Wall)
	replies := map[*owner]reply{}
	var err error
	for _, o := range b.owners() {
		c := &queryCommand{reply: newReply()}
		c.f = func(now time.Time) { apply(o, now) }
		if serr := o.steers.post(c); serr != nil {
			err = errors.Join(err, b.steered(o, serr))
			continue
		}
		_ = o.send(nudge{}) // a full queue causes a turn anyway
		replies[o] = c.reply
	}
	return replies, err
}

// maxSteers bounds the changes that wait for one loop. A loop takes all of them in its next
// turn.
const maxSteers = 4096

// steers are the changes of policy and signals that wait for a loop, in order. They have
// their own queue: the command queue may be full for long while the disk stalls, and a wait
// for it would delay every other topic and every reader of the policy.
type steers struct {
	mu      sync.Mutex // guards the following field
	waiting []*queryCommand
}

// post queues a change. ErrBusy when maxSteers wait.
func (s *steers) post(c *queryCommand) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.waiting) >= maxSteers {
		return fmt.Errorf("%w: %d changes of policy and signals wait", ErrBusy, len(s.waiting))
	}
	s.waiting = append(s.waiting, c)
	return nil
}

func (s *steers) take() []*queryCommand {
	s.mu.Lock()
	defer s.mu.Unlock()
	taken := s.waiting
	s.waiting = nil
	return taken
}

// nudge is a command that only causes a turn.
type nudge struct{}

func (nudge) apply(*owner, *turn) {}

// join tells a topic that is being created what is in force, and makes it known in the
// same step, so that it misses no change.
func (b *Broker) join(o *owner, now time.Time, publish func()) {
	b.steering.mu.Lock()
	defer b.steering.mu.Unlock()
	if b.steering.policy != nil {
		o.m.SetPolicy(now, b.steering.policy)
	}
	for _, t := range b.steering.board.Targets(now) {
		for _, s := range b.steering.board.Explain(now, t) {
			o.m.SetSignal(now, s.Signal)
		}
	}
	publish()
}
