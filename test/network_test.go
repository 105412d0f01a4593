package test

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	v2 "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/durationpb"
)

// wire is a network between one client and a server that can be cut, or swallow what
// it is given.
type wire struct {
	addr string
	// cutAfter is how many bytes the server may send before the connection is reset;
	// 0 is no bound. Immutable.
	cutAfter int64
	// cut is closed when that happened.
	cut chan struct{}
	// swallow makes the wire a hole: nothing arrives, in no direction, and no end of a
	// connection either.
	swallow atomic.Bool

	mu    sync.Mutex // guards the following field
	conns []net.Conn
}

func newWire(t *testing.T, to string, cutAfter int64) *wire {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	w := &wire{addr: ln.Addr().String(), cutAfter: cutAfter, cut: make(chan struct{})}
	var copies sync.WaitGroup
	copies.Go(func() {
		for {
			client, err := ln.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", to)
			if err != nil || !w.keep(client, server) {
				_ = client.Close()
				continue
			}
			copies.Go(func() { w.carry(server, client, 0) })
			copies.Go(func() { w.carry(client, server, w.cutAfter) })
		}
	})
	t.Cleanup(func() {
		_ = ln.Close()
		w.reset()
		copies.Wait()
	})
	return w
}

// keep notes the ends of a connection; false when the wire was cut.
func (w *wire) keep(conns ...net.Conn) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	select {
	case <-w.cut:
		return false
	default:
	}
	w.conns = append(w.conns, conns...)
	return true
}

// reset ends all connections without a good-bye.
func (w *wire) reset() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.conns {
		if tcp, ok := c.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0)
		}
		_ = c.Close()
	}
	w.conns = nil
}

// carry copies until an end closes. An end that closes is not told to the other while
// the wire swallows.
func (w *wire) carry(to, from net.Conn, most int64) {
	buf := make([]byte, 4<<10)
	var carried int64
	for {
		n, err := from.Read(buf)
		if w.swallow.Load() {
			if err != nil {
				return
			}
			continue
		}
		if _, writeErr := to.Write(buf[:n]); err != nil || writeErr != nil {
			_ = to.Close()
			return
		}
		if carried += int64(n); most > 0 && carried > most {
			close(w.cut)
			w.reset()
			return
		}
	}
}

// poller is a consumer on the bare stubs that polls when it is told to.
type poller struct {
	stub         v2.MessagingServiceClient
	id           string
	topic, group string
}

// heartbeat is how often clients tell that they live.
const heartbeat = 10 * time.Second

// newPoller connects to addr, subscribes to all lite topics, and tells that it lives
// until the test ends.
func newPoller(t *testing.T, addr, topic, group string) *poller {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	p := &poller{stub: v2.NewMessagingServiceClient(conn), id: "poller-" + rand.Text(), topic: topic, group: group}
	ctx, cancel := context.WithTimeout(p.context(t.Context()), enough)
	defer cancel()
	r, err := p.stub.SyncLiteSubscription(ctx, &v2.SyncLiteSubscriptionRequest{
		Action: v2.LiteSubscriptionAction_COMPLETE_ADD, Topic: resource(topic), Group: resource(group), LiteTopicSet: []string{"*"},
	})
	must(t, err)
	if code := r.GetStatus().GetCode(); code != v2.Code_OK {
		t.Fatalf("subscribe: %v %s", code, r.GetStatus().GetMessage())
	}
	go p.live(t.Context())
	return p
}

func (p *poller) live(ctx context.Context) {
	tick := time.NewTicker(heartbeat)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		// Whether it is heard is what tests are about.
		_, _ = p.stub.Heartbeat(p.context(ctx), &v2.HeartbeatRequest{
			Group: resource(p.group), ClientType: v2.ClientType_LITE_PUSH_CONSUMER,
		})
	}
}

func (p *poller) context(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "x-mq-client-id", p.id, "x-mq-language", "GO", "x-mq-protocol", "v2")
}

// polled is how one poll ended.
type polled struct {
	messages []*v2.Message
	status   *v2.Status
	err      error // nil: cleanly
	at       time.Time
}

// poll waits for one message. The broker renews its lease while the client lives.
func (p *poller) poll(ctx context.Context, wait time.Duration) (got polled) {
	defer func() { got.at = time.Now() }()
	stream, err := p.stub.ReceiveMessage(p.context(ctx), &v2.ReceiveMessageRequest{
		Group: resource(p.group), MessageQueue: &v2.MessageQueue{Topic: resource(p.topic)}, BatchSize: 1,
		FilterExpression:   &v2.FilterExpression{Type: v2.FilterType_TAG, Expression: "*"},
		LongPollingTimeout: durationpb.New(wait), AutoRenew: true,
	})
	if err != nil {
		return polled{err: err}
	}
	for {
		part, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return got
		}
		if err != nil {
			got.err = err
			return got
		}
		if m := part.GetMessage(); m != nil {
			got.messages = append(got.messages, m)
		}
		if s := part.GetStatus(); s != nil {
			got.status = s
		}
	}
}

// begin is poll on its own goroutine.
func (p *poller) begin(ctx context.Context, wait time.Duration) <-chan polled {
	done := make(chan polled, 1)
	go func() { done <- p.poll(ctx, wait) }()
	return done
}

// one polls until a message comes.
func (p *poller) one(t *testing.T, within time.Duration) *v2.Message {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	for {
		switch got := p.poll(ctx, 20*time.Second); {
		case got.err != nil:
			t.Fatalf("%s: poll: %v", p.id, got.err)
		case len(got.messages) == 1:
			return got.messages[0]
		}
	}
}
