package broker

import (
	"context"
	"errors"
	"time"

	"github.com/penstockmq/penstock/broker/dispatch"
)

const (
	// groupWatch is the pause between two checks of the groups: their clients, and the
	// messages kept for each group alone.
	groupWatch = 10 * time.Second
	// censusChunk bounds the buckets that one turn of an owner loop counts.
	censusChunk = 4096
	// idleSaves is the number of times that the idle time of a group is written per Retention.
	idleSaves = 16
)

// GroupUse is the use of a group as shown to an operator.
type GroupUse struct {
	Name string
	// Clients is the number of consumers that sent a request within the last three minutes.
	Clients int
	// Idle is the time for which the group has had no client while the broker ran, within
	// 10 s; 0 with a client.
	Idle time.Duration
	// Kept counts the messages that are kept for this group alone, since all other groups
	// have settled them. It is up to 10 s old, and approximate.
	Kept int64
}

// watchGroups measures for how long groups have had no client, and removes a group after
// its Retention. Idle time is the time that passed in this loop, bounded for each round:
// neither a step of the clock nor the downtime of the broker counts.
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
		return // busy or stopping: the next round adds this time
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

// retire removes a group whose Retention is over, unless a client has come back.
func (b *Broker) retire(ctx context.Context, name string) {
	r, err := b.removeGroup(ctx, name, func(g *groupState, use dispatch.GroupUse) bool {
		return use == dispatch.GroupUse{} && g.idle >= g.cfg.Retention
	})
	switch {
	case errors.Is(err, ErrGroupNotFound): // an operator has removed it
	case err != nil:
		b.opts.Logger.Error("group without a client not removed", "group", name, "error", err)
	case r.done:
		b.metrics.GroupsRetired.Add(1)
		b.metrics.RetiredMessages.Add(r.messages)
		b.opts.Logger.Warn("group removed: it had no client for longer than its retention", "group", name,
			"messages_freed", r.messages, "dead_letters_dropped", r.dead)
	}
}

// idleCommand adds the time since the last round to the idle time of groups without a
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
