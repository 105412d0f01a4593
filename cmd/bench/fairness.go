package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"text/tabwriter"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/penstockmq/penstock/broker"
	"github.com/penstockmq/penstock/broker/lite"
	"github.com/penstockmq/penstock/cmd/sim"
	"github.com/penstockmq/penstock/consumer/mq"
	"github.com/penstockmq/penstock/suspend/policy"
)

// FairnessOptions configure the fairness scenario. The zero value of a field takes its default.
type FairnessOptions struct {
	// Duration is the measured time of each run. 1 s to 10 min; default 11 s, for 10,000 samples.
	Duration time.Duration
	// Runs is how often each variant is measured, one after the other in turns; the median counts. Default 3.
	Runs int
	// Backlog is what the heavy tenant has queued. Default 100,000.
	Backlog int
	// Quiet tenants send QuietRate a second each. Defaults 99 and 10.
	Quiet, QuietRate int
	// Capacity is what the model takes a second. Default twice what the quiet ones send.
	Capacity int
}

// Fairness is the result of the scenario.
type Fairness struct {
	Scenario  string  `json:"scenario"`
	Backlog   int     `json:"backlog"`
	Quiet     int     `json:"quiet"`
	QuietRate int     `json:"quiet_rate"`
	Capacity  int     `json:"capacity_per_s"`
	DurationS float64 `json:"duration_s"`
	// AloneP99MS and BesideP99MS are the quiet tenants' times from send to handler, run by run.
	AloneP99MS  []float64 `json:"alone_p99_ms"`
	BesideP99MS []float64 `json:"beside_p99_ms"`
	Samples     int       `json:"samples"` // of the smallest run
	// HeavyPerS is what the heavy tenant got through beside them.
	HeavyPerS float64 `json:"heavy_per_s"`
	// Costs are the sizes of the tenants' messages in the second part, Shares the cost a second that each got.
	Costs  []int     `json:"costs"`
	Shares []float64 `json:"shares_cost_per_s"`
	Jain   float64   `json:"jain"`
	Checks
}

const fairnessPolicy = `version: 1
columns:
  - {model: model, rate: %d/s, burst: 5ms}
`

// RunFairness measures what a tenant with a huge backlog costs the quiet ones, and how evenly tenants with messages of
// unequal size share a model.
func RunFairness(ctx context.Context, o FairnessOptions) (*Fairness, error) {
	setDefault(&o.Duration, 11*time.Second)
	setDefault(&o.Runs, 3)
	setDefault(&o.Backlog, 100_000)
	setDefault(&o.Quiet, 99)
	setDefault(&o.QuietRate, 10)
	setDefault(&o.Capacity, 2*o.Quiet*o.QuietRate)
	if err := o.check(); err != nil {
		return nil, err
	}
	out := &Fairness{
		Scenario: "fairness", Backlog: o.Backlog, Quiet: o.Quiet, QuietRate: o.QuietRate, Capacity: o.Capacity,
		DurationS: o.Duration.Seconds(), Costs: []int{1, 2, 4, 8, 16},
	}
	if err := out.neighbours(ctx, o); err != nil {
		return nil, fmt.Errorf("neighbours: %w", err)
	}
	if err := out.sizes(ctx, o.Duration); err != nil {
		return nil, fmt.Errorf("sizes: %w", err)
	}
	alone, beside := median(out.AloneP99MS), median(out.BesideP99MS)
	out.atMost("quiet_p99_beside_over_alone", beside/alone, 2)
	out.atLeast("heavy_served_per_s", out.HeavyPerS, 1)
	out.atLeast("jain_in_cost", out.Jain, 0.99)
	return out, nil
}

func (o FairnessOptions) check() error {
	switch {
	case o.Duration < time.Second || o.Duration > 10*time.Minute:
		return fmt.Errorf("duration %v is outside 1s to 10m", o.Duration)
	case o.Runs < 1 || o.Runs > 100:
		return fmt.Errorf("runs %d is outside 1 to 100", o.Runs)
	case o.Backlog < 1 || o.Backlog > 1_000_000:
		return fmt.Errorf("backlog %d is outside 1 to 1000000", o.Backlog)
	case o.Quiet < 1 || o.QuietRate < 1 || o.Quiet*o.QuietRate > 5000:
		return fmt.Errorf("%d quiet tenants at %d/s: want 1 to 5000 messages a second in all", o.Quiet, o.QuietRate)
	case o.Capacity <= o.Quiet*o.QuietRate || o.Capacity > 10_000:
		return fmt.Errorf("capacity %d has to be over what the quiet tenants send, %d, and at most 10000", o.Capacity, o.Quiet*o.QuietRate)
	}
	return nil
}

// neighbours measures the quiet tenants alone and beside the heavy one, in turns.
func (f *Fairness) neighbours(ctx context.Context, o FairnessOptions) (err error) {
	alone, err := o.open()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, alone.close()) }()
	beside, err := o.open()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, beside.close()) }()
	heavy := cellMessage(lite.Cell{User: "heavy", Model: "model"})
	if err := fill(ctx, beside.addr, heavy, o.Backlog); err != nil {
		return err
	}
	var served []float64
	for range o.Runs {
		p99, n, _, err := o.quiet(ctx, alone.addr, heavy.Lite)
		if err != nil {
			return err
		}
		f.AloneP99MS = append(f.AloneP99MS, p99)
		f.Samples = n
		p99, n, through, err := o.quiet(ctx, beside.addr, heavy.Lite)
		if err != nil {
			return err
		}
		f.BesideP99MS = append(f.BesideP99MS, p99)
		f.Samples = min(f.Samples, n)
		served = append(served, through)
	}
	f.HeavyPerS = median(served)
	return nil
}

func (o FairnessOptions) open() (*testBroker, error) {
	doc, err := policy.Parse(fmt.Appendf(nil, fairnessPolicy, o.Capacity))
	if err != nil {
		return nil, err
	}
	return startBroker(broker.Options{
		AutoCreate: true, Policy: doc, AutoTopic: broker.TopicConfig{MaxMessages: 2 * o.Backlog},
	})
}

// fill sends n messages of one bucket.
func fill(ctx context.Context, addr string, m mq.Outgoing, n int) error {
	p, err := mq.NewProducer(mq.Stubs, mq.Options{Endpoint: addr})
	if err != nil {
		return err
	}
	return errors.Join(sendMany(ctx, p, m, n, 64), p.Close())
}

// quiet lets the quiet tenants send for a warm-up second and the duration, and returns the 99th percentile of their
// times to the handler in milliseconds, the number of samples, and what the heavy bucket got through a second.
func (o FairnessOptions) quiet(ctx context.Context, addr, heavy string) (p99 float64, samples int, through float64, err error) {
	var got arrivals
	stop, err := consume(addr, 4, 32, got.handle)
	if err != nil {
		return 0, 0, 0, err
	}
	p, err := mq.NewProducer(mq.Stubs, mq.Options{Endpoint: addr})
	if err != nil {
		return 0, 0, 0, errors.Join(err, stop())
	}
	begin := time.Now().Add(time.Second)
	sending, cancel := context.WithDeadline(ctx, begin.Add(o.Duration))
	defer cancel()
	every := time.Second / time.Duration(o.QuietRate)
	g, sending := errgroup.WithContext(sending)
	messages := make([]mq.Outgoing, o.Quiet)
	for i := range messages {
		messages[i] = cellMessage(lite.Cell{User: fmt.Sprintf("quiet-%03d", i), Model: "model"})
		g.Go(func() error {
			if !pause(sending, every*time.Duration(i)/time.Duration(o.Quiet)) {
				return nil
			}
			return steady(sending, p, messages[i], every)
		})
	}
	err = errors.Join(g.Wait(), stop(), p.Close())
	var delays []time.Duration
	for _, m := range messages {
		for _, a := range got.of(m.Lite) {
			if !a.at.Before(begin) {
				delays = append(delays, a.delay)
			}
		}
	}
	n := 0
	for _, a := range got.of(heavy) {
		if !a.at.Before(begin) {
			n++
		}
	}
	return ms(quantile(delays, 0.99)), len(delays), float64(n) / o.Duration.Seconds(), errors.Join(err, ctx.Err())
}

// fairnessCost is the cost a second that the tenants with unequal sizes share.
const fairnessCost = 1500

// sizes measures the cost that tenants with a backlog each get, when their messages cost unequally much.
func (f *Fairness) sizes(ctx context.Context, d time.Duration) (err error) {
	doc, err := policy.Parse(fmt.Appendf(nil, fairnessPolicy, fairnessCost))
	if err != nil {
		return err
	}
	tb, err := startBroker(broker.Options{AutoCreate: true, Policy: doc, AutoGroup: broker.GroupConfig{InFlight: 64}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, tb.close()) }()
	messages := make([]mq.Outgoing, len(f.Costs))
	for i, cost := range f.Costs {
		messages[i] = cellMessage(lite.Cell{User: fmt.Sprintf("cost-%02d", cost), Model: "model"})
		messages[i].Properties[lite.PropertyCost] = strconv.Itoa(cost)
		// A third more than its share, so that it never runs out.
		n := int((d+2*time.Second).Seconds()*fairnessCost*4/3)/len(f.Costs)/cost + 10
		if err := fill(ctx, tb.addr, messages[i], n); err != nil {
			return err
		}
	}
	var got arrivals
	stop, err := consume(tb.addr, 4, 32, got.handle)
	if err != nil {
		return err
	}
	begin := time.Now().Add(time.Second)
	if !pause(ctx, time.Until(begin.Add(d))) {
		return errors.Join(stop(), ctx.Err())
	}
	end := begin.Add(d)
	for i, m := range messages {
		n := 0
		for _, a := range got.of(m.Lite) {
			if !a.at.Before(begin) && a.at.Before(end) {
				n++
			}
		}
		f.Shares = append(f.Shares, float64(n*f.Costs[i])/d.Seconds())
	}
	f.Jain = sim.Jain(f.Shares)
	return stop()
}

func median(x []float64) float64 {
	x = slices.Clone(x)
	slices.Sort(x)
	return x[len(x)/2]
}

// Print writes tables.
func (f *Fairness) Print(w io.Writer) error {
	fmt.Fprintf(w, "%d quiet tenants at %d/s, one with %d queued, a model that takes %d/s; %.0f s a run, at least %d samples\n",
		f.Quiet, f.QuietRate, f.Backlog, f.Capacity, f.DurationS, f.Samples)
	fmt.Fprintf(w, "quiet p99, alone:  %v ms\nquiet p99, beside: %v ms; the heavy one gets %.0f/s\n\n", f.AloneP99MS, f.BesideP99MS, f.HeavyPerS)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "message cost\tcost served/s\t")
	for i, c := range f.Costs {
		fmt.Fprintf(t, "%d\t%.0f\t\n", c, f.Shares[i])
	}
	if err := t.Flush(); err != nil {
		return err
	}
	return f.print(w)
}
