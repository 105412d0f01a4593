package test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	v2 "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/penstockmq/penstock/broker/admin"
	"github.com/penstockmq/penstock/consumer/mq"
)

// Names that a broker process creates at its start.
const (
	topic = "requests"
	group = "pool"
)

// soon is within what a case calls at once, or within a second: a loaded machine
// with the race detector may take longer.
const soon = 3 * time.Second

// brokerNode is a broker process that comes back at the same addresses over the same
// data.
type brokerNode struct {
	*process
	program           string
	args              []string
	grpc, admin, nats string
}

func startBroker(t *testing.T, program string, args ...string) *brokerNode {
	t.Helper()
	n := &brokerNode{program: program, grpc: freeAddr(t), admin: freeAddr(t), nats: freeAddr(t)}
	n.args = append([]string{
		"broker", "--data", t.TempDir(), "--grpc", n.grpc, "--admin", n.admin, "--nats", n.nats, "--log-level", "warn",
	}, args...)
	n.process = launchProgram(t, program, n.args...)
	n.waitReady()
	return n
}

// restart starts it again after a kill or a stop and returns when it is ready.
func (n *brokerNode) restart() {
	n.t.Helper()
	n.process = launchProgram(n.t, n.program, n.args...)
	n.waitReady()
}

// buckets is what the operations command lists.
func (n *brokerNode) buckets() []admin.Bucket {
	n.t.Helper()
	var list admin.Buckets
	n.operate(&list, "buckets", "list", "--limit", "0")
	return list.Buckets
}

// queued is the number of messages in all buckets.
func (n *brokerNode) queued() int {
	n.t.Helper()
	sum := 0
	for _, b := range n.buckets() {
		sum += b.Queued
	}
	return sum
}

func (n *brokerNode) deadLetters() []admin.DeadLetter {
	n.t.Helper()
	var list admin.DeadLetters
	n.operate(&list, "dlq", "list", "--limit", "0")
	return list.DeadLetters
}

// operate runs an operations command and reads its JSON.
func (n *brokerNode) operate(into any, args ...string) {
	n.t.Helper()
	must(n.t, json.Unmarshal([]byte(run(n.t, append(args, "--admin", n.admin, "--json")...)), into))
}

// producer sends as the gateway does.
func (n *brokerNode) producer() mq.Producer {
	n.t.Helper()
	p, err := mq.NewProducer(mq.Stubs, mq.Options{Endpoint: n.grpc})
	must(n.t, err)
	n.t.Cleanup(func() { _ = p.Close() }) // its broker may be gone
	return p
}

// insist sends until the broker says OK, as a client does that loses nothing: what
// had no answer may be stored twice.
func insist(ctx context.Context, p mq.Producer, lite string, body []byte) (mq.Receipt, error) {
	for {
		r, err := p.Send(ctx, mq.Outgoing{Topic: topic, Lite: lite, Body: body})
		if err == nil {
			return r, nil
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return r, errors.Join(err, ctx.Err())
		}
	}
}

// consume runs wildcard consumers, each with a connection of its own. The function
// it returns stops them: then all that handlers said has reached the broker.
func (n *brokerNode) consume(count int, o mq.Options, h mq.Handler) (stop func()) {
	n.t.Helper()
	o.Endpoint, o.Topic, o.Group = n.grpc, topic, group
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, count)
	for range count {
		c, err := mq.NewConsumer(mq.Stubs, o)
		must(n.t, err)
		go func() { ended <- c.Run(ctx, h) }()
	}
	stopped := false
	stop = func() {
		n.t.Helper()
		if stopped {
			return
		}
		stopped = true
		cancel()
		for range count {
			if err := <-ended; err != nil {
				n.t.Error(err)
			}
		}
	}
	n.t.Cleanup(stop)
	return stop
}

// rawClient is a consumer on the bare stubs: nothing happens that the test did not
// ask for, and it knows when each call was made and answered.
type rawClient struct {
	t    *testing.T
	stub v2.MessagingServiceClient
	id   string
}

func (n *brokerNode) raw() *rawClient {
	n.t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+n.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(n.t, err)
	n.t.Cleanup(func() { _ = conn.Close() })
	c := &rawClient{t: n.t, stub: v2.NewMessagingServiceClient(conn), id: fmt.Sprintf("raw-%d", time.Now().UnixNano())}
	ctx, cancel := c.call(enough)
	defer cancel()
	answer, err := c.stub.SyncLiteSubscription(ctx, &v2.SyncLiteSubscriptionRequest{
		Action: v2.LiteSubscriptionAction_COMPLETE_ADD, Topic: resource(topic), Group: resource(group), LiteTopicSet: []string{"*"},
	})
	c.ok("subscribe", answer.GetStatus(), err)
	return c
}

func resource(name string) *v2.Resource { return &v2.Resource{Name: name} }

func (c *rawClient) call(d time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(c.t.Context(), d)
	return metadata.AppendToOutgoingContext(ctx, "x-mq-client-id", c.id, "x-mq-language", "GO", "x-mq-protocol", "v2"), cancel
}

func (c *rawClient) ok(what string, s *v2.Status, err error) {
	c.t.Helper()
	if err == nil && s.GetCode() != v2.Code_OK {
		err = fmt.Errorf("%v: %s", s.GetCode(), s.GetMessage())
	}
	if err != nil {
		c.t.Fatalf("%s: %v", what, err)
	}
}

// receive polls once. No message within wait is an empty result.
func (c *rawClient) receive(invisible, wait time.Duration) []*v2.Message {
	c.t.Helper()
	ctx, cancel := c.call(wait + enough)
	defer cancel()
	stream, err := c.stub.ReceiveMessage(ctx, &v2.ReceiveMessageRequest{
		Group: resource(group), MessageQueue: &v2.MessageQueue{Topic: resource(topic)}, BatchSize: 32,
		FilterExpression:  &v2.FilterExpression{Type: v2.FilterType_TAG, Expression: "*"},
		InvisibleDuration: durationpb.New(invisible), LongPollingTimeout: durationpb.New(wait),
	})
	must(c.t, err)
	var got []*v2.Message
	for {
		part, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return got
		}
		must(c.t, err)
		if m := part.GetMessage(); m != nil {
			got = append(got, m)
		}
		if s := part.GetStatus(); s != nil && s.GetCode() != v2.Code_MESSAGE_NOT_FOUND {
			c.ok("receive", s, nil)
		}
	}
}

// receiveAll polls until it has count messages.
func (c *rawClient) receiveAll(count int, invisible time.Duration) []*v2.Message {
	c.t.Helper()
	var got []*v2.Message
	for len(got) < count {
		more := c.receive(invisible, enough)
		if len(more) == 0 {
			c.t.Fatalf("%d messages came, want %d", len(got), count)
		}
		got = append(got, more...)
	}
	return got
}

// ack returns when the broker said OK to each.
func (c *rawClient) ack(messages ...*v2.Message) {
	c.t.Helper()
	ctx, cancel := c.call(enough)
	defer cancel()
	r := &v2.AckMessageRequest{Group: resource(group), Topic: resource(topic)}
	for _, m := range messages {
		p := m.GetSystemProperties()
		r.Entries = append(r.Entries, &v2.AckMessageEntry{MessageId: p.GetMessageId(), ReceiptHandle: p.GetReceiptHandle(), LiteTopic: p.LiteTopic})
	}
	answer, err := c.stub.AckMessage(ctx, r)
	c.ok("ack", answer.GetStatus(), err)
	for _, e := range answer.GetEntries() {
		c.ok("ack", e.GetStatus(), nil)
	}
}

// suspend gives a message back and holds its bucket for d.
func (c *rawClient) suspend(m *v2.Message, d time.Duration) {
	c.t.Helper()
	ctx, cancel := c.call(enough)
	defer cancel()
	p, yes := m.GetSystemProperties(), true
	answer, err := c.stub.ChangeInvisibleDuration(ctx, &v2.ChangeInvisibleDurationRequest{
		Group: resource(group), Topic: resource(topic), MessageId: p.GetMessageId(), ReceiptHandle: p.GetReceiptHandle(),
		LiteTopic: p.LiteTopic, InvisibleDuration: durationpb.New(d), Suspend: &yes,
	})
	c.ok("suspend", answer.GetStatus(), err)
}
