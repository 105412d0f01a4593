package broker

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/penstockmq/penstock/broker/dispatch"
	"github.com/penstockmq/penstock/broker/lite"
	"github.com/penstockmq/penstock/broker/store"
)

// Send stores messages, all or none, and returns when they are durable. They may be
// of several buckets; a bucket comes into being with its first message. Messages of
// one bucket keep their order.
//
// Errors: ErrTopicNotFound; ErrInvalidArgument or lite.ErrName for a field out of
// its limits; ErrBodyTooLarge; ErrDeadlinePassed; ErrBucketFull, ErrBucketBytes, ErrTooManyBuckets and
// ErrTooManyUserBuckets when a cap is reached; ErrDiskFull; ErrBusy; ErrClosed; the context's error, after which the
// messages may or may not have been stored.
func (b *Broker) Send(ctx context.Context, topic string, msgs []Message) ([]Receipt, error) {
	o, err := b.topic(ctx, topic)
	if err != nil {
		return nil, err
	}
	c, err := b.newSend(msgs)
	if err != nil {
		return nil, err
	}
	if err := b.admit(msgs); err != nil {
		return nil, err
	}
	if err := b.callSend(ctx, o, c, c); err != nil {
		return nil, err
	}
	return c.receipts(), nil
}

// callSend is o.call for a send, or for a command that contains a send, after enter admits it.
func (b *Broker) callSend(ctx context.Context, o *owner, c *sendCommand, whole waitingCommand) error {
	if err := c.enter(b); err != nil {
		b.metrics.SendRefused.Add(int64(len(c.places)))
		return err
	}
	if err := o.send(whole); err != nil {
		c.leave()
		return err
	}
	err := o.await(ctx, whole.waitFor())
	select {
	case <-o.done:
		c.leave() // the command may have been queued after the loop's end
	default:
	}
	return err
}

// enter counts the bytes of a send, or refuses the send. They count until the send is
// complete: while it is queued, in a batch that is built, or in a batch that waits for the
// disk. So the bytes of all outstanding batches are bounded, too, far below the 4 GiB at
// which the store's engine panics.
func (c *sendCommand) enter(b *Broker) error {
	var n int64
	for i := range c.parts {
		for _, m := range c.parts[i].messages {
			n += sizeOf(m)
		}
	}
	most := b.opts.MaxEventBytes
	if now := b.waiting.Add(n); now > most && now > n { // a single send is always admitted
		b.waiting.Add(-n)
		return fmt.Errorf("%w: sends of %d bytes wait for the disk, at most %d", ErrBusy, now-n, most)
	}
	c.waiting = &b.waiting
	c.counted.Store(n)
	return nil
}

// leave reverts enter, once.
func (c *sendCommand) leave() { c.waiting.Add(-c.counted.Swap(0)) }

func (c *sendCommand) complete(err error) {
	c.leave()
	c.reply.complete(err)
}

// sendCommand is one Send on its way through the loop.
type sendCommand struct {
	reply
	// counted is the number of bytes of this send in waiting, from enter to leave.
	counted atomic.Int64
	waiting *atomic.Int64
	// parts are the messages of one bucket each.
	parts []sendPart
	// places says where a message of the Send is: its part and its place there.
	places []struct{ part, index int }
	// results are set by apply, one for each part.
	results []dispatch.Appended
}

type sendPart struct {
	request  dispatch.AppendRequest
	messages []*store.Message
}

// newSend checks the messages and sorts them by bucket.
func (b *Broker) newSend(msgs []Message) (*sendCommand, error) {
	if len(msgs) == 0 || len(msgs) > maxBatchMessages {
		return nil, fmt.Errorf("%w: %d messages in one send, want 1 to %d", ErrInvalidArgument, len(msgs), maxBatchMessages)
	}
	c := &sendCommand{reply: newReply(), places: make([]struct{ part, index int }, len(msgs))}
	partOf := make(map[string]int, 1)
	stored := b.opts.Clock().Wall
	for i := range msgs {
		m := &msgs[i]
		part, ok := partOf[m.Lite]
		if !ok {
			request, err := newBucketRequest(m)
			if err != nil {
				return nil, err
			}
			part = len(c.parts)
			partOf[m.Lite] = part
			c.parts = append(c.parts, sendPart{request: request})
		}
		if len(m.Body) > b.opts.MaxBodyBytes {
			return nil, fmt.Errorf("%w: %d bytes, at most %d", ErrBodyTooLarge, len(m.Body), b.opts.MaxBodyBytes)
		}
		deadline, err := messageDeadline(m.Properties)
		if err != nil {
			return nil, err
		}
		// The refusal here reaches the sender. A message that expired in the queue would vanish
		// without an answer, and a sender whose clock is ten minutes behind would lose every message.
		if late := stored.Sub(deadline); !deadline.IsZero() && late >= 0 {
			b.metrics.LateSends.Add(1)
			return nil, fmt.Errorf("%w: property %s is %v before the broker's clock, which says %s: compare the clocks of sender and broker",
				ErrDeadlinePassed, lite.PropertyDeadline, late.Round(time.Millisecond), stored.UTC().Format(time.RFC3339))
		}
		level, err := checkStamps(m.Properties)
		if err != nil {
			return nil, err
		}
		p := &c.parts[part]
		p.request.Level = moreImportant(p.request.Level, level)
		c.places[i].part, c.places[i].index = part, len(p.messages)
		kept := toStored(m, stored, deadline)
		p.request.Messages = append(p.request.Messages, dispatch.MessageMeta{
			Size: len(m.Body), Deadline: deadline, Cost: messageCost(kept, len(m.Body)),
		})
		p.messages = append(p.messages, kept)
	}
	return c, nil
}

// newBucketRequest checks the name of a message's bucket and finds its cell.
func newBucketRequest(m *Message) (dispatch.AppendRequest, error) {
	if err := lite.CheckName(m.Lite); err != nil {
		return dispatch.AppendRequest{}, err
	}
	cell, err := lite.Resolve(m.Lite, m.Properties[lite.PropertyUser], m.Properties[lite.PropertyModel])
	return dispatch.AppendRequest{Name: m.Lite, Cell: cell, Level: unstamped}, err
}

func messageDeadline(properties map[string]string) (time.Time, error) {
	deadline, err := lite.ParseDeadline(properties[lite.PropertyDeadline])
	if err != nil {
		return time.Time{}, fmt.Errorf("%w: %w", ErrInvalidArgument, err)
	}
	return deadline, nil
}

func (c *sendCommand) apply(o *owner, t *turn) {
	if err := c.append(o, t.now); err != nil {
		o.metrics.SendRefused.Add(int64(len(c.places)))
		c.complete(dispatchError(err))
		return
	}
	for i := range c.parts {
		p, at := &c.parts[i], c.results[i]
		for j, m := range p.messages {
			off := at.First + dispatch.Offset(j)
			t.batch.PutMessage(uint64(at.Bucket), uint64(off), m)
			o.cache.put(messageKey{at.Bucket, off}, p.request.Name, m)
		}
		t.appended = append(t.appended, appendedTail{at.Bucket, at.First + dispatch.Offset(len(p.messages))})
	}
	o.metrics.Sends.Add(int64(len(c.places)))
	t.durable = true
	t.after = append(t.after, c)
}

// append takes the messages into their buckets, all or none.
func (c *sendCommand) append(o *owner, now time.Time) error {
	requests := make([]dispatch.AppendRequest, len(c.parts))
	for i := range c.parts {
		requests[i] = c.parts[i].request
		if err := o.load(requests[i].Name); err != nil {
			return err
		}
	}
	var err error
	c.results, err = o.m.AppendAll(now, make([]dispatch.Appended, 0, len(requests)), requests...)
	return err
}

// receipts are the answer, once the messages are stored.
func (c *sendCommand) receipts() []Receipt {
	out := make([]Receipt, len(c.places))
	for i, at := range c.places {
		p, stored := &c.parts[at.part], c.results[at.part]
		off := stored.First + dispatch.Offset(at.index)
		out[i] = Receipt{
			MessageID:    p.messages[at.index].ID,
			Offset:       uint64(off),
			RecallHandle: encodeRecall(recall{bucket: stored.Bucket, offset: off, name: p.request.Name}),
		}
	}
	return out
}

// load brings a bucket that is not in memory into the machine, if it exists. It is
// one point read, answered by the store's filters when the name is new.
func (o *owner) load(name string) error {
	if o.m.Resident(name) {
		return nil
	}
	rec, ok, err := o.store.Bucket(o.id, name)
	if err != nil || !ok {
		return err
	}
	o.m.Load(bucketState(rec))
	return nil
}
