package broker

import (
	"context"
	"errors"
	"time"

	"github.com/penstockmq/penstock/broker/dispatch"
)

const (
	// groupWatch is how often groups are looked at: whether they have a client, and what
	// is kept for them alone.
	groupWatch = 10 * time.Second
	// censusChunk bounds the buckets that one turn of an owner loop counts.
	censusChunk = 4096
	// idleSaves is how often the idle time of a group is written within its Retention.
	idleSaves = 16
)

// GroupUse is what an operator sees of a group's use.
type GroupUse struct {
	Name string
	// Clients are the consumers that were heard of within the last three minutes.
	Clients int
	// Idle is for how long the group has had no client while the broker ran, within
	// 10 s; 0 if it has one.
	Idle time.Duration
	// Kept counts the messages that are kept for this group alone, as all other groups
	// are done with them. It is up to 10 s old, and approximate.
	Kept int64
}

// watchGroups notes which groups have no client, and removes those that have had none for
// longer than their Retention. Idle time is what this loop has seen pass, bounded for each
// look: neither a step of the clock nor the time in which the broker was down counts.
func (b *Broker) watchGroups(ctx context.Context) error {
	ticker := time.NewTicker(groupWatch)
	defer ticker.Stop()
	for last := time.Now(); ; {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		now := time.Now()
		elapsed := min(now.Sub(last), 2*groupWatch)
		last = now
		for _, o := range b.owners() {
			b.watchOwner(ctx, o, elapsed)
		}
	}
}

func (b *Broker) watchOwner(ctx context.Context, o *owner, elapsed time.Duration) {
	c := &idleCommand{reply: newReply(), elapsed: elapsed}
	if err := o.call(ctx, c); err != nil {
		return // busy or stopping: the next look makes up for it
	}
	for _, name := range c.over {
		b.retire(ctx, name)
	}
	kept := map[dispatch.GroupID]int64{}
	for from, more := 0, true; more; {
		err := o.query(ctx, func(time.Time) {
			from = o.m.Census(from, censusChunk, kept)
			if more = from > 0; !more {
				for id, g := range o.groups {
					g.kept = kept[id]
				}
			}
		})
		if err != nil {
			return
		}
	}
}

// retire removes a group whose Retention is over, unless a client came back meanwhile.
func (b *Broker) retire(ctx context.Context, name string) {
	r, err := b.removeGroup(ctx, name, func(g *groupState, use dispatch.GroupUse) bool {
		return use == dispatch.GroupUse{} && g.idle >= g.cfg.Retention
	})
	switch {
	case errors.Is(err, ErrGroupNotFound): // an operator was quicker
	case err != nil:
		b.opts.Logger.Error("group without a client not removed", "group", name, "error", err)
	case r.done:
		b.metrics.GroupsRetired.Add(1)
		b.metrics.RetiredMessages.Add(r.messages)
		b.opts.Logger.Warn("group removed: it had no client for longer than its retention", "group", name,
			"messages_freed", r.messages, "dead_letters_dropped", r.dead)
	}
}

// idleCommand adds the time since the last look to the idle time of groups without a
// client.
type idleCommand struct {
	reply
	elapsed time.Duration
	// over are the groups whose Retention has passed.
	over []string
}

func (c *idleCommand) apply(o *owner, t *turn) {
	for id, g := range o.groups {
		if use := o.m.GroupUse(id); use != (dispatch.GroupUse{}) {
			g.idle = 0
		} else {
			g.idle += c.elapsed
		}
		if g.cfg.Retention == 0 {
			continue
		}
		if g.idle >= g.cfg.Retention {
			c.over = append(c.over, g.cfg.Name)
		}
		if g.idle == 0 && g.savedIdle > 0 || g.idle-g.savedIdle >= g.cfg.Retention/idleSaves {
			g.savedIdle = g.idle
			t.batch.PutGroup(g.record(id))
		}
	}
	t.after = append(t.after, c)
}
