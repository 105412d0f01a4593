package rpc

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v2 "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/penstockmq/penstock/broker"
)

// patience bounds what should take milliseconds; only a broken test waits it out.
const patience = time.Minute

// fixture is a broker in memory behind a server, with the parent topic "requests" and
// the wildcard group "pool". Most tests run it in a synctest bubble, where the
// connections are in memory and the clock moves only when everybody waits: leases
// of a minute then end at once, and exactly.
type fixture struct {
	t      *testing.T
	broker *broker.Broker
	server *Server
	// address is where clients connect to.
	address string
	dialer  func(ctx context.Context, address string) (net.Conn, error)
	// stop ends the server and waits for it; it may be called twice.
	stop func()
}

type config struct {
	broker broker.Options
	rpc    Options
	topic  broker.TopicConfig
	group  broker.GroupConfig
}

// start makes a fixture for a bubble.
func start(t *testing.T, change ...func(*config)) *fixture {
	t.Helper()
	ln := bufconn.Listen(256 << 10)
	f := startOn(t, ln, change...)
	f.address = "passthrough:///penstock:8081"
	f.dialer = func(ctx context.Context, _ string) (net.Conn, error) { return ln.DialContext(ctx) }
	return f
}

// startLoopback makes a fixture on a real port.
func startLoopback(t *testing.T, change ...func(*config)) *fixture {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	f := startOn(t, ln, change...)
	f.address = ln.Addr().String()
	f.dialer = func(ctx context.Context, address string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", address)
	}
	return f
}

func startOn(t *testing.T, ln net.Listener, change ...func(*config)) *fixture {
	t.Helper()
	notices := NewNotices()
	c := config{
		broker: broker.Options{Dir: "data", FS: vfs.NewMem(), OnUnsubscribe: notices.Unsubscribe, Logger: testLog(t)},
		rpc:    Options{Notices: notices, MinInvisible: time.Millisecond, Logger: testLog(t)},
		topic:  broker.TopicConfig{Name: "requests"},
		group:  broker.GroupConfig{Name: "pool", Topic: "requests", Wildcard: true},
	}
	for _, f := range change {
		f(&c)
	}
	b, err := broker.Open(c.broker)
	must(t, err)
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Errorf("close broker: %v", err)
		}
	})
	if c.topic.Name != "" {
		must(t, b.CreateTopic(t.Context(), c.topic))
		must(t, b.CreateGroup(t.Context(), c.group))
	}
	c.rpc.Broker = b
	s, err := New(c.rpc)
	must(t, err)
	f := &fixture{t: t, broker: b, server: s}
	f.run(ln)
	return f
}

// run runs the server until stop, or the end of the test.
func (f *fixture) run(ln net.Listener) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- f.server.Run(ctx, ln) }()
	stopped := false
	f.stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-ended; err != nil {
			f.t.Errorf("run: %v", err)
		}
	}
	f.t.Cleanup(f.stop)
}

func (f *fixture) stats() broker.TopicStats {
	f.t.Helper()
	s, err := f.broker.Stats(context.Background())
	must(f.t, err)
	return s.Topics[0]
}

// parked waits until all is still, and wants that many polls waiting. It is for
// bubbles.
func (f *fixture) parked(polls int) {
	f.t.Helper()
	synctest.Wait()
	if got := f.stats().Waiters; got != polls {
		f.t.Fatalf("%d polls are parked, want %d", got, polls)
	}
}

// testLog writes warnings and errors to the test's output.
func testLog(t *testing.T) *slog.Logger {
	t.Helper()
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// stub is a client that does exactly what the test says, over its own connection.
type stub struct {
	v2.MessagingServiceClient

	f     *fixture
	ctx   context.Context
	conn  *grpc.ClientConn
	topic string
	group string
}

func (f *fixture) client(id string, options ...grpc.DialOption) *stub {
	f.t.Helper()
	options = append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithContextDialer(f.dialer),
	}, options...)
	conn, err := grpc.NewClient(f.address, options...)
	must(f.t, err)
	f.t.Cleanup(func() { _ = conn.Close() }) // a test may have closed it
	ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
	f.t.Cleanup(cancel)
	return &stub{
		MessagingServiceClient: v2.NewMessagingServiceClient(conn),
		f:                      f, conn: conn, topic: "requests", group: "pool",
		ctx: metadata.AppendToOutgoingContext(ctx, headerClientID, id, headerLanguage, "GO"),
	}
}

func insecureTLS() grpc.DialOption {
	return grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{InsecureSkipVerify: true}))
}

func resource(name string) *v2.Resource { return &v2.Resource{Name: name} }

func (c *stub) send(lite, id string, change ...func(*v2.Message)) *v2.SendMessageResponse {
	c.f.t.Helper()
	m := liteMessage(change...)
	m.Topic.Name = c.topic
	m.SystemProperties.MessageId, m.SystemProperties.LiteTopic = id, new(lite)
	out, err := c.SendMessage(c.ctx, &v2.SendMessageRequest{Messages: []*v2.Message{m}})
	must(c.f.t, err)
	return out
}

// sent is send that has to succeed.
func (c *stub) sent(lite, id string) *v2.SendResultEntry {
	c.f.t.Helper()
	out := c.send(lite, id)
	expectCode(c.f.t, out.GetStatus(), v2.Code_OK)
	return out.GetEntries()[0]
}

// poll is a receive request that may be changed: by default up to 32 messages for
// 60 s, and as long a wait as tests have patience for.
func (c *stub) poll(change ...func(*v2.ReceiveMessageRequest)) *v2.ReceiveMessageRequest {
	r := &v2.ReceiveMessageRequest{
		Group:              resource(c.group),
		MessageQueue:       &v2.MessageQueue{Topic: resource(c.topic)},
		BatchSize:          32,
		InvisibleDuration:  durationpb.New(time.Minute),
		LongPollingTimeout: durationpb.New(patience),
	}
	for _, f := range change {
		f(r)
	}
	return r
}

func now(r *v2.ReceiveMessageRequest) { r.LongPollingTimeout = durationpb.New(0) }

func wait(d time.Duration) func(*v2.ReceiveMessageRequest) {
	return func(r *v2.ReceiveMessageRequest) { r.LongPollingTimeout = durationpb.New(d) }
}

func invisible(d time.Duration) func(*v2.ReceiveMessageRequest) {
	return func(r *v2.ReceiveMessageRequest) { r.InvisibleDuration = durationpb.New(d) }
}

// answer is what a ReceiveMessage stream said, in order.
type answer struct {
	status    *v2.Status
	messages  []*v2.Message
	delivered time.Time
	order     string // s, m, t for each frame
}

func (c *stub) receive(change ...func(*v2.ReceiveMessageRequest)) answer {
	c.f.t.Helper()
	a, err := c.tryReceive(c.ctx, change...)
	must(c.f.t, err)
	return a
}

func (c *stub) tryReceive(ctx context.Context, change ...func(*v2.ReceiveMessageRequest)) (answer, error) {
	stream, err := c.ReceiveMessage(ctx, c.poll(change...))
	if err != nil {
		return answer{}, err
	}
	var a answer
	for {
		frame, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return a, nil
		}
		if err != nil {
			return a, err
		}
		switch content := frame.GetContent().(type) {
		case *v2.ReceiveMessageResponse_Status:
			a.status, a.order = content.Status, a.order+"s"
		case *v2.ReceiveMessageResponse_Message:
			a.messages, a.order = append(a.messages, content.Message), a.order+"m"
		case *v2.ReceiveMessageResponse_DeliveryTimestamp:
			a.delivered, a.order = content.DeliveryTimestamp.AsTime(), a.order+"t"
		}
	}
}

// receiveOne is a receive that has to bring exactly one message.
func (c *stub) receiveOne(change ...func(*v2.ReceiveMessageRequest)) *v2.Message {
	c.f.t.Helper()
	a := c.receive(change...)
	if len(a.messages) != 1 {
		c.f.t.Fatalf("received %d messages with status %v, want one", len(a.messages), a.status)
	}
	return a.messages[0]
}

// receiveNone is a receive that has to find nothing that may be delivered now.
func (c *stub) receiveNone() {
	c.f.t.Helper()
	if a := c.receive(now); len(a.messages) != 0 || a.status.GetCode() != v2.Code_MESSAGE_NOT_FOUND {
		c.f.t.Fatalf("received %d messages with status %v, want none", len(a.messages), a.status)
	}
}

func handle(m *v2.Message) string { return m.GetSystemProperties().GetReceiptHandle() }
func attempt(m *v2.Message) int32 { return m.GetSystemProperties().GetDeliveryAttempt() }
func idOf(m *v2.Message) string   { return m.GetSystemProperties().GetMessageId() }

func (c *stub) ack(handles ...string) *v2.AckMessageResponse {
	c.f.t.Helper()
	r := &v2.AckMessageRequest{Topic: resource(c.topic), Group: resource(c.group)}
	for _, h := range handles {
		r.Entries = append(r.Entries, &v2.AckMessageEntry{MessageId: "of " + h, ReceiptHandle: h})
	}
	out, err := c.AckMessage(c.ctx, r)
	must(c.f.t, err)
	return out
}

func (c *stub) changeInvisible(handle string, d time.Duration, suspend bool) *v2.ChangeInvisibleDurationResponse {
	c.f.t.Helper()
	out, err := c.ChangeInvisibleDuration(c.ctx, &v2.ChangeInvisibleDurationRequest{
		Topic: resource(c.topic), Group: resource(c.group), ReceiptHandle: handle,
		InvisibleDuration: durationpb.New(d), Suspend: new(suspend),
	})
	must(c.f.t, err)
	return out
}

func (c *stub) sync(action v2.LiteSubscriptionAction, option *v2.OffsetOption, names ...string) *v2.Status {
	c.f.t.Helper()
	out, err := c.SyncLiteSubscription(c.ctx, &v2.SyncLiteSubscriptionRequest{
		Action: action, Topic: resource(c.topic), Group: resource(c.group), LiteTopicSet: names, OffsetOption: option,
	})
	must(c.f.t, err)
	return out.GetStatus()
}

func expectCode(t *testing.T, st *v2.Status, want v2.Code) {
	t.Helper()
	if st.GetCode() != want {
		t.Fatalf("status %v %q, want %v", st.GetCode(), st.GetMessage(), want)
	}
}

func goFiles(t *testing.T, dir string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	must(t, err)
	return slices.DeleteFunc(files, func(f string) bool { return strings.HasSuffix(f, "_test.go") })
}
