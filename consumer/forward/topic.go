package forward

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/penstockmq/penstock/broker/lite"
	"github.com/penstockmq/penstock/consumer/mq"
	"github.com/penstockmq/penstock/consumer/reply"
)

// Producer sends one message; an mq.Producer is one.
type Producer interface {
	Send(ctx context.Context, m mq.Outgoing) (mq.Receipt, error)
}

// TopicOptions configures a [Topic] downstream.
type TopicOptions struct {
	// Topic receives the bodies.
	Topic string
	// PerCell says that Topic is a parent of lite topics and each cell has its own.
	PerCell bool
	// Total bounds the wait for the broker's receipt. 0 means 30 s.
	Total time.Duration
}

// Topic passes requests on to a RocketMQ topic, where somebody else works on them. The caller gets 202 and the message's
// id as soon as the broker has it. Properties go along, but for those of the caller's wait: its reply stream has been
// answered, its deadline met.
type Topic struct {
	producer Producer
	opts     TopicOptions
}

// NewTopic returns the downstream of opts over p, which the caller closes.
func NewTopic(p Producer, opts TopicOptions) (*Topic, error) {
	if err := lite.CheckTopic(opts.Topic); err != nil {
		return nil, fmt.Errorf("topic downstream: topic: %w", err)
	}
	if opts.Total < 0 {
		return nil, errors.New("topic downstream: total: want 0 or more")
	}
	if opts.Total == 0 {
		opts.Total = 30 * time.Second
	}
	return &Topic{producer: p, opts: opts}, nil
}

// Forward implements [Downstream].
func (t *Topic) Forward(ctx context.Context, r Request, sink Sink) Outcome {
	if ctx.Err() != nil {
		return cancelled(ctx, false)
	}
	m, err := t.message(r)
	if err != nil {
		return refuse(sink, http.StatusBadRequest, "bad_request", "the request has no cell that can be named")
	}
	wait, cancel := context.WithTimeoutCause(ctx, t.opts.Total, fmt.Errorf("%w: total, %s", errTimeout, t.opts.Total))
	defer cancel()
	count := newMeter(sink)
	receipt, err := t.producer.Send(wait, m)
	if err != nil {
		return count.total(t.failure(ctx, wait, err, count))
	}
	count.heard()
	body, err := json.Marshal(map[string]string{
		"object": "message", "id": receipt.MessageID, "topic": m.Topic, "lite_topic": m.Lite,
	})
	if err != nil {
		return unanswered(false, err)
	}
	header := http.Header{"Content-Type": {"application/json"}}
	if err := count.Answer(http.StatusAccepted, header, body, reply.Usage{}); err != nil {
		return count.total(unanswered(false, err))
	}
	return count.total(Outcome{Kind: Done, Status: http.StatusAccepted})
}

func (t *Topic) message(r Request) (mq.Outgoing, error) {
	properties := r.Request
	properties.Reply, properties.Async, properties.Stream, properties.Deadline = "", false, false, time.Time{}
	m := mq.Outgoing{Topic: t.opts.Topic, Body: r.Body, Properties: properties.Properties()}
	if r.ID != "" {
		m.Keys = []string{r.ID}
	}
	if !t.opts.PerCell {
		return m, nil
	}
	var err error
	m.Lite, err = lite.Encode(lite.Cell{User: r.User, Model: r.Model})
	return m, err
}

func (t *Topic) failure(ctx, wait context.Context, err error, sink Sink) Outcome {
	switch {
	case ctx.Err() != nil:
		return cancelled(ctx, false)
	case wait.Err() != nil:
		return failed(http.StatusGatewayTimeout, CodeTimeout, "the broker took too long", true, context.Cause(wait))
	case mq.IsCode(err, mq.CodeBodyTooLarge):
		return refuse(sink, http.StatusRequestEntityTooLarge, CodeBodyLarge, "the body is over the broker's limit")
	case mq.IsCode(err, mq.CodeTooMany, mq.CodeTooManyBuckets, mq.CodeDiskFull):
		return failed(http.StatusServiceUnavailable, CodeBusy, "the broker has no room", true, err)
	default:
		return failed(http.StatusBadGateway, CodeUnreachable, "the broker did not take the message", true, err)
	}
}
