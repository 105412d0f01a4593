package mq_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"google.golang.org/grpc/test/bufconn"

	"github.com/penstockmq/penstock/broker"
	"github.com/penstockmq/penstock/broker/rpc"
	"github.com/penstockmq/penstock/consumer/mq"
)

// patience bounds what should take milliseconds, or seconds with the official client; only a broken test waits it out.
const patience = time.Minute

const (
	topic = "requests"
	group = "pool"
)

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "rocketmq-log")
	if err != nil {
		panic(err)
	}
	if err := mq.SetUpOfficial(mq.OfficialProcess{LogDir: dir, LogLevel: "error"}); err != nil {
		panic(err)
	}
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// node is a broker behind a server that can be stopped and started again with its data.
type node struct {
	t       testing.TB
	fs      vfs.FS
	address string
	dialer  func(ctx context.Context, address string) (net.Conn, error) // nil: TCP
	listen  func() (net.Listener, error)

	broker *broker.Broker
	cancel context.CancelFunc
	ended  chan struct{}
}

// startNode starts a node on a loopback port.
func startNode(t testing.TB) *node {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	n := &node{t: t, fs: vfs.NewMem(), address: ln.Addr().String()}
	n.listen = func() (net.Listener, error) { return net.Listen("tcp", n.address) }
	n.serve(ln)
	t.Cleanup(n.stop)
	return n
}

// startBubble starts a node for a synctest bubble: its connections are in memory.
func startBubble(t testing.TB) *node {
	t.Helper()
	n := &node{t: t, fs: vfs.NewMem(), address: "penstock:8081"}
	var mu sync.Mutex
	var ln *bufconn.Listener
	n.listen = func() (net.Listener, error) {
		mu.Lock()
		defer mu.Unlock()
		ln = bufconn.Listen(1 << 20)
		return ln, nil
	}
	n.dialer = func(ctx context.Context, _ string) (net.Conn, error) {
		mu.Lock()
		defer mu.Unlock()
		return ln.DialContext(ctx)
	}
	n.start()
	t.Cleanup(n.stop)
	return n
}

func (n *node) start() {
	n.t.Helper()
	ln, err := n.listen()
	must(n.t, err)
	n.serve(ln)
}

func (n *node) serve(ln net.Listener) {
	n.t.Helper()
	notices := rpc.NewNotices()
	var err error
	n.broker, err = broker.Open(broker.Options{
		Dir: "data", FS: n.fs, OnUnsubscribe: notices.Unsubscribe, Logger: testLog(n.t),
		Topics: []broker.TopicConfig{{Name: topic}},
		Groups: []broker.GroupConfig{{Name: group, Topic: topic, Wildcard: true}},
	})
	must(n.t, err)
	server, err := rpc.New(rpc.Options{Broker: n.broker, Notices: notices, Logger: testLog(n.t)})
	must(n.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	n.cancel, n.ended = cancel, make(chan struct{})
	go func() {
		defer close(n.ended)
		if err := server.Run(ctx, ln); err != nil {
			n.t.Errorf("server: %v", err)
		}
	}()
}

// stop may be called twice.
func (n *node) stop() {
	if n.broker == nil {
		return
	}
	n.cancel()
	<-n.ended
	if err := n.broker.Close(); err != nil {
		n.t.Errorf("close broker: %v", err)
	}
	n.broker = nil
}

func (n *node) options(change ...func(*mq.Options)) mq.Options {
	o := mq.Options{Endpoint: n.address, Topic: topic, Group: group, Workers: 8, Logger: testLog(n.t)}
	for _, f := range change {
		f(&o)
	}
	if n.dialer != nil {
		o = mq.Dialer(o, n.dialer)
	}
	return o
}

func (n *node) producer(kind mq.Kind) mq.Producer {
	n.t.Helper()
	p, err := mq.NewProducer(kind, n.options())
	must(n.t, err)
	n.t.Cleanup(func() {
		if err := p.Close(); err != nil {
			n.t.Errorf("close producer: %v", err)
		}
	})
	return p
}

// send sends body to lite and expects that to work.
func send(t testing.TB, p mq.Producer, lite, body string) mq.Receipt {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	r, err := p.Send(ctx, mq.Outgoing{
		Topic: topic, Lite: lite, Body: []byte(body), Properties: map[string]string{"p": "v"}, Keys: []string{"k"}, Tag: "tag",
	})
	must(t, err)
	return r
}

// consumer is a running Consumer whose deliveries the test answers one by one.
type consumer struct {
	mq.Consumer

	t          testing.TB
	deliveries chan *delivery
	cancel     context.CancelFunc
	done       chan error
}

// delivery is one call of the handler; it blocks until answer.
type delivery struct {
	*mq.Message

	ctx     context.Context
	verdict chan mq.Verdict
}

func (d *delivery) answer(v mq.Verdict) { d.verdict <- v }

func (n *node) consume(kind mq.Kind, change ...func(*mq.Options)) *consumer {
	n.t.Helper()
	c, err := mq.NewConsumer(kind, n.options(change...))
	must(n.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	r := &consumer{Consumer: c, t: n.t, deliveries: make(chan *delivery, 1024), cancel: cancel, done: make(chan error, 1)}
	go func() {
		r.done <- c.Run(ctx, func(ctx context.Context, m *mq.Message) mq.Verdict {
			d := &delivery{Message: m, ctx: ctx, verdict: make(chan mq.Verdict, 1)}
			r.deliveries <- d
			select {
			case v := <-d.verdict:
				return v
			case <-ctx.Done():
				return mq.Retry(0)
			}
		})
	}()
	n.t.Cleanup(func() { r.stop() })
	return r
}

func (c *consumer) features() mq.Features {
	c.t.Helper()
	d, ok := c.Consumer.(mq.Describer)
	if !ok {
		c.t.Fatalf("%T does not describe its broker", c.Consumer)
	}
	return d.Features()
}

// next is the next delivery.
func (c *consumer) next() *delivery {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	select {
	case d := <-c.deliveries:
		return d
	case <-ctx.Done():
		c.t.Fatal("no message came")
		return nil
	}
}

// expect is the next delivery, which must be this body's attempt.
func (c *consumer) expect(body string, attempt int) *delivery {
	c.t.Helper()
	d := c.next()
	if string(d.Body) != body || d.Attempt != attempt {
		c.t.Fatalf("got %q, attempt %d; want %q, attempt %d", d.Body, d.Attempt, body, attempt)
	}
	return d
}

// stop stops the consumer and waits for it. It may be called twice.
func (c *consumer) stop() {
	c.t.Helper()
	c.cancel()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	select {
	case err := <-c.done:
		if err != nil {
			c.t.Errorf("Run: %v", err)
		}
		c.done <- nil
	case <-ctx.Done():
		c.t.Error("consumer does not stop")
	}
}

// wait waits for Run's own end.
func (c *consumer) wait() error {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	select {
	case err := <-c.done:
		c.done <- nil
		return err
	case <-ctx.Done():
		return fmt.Errorf("still running: %w", ctx.Err())
	}
}

func testLog(t testing.TB) *slog.Logger {
	t.Helper()
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelInfo}))
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
