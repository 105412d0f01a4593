package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sort"
	"time"

	"github.com/penstockmq/penstock/broker"
	"github.com/penstockmq/penstock/broker/lite"
	"github.com/penstockmq/penstock/cmd/sim"
	"github.com/penstockmq/penstock/consumer/mq"
	"github.com/penstockmq/penstock/suspend/policy"
)

// PaceOptions configure the pace scenario. The zero value of a field takes its default.
type PaceOptions struct {
	// Duration is the measured time of each run. 2 s to 10 min; default 10 s.
	Duration time.Duration
}

// Pace is the result of the scenario: what limits let through.
type Pace struct {
	Scenario string `json:"scenario"`
	// Runs are on the wall clock, against a broker with its consumers.
	Runs []PaceRun `json:"runs"`
	// Virtual are on virtual time, by the state machine of the broker.
	Virtual []PaceFigure `json:"virtual"`
	Checks
}

// PaceRun is one run: a cell with a backlog, and what it got through.
type PaceRun struct {
	Rate      int     `json:"rate_per_s"`
	Consumers int     `json:"consumers"`
	Writers   int     `json:"writers"`
	Seconds   int     `json:"seconds"`
	PerSecond float64 `json:"per_second"` // mean
	Least     int     `json:"least"`      // in one of the seconds
	Most      int     `json:"most"`
	// MostIn1S is the most in any second, wherever it begins.
	MostIn1S int `json:"most_in_1s"`
}

// PaceFigure is one figure of virtual time.
type PaceFigure struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
}

// RunPace measures how exactly limits are kept.
func RunPace(ctx context.Context, o PaceOptions) (*Pace, error) {
	setDefault(&o.Duration, 10*time.Second)
	if o.Duration < 2*time.Second || o.Duration > 10*time.Minute {
		return nil, fmt.Errorf("duration %v is outside 2s to 10m", o.Duration)
	}
	out := &Pace{Scenario: "pace"}
	for _, r := range []PaceRun{
		{Rate: 50, Consumers: 1, Writers: 1},
		{Rate: 50, Consumers: 4, Writers: 1},
		{Rate: 10, Consumers: 4, Writers: 8},
	} {
		r.Seconds = int(o.Duration / time.Second)
		if err := r.run(ctx); err != nil {
			return nil, fmt.Errorf("%d/s, %d consumers, %d writers: %w", r.Rate, r.Consumers, r.Writers, err)
		}
		out.Runs = append(out.Runs, r)
		out.judge(r)
	}
	if err := out.virtual(ctx); err != nil {
		return nil, fmt.Errorf("virtual time: %w", err)
	}
	return out, nil
}

func (p *Pace) judge(r PaceRun) {
	name := fmt.Sprintf("%d_per_s_%d_consumers_%d_writers", r.Rate, r.Consumers, r.Writers)
	p.within(name+"_mean", r.PerSecond, float64(r.Rate), 1)
	p.atLeast(name+"_least", float64(r.Least), float64(r.Rate-1))
	p.atMost(name+"_most", float64(r.Most), float64(r.Rate+1))
	// A second that begins with a release ends with one, and each is seen a little late.
	p.atMost(name+"_most_in_any_second", float64(r.MostIn1S), float64(r.Rate+2))
}

// run lets consumers at a cell that has a backlog all the time.
func (r *PaceRun) run(ctx context.Context) (err error) {
	doc, err := policy.Parse(fmt.Appendf(nil, "version: 1\nlimits:\n  - {user: writer, model: model, rate: %d/s}\n", r.Rate))
	if err != nil {
		return err
	}
	tb, err := startBroker(broker.Options{AutoCreate: true, Policy: doc})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, tb.close()) }()
	producer, err := mq.NewProducer(mq.Stubs, mq.Options{Endpoint: tb.addr})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, producer.Close()) }()
	const warmUp = time.Second
	var got arrivals
	stop, err := consume(tb.addr, r.Consumers, 8, got.handle)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	message := cellMessage(lite.Cell{User: "writer", Model: "model"})
	if err := sendMany(ctx, producer, message, r.Rate*(r.Seconds+4), r.Writers); err != nil {
		return err
	}
	begin := time.Now().Add(warmUp)
	if !pause(ctx, warmUp+time.Duration(r.Seconds)*time.Second) {
		return ctx.Err()
	}
	r.measure(got.of(message.Lite), begin)
	return nil
}

func (r *PaceRun) measure(got []arrival, begin time.Time) {
	counts := perSecond(got, begin, r.Seconds)
	sum := 0
	for _, n := range counts {
		sum += n
	}
	r.PerSecond = float64(sum) / float64(r.Seconds)
	r.Least, r.Most = slices.Min(counts), slices.Max(counts)
	sort.Slice(got, func(i, j int) bool { return got[i].at.Before(got[j].at) })
	first := 0
	for i := range got {
		for got[i].at.Sub(got[first].at) >= time.Second {
			first++
		}
		r.MostIn1S = max(r.MostIn1S, i-first+1)
	}
}

// Print writes tables.
func (p *Pace) Print(w io.Writer) error {
	fmt.Fprintln(w, "rate/s  consumers  writers  measured/s  least  most  most in any second")
	for _, r := range p.Runs {
		fmt.Fprintf(w, "%6d  %9d  %7d  %10.2f  %5d  %4d  %18d\n", r.Rate, r.Consumers, r.Writers, r.PerSecond, r.Least, r.Most, r.MostIn1S)
	}
	fmt.Fprintln(w)
	for _, f := range p.Virtual {
		fmt.Fprintf(w, "%-40s %8.3f %s\n", f.Name, f.Value, f.Unit)
	}
	return p.print(w)
}

// virtual measures debts and tokens on virtual time.
func (p *Pace) virtual(ctx context.Context) error {
	full, err := fullAgain(ctx)
	if err != nil {
		return err
	}
	p.figure("debt_560_at_5_per_s_full_again", full.Seconds(), "s")
	p.within("debt_burst_of_560_at_5_per_s", full.Seconds(), 112, 0.05)
	for _, c := range []struct{ name, limit string }{
		{"kip_599_token_bucket", "quota: 5/s, quota_burst: 500"},
		{"kip_599_observed_rate", "observed: 5/s, samples: 100x1s"},
	} {
		wait, err := waitAfter560(ctx, c.limit)
		if err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		p.figure(c.name+"_wait_after_560", wait.Seconds(), "s")
		p.within(c.name, wait.Seconds(), 12, 0.05)
	}
	tokens, all, err := tokensInFirstMinute(ctx)
	if err != nil {
		return err
	}
	p.figure("tokens_in_first_minute", float64(tokens), "tokens")
	p.atMost("tokens_in_first_minute", float64(tokens), 275)
	p.atLeast("tokens_calls_served_in_the_end", float64(all), 5)
	return nil
}

func (p *Pace) figure(name string, value float64, unit string) {
	p.Virtual = append(p.Virtual, PaceFigure{name, value, unit})
}

func virtualTime(at time.Duration) sim.Instant {
	return sim.Instant{Time: time.Unix(0, 0).UTC().Add(at)}
}

func simulate(ctx context.Context, limits string, trace []sim.Request) (*sim.Result, error) {
	doc, err := policy.Parse([]byte("version: 1\nlimits:\n  - {user: \"*\", model: \"*\", in_flight: 1024, " + limits + "}\n"))
	if err != nil {
		return nil, err
	}
	return sim.Run(ctx, trace, sim.Options{Policy: doc, Workers: 4096})
}

// fullAgain is how long after 560 requests at once, of which 5 a second are let through, a second burst finds the bucket as
// full as the first did: the time in which the burst is paid for.
func fullAgain(ctx context.Context) (time.Duration, error) {
	const rest = 6 // what passes at once from a full bucket: five, and the one that goes into debt
	asFull := func(after time.Duration) (bool, error) {
		trace := burst(0, 560)
		trace = append(trace, burst(after, rest)...)
		r, err := simulate(ctx, "quota: 5/s", trace)
		if err != nil {
			return false, err
		}
		for i := 560; i < len(trace); i++ {
			if !r.Outcomes[i].Started.Equal(trace[i].Time.Time) {
				return false, nil
			}
		}
		return true, nil
	}
	lo, hi := time.Duration(0), 10*time.Minute
	for hi-lo > time.Millisecond {
		mid := lo + (hi-lo)/2
		full, err := asFull(mid)
		if err != nil {
			return 0, err
		}
		if full {
			hi = mid
		} else {
			lo = mid
		}
	}
	return hi, nil
}

func burst(at time.Duration, n int) []sim.Request {
	out := make([]sim.Request, n)
	for i := range out {
		out[i] = sim.Request{Time: virtualTime(at), User: "u", Model: "m"}
	}
	return out
}

// waitAfter560 is how long the next request waits when one of cost 560 came just before.
func waitAfter560(ctx context.Context, limits string) (time.Duration, error) {
	trace := []sim.Request{
		{Time: virtualTime(0), User: "u", Model: "m", Cost: 560},
		{Time: virtualTime(0), User: "u", Model: "m", Cost: 1},
	}
	r, err := simulate(ctx, limits, trace)
	if err != nil {
		return 0, err
	}
	return r.Outcomes[1].Started.Sub(trace[1].Time.Time), nil
}

// tokensInFirstMinute is how many tokens finish in the first minute of five calls that come at once, with a limit of
// 100 a minute for their user, and how many calls finish at all.
func tokensInFirstMinute(ctx context.Context) (tokens int64, served int, err error) {
	doc, err := policy.Parse([]byte("version: 1\nrows:\n  - {user: u, tokens: 100/1m}\n"))
	if err != nil {
		return 0, 0, err
	}
	var trace []sim.Request
	for i, n := range []int64{58, 80, 175, 175, 175} {
		trace = append(trace, sim.Request{
			Time: virtualTime(0), User: "u", Model: fmt.Sprintf("m%d", i), MaxTokens: 200,
			InputTokens: 10, OutputTokens: n - 10, ServiceTime: sim.Span(2 * time.Second),
		})
	}
	r, err := sim.Run(ctx, trace, sim.Options{Policy: doc})
	if err != nil {
		return 0, 0, err
	}
	for i, o := range r.Outcomes {
		if o.Ended.IsZero() {
			continue
		}
		served++
		if o.Ended.Sub(trace[i].Time.Time) <= time.Minute {
			tokens += trace[i].InputTokens + trace[i].OutputTokens
		}
	}
	return tokens, served, nil
}
