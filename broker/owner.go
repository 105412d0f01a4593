package broker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/penstockmq/penstock/broker/dispatch"
	"github.com/penstockmq/penstock/broker/store"
)

// owner is the loop that owns all state of one parent topic and its groups.
//
// Handlers send it commands. It takes what has come in, applies it to the pure
// machine, hands one batch to the store and goes on; it never waits for the disk.
// A second goroutine, the committer, waits until batches hold, lets go the replies
// that hang on them, and tells the loop how far the log is durable. A naive loop
// that commits each command by itself would be bound by the disk's latency; one
// that shows messages before they are durable would hand out work that a power
// cut takes back.
//
//	commands ─▶ loop: machine + batch ─▶ pending ─▶ committer: wait ─▶ replies
//	               ▲                                   │
//	               └──────────── held ◀────────────────┘
//
// Both channels between the two have room for maxTurns. With so many under way the
// loop takes no commands, only what time brings: polls have to end. Such a turn may
// wait for room in pending. The committer then has room in held, which the loop has
// emptied in the same turn, so the two never wait for each other.
type owner struct {
	// Immutable after newOwner.
	id       uint16
	name     string
	store    *store.Store
	log      *slog.Logger
	observer Observer
	metrics  *Metrics
	notify   func(client, group, topic, name string)
	maxDead  int
	notices  *notices // nil when nobody wants to hear any

	// ctx ends the loop; stop cancels it.
	ctx  context.Context
	stop context.CancelFunc

	commands chan command
	steers   steers // has its own lock
	returns  returns
	pending  chan *turn
	held     chan *turn
	// done is closed when the loop and the committer have ended.
	done chan struct{}

	clock Clock

	// Owned by the loop.
	watch       watch
	m           *dispatch.Machine
	cfg         TopicConfig
	groups      map[dispatch.GroupID]*groupState
	cache       *tailCache
	outstanding int
	// rejected are the messages that workers made dead letters in this turn.
	rejected map[place]struct{}
	// broken is the store's error; after it nothing is accepted any more.
	broken error
}

// groupState is what the owner keeps for a group beside the machine's state.
type groupState struct {
	cfg     GroupConfig
	created time.Time
	// idle is the time for which the group has had no client while the broker ran; savedIdle
	// is the value in its record.
	idle, savedIdle time.Duration
	// kept is the count of the last census.
	kept int64
	// deadNext is the sequence of the next dead letter, deadFirst of the oldest kept.
	deadFirst, deadNext uint64
}

const (
	// maxTurns bounds the batches that were handed to the store and do not hold yet.
	maxTurns = 64
	// maxTurnCommands bounds the commands of one batch.
	maxTurnCommands = 1024
	// backlogPause is the time for which the loop leaves due events while the store is behind.
	// Each batch that waits for the store wakes the loop; without the pause due events would
	// take every place among the maxTurns, and no command would be taken.
	backlogPause = 10 * time.Millisecond
	// maxTurnBytes is the size at which a batch takes no more commands. A batch larger than
	// the store's memory tables is written by itself, and stalls the others.
	maxTurnBytes = 64 << 20
	// maxSleep bounds how long a step of the wall clock can go unnoticed.
	maxSleep = time.Second
)

// command is one event for the loop.
type command interface {
	// apply runs in the loop. The writes it causes go out with the turn's batch.
	apply(o *owner, t *turn)
}

// turn is one round of the loop: its batch, and what is to happen when it holds.
type turn struct {
	now   time.Time
	batch *store.Batch
	// handed is when the store got the batch, with the monotonic clock.
	handed time.Time
	// durable is whether the batch must survive a power cut or only kill -9.
	durable bool
	// appended lists the tails that become deliverable when the batch holds.
	appended []appendedTail
	// after are told how the batch ended, in order.
	after []completion
	err   error
}

type appendedTail struct {
	bucket dispatch.BucketID
	tail   dispatch.Offset
}

// completion is told, by the committer, that its turn's batch holds or failed.
type completion interface{ complete(err error) }

// wall is the system's wall clock, which only systemClock reads.
func wall() time.Time { return time.Now().Round(0) }

// run is the loop. It returns when o.ctx is done or the store failed; the committer
// has ended by then and every accepted command was answered.
func (o *owner) run() error {
	defer close(o.done)
	committed := make(chan struct{})
	go func() { defer close(committed); o.commit() }()
	defer func() { close(o.pending); o.discardHeld(committed) }()

	timer := time.NewTimer(0)
	defer timer.Stop()
	for o.broken == nil {
		commands := o.commands
		if o.outstanding >= maxTurns {
			commands = nil // the store is behind: let callers wait in the queue
		}
		var first command
		select {
		case <-o.ctx.Done():
			o.refuse(ErrClosed)
			return nil
		case first = <-commands:
		case h := <-o.held:
			o.absorb(h, o.now())
		case <-o.returns.wake:
		case <-timer.C:
		}
		o.turn(first)
		timer.Reset(o.sleep(o.now()))
	}
	o.refuse(fmt.Errorf("%w: %w", ErrClosed, o.broken))
	return o.broken
}

// discardHeld waits for the committer to end. It keeps held empty meanwhile: with more than
// maxTurns turns outstanding, a committer without a reader would block forever.
func (o *owner) discardHeld(committed <-chan struct{}) {
	for {
		select {
		case <-o.held:
		case <-committed:
			return
		}
	}
}

// turn takes the first command, if there is one, and what else has come in, lets
// the machine act on it, and submits.
func (o *owner) turn(first command) {
	begin := time.Now()
	t := &turn{now: o.now(), batch: o.store.NewBatch()}
	// First what holds: whoever was told that a message is stored, and then purges or recalls it, means that message, too.
	for more := true; more; {
		select {
		case h := <-o.held:
			o.absorb(h, t.now)
		default:
			more = false
		}
	}
	for _, c := range o.steers.take() {
		c.apply(o, t)
	}
	if first != nil {
		first.apply(o, t)
	}
	if o.outstanding < maxTurns {
		for _, c := range o.returns.take() {
			c.apply(o, t)
		}
		o.drainCommands(t)
	}
	o.m.Tick(t.now)
	o.m.Match(t.now)
	o.carryOut(t, o.m.Take())
	clear(o.rejected)
	o.noteClock(t)
	o.submit(t, begin)
}

func (o *owner) drainCommands(t *turn) {
	for range maxTurnCommands {
		if t.batch.Bytes() >= maxTurnBytes {
			return
		}
		select {
		case c := <-o.commands:
			c.apply(o, t)
		default:
			return
		}
	}
}

// absorb takes note of a batch that holds: its messages may be delivered now.
func (o *owner) absorb(h *turn, now time.Time) {
	o.outstanding--
	if h.err != nil {
		o.fail(h.err)
		return
	}
	for _, a := range h.appended {
		o.m.Durable(now, a.bucket, a.tail)
	}
}

// submit hands the batch to the store. A turn that writes nothing is over at once.
func (o *owner) submit(t *turn, begin time.Time) {
	if t.batch.Empty() {
		o.observer.Turn(time.Since(begin))
		_ = t.batch.Close() // nothing was applied, so nothing can have failed
		t.finish(nil)
		return
	}
	o.metrics.Turns.Add(1)
	class := store.Written
	if t.durable {
		class = store.Durable
	}
	t.handed = time.Now()
	if err := o.store.Apply(t.batch, class); err != nil {
		err = errors.Join(err, t.batch.Close())
		o.fail(err)
		t.finish(err)
		return
	}
	o.observer.Turn(time.Since(begin))
	o.outstanding++
	o.pending <- t // full only when time alone goes on causing turns
}

// fail notes the first failure of the store; the loop ends with it.
func (o *owner) fail(err error) {
	if o.broken == nil {
		o.broken = err
		o.log.Error("store failed", "topic", o.name, "error", err)
	}
}

// commit is the committer: it waits for batches in the order of their submission,
// which is the order in which they come to hold.
func (o *owner) commit() {
	for t := range o.pending {
		err := t.batch.Close()
		t.err = err
		o.observer.Commit(time.Since(t.handed))
		// The loop is told first: what a sender does when it has heard OK comes behind it.
		o.held <- t // not full while the loop waits for room in pending
		t.finish(err)
	}
}

func (t *turn) finish(err error) {
	for _, c := range t.after {
		c.complete(err)
	}
	t.after = nil
}

func (o *owner) sleep(now time.Time) time.Duration {
	wake, ok := o.m.NextWake()
	if !ok {
		return maxSleep
	}
	wait := max(0, min(wake.Sub(now), maxSleep))
	if o.outstanding >= maxTurns {
		wait = max(wait, backlogPause)
	}
	return wait
}

// refuse answers what is still queued. Whoever sends after this, or waits in a
// poll, sees done closed.
func (o *owner) refuse(err error) {
	for {
		select {
		case c := <-o.commands:
			if w, ok := c.(completion); ok {
				w.complete(err)
			}
		default:
			return
		}
	}
}

// send queues a command without waiting.
func (o *owner) send(c command) error {
	select {
	case <-o.done:
		return ErrClosed
	default:
	}
	select {
	case o.commands <- c:
		return nil
	default:
		return fmt.Errorf("%w: %d events wait for parent topic %q", ErrBusy, cap(o.commands), o.name)
	}
}

// sendWait queues a command, and waits for room if it must.
func (o *owner) sendWait(ctx context.Context, c command) error {
	select {
	case o.commands <- c:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-o.done:
		return ErrClosed
	}
}

// reply is embedded in commands that somebody waits for.
type reply struct{ ended chan error }

func newReply() reply { return reply{ended: make(chan error, 1)} }

func (r reply) complete(err error) { r.ended <- err }

// waitingCommand is a command with a reply.
type waitingCommand interface {
	command
	waitFor() reply
}

func (r reply) waitFor() reply { return r }

// call sends c and waits until its turn holds. When ctx ends first the command
// may still take effect: its sender has to assume that it did.
func (o *owner) call(ctx context.Context, c waitingCommand) error {
	if err := o.send(c); err != nil {
		return err
	}
	return o.await(ctx, c.waitFor())
}

// await waits for the reply to a command that was queued.
func (o *owner) await(ctx context.Context, r reply) error {
	select {
	case err := <-r.ended:
		return err
	case <-ctx.Done():
		return ctx.Err()
	case <-o.done:
	}
	select { // the loop may have answered before it ended
	case err := <-r.ended:
		return err
	default:
		return ErrClosed
	}
}

// query runs f in the loop, for what only reads.
func (o *owner) query(ctx context.Context, f func(now time.Time)) error {
	return o.call(ctx, &queryCommand{reply: newReply(), f: f})
}

type queryCommand struct {
	reply
	f func(now time.Time)
}

func (c *queryCommand) apply(_ *owner, t *turn) {
	c.f(t.now)
	c.complete(nil)
}
