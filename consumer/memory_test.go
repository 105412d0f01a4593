package consumer

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/penstockmq/penstock/broker/lite"
	"github.com/penstockmq/penstock/consumer/forward"
	"github.com/penstockmq/penstock/consumer/mq"
	"github.com/penstockmq/penstock/consumer/reply"
	"github.com/penstockmq/penstock/suspend/policy"
)

// patience bounds what should take milliseconds; only a broken test waits it out.
const patience = 30 * time.Second

// memory is a broker in a variable, for tests of the pool alone: FIFO buckets with one message out at a time, suspends,
// attempts, dead letters. It works in real time and in a synctest bubble.
type memory struct {
	workers int
	grace   time.Duration
	step    time.Duration

	mu      sync.Mutex // guards the following fields
	buckets map[string]*memoryBucket
	order   []string // bucket names in order of their last turn
	changed chan struct{}
	turns   []turn // every delivery that ended, in order of its end
	dead    []*mq.Message
	left    int // messages not settled
}

type memoryBucket struct {
	queue   []*mq.Message
	running bool
	held    time.Time
}

// turn is one delivery.
type turn struct {
	m       *mq.Message
	verdict mq.Verdict
	begin   time.Time
	end     time.Time
}

func newMemory(workers int) *memory {
	return &memory{workers: workers, step: time.Millisecond, buckets: map[string]*memoryBucket{}, changed: make(chan struct{})}
}

func (b *memory) SuspendStep() time.Duration { return b.step }

// put adds a message for a cell.
func (b *memory) put(t *testing.T, c lite.Cell, req reply.Request, body string) *mq.Message {
	t.Helper()
	name, err := lite.Encode(c)
	if err != nil {
		t.Fatal(err)
	}
	req.User, req.Model = c.User, c.Model
	m := &mq.Message{
		ID: fmt.Sprintf("%s/%s", name, body), Lite: name, Body: []byte(body), Attempt: 1,
		Properties: req.Properties(), Born: time.Now(),
	}
	b.add(m)
	return m
}

func (b *memory) add(m *mq.Message) {
	b.mu.Lock()
	defer b.mu.Unlock()
	bucket := b.buckets[m.Lite]
	if bucket == nil {
		bucket = &memoryBucket{}
		b.buckets[m.Lite] = bucket
		b.order = append(b.order, m.Lite)
	}
	bucket.queue = append(bucket.queue, m)
	b.left++
	b.noteLocked()
}

func (b *memory) noteLocked() {
	close(b.changed)
	b.changed = make(chan struct{})
}

// next takes the message whose turn it is, or says until when to wait.
func (b *memory) next(now time.Time) (m *mq.Message, changed <-chan struct{}, wait time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	wait = time.Hour
	for i, name := range b.order {
		bucket := b.buckets[name]
		if bucket.running || len(bucket.queue) == 0 {
			continue
		}
		if d := bucket.held.Sub(now); d > 0 {
			wait = min(wait, d)
			continue
		}
		bucket.running = true
		b.order = append(slices.Delete(b.order, i, i+1), name)
		return bucket.queue[0], nil, 0
	}
	return nil, b.changed, wait
}

func (b *memory) Run(ctx context.Context, h mq.Handler) error {
	handlers, end := context.WithCancelCause(context.WithoutCancel(ctx))
	defer end(nil)
	slots := make(chan struct{}, b.workers)
	var wg sync.WaitGroup
	for ctx.Err() == nil {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			continue
		}
		m, changed, wait := b.next(time.Now())
		if m == nil {
			<-slots
			timer := time.NewTimer(wait)
			select {
			case <-changed:
			case <-timer.C:
			case <-ctx.Done():
			}
			timer.Stop()
			continue
		}
		wg.Go(func() {
			defer func() { <-slots }()
			begin := time.Now()
			delivery := *m
			delivery.Received = begin
			b.settle(m, h(handlers, &delivery), begin)
		})
	}
	time.AfterFunc(b.grace, func() { end(mq.ErrStopping) })
	wg.Wait()
	return nil
}

func (b *memory) settle(m *mq.Message, v mq.Verdict, begin time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	bucket := b.buckets[m.Lite]
	bucket.running = false
	delivered := *m
	b.turns = append(b.turns, turn{m: &delivered, verdict: v, begin: begin, end: time.Now()})
	switch v.Kind {
	case mq.VerdictAck, mq.VerdictReject:
		bucket.queue = bucket.queue[1:]
		b.left--
		if v.Kind == mq.VerdictReject {
			b.dead = append(b.dead, m)
		}
	case mq.VerdictSuspend:
		bucket.held = time.Now().Add(v.After)
	case mq.VerdictRetry:
		next := *m
		next.Attempt++
		bucket.queue[0] = &next
		bucket.held = time.Now().Add(v.After)
	}
	b.noteLocked()
}

// until waits until cond of the broker's state holds.
func (b *memory) until(t *testing.T, what string, cond func() bool) {
	t.Helper()
	deadline := time.After(patience)
	for {
		b.mu.Lock()
		ok, changed := cond(), b.changed
		b.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-changed:
		case <-deadline:
			t.Fatalf("waited in vain for: %s", what)
		}
	}
}

func (b *memory) drained(t *testing.T) {
	t.Helper()
	b.until(t, "all messages settled", func() bool { return b.left == 0 })
}

// verdicts are the kinds of the deliveries of a body, in order.
// unsettled is the number of messages that are queued or out.
func (b *memory) unsettled() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.left
}

func (b *memory) verdicts(body string) []mq.VerdictKind {
	b.mu.Lock()
	defer b.mu.Unlock()
	var kinds []mq.VerdictKind
	for _, t := range b.turns {
		if string(t.m.Body) == body {
			kinds = append(kinds, t.verdict.Kind)
		}
	}
	return kinds
}

// downstreamFunc is a model in a function.
type downstreamFunc func(ctx context.Context, r forward.Request, sink forward.Sink) forward.Outcome

func (f downstreamFunc) Forward(ctx context.Context, r forward.Request, sink forward.Sink) forward.Outcome {
	return f(ctx, r, sink)
}

// takes is a model that answers after d, or is cancelled.
func takes(d time.Duration) downstreamFunc {
	return func(ctx context.Context, _ forward.Request, sink forward.Sink) forward.Outcome {
		if err := sleep(ctx, d); err != nil {
			return forward.Outcome{Kind: forward.Cancelled, Err: err}
		}
		if err := sink.Answer(200, nil, []byte("{}"), reply.Usage{}); err != nil {
			return forward.Outcome{Kind: forward.Failed, Err: err}
		}
		return forward.Outcome{Kind: forward.Done, Status: 200}
	}
}

func mustPolicy(t *testing.T, text string) *policy.Document {
	t.Helper()
	doc, err := policy.Parse([]byte("version: 1\nlimits:\n" + text))
	if err != nil {
		t.Fatal(err)
	}
	return doc
}

func fixed(doc *policy.Document) func() *policy.Document {
	return func() *policy.Document { return doc }
}

// run starts a pool; the returned function stops it and waits.
func run(t *testing.T, opts Options) (p *Pool, stop func()) {
	t.Helper()
	p, err := New(opts)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			if err := <-done; err != nil {
				t.Errorf("Run: %v", err)
			}
		})
	}
	t.Cleanup(stop)
	return p, stop
}

// natsServer is an embedded server and a connection to it.
func natsServer(t *testing.T, dir string) *nats.Conn {
	t.Helper()
	s, err := reply.StartServer(reply.ServerOptions{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	nc, err := s.Connect()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}
