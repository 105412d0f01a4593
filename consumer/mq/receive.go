package mq

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	v2 "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
	"google.golang.org/protobuf/types/known/durationpb"
)

// bodyMax bounds an unpacked body; RocketMQ's limit for a packed one is 4 MiB.
const bodyMax = 64 << 20

// poll keeps the i-th long poll open until ctx ends: ctx ends later than the consumer's, see stubsRun.stopPolls.
func (r *stubsRun) poll(ctx context.Context, i int) {
	// An attempt id names one batch: asked for again under the same one, the broker repeats the batch whose answer was
	// lost on the way, without counting a delivery. So it changes only when an answer has come whole.
	attempt := randomHex(16)
	var asked time.Time // first under this attempt id: no lease that the answer brings is older
	for failures := 0; ; {
		queue, batch, wait := r.session.ask(i)
		n := r.slots.take(r.accept, batch)
		if n == 0 {
			return
		}
		if asked.IsZero() {
			asked = time.Now()
		}
		messages, err := r.receive(ctx, queue, n, wait, attempt)
		r.slots.give(n - len(messages))
		received := time.Now()
		for _, m := range messages {
			r.begin(m, asked, received)
		}
		switch {
		case r.accept.Err() != nil:
			return
		case err == nil:
			failures, attempt, asked = 0, randomHex(16), time.Time{}
			continue
		}
		failures++
		r.log.Debug("receive failed", "error", err)
		if !pause(r.accept, retryDelay(failures)) {
			return
		}
	}
}

// receive asks for up to n messages and waits for the first of them. It gives all or none: a batch whose stream broke is
// asked for again, and its first messages must not run twice.
func (r *stubsRun) receive(ctx context.Context, queue *v2.MessageQueue, n int, wait time.Duration, attempt string) ([]*v2.Message, error) {
	ctx, cancel := context.WithTimeout(ctx, wait+callTimeout)
	defer cancel()
	stream, err := r.link.stub.ReceiveMessage(r.link.sign(ctx), &v2.ReceiveMessageRequest{
		Group:              resource(r.opts.Group),
		MessageQueue:       queue,
		FilterExpression:   &v2.FilterExpression{Type: v2.FilterType_TAG, Expression: "*"},
		BatchSize:          int32(n),
		InvisibleDuration:  durationpb.New(r.opts.Invisible),
		LongPollingTimeout: durationpb.New(wait),
		AttemptId:          &attempt,
	})
	if err != nil {
		return nil, fmt.Errorf("receive: %w", err)
	}
	var messages []*v2.Message
	status := &v2.Status{Code: v2.Code_INTERNAL_SERVER_ERROR, Message: "no status came"}
	for {
		part, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("receive: %w", err)
		}
		switch c := part.GetContent().(type) {
		case *v2.ReceiveMessageResponse_Status:
			status = c.Status
		case *v2.ReceiveMessageResponse_Message:
			messages = append(messages, c.Message)
		default: // the delivery timestamp
		}
	}
	if len(messages) > n {
		return nil, fmt.Errorf("receive: %d messages came, %d were asked for", len(messages), n)
	}
	if len(messages) == 0 && status.GetCode() != v2.Code_MESSAGE_NOT_FOUND {
		return nil, refusal("receive", &v2.HeartbeatResponse{Status: status}, nil)
	}
	return messages, nil
}

// messageOf turns a message of the protocol into ours. The body is not copied unless it is packed.
func messageOf(m *v2.Message, received time.Time) (*Message, error) {
	p := m.GetSystemProperties()
	out := &Message{
		ID:         p.GetMessageId(),
		Topic:      m.GetTopic().GetName(),
		Lite:       p.GetLiteTopic(),
		Body:       m.GetBody(),
		Properties: m.GetUserProperties(),
		Keys:       p.GetKeys(),
		Tag:        p.GetTag(),
		Attempt:    max(int(p.GetDeliveryAttempt()), 1),
		Received:   received,
		Offset:     p.GetQueueOffset(),
	}
	if t := p.GetBornTimestamp(); t != nil {
		out.Born = t.AsTime()
	}
	if t := p.GetStoreTimestamp(); t != nil {
		out.Stored = t.AsTime()
	}
	if p.GetBodyEncoding() != v2.Encoding_GZIP {
		return out, nil
	}
	var err error
	if out.Body, err = unpack(m.GetBody()); err != nil {
		return nil, fmt.Errorf("unpack body: %w", err)
	}
	return out, nil
}

func unpack(body []byte) ([]byte, error) {
	z, err := gzip.NewReader(bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	plain, err := io.ReadAll(io.LimitReader(z, bodyMax+1))
	if err != nil {
		return nil, err
	}
	if len(plain) > bodyMax {
		return nil, fmt.Errorf("more than %d bytes", bodyMax)
	}
	return plain, nil
}
