package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/penstockmq/penstock/broker"
	"github.com/penstockmq/penstock/broker/lite"
	"github.com/penstockmq/penstock/consumer/mq"
	"github.com/penstockmq/penstock/suspend"
	"github.com/penstockmq/penstock/suspend/policy"
	"github.com/penstockmq/penstock/suspend/signal"
)

// LevelsOptions configure the levels scenario. The zero value of a field takes its default.
type LevelsOptions struct {
	// Before, Short and After are the lengths of the three phases. Defaults 10 s, 20 s, 15 s; each at least 5 s.
	Before, Short, After time.Duration
	// Demand is what each level sends a second, Capacity what the model takes; while it is short, half of that.
	// Defaults 40 and 240. Half the capacity must be more than two demands and less than four.
	Demand, Capacity int
}

// Levels is the result of the scenario: who gives way when a model's capacity is halved.
type Levels struct {
	Scenario string `json:"scenario"`
	Demand   int    `json:"demand_per_s_and_level"`
	Capacity int    `json:"capacity_per_s"`
	BeforeS  int    `json:"before_s"`
	ShortS   int    `json:"short_s"`
	AfterS   int    `json:"after_s"`
	// PerSecond has what each level, L0 first, got in each second.
	PerSecond [levelsCount][]int `json:"per_second"`
	// Before and Short are the means of the phases, without the first seconds of the second.
	Before [levelsCount]float64 `json:"before_per_s"`
	Short  [levelsCount]float64 `json:"short_per_s"`
	// BackS is how long after the return each level got its demand again, in seconds.
	BackS [levelsCount]int `json:"back_s"`
	Checks
}

const (
	levelsCount = 4
	// levelsSettle is left out at the beginning of the short phase, while what was due anyway goes.
	levelsSettle = 2
	levelsModel  = "model"
	levelsPolicy = `version: 1
columns:
  - {model: model, rate: %d/s}
importance:
  - {user: user-0, level: 0}
  - {user: user-1, level: 1}
  - {user: user-2, level: 2}
  - {user: user-3, level: 3}
`
)

// RunLevels halves the capacity of a model for a while and measures what each level of importance gets.
func RunLevels(ctx context.Context, o LevelsOptions) (_ *Levels, err error) {
	setDefault(&o.Before, 10*time.Second)
	setDefault(&o.Short, 20*time.Second)
	setDefault(&o.After, 15*time.Second)
	setDefault(&o.Demand, 40)
	setDefault(&o.Capacity, 240)
	if err := o.check(); err != nil {
		return nil, err
	}
	doc, err := policy.Parse(fmt.Appendf(nil, levelsPolicy, o.Capacity))
	if err != nil {
		return nil, err
	}
	tb, err := startBroker(broker.Options{AutoCreate: true, Policy: doc})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, tb.close()) }()
	var got arrivals
	stop, err := consume(tb.addr, 4, 32, got.handle)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	begin := time.Now().Add(time.Second)
	if err := o.load(ctx, tb, begin); err != nil {
		return nil, err
	}
	return o.measure(&got, begin)
}

func (o LevelsOptions) check() error {
	for _, phase := range []struct {
		name string
		d    time.Duration
	}{{"before", o.Before}, {"short", o.Short}, {"after", o.After}} {
		if phase.d < 5*time.Second || phase.d > 10*time.Minute {
			return fmt.Errorf("%s %v is outside 5s to 10m", phase.name, phase.d)
		}
	}
	if o.Demand < 1 || o.Capacity/2 <= 2*o.Demand || o.Capacity/2 >= 4*o.Demand || o.Capacity > 2000 {
		return fmt.Errorf("capacity %d, demand %d: half the capacity has to be between two and four demands, the capacity at most 2000", o.Capacity, o.Demand)
	}
	return nil
}

// load sends with every level, and halves the capacity in between.
func (o LevelsOptions) load(ctx context.Context, tb *testBroker, begin time.Time) error {
	producer, err := mq.NewProducer(mq.Stubs, mq.Options{Endpoint: tb.addr})
	if err != nil {
		return err
	}
	end := begin.Add(o.Before + o.Short + o.After)
	sending, cancel := context.WithDeadline(ctx, end)
	defer cancel()
	g, sending := errgroup.WithContext(sending)
	for level := range levelsCount {
		g.Go(func() error {
			return steady(sending, producer, levelsMessage(level), time.Second/time.Duration(o.Demand))
		})
	}
	g.Go(func() error {
		half := signal.Signal{
			Target: suspend.Target{Scope: suspend.Column, Name: levelsModel}, Source: "bench", Kind: signal.Manual,
			Permille: 500, Default: signal.Full, At: time.Now().Round(0), Reason: "half of the capacity is gone",
		}
		if !pause(sending, time.Until(begin.Add(o.Before))) {
			return nil
		}
		if err := tb.b.SetSignal(sending, half); err != nil {
			return err
		}
		if !pause(sending, time.Until(begin.Add(o.Before+o.Short))) {
			return nil
		}
		return tb.b.DropSignal(sending, half.Target, half.Source)
	})
	err = errors.Join(g.Wait(), producer.Close())
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

func levelsUser(level int) string { return fmt.Sprintf("user-%d", level) }

func levelsMessage(level int) mq.Outgoing {
	return cellMessage(lite.Cell{User: levelsUser(level), Model: levelsModel})
}

func (o LevelsOptions) measure(got *arrivals, begin time.Time) (*Levels, error) {
	before, short, after := int(o.Before/time.Second), int(o.Short/time.Second), int(o.After/time.Second)
	out := &Levels{
		Scenario: "levels", Demand: o.Demand, Capacity: o.Capacity, BeforeS: before, ShortS: short, AfterS: after,
	}
	for level := range levelsCount {
		counts := perSecond(got.of(levelsMessage(level).Lite), begin, before+short+after)
		out.PerSecond[level] = counts
		out.Before[level] = mean(counts[1:before])
		out.Short[level] = mean(counts[before+levelsSettle : before+short])
		out.BackS[level] = back(counts[before+short:], o.Demand)
	}
	out.judge()
	return out, nil
}

func (l *Levels) judge() {
	demand := float64(l.Demand)
	for level := range levelsCount {
		l.within(fmt.Sprintf("L%d_before", level), l.Before[level], demand, 2)
	}
	l.within("L0_while_short", l.Short[0], demand, 2)
	l.atMost("L2_below_L1_while_short", l.Short[2]-l.Short[1], -1)
	l.atMost("L3_below_L2_while_short", l.Short[3]-l.Short[2], -1)
	l.atLeast("L3_alive_while_short", l.Short[3], 1)
	sum := 0.0
	for _, x := range l.Short {
		sum += x
	}
	l.within("all_while_short", sum, float64(l.Capacity)/2, 0.05*float64(l.Capacity)/2)
	for level := range levelsCount {
		l.atMost(fmt.Sprintf("L%d_back_after_s", level), float64(l.BackS[level]), 10)
	}
}

// back is the number of seconds after which a level gets its demand again, give or take 5 %.
func back(counts []int, demand int) int {
	for s, n := range counts {
		if float64(n) >= 0.95*float64(demand) {
			return s + 1
		}
	}
	return len(counts) + 1
}

func mean(counts []int) float64 {
	sum := 0
	for _, n := range counts {
		sum += n
	}
	return float64(sum) / float64(len(counts))
}

// steady sends one message each interval until ctx ends.
func steady(ctx context.Context, p mq.Producer, m mq.Outgoing, every time.Duration) error {
	var g errgroup.Group
	g.SetLimit(64)
	for next := time.Now(); ; next = next.Add(every) {
		if !pause(ctx, time.Until(next)) {
			break
		}
		g.Go(func() error {
			if _, err := p.Send(ctx, m); err != nil && ctx.Err() == nil {
				return err
			}
			return nil
		})
	}
	return g.Wait()
}

// cellMessage is a small message of a cell.
func cellMessage(c lite.Cell) mq.Outgoing {
	name, err := lite.Encode(c)
	if err != nil {
		panic(err) // scenarios name their cells well
	}
	return mq.Outgoing{Topic: benchTopic, Lite: name, Body: []byte("x"), Properties: map[string]string{
		lite.PropertyUser: c.User, lite.PropertyModel: c.Model,
	}}
}

// Print writes tables.
func (l *Levels) Print(w io.Writer) error {
	fmt.Fprintf(w, "demand %d/s of each level, capacity %d/s, halved from %d s to %d s\n", l.Demand, l.Capacity, l.BeforeS, l.BeforeS+l.ShortS)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "level\tbefore/s\twhile short/s\tback after s\t")
	for level := range levelsCount {
		fmt.Fprintf(t, "L%d\t%.1f\t%.1f\t%d\t\n", level, l.Before[level], l.Short[level], l.BackS[level])
	}
	if err := t.Flush(); err != nil {
		return err
	}
	return l.print(w)
}
