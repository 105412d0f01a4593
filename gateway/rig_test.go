package gateway

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/penstockmq/penstock/consumer/mq"
	"github.com/penstockmq/penstock/consumer/reply"
	"github.com/penstockmq/penstock/suspend/policy"
)

// patience bounds what a test waits for; nothing passes or fails by taking less of it.
const patience = 20 * time.Second

// fakeBroker is the producer's end of a broker that the test drives: what was sent comes out of sent.
type fakeBroker struct {
	sent     chan mq.Outgoing
	sending  chan struct{} // a Send waits for hold
	recalled chan string   // handles of successful recalls

	mu     sync.Mutex
	queued map[string]bool // handles that a recall still reaches
	next   int
	refuse error         // answer of Send
	hold   chan struct{} // if set, Send waits for it to be closed before it stores
}

func newFakeBroker() *fakeBroker {
	return &fakeBroker{
		sent:     make(chan mq.Outgoing, 1024),
		sending:  make(chan struct{}, 16),
		recalled: make(chan string, 1024),
		queued:   make(map[string]bool),
	}
}

func (b *fakeBroker) Send(ctx context.Context, m mq.Outgoing) (mq.Receipt, error) {
	if b.hold != nil {
		b.sending <- struct{}{}
		<-b.hold
	}
	if err := ctx.Err(); err != nil {
		return mq.Receipt{}, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.refuse != nil {
		return mq.Receipt{}, b.refuse
	}
	b.next++
	handle := m.Properties[reply.PropertyRequestID]
	b.queued[handle] = true
	b.sent <- m
	return mq.Receipt{MessageID: strconv.Itoa(b.next), RecallHandle: handle}, nil
}

func (b *fakeBroker) Recall(_ context.Context, _, handle string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.queued[handle] {
		return mq.ErrNotQueued
	}
	delete(b.queued, handle)
	b.recalled <- handle
	return nil
}

func (b *fakeBroker) refuseWith(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refuse = err
}

// deliver takes a message out of reach of recalls.
func (b *fakeBroker) deliver(id string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.queued, id)
}

// rig is a gateway on a real HTTP server and a real NATS server; the test is the broker and the pool.
type rig struct {
	t       *testing.T
	g       *Gateway
	broker  *fakeBroker
	pool    *nats.Conn
	store   *reply.Store
	cancels *reply.Cancels
	url     string
	secret  string // of user alice
	other   string // of user bob
}

func newRig(t *testing.T, change func(*Options)) *rig {
	t.Helper()
	ns, err := reply.StartServer(reply.ServerOptions{Dir: t.TempDir()})
	must(t, err)
	t.Cleanup(ns.Close)
	connect := func() *nats.Conn {
		nc, err := ns.Connect()
		must(t, err)
		t.Cleanup(nc.Close)
		return nc
	}
	r := &rig{t: t, broker: newFakeBroker(), pool: connect()}
	nc := connect()
	r.store, err = reply.OpenStore(t.Context(), nc, reply.StoreOptions{TotalBytes: 8 << 20})
	must(t, err)
	r.cancels, err = reply.NewCancels(r.pool, reply.CancelsOptions{})
	must(t, err)
	must(t, r.pool.Flush())

	var alice, bob KeyEntry
	r.secret, alice, err = NewKey("alice", "test")
	must(t, err)
	r.other, bob, err = NewKey("bob", "test")
	must(t, err)
	keys, err := NewKeySet(alice, bob)
	must(t, err)
	opts := Options{Producer: r.broker, NATS: nc, Requests: r.store, Keys: keys}
	if change != nil {
		change(&opts)
	}
	r.g, err = New(opts)
	must(t, err)
	t.Cleanup(func() { must(t, r.g.Close()) })
	must(t, nc.Flush()) // the subscription to replies is in force
	srv := httptest.NewServer(r.g)
	t.Cleanup(srv.Close)
	r.url = srv.URL
	return r
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func policyOf(t *testing.T, text string) func(*Options) {
	t.Helper()
	doc, err := policy.Parse([]byte("version: 1\nlimits:\n" + text))
	must(t, err)
	return func(o *Options) { o.Policy = func() *policy.Document { return doc } }
}

// job is a message as a worker has it.
type job struct {
	reply.Request
	*reply.Writer
	lite string
	body []byte
}

// take is a worker that takes the next message.
func (r *rig) take() job {
	r.t.Helper()
	j := r.peek()
	r.broker.deliver(j.ID)
	must(r.t, j.Started(time.Now(), true))
	return j
}

// peek looks at the next message and leaves it in its bucket.
func (r *rig) peek() job {
	r.t.Helper()
	m := receive(r.t, r.broker.sent, "no message was sent")
	req, err := reply.FromProperties(m.Properties)
	must(r.t, err)
	return job{Request: req, Writer: reply.NewWriter(r.pool, req, 1), lite: m.Lite, body: m.Body}
}

func (r *rig) nothingSent() {
	r.t.Helper()
	select {
	case m := <-r.broker.sent:
		r.t.Fatalf("a message was sent to bucket %s", m.Lite)
	default:
	}
}

func receive[T any](t *testing.T, c <-chan T, missing string) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(patience):
		t.Fatal(missing)
		panic("unreachable")
	}
}

var (
	jsonHeader = http.Header{"Content-Type": {"application/json"}}
	sseHeader  = http.Header{"Content-Type": {"text/event-stream"}}
)

const (
	chatBody   = `{"model":"gpt-4o","messages":[{"role":"user","content":"hi"}]}`
	streamBody = `{"model":"gpt-4o","stream":true,"messages":[{"role":"user","content":"hi"}]}`
)

// do sends a request as alice; headers are "Name: value".
func (r *rig) do(ctx context.Context, method, path, body string, headers ...string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, r.url+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+r.secret)
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		req.Header.Set(name, value)
	}
	return http.DefaultClient.Do(req)
}

// answer is a response that was read to its end.
type answer struct {
	status int
	header http.Header
	body   string
	err    error // of reading the body
}

func (r *rig) ask(method, path, body string, headers ...string) answer {
	r.t.Helper()
	return receive(r.t, r.start(method, path, body, headers...), "no answer")
}

// start asks in the background.
func (r *rig) start(method, path, body string, headers ...string) <-chan answer {
	done := make(chan answer, 1)
	go func() {
		resp, err := r.do(r.t.Context(), method, path, body, headers...)
		if err != nil {
			done <- answer{err: err}
			return
		}
		defer func() { _ = resp.Body.Close() }()
		text, err := io.ReadAll(resp.Body)
		done <- answer{status: resp.StatusCode, header: resp.Header, body: string(text), err: err}
	}()
	return done
}

func (r *rig) chat(body string, headers ...string) <-chan answer {
	return r.start(http.MethodPost, "/v1/chat/completions", body, headers...)
}

func (a answer) check(t *testing.T, status int, code string) {
	t.Helper()
	if a.err != nil {
		t.Fatalf("answer: %v", a.err)
	}
	if a.status != status {
		t.Fatalf("status %d, want %d: %s", a.status, status, a.body)
	}
	if got := errorCode(a.body); got != code {
		t.Fatalf("code %q, want %q: %s", got, code, a.body)
	}
	for _, name := range []string{headerRequestID, headerQueueTime} {
		if a.header.Get(name) == "" {
			t.Errorf("no %s in %v", name, a.header)
		}
	}
}
