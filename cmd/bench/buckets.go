package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/penstockmq/penstock/broker"
	"github.com/penstockmq/penstock/consumer/mq"
)

// BucketsOptions configure the buckets scenario. The zero value of a field takes
// its default.
type BucketsOptions struct {
	// Count is the number of buckets; each gets one message in each phase. 1 to
	// 10,000,000. Default 100,000.
	Count int
	// Consumers read by wildcard, with a connection each. Default 16.
	Consumers int
	// BodyBytes is the size of a message. Default 1024.
	BodyBytes int
	// Limit bounds each phase. Default 10 min.
	Limit time.Duration
	// SkipFresh leaves out the phase in which consumers wait for new buckets.
	SkipFresh bool
}

// Buckets is the result of the scenario.
type Buckets struct {
	Scenario  string `json:"scenario"`
	Count     int    `json:"count"`
	Consumers int    `json:"consumers"`
	BodyBytes int    `json:"body_bytes"`
	// Fresh: consumers wait, and every bucket gets its first message. Backlog: every
	// bucket has a message before the consumers start.
	Fresh   *BucketsPhase `json:"fresh,omitempty"`
	Backlog BucketsPhase  `json:"backlog"`
	// StartEmptyMS is the time to open the broker again when all buckets are idle,
	// HeapIdleMB its heap then, PerBucketB the heap beyond that of an empty broker
	// divided by the buckets. StartBacklogMS is with a message in every bucket.
	StartEmptyMS   float64 `json:"start_empty_ms"`
	StartBacklogMS float64 `json:"start_backlog_ms"`
	HeapIdleMB     float64 `json:"heap_idle_mb"`
	HeapBacklogMB  float64 `json:"heap_backlog_mb"`
	PerBucketB     float64 `json:"idle_bytes_per_bucket"`
	RSSMB          float64 `json:"rss_mb"`
	Checks
}

// BucketsPhase is how one phase went.
type BucketsPhase struct {
	Sent       int     `json:"sent"`
	SendPerS   float64 `json:"send_per_s"`
	Delivered  int     `json:"delivered"`
	Duplicated int     `json:"duplicated"`
	Missing    int     `json:"missing"`
	// DeliverPerS is over the time in which deliveries came.
	DeliverPerS float64 `json:"deliver_per_s"`
	// LastMS is from the last send, or the consumers' start, to the last delivery.
	LastMS float64 `json:"last_ms"`
}

// RunBuckets creates buckets by their first messages, drains them, and looks at
// what a restart costs.
func RunBuckets(ctx context.Context, o BucketsOptions) (out *Buckets, err error) {
	setDefault(&o.Count, 100_000)
	setDefault(&o.Consumers, 16)
	setDefault(&o.BodyBytes, 1024)
	setDefault(&o.Limit, 10*time.Minute)
	if o.Count < 1 || o.Count > 10_000_000 || o.Consumers < 1 || o.Consumers > 1024 || o.BodyBytes < 1 || o.BodyBytes > 1<<20 {
		return nil, fmt.Errorf("count %d, consumers %d or body %d bytes is out of its limits (10,000,000; 1,024; 1 MiB)", o.Count, o.Consumers, o.BodyBytes)
	}
	out = &Buckets{Scenario: "buckets", Count: o.Count, Consumers: o.Consumers, BodyBytes: o.BodyBytes}
	empty := heap()
	tb, err := startBroker(broker.Options{AutoCreate: true, AutoTopic: broker.TopicConfig{MaxBuckets: 2 * o.Count}})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, tb.close()) }()
	if !o.SkipFresh {
		p, err := bucketsFresh(ctx, tb, o)
		if err != nil {
			return nil, fmt.Errorf("fresh: %w", err)
		}
		out.Fresh = &p
	}
	if err := bucketsBacklog(ctx, tb, o, out); err != nil {
		return nil, fmt.Errorf("backlog: %w", err)
	}
	begin := time.Now()
	if err := tb.reopen(); err != nil {
		return nil, err
	}
	out.StartEmptyMS = ms(time.Since(begin))
	idle := heap()
	out.HeapIdleMB = mb(idle)
	out.PerBucketB = float64(max(0, int64(idle)-int64(empty))) / float64(o.Count)
	out.RSSMB = mb(rss())
	out.judge()
	return out, nil
}

// judge looks for what came never or twice.
func (r *Buckets) judge() {
	phases := map[string]BucketsPhase{"backlog": r.Backlog}
	if r.Fresh != nil {
		phases["fresh"] = *r.Fresh
	}
	for _, name := range slices.Sorted(maps.Keys(phases)) {
		r.atMost(name+"_missing", float64(phases[name].Missing), 0)
		r.atMost(name+"_twice", float64(phases[name].Duplicated), 0)
		r.atLeast(name+"_delivered", float64(phases[name].Delivered), float64(r.Count))
	}
}

// bucketsFresh sends to buckets that did not exist while consumers wait.
func bucketsFresh(ctx context.Context, tb *testBroker, o BucketsOptions) (BucketsPhase, error) {
	d := newDelivered(o.Count)
	ctx, cancel := context.WithTimeout(ctx, o.Limit)
	defer cancel()
	stop, err := d.consume(ctx, tb.addr, o)
	if err != nil {
		return BucketsPhase{}, err
	}
	if err := allWait(ctx, tb.b, o.Consumers*polls); err != nil {
		return BucketsPhase{}, errors.Join(err, stop())
	}
	begin := time.Now()
	err = sendEach(ctx, tb.addr, o)
	sent := time.Now()
	d.wait(ctx)
	p := d.phase(begin, sent)
	p.Sent, p.SendPerS = o.Count, float64(o.Count)/sent.Sub(begin).Seconds()
	return p, errors.Join(err, stop())
}

// allWait returns when n polls are parked at the broker, so that a bucket's first
// message finds all consumers waiting.
func allWait(ctx context.Context, b *broker.Broker, n int) error {
	look := time.NewTicker(10 * time.Millisecond)
	defer look.Stop()
	for {
		s, err := b.Stats(ctx)
		if err != nil {
			return err
		}
		waiters := 0
		for _, t := range s.Topics {
			waiters += t.Waiters
		}
		if waiters >= n {
			return nil
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			return fmt.Errorf("%d of %d polls wait: %w", waiters, n, ctx.Err())
		}
	}
}

// bucketsBacklog gives every bucket a message, restarts the broker, and lets
// consumers drain them.
func bucketsBacklog(ctx context.Context, tb *testBroker, o BucketsOptions, out *Buckets) error {
	ctx, cancel := context.WithTimeout(ctx, 2*o.Limit)
	defer cancel()
	begin := time.Now()
	if err := sendEach(ctx, tb.addr, o); err != nil {
		return err
	}
	sendTime := time.Since(begin)
	begin = time.Now()
	if err := tb.reopen(); err != nil {
		return err
	}
	out.StartBacklogMS = ms(time.Since(begin))
	out.HeapBacklogMB = mb(heap())
	d := newDelivered(o.Count)
	begin = time.Now()
	stop, err := d.consume(ctx, tb.addr, o)
	if err != nil {
		return err
	}
	d.wait(ctx)
	out.Backlog = d.phase(begin, begin)
	out.Backlog.Sent, out.Backlog.SendPerS = o.Count, float64(o.Count)/sendTime.Seconds()
	return stop()
}

// sendEach sends one message to each bucket, from many goroutines whose sends share
// calls.
func sendEach(ctx context.Context, addr string, o BucketsOptions) error {
	const senders = 512
	p, err := mq.NewProducer(mq.Stubs, mq.Options{Endpoint: addr})
	if err != nil {
		return err
	}
	body := make([]byte, o.BodyBytes)
	var next atomic.Int64
	g, ctx := errgroup.WithContext(ctx)
	for range senders {
		g.Go(func() error {
			for {
				i := int(next.Add(1)) - 1
				if i >= o.Count {
					return nil
				}
				if _, err := p.Send(ctx, mq.Outgoing{Topic: "buckets", Lite: "b" + strconv.Itoa(i), Body: body}); err != nil {
					return err
				}
			}
		})
	}
	return errors.Join(g.Wait(), p.Close())
}

// polls is how many long polls a consumer has open.
const polls = 2

// delivered counts deliveries by bucket.
type delivered struct {
	seen       []atomic.Int32
	total      atomic.Int64 // buckets that had a delivery
	duplicated atomic.Int64
	all        chan struct{} // closed when every bucket had one
	mu         sync.Mutex
	first      time.Time // guarded by mu
	last       time.Time // guarded by mu
}

func newDelivered(n int) *delivered {
	return &delivered{seen: make([]atomic.Int32, n), all: make(chan struct{})}
}

// consume starts the consumers; stop ends them.
func (d *delivered) consume(ctx context.Context, addr string, o BucketsOptions) (stop func() error, err error) {
	ctx, cancel := context.WithCancel(ctx)
	var g errgroup.Group
	for range o.Consumers {
		c, err := mq.NewConsumer(mq.Stubs, mq.Options{Endpoint: addr, Topic: "buckets", Group: "pool", Workers: 128, Polls: polls, Invisible: 10 * time.Minute})
		if err != nil {
			cancel()
			return nil, errors.Join(err, g.Wait())
		}
		g.Go(func() error { return c.Run(ctx, d.handle) })
	}
	return func() error { cancel(); return g.Wait() }, nil
}

func (d *delivered) handle(_ context.Context, m *mq.Message) mq.Verdict {
	now := time.Now()
	i, err := strconv.Atoi(strings.TrimPrefix(m.Lite, "b"))
	if err != nil || i < 0 || i >= len(d.seen) {
		return mq.Reject()
	}
	d.mu.Lock()
	if d.first.IsZero() {
		d.first = now
	}
	d.last = now
	d.mu.Unlock()
	if d.seen[i].Add(1) > 1 {
		d.duplicated.Add(1)
		return mq.Ack()
	}
	if d.total.Add(1) == int64(len(d.seen)) {
		close(d.all)
	}
	return mq.Ack()
}

func (d *delivered) wait(ctx context.Context) {
	select {
	case <-d.all:
	case <-ctx.Done():
	}
}

func (d *delivered) phase(begin, since time.Time) BucketsPhase {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := int(d.total.Load())
	return BucketsPhase{
		Delivered: n, Duplicated: int(d.duplicated.Load()), Missing: len(d.seen) - n,
		DeliverPerS: float64(n) / max(d.last.Sub(begin).Seconds(), 1e-9),
		LastMS:      ms(d.last.Sub(since)),
	}
}

// Print writes the table.
func (r *Buckets) Print(w io.Writer) error {
	fmt.Fprintf(w, "%d buckets, one message of %d bytes each, %d wildcard consumers, fsync on\n", r.Count, r.BodyBytes, r.Consumers)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "phase\tsent/s\tdelivered\ttwice\tmissing\tdelivered/s\tlast after ms\t")
	row := func(name string, p BucketsPhase) {
		fmt.Fprintf(t, "%s\t%.0f\t%d\t%d\t%d\t%.0f\t%.0f\t\n", name, p.SendPerS, p.Delivered, p.Duplicated, p.Missing, p.DeliverPerS, p.LastMS)
	}
	if r.Fresh != nil {
		row("consumers wait", *r.Fresh)
	}
	row("backlog first", r.Backlog)
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(w, `start with a backlog in every bucket: %.0f ms, heap %.0f MB
start with every bucket idle:         %.0f ms, heap %.0f MB (%.1f B a bucket), resident %.0f MB
`, r.StartBacklogMS, r.HeapBacklogMB, r.StartEmptyMS, r.HeapIdleMB, r.PerBucketB, r.RSSMB)
	return r.print(w)
}

// heap is what lives on the heap, garbage aside.
func heap() uint64 {
	debug.FreeOSMemory() // also collects
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// rss is the resident memory of this process, where the system tells it; else 0.
func rss() uint64 {
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	f := strings.Fields(string(b))
	if len(f) < 2 {
		return 0
	}
	pages, err := strconv.ParseUint(f[1], 10, 64)
	if err != nil {
		return 0
	}
	return pages * uint64(os.Getpagesize())
}

func mb(b uint64) float64 { return float64(b) / (1 << 20) }
