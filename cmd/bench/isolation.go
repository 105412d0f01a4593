package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"text/tabwriter"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/penstockmq/penstock/broker"
	"github.com/penstockmq/penstock/consumer/mq"
	"github.com/penstockmq/penstock/suspend/limit"
)

// IsolationOptions configure the isolation scenario. The zero value of a field
// takes its default.
type IsolationOptions struct {
	// Duration is the measured time of each run. Default 10 s.
	Duration time.Duration
	// Buckets and Workers are 50 each by default, Service is 300 ms: the proof of
	// concept of the article on RocketMQ LiteTopic in the Bailian gateway.
	Buckets, Workers int
	Service          time.Duration
	// Throttled are the numbers of throttled buckets to try. Default 0, 5, 40.
	Throttled []int
}

// Each healthy bucket gets healthyRate messages a second, each throttled one
// throttledRate, of which its limit lets throttleLimit pass.
const (
	healthyRate   = 2
	throttledRate = 10
	throttleLimit = 1
)

// Isolation is the result of the scenario.
type Isolation struct {
	Scenario  string         `json:"scenario"`
	Buckets   int            `json:"buckets"`
	Workers   int            `json:"workers"`
	ServiceMS int64          `json:"service_ms"`
	DurationS float64        `json:"duration_s"`
	Runs      []IsolationRun `json:"runs"`
	Checks
}

// IsolationRun is one run: one way to throttle, one number of throttled buckets.
type IsolationRun struct {
	Variant   string `json:"variant"` // suspend or sleep
	Throttled int    `json:"throttled"`
	// OfferedRate and HealthyRate are messages a second of all healthy buckets:
	// sent, and finished.
	OfferedRate float64 `json:"offered_per_s"`
	HealthyRate float64 `json:"healthy_per_s"`
	// HealthyP99MS is the time of a healthy message from its send to its start.
	HealthyP99MS float64 `json:"healthy_p99_ms"`
	// ThrottledRate is what the throttled buckets got through, their limit being
	// one a second each.
	ThrottledRate float64 `json:"throttled_per_s"`
}

// RunIsolation measures how healthy buckets fare beside throttled ones, once with a
// consumer that answers Suspend and once with workers that sleep out the limit.
func RunIsolation(ctx context.Context, o IsolationOptions) (*Isolation, error) {
	setDefault(&o.Duration, 10*time.Second)
	setDefault(&o.Buckets, 50)
	setDefault(&o.Workers, 50)
	setDefault(&o.Service, 300*time.Millisecond)
	if o.Throttled == nil {
		o.Throttled = []int{0, 5, 40}
	}
	out := &Isolation{
		Scenario: "isolation", Buckets: o.Buckets, Workers: o.Workers,
		ServiceMS: o.Service.Milliseconds(), DurationS: o.Duration.Seconds(),
	}
	for _, throttled := range o.Throttled {
		if throttled < 0 || throttled >= o.Buckets {
			return nil, fmt.Errorf("throttled %d of %d buckets: at least one has to stay healthy", throttled, o.Buckets)
		}
	}
	for _, variant := range []string{"suspend", "sleep"} {
		for _, throttled := range o.Throttled {
			r, err := isolationRun(ctx, o, variant, throttled)
			if err != nil {
				return nil, fmt.Errorf("%s, %d throttled: %w", variant, throttled, err)
			}
			out.Runs = append(out.Runs, r)
		}
	}
	out.judge()
	return out, nil
}

// isolationSlackMS is by how much the healthy buckets' 99th percentile may be over that of the first run.
const isolationSlackMS = 20

// judge compares each run with the first of its variant, and the sleeping workers with the suspends.
func (r *Isolation) judge() {
	var base IsolationRun
	rates := map[int]float64{}
	for i, run := range r.Runs {
		name := fmt.Sprintf("%s_%d_throttled_healthy", run.Variant, run.Throttled)
		if run.Variant != "suspend" {
			if 2*run.Throttled > r.Buckets {
				r.atMost(name+"_over_suspend", run.HealthyRate/rates[run.Throttled], 0.95)
			}
			continue
		}
		if i == 0 {
			base = run
		}
		rates[run.Throttled] = run.HealthyRate
		r.atLeast(name+"_of_offered", run.HealthyRate/run.OfferedRate, 0.95)
		r.atMost(name+"_p99_ms", run.HealthyP99MS, base.HealthyP99MS+isolationSlackMS)
	}
}

// Print writes the table.
func (r *Isolation) Print(w io.Writer) error {
	fmt.Fprintf(w, "%d buckets, %d workers, %d ms a message, %.0f s a run; healthy buckets send %d/s each, throttled ones %d/s with a limit of %d/s\n",
		r.Buckets, r.Workers, r.ServiceMS, r.DurationS, healthyRate, throttledRate, throttleLimit)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "variant\tthrottled\toffered/s\thealthy/s\thealthy p99 ms\tthrottled/s\t")
	for _, run := range r.Runs {
		fmt.Fprintf(t, "%s\t%d\t%.1f\t%.1f\t%.0f\t%.1f\t\n",
			run.Variant, run.Throttled, run.OfferedRate, run.HealthyRate, run.HealthyP99MS, run.ThrottledRate)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	return r.print(w)
}

// isolationLoad is one run under way.
type isolationLoad struct {
	opts      IsolationOptions
	sleep     bool
	throttled int
	names     []string

	mu     sync.Mutex
	limits []limit.LeakyState // guarded by mu, by throttled bucket
	// finished counts messages and delays keeps queue times, both guarded by mu and
	// taken only while measuring.
	finished [2]int // healthy, throttled
	delays   []time.Duration
	begin    time.Time // of the measured time; immutable once the load runs
}

func isolationRun(ctx context.Context, o IsolationOptions, variant string, throttled int) (IsolationRun, error) {
	// A bucket may have many messages out, as a queue without a bound has: with one
	// at a time a sleeping worker could not hold more than its own.
	tb, err := startBroker(broker.Options{AutoCreate: true, AutoGroup: broker.GroupConfig{InFlight: o.Workers}})
	if err != nil {
		return IsolationRun{}, err
	}
	l := &isolationLoad{opts: o, sleep: variant == "sleep", throttled: throttled, limits: make([]limit.LeakyState, throttled)}
	for i := range o.Buckets {
		l.names = append(l.names, fmt.Sprintf("b%03d", i))
	}
	err = errors.Join(l.run(ctx, tb.addr), tb.close())
	return l.result(variant), err
}

// run feeds and consumes for a second without and then for the measured time with
// taking figures.
func (l *isolationLoad) run(ctx context.Context, addr string) error {
	const warmUp = time.Second
	consumer, err := mq.NewConsumer(mq.Stubs, mq.Options{Endpoint: addr, Topic: "isolation", Group: "pool", Workers: l.opts.Workers, Invisible: time.Minute})
	if err != nil {
		return err
	}
	producer, err := mq.NewProducer(mq.Stubs, mq.Options{Endpoint: addr})
	if err != nil {
		return err
	}
	l.begin = time.Now().Add(warmUp)
	ctx, cancel := context.WithTimeout(ctx, warmUp+l.opts.Duration)
	defer cancel()
	var g errgroup.Group
	g.Go(func() error { return consumer.Run(ctx, l.handle) })
	for i, name := range l.names {
		rate := healthyRate
		if i < l.throttled {
			rate = throttledRate
		}
		g.Go(func() error { return feed(ctx, producer, name, i, time.Second/time.Duration(rate)) })
	}
	return errors.Join(g.Wait(), producer.Close())
}

// feed sends one message each interval, whatever becomes of those before. The
// feeders start spread over the interval.
func feed(ctx context.Context, p mq.Producer, name string, index int, every time.Duration) error {
	next := time.Now().Add(every * time.Duration(index) / 50)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(time.Until(next)):
		}
		_, err := p.Send(ctx, mq.Outgoing{Topic: "isolation", Lite: name, Body: []byte("x"), Properties: map[string]string{"bucket": fmt.Sprint(index)}})
		if err != nil && ctx.Err() == nil {
			return err
		}
		next = next.Add(every)
	}
}

func (l *isolationLoad) handle(ctx context.Context, m *mq.Message) mq.Verdict {
	index := slices.Index(l.names, m.Lite)
	throttled := index < l.throttled
	if throttled {
		for {
			wait := l.ask(index)
			if wait == 0 {
				break
			}
			if !l.sleep {
				return mq.Suspend(wait)
			}
			if !pause(ctx, wait) {
				return mq.Suspend(0)
			}
		}
	}
	started := time.Now()
	if !pause(ctx, l.opts.Service) {
		return mq.Suspend(0)
	}
	l.note(throttled, started.Sub(m.Born))
	return mq.Ack()
}

// ask takes from the limit of a throttled bucket, or says how long to wait.
func (l *isolationLoad) ask(index int) time.Duration {
	rate := limit.LeakyBucket{Rate: limit.Rate{Events: throttleLimit, Per: time.Second}}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	var d limit.Decision
	l.limits[index], d = rate.Take(l.limits[index], now, 1)
	return d.Wait(now)
}

func (l *isolationLoad) note(throttled bool, delay time.Duration) {
	if time.Now().Before(l.begin) {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if throttled {
		l.finished[1]++
		return
	}
	l.finished[0]++
	l.delays = append(l.delays, delay)
}

func (l *isolationLoad) result(variant string) IsolationRun {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.opts.Duration.Seconds()
	return IsolationRun{
		Variant: variant, Throttled: l.throttled,
		OfferedRate:   float64((l.opts.Buckets - l.throttled) * healthyRate),
		HealthyRate:   float64(l.finished[0]) / s,
		HealthyP99MS:  ms(quantile(l.delays, 0.99)),
		ThrottledRate: float64(l.finished[1]) / s,
	}
}

// pause sleeps, or returns false when ctx ends first.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// quantile sorts d; it returns 0 when there is none.
func quantile(d []time.Duration, q float64) time.Duration {
	if len(d) == 0 {
		return 0
	}
	slices.Sort(d)
	return d[min(int(q*float64(len(d))), len(d)-1)]
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func setDefault[T comparable](v *T, def T) {
	var zero T
	if *v == zero {
		*v = def
	}
}
