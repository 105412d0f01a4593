package broker

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/penstockmq/penstock/broker/dispatch"
	"github.com/penstockmq/penstock/broker/lite"
	"github.com/penstockmq/penstock/broker/store"
)

// Send stores messages of one bucket, all or none, and returns when they are
// durable. The bucket comes into being with its first message.
//
// Errors: ErrTopicNotFound; ErrInvalidArgument or lite.ErrName for a field out of
// its limits; ErrBodyTooLarge; ErrBucketFull, ErrBucketBytes and ErrTooManyBuckets
// when a cap is reached; ErrBusy; ErrClosed; the context's error, after which the
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
	if err := o.call(ctx, c); err != nil {
		return nil, err
	}
	receipts := make([]Receipt, len(msgs))
	for i := range msgs {
		off := c.result.First + dispatch.Offset(i)
		receipts[i] = Receipt{
			MessageID:    msgs[i].ID,
			Offset:       uint64(off),
			RecallHandle: encodeRecall(recall{bucket: c.result.Bucket, offset: off, name: c.request.Name}),
		}
	}
	return receipts, nil
}

// newSend checks the messages and lays them out for the store.
func (b *Broker) newSend(msgs []Message) (*sendCommand, error) {
	if len(msgs) == 0 || len(msgs) > maxBatchMessages {
		return nil, fmt.Errorf("%w: %d messages in one send, want 1 to %d", ErrInvalidArgument, len(msgs), maxBatchMessages)
	}
	name := msgs[0].Lite
	if err := lite.CheckName(name); err != nil {
		return nil, err
	}
	cell, err := lite.Resolve(name, msgs[0].Properties[lite.PropertyUser], msgs[0].Properties[lite.PropertyModel])
	if err != nil {
		return nil, err
	}
	c := &sendCommand{
		reply:    newReply(),
		request:  dispatch.AppendRequest{Name: name, Cell: cell, Level: defaultLevel, Messages: make([]dispatch.MessageMeta, len(msgs))},
		messages: make([]*store.Message, len(msgs)),
	}
	stored := wall()
	for i := range msgs {
		m := &msgs[i]
		if m.Lite != name {
			return nil, fmt.Errorf("%w: messages of one send name the lite topics %q and %q, want one", ErrInvalidArgument, name, m.Lite)
		}
		if len(m.Body) > b.opts.MaxBodyBytes {
			return nil, fmt.Errorf("%w: %d bytes, at most %d", ErrBodyTooLarge, len(m.Body), b.opts.MaxBodyBytes)
		}
		deadline, err := messageDeadline(m.Properties)
		if err != nil {
			return nil, err
		}
		c.request.Messages[i] = dispatch.MessageMeta{Size: len(m.Body), Deadline: deadline}
		c.messages[i] = toStored(m, stored, deadline)
	}
	return c, nil
}

// defaultLevel is the importance of a bucket that nobody gave one: L1.
const defaultLevel = 1

func messageDeadline(properties map[string]string) (time.Time, error) {
	v, ok := properties[lite.PropertyDeadline]
	if !ok {
		return time.Time{}, nil
	}
	ms, err := strconv.ParseInt(v, 10, 64)
	if err != nil || ms <= 0 {
		return time.Time{}, fmt.Errorf("%w: property %s %q is not a time in Unix milliseconds", ErrInvalidArgument, lite.PropertyDeadline, v)
	}
	return time.UnixMilli(ms), nil
}

type sendCommand struct {
	reply
	request  dispatch.AppendRequest
	messages []*store.Message
	result   dispatch.Appended
}

func (c *sendCommand) apply(o *owner, t *turn) {
	if err := o.load(c.request.Name); err != nil {
		c.complete(err)
		return
	}
	var err error
	c.result, err = o.m.Append(t.now, c.request)
	if err != nil {
		o.metrics.SendRefused.Add(int64(len(c.messages)))
		c.complete(dispatchError(err))
		return
	}
	for i, m := range c.messages {
		off := c.result.First + dispatch.Offset(i)
		t.batch.PutMessage(uint64(c.result.Bucket), uint64(off), m)
		o.cache.put(messageKey{c.result.Bucket, off}, m)
	}
	o.metrics.Sends.Add(int64(len(c.messages)))
	t.durable = true
	t.appended = append(t.appended, appendedTail{c.result.Bucket, c.result.First + dispatch.Offset(len(c.messages))})
	t.after = append(t.after, c)
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
