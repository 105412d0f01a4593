package chaos

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	v2 "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

const (
	messageTopic = "notes"
	messageGroup = "readers"
	messageLease = 3 * time.Second
	messageLites = 16
)

// messages are RocketMQ senders and a consumer on the bare stubs of the protocol, so that each call is made once and
// nothing happens that the journal does not see.
type messages struct {
	j    *journal
	stub v2.MessagingServiceClient
	size int // bytes of a body
	// unacked is the share of messages, one in this many, that the consumer does not ack at first, so that their leases end; 0
	// is none. Immutable once it consumes.
	unacked int
	next    atomic.Int64

	senders, consumer sync.WaitGroup
	stopConsumer      context.CancelFunc
}

func newMessages(t *testing.T, j *journal, addr string, size int) *messages {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)),
		// A broker that was killed is back within a second.
		grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: time.Second}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return &messages{j: j, stub: v2.NewMessagingServiceClient(conn), size: size, stopConsumer: func() {}}
}

func resource(name string) *v2.Resource { return &v2.Resource{Name: name} }

func (m *messages) context(ctx context.Context, client string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "x-mq-client-id", client, "x-mq-language", "GO", "x-mq-protocol", "v2")
}

// send sends one message and returns why it was not answered OK. One without an OK may be stored or not.
func (m *messages) send(lite string) error {
	ctx, cancel := context.WithTimeout(m.context(context.Background(), "sender"), patience)
	defer cancel()
	id := fmt.Sprintf("01%030X", m.next.Add(1))
	body := make([]byte, m.size)
	for i := range body {
		body[i] = byte(rand.Uint32()) // does not compress
	}
	r, err := m.stub.SendMessage(ctx, &v2.SendMessageRequest{Messages: []*v2.Message{{
		Topic: resource(messageTopic), Body: body, SystemProperties: &v2.SystemProperties{
			MessageId: id, MessageType: v2.MessageType_LITE, BornTimestamp: timestamppb.Now(), BornHost: "chaos",
			LiteTopic: &lite, BodyEncoding: v2.Encoding_IDENTITY,
		},
	}}})
	switch {
	case ctx.Err() != nil:
		m.j.find(ruleHang, id, "a send had no answer after %v", patience)
		return err
	case err != nil:
		return err
	case r.GetStatus().GetCode() != v2.Code_OK:
		return fmt.Errorf("%v: %s", r.GetStatus().GetCode(), r.GetStatus().GetMessage())
	}
	m.j.change(func() { m.j.message(id).sent = true })
	return nil
}

// start lets senders send until ctx ends, and a consumer read until stop.
func (m *messages) start(ctx context.Context) {
	for range 2 {
		m.senders.Go(func() {
			for pause(ctx, rand.N(30*time.Millisecond)) {
				_ = m.send(fmt.Sprintf("lite-%d", rand.IntN(messageLites))) // a send without an OK is not promised
			}
		})
	}
	m.consume()
}

// consume starts the consumer. A running poll is not cut off by a stop: messages that the broker has sent into it would
// go back at once.
func (m *messages) consume() {
	ctx, cancel := context.WithCancel(context.Background())
	m.stopConsumer = cancel
	m.consumer.Go(func() {
		for ctx.Err() == nil {
			if m.subscribe() == nil {
				for ctx.Err() == nil && m.receive() == nil {
					continue
				}
			}
			pause(ctx, 50*time.Millisecond)
		}
	})
}

const consumerID = "reader"

func (m *messages) subscribe() error {
	ctx, cancel := context.WithTimeout(m.context(context.Background(), consumerID), patience)
	defer cancel()
	r, err := m.stub.SyncLiteSubscription(ctx, &v2.SyncLiteSubscriptionRequest{
		Action: v2.LiteSubscriptionAction_COMPLETE_ADD, Topic: resource(messageTopic), Group: resource(messageGroup), LiteTopicSet: []string{"*"},
	})
	if err == nil && r.GetStatus().GetCode() != v2.Code_OK {
		err = errors.New(r.GetStatus().GetMessage())
	}
	return err
}

// receive polls once and acks the messages, except a small share whose lease it lets end.
func (m *messages) receive() error {
	ctx, cancel := context.WithTimeout(m.context(context.Background(), consumerID), patience)
	defer cancel()
	asked := time.Now()
	stream, err := m.stub.ReceiveMessage(ctx, &v2.ReceiveMessageRequest{
		Group: resource(messageGroup), MessageQueue: &v2.MessageQueue{Topic: resource(messageTopic)}, BatchSize: 16,
		FilterExpression:  &v2.FilterExpression{Type: v2.FilterType_TAG, Expression: "*"},
		InvisibleDuration: durationpb.New(messageLease), LongPollingTimeout: durationpb.New(2 * time.Second),
	})
	if err != nil {
		return err
	}
	for {
		part, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		if s := part.GetStatus(); s != nil && s.GetCode() != v2.Code_OK && s.GetCode() != v2.Code_MESSAGE_NOT_FOUND {
			return fmt.Errorf("receive: %v: %s", s.GetCode(), s.GetMessage())
		}
		if got := part.GetMessage(); got != nil {
			m.handle(ctx, got, asked)
		}
	}
}

func (m *messages) handle(ctx context.Context, got *v2.Message, asked time.Time) {
	p := got.GetSystemProperties()
	id, first := p.GetMessageId(), false
	m.j.change(func() {
		known := m.j.message(id)
		first = len(known.deliveries) == 0
		known.deliveries = append(known.deliveries, delivery{asked, time.Now()})
	})
	if first && m.unacked > 0 && rand.N(m.unacked) == 0 {
		return
	}
	lite := p.GetLiteTopic()
	r, err := m.stub.AckMessage(ctx, &v2.AckMessageRequest{Group: resource(messageGroup), Topic: resource(messageTopic), Entries: []*v2.AckMessageEntry{{
		MessageId: id, ReceiptHandle: p.GetReceiptHandle(), LiteTopic: &lite,
	}}})
	m.j.change(func() {
		switch {
		case err != nil:
			m.j.message(id).maybeAcked = true
		case r.GetStatus().GetCode() == v2.Code_OK && len(r.GetEntries()) == 1 && r.GetEntries()[0].GetStatus().GetCode() == v2.Code_OK:
			m.j.message(id).acked = time.Now()
		}
	})
}

// drain waits until all sent messages are delivered and acked, and a moment longer for repeated deliveries. It returns then,
// or when settleMax is over: the checker reports the difference.
func (m *messages) drain() {
	m.senders.Wait()
	for deadline := time.Now().Add(settleMax); m.left() > 0 && time.Now().Before(deadline); {
		pause(context.Background(), 200*time.Millisecond)
	}
	m.stopConsumer()
	m.consumer.Wait()
}

func (m *messages) left() (n int) {
	m.j.change(func() {
		for _, s := range m.j.h.messages {
			if s.sent && len(s.deliveries) == 0 || s.open() {
				n++
			}
		}
	})
	return n
}
