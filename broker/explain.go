package broker

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/penstockmq/penstock/broker/dispatch"
	"github.com/penstockmq/penstock/broker/lite"
	"github.com/penstockmq/penstock/suspend"
	"github.com/penstockmq/penstock/suspend/quota"
)

// Explanation says why a message waits, or that it does not.
type Explanation struct {
	Topic, Group, Bucket string
	Cell                 lite.Cell
	// Level is the importance in force.
	Level uint8
	// Offset is the message's; -1 when the bucket has none to deliver.
	Offset int64
	// RequestID is the message's property, when it has one.
	RequestID string
	// State is "queued" behind others of its bucket, "out" with a consumer, "held" by a
	// suspend, "limited", "in_flight_full", "ready" for the next poll, or StateEmpty.
	State string
	// Position counts the undelivered messages of the bucket before it; 0 is next.
	Position int
	// Gate is the closed gate that opens last and Limit the kind of limit that closes
	// it, empty if a suspend does. Both are zero when no gate is closed.
	Gate  suspend.Target
	Limit string
	// Hold is the suspend in force that ends last; its Until is zero if there is none.
	Hold suspend.Hold
	// Since is when the bucket came to where it is. Until is when the gate opens at the
	// earliest, or when the lease ends. Zero is not known.
	Since, Until time.Time
	// Opens says in words what will let the message go.
	Opens string
	// EstimatedStart is a guess from the pace of what binds; zero: nothing is known.
	EstimatedStart time.Time
	// Lines are the limits that apply, with what is used of them now.
	Lines []quota.Line
	// PolicyNotice is the text of Options.PolicyNotice about the policy of these limits.
	PolicyNotice string
}

// NextMessage as an offset means the message whose turn is next.
const NextMessage = -1

// Explain says where a message of a bucket stands with a group: the one at offset, or
// with NextMessage the next to be delivered. An empty group means the only one that
// reads the topic. Of a bucket without messages the State is "empty".
//
// Errors: ErrTopicNotFound, ErrGroupNotFound, ErrGroupBound; ErrBucketNotFound;
// ErrNotQueued when the message is settled or never was.
func (b *Broker) Explain(ctx context.Context, topic, group, name string, offset int64) (Explanation, error) {
	if err := lite.CheckName(name); err != nil {
		return Explanation{}, err
	}
	if offset < NextMessage {
		return Explanation{}, fmt.Errorf("%w: offset %d, want %d for the next or more", ErrInvalidArgument, offset, NextMessage)
	}
	return b.explain(ctx, topic, group, wanted{name: name, offset: offset})
}

// ExplainHandle is Explain for a message by the recall handle of its Receipt.
func (b *Broker) ExplainHandle(ctx context.Context, topic, group, recallHandle string) (Explanation, error) {
	r, err := decodeRecall(recallHandle)
	if err != nil {
		return Explanation{}, err
	}
	return b.explain(ctx, topic, group, wanted{name: r.name, offset: int64(r.offset), bucket: r.bucket})
}

// wanted is a message to explain. bucket is 0 if any bucket of the name will do.
type wanted struct {
	name   string
	offset int64
	bucket dispatch.BucketID
}

func (b *Broker) explain(ctx context.Context, topic, group string, w wanted) (Explanation, error) {
	g, err := b.reader(topic, group)
	if err != nil {
		return Explanation{}, err
	}
	o := g.owner
	if w.bucket != 0 && topicOf(w.bucket) != o.id {
		return Explanation{}, fmt.Errorf("%w: recall handle belongs to another parent topic", ErrInvalidHandle)
	}
	rec, ok, err := o.record(ctx, w.name)
	switch {
	case err != nil:
		return Explanation{}, err
	case !ok:
		return Explanation{}, fmt.Errorf("%w: %q under %q", ErrBucketNotFound, w.name, topic)
	case w.bucket != 0 && rec.ID != w.bucket: // it was deleted and has come back
		return Explanation{}, ErrNotQueued
	}
	out := Explanation{
		Topic: topic, Group: g.cfg.Name, Bucket: w.name, Cell: rec.Cell, Level: rec.Level,
		Offset: NextMessage, State: StateEmpty,
	}
	if b.opts.PolicyNotice != nil {
		out.PolicyNotice = b.opts.PolicyNotice()
	}
	found := false
	err = o.query(ctx, func(now time.Time) {
		off := dispatch.NextOffset
		if w.offset != NextMessage {
			off = dispatch.Offset(w.offset)
		}
		var x dispatch.Explanation
		if x, found = o.m.Explain(now, g.id, w.name, off); found {
			out.take(x)
		} else if x, ok := o.m.ExplainCell(now, g.id, w.name, rec.Cell); ok {
			out.take(x)
			out.State = StateEmpty
		}
	})
	switch {
	case err != nil:
		return Explanation{}, err
	case !found && w.offset != NextMessage:
		return Explanation{}, ErrNotQueued
	case found && out.Offset != NextMessage:
		out.RequestID = o.requestID(rec.ID, uint64(out.Offset))
	}
	return out, nil
}

// StateEmpty is the State of a bucket that has nothing for the group.
const StateEmpty = "empty"

// take copies what the machine says: its slices are valid only within the loop's turn.
func (e *Explanation) take(x dispatch.Explanation) {
	e.State, e.Position, e.Level = x.State.String(), x.Position, x.Level
	e.Offset = NextMessage
	if x.Offset != dispatch.NextOffset {
		e.Offset = int64(x.Offset)
	}
	e.Gate, e.Limit, e.Hold = x.Gate, x.Limit, x.Hold
	e.Since, e.Until, e.Opens, e.EstimatedStart = x.Since, x.Until, x.Opens, x.EstimatedStart
	e.Lines = slices.Clone(x.Lines)
}

// requestID is the message's, or empty: it may be gone by now, or have none.
func (o *owner) requestID(id dispatch.BucketID, off uint64) string {
	m, _, err := o.store.MessageHeader(uint64(id), off)
	if err != nil {
		return ""
	}
	v, _ := m.Property(lite.PropertyRequestID)
	return v
}

// reader finds a group that reads the topic, for who only looks: nothing is created. An
// empty name means the only one.
func (b *Broker) reader(topic, group string) (groupEntry, error) {
	o, ok := b.lookup(topic)
	if !ok {
		return groupEntry{}, fmt.Errorf("%w: %q", ErrTopicNotFound, topic)
	}
	if group != "" {
		g, err := b.group(group)
		if err == nil && g.owner != o {
			err = fmt.Errorf("%w: group %q reads %q, the request names %q", ErrGroupBound, group, g.cfg.Topic, topic)
		}
		return g, err
	}
	b.mu.RLock()
	defer b.mu.RUnlock()
	var found []groupEntry
	for _, g := range b.groups {
		if g.owner == o {
			found = append(found, g)
		}
	}
	if len(found) != 1 {
		return groupEntry{}, fmt.Errorf("%w: %d groups read %q, name one", ErrGroupNotFound, len(found), topic)
	}
	return found[0], nil
}
