package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"github.com/penstockmq/penstock/broker"
	"github.com/penstockmq/penstock/broker/dispatch"
	"github.com/penstockmq/penstock/broker/lite"
	"github.com/penstockmq/penstock/suspend/policy"
)

// TurnsOptions configure the turns scenario. The zero value of a field takes its default.
type TurnsOptions struct {
	// Cells is the number of cells that wait for windows ending at one instant. 1 to 5,000,000;
	// default 1,000,000.
	Cells int
	// Deadlines is the number of messages of one bucket with different deadlines that pass
	// together. 1 to 1,000,000; default 100,000.
	Deadlines int
	// Runs is the number of measurements of each kind; the best counts, as other load can only
	// make turns longer. 1 to 10; default 3.
	Runs int
	// Limit bounds the time of the whole scenario. Default 20 min.
	Limit time.Duration
}

// Turns is the result of the scenario: the durations of the turns of an owner loop.
type Turns struct {
	Scenario string     `json:"scenario"`
	Runs     []TurnsRun `json:"runs"`
	Checks
}

// TurnsRun describes the turns while many events were due at one instant.
type TurnsRun struct {
	// The kind of event, "windows" or "deadlines", and the number of events that fell due together.
	What string `json:"what"`
	Due  int    `json:"due"`
	Done int    `json:"done"`
	// Turns is the number of turns, LongestMS the longest and P99MS the 99th percentile.
	Turns     int     `json:"turns"`
	LongestMS float64 `json:"longest_ms"`
	P99MS     float64 `json:"p99_ms"`
	// Seconds is the time from the instant until all events were handled. NeighbourMS is the
	// longest time for a send to another bucket and its purge meanwhile, Neighbours their number.
	Seconds     float64 `json:"seconds"`
	NeighbourMS float64 `json:"neighbour_ms"`
	Neighbours  int     `json:"neighbours"`
}

// longestTurnMS is the accepted duration of the longest turn.
const longestTurnMS = 5

// RunTurns measures the turns of an owner loop when very many events are due at one instant.
// The broker runs in this process with its store on disk; its clock is set ahead.
func RunTurns(ctx context.Context, o TurnsOptions) (*Turns, error) {
	setDefault(&o.Cells, 1_000_000)
	setDefault(&o.Deadlines, 100_000)
	setDefault(&o.Runs, 3)
	setDefault(&o.Limit, 20*time.Minute)
	if o.Cells < 1 || o.Cells > 5_000_000 || o.Deadlines < 1 || o.Deadlines > 1_000_000 || o.Runs < 1 || o.Runs > 10 {
		return nil, fmt.Errorf("cells %d, deadlines %d or runs %d is out of its limits (5,000,000; 1,000,000; 10)", o.Cells, o.Deadlines, o.Runs)
	}
	ctx, cancel := context.WithTimeout(ctx, o.Limit)
	defer cancel()
	out := &Turns{Scenario: "turns"}
	for _, measure := range []func(context.Context, TurnsOptions) ([]TurnsRun, error){turnsOfDeadlines, turnsOfWindows} {
		runs, err := measure(ctx, o)
		if err != nil {
			return nil, err
		}
		out.Runs = append(out.Runs, runs...)
	}
	out.judge()
	return out, nil
}

func (r *Turns) judge() {
	best := map[string]float64{}
	for _, run := range r.Runs {
		r.atLeast(run.What+"_done", float64(run.Done), float64(run.Due))
		if b, ok := best[run.What]; !ok || run.LongestMS < b {
			best[run.What] = run.LongestMS
		}
	}
	for _, what := range []string{"deadlines", "windows"} {
		if ms, ok := best[what]; ok {
			r.atMost(what+"_longest_turn_ms", ms, longestTurnMS)
		}
	}
}

// Print writes the table.
func (r *Turns) Print(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "due at one instant\tdone\tafter s\tturns\tp99 ms\tlongest ms\tneighbour's longest ms\t")
	for _, x := range r.Runs {
		fmt.Fprintf(t, "%d %s\t%d\t%.2f\t%d\t%.3f\t%.3f\t%.1f\t\n", x.Due, x.What, x.Done, x.Seconds, x.Turns, x.P99MS, x.LongestMS, x.NeighbourMS)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	return r.print(w)
}

// turnTimes is an Observer that keeps the durations of turns.
type turnTimes struct {
	mu    sync.Mutex
	times []time.Duration // guarded by mu
}

func (*turnTimes) QueueTime(time.Duration) {}
func (*turnTimes) Commit(time.Duration)    {}

func (o *turnTimes) Turn(d time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.times = append(o.times, d)
}

// take returns the durations since the last take.
func (o *turnTimes) take() []time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	times := o.times
	o.times = nil
	return times
}

// turnsBench is a broker whose clock can be set ahead.
type turnsBench struct {
	b     *broker.Broker
	dir   string
	ahead atomic.Int64
	turns turnTimes
}

const (
	turnsTopic = "turns"
	turnsGroup = "pool"
)

func newTurnsBench(o TurnsOptions, rules string) (*turnsBench, error) {
	doc, err := policy.Parse([]byte("version: 1\n" + rules))
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "penstock-bench-")
	if err != nil {
		return nil, err
	}
	x := &turnsBench{dir: dir}
	begin := time.Now()
	x.b, err = broker.Open(broker.Options{
		Dir: dir, Policy: doc, Observer: &x.turns, AsyncFlush: true,
		Topics: []broker.TopicConfig{{Name: turnsTopic, MaxBuckets: 2*o.Cells + 10, MaxMessages: o.Deadlines + 10}},
		Groups: []broker.GroupConfig{{Name: turnsGroup, Topic: turnsTopic, Wildcard: true}},
		Clock: func() broker.Reading {
			d := time.Duration(x.ahead.Load())
			return broker.Reading{Wall: time.Now().Round(0).Add(d), Mono: time.Since(begin) + d}
		},
	})
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return x, nil
}

func (x *turnsBench) close() error { return errors.Join(x.b.Close(), os.RemoveAll(x.dir)) }

// send stores n messages made by message.
func (x *turnsBench) send(ctx context.Context, n int, message func(i int) broker.Message) error {
	const batch = 1000
	msgs := []broker.Message{}
	for i := range n {
		msgs = append(msgs, message(i))
		if len(msgs) < batch && i < n-1 {
			continue
		}
		if _, err := x.b.Send(ctx, turnsTopic, msgs); err != nil {
			return err
		}
		msgs = msgs[:0]
	}
	return nil
}

// receive takes and settles n messages, or fewer if none arrives for a while.
func (x *turnsBench) receive(ctx context.Context, n int, wait time.Duration) (got int, err error) {
	for got < n {
		ds, err := x.b.Receive(ctx, broker.ReceiveRequest{
			Topic: turnsTopic, Group: turnsGroup, Client: "c", Max: min(256, n-got), Invisible: time.Minute, Wait: wait,
		})
		if err != nil || len(ds) == 0 {
			return got, err
		}
		handles := make([]string, len(ds))
		for i, d := range ds {
			handles[i] = d.Handle
		}
		if _, err := x.b.Ack(ctx, turnsTopic, turnsGroup, handles); err != nil {
			return got, err
		}
		got += len(ds)
	}
	return got, nil
}

func (x *turnsBench) stats(ctx context.Context) (dispatch.Stats, error) {
	s, err := x.b.Stats(ctx)
	if err != nil {
		return dispatch.Stats{}, err
	}
	return s.Topics[0].Stats, nil
}

// measure sets the clock ahead and measures until done returns true.
func (x *turnsBench) measure(ctx context.Context, run TurnsRun, ahead time.Duration, act func(context.Context) (int, error)) (TurnsRun, error) {
	stop := make(chan struct{})
	var neighbour sync.WaitGroup
	var slowest time.Duration
	var failed error
	x.turns.take()
	x.ahead.Add(int64(ahead))
	begin := time.Now()
	neighbour.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			sent := time.Now()
			_, err := x.b.Send(ctx, turnsTopic, []broker.Message{{Lite: "neighbour__n", ID: strconv.Itoa(run.Neighbours), Body: []byte("x")}})
			if err == nil {
				_, err = x.b.Purge(ctx, turnsTopic, "neighbour__n")
			}
			if err != nil {
				failed = err
				return
			}
			slowest = max(slowest, time.Since(sent))
			run.Neighbours++
		}
	})
	var err error
	run.Done, err = act(ctx)
	run.Seconds = time.Since(begin).Seconds()
	close(stop)
	neighbour.Wait()
	times := x.turns.take()
	slices.Sort(times)
	run.Turns, run.NeighbourMS = len(times), ms(slowest)
	if len(times) > 0 {
		run.LongestMS, run.P99MS = ms(times[len(times)-1]), ms(quantile(times, 0.99))
	}
	return run, errors.Join(err, failed)
}

// turnsOfDeadlines makes the deadlines of one bucket pass together; a poll then settles them.
func turnsOfDeadlines(ctx context.Context, o TurnsOptions) (runs []TurnsRun, err error) {
	x, err := newTurnsBench(o, "limits:\n  - {user: neighbour, window: 1/24h, window_at: release}\n")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, x.close()) }()
	for range o.Runs {
		due := time.Now().Add(time.Duration(x.ahead.Load()) + 30*time.Minute)
		err := x.send(ctx, o.Deadlines, func(i int) broker.Message {
			at := strconv.FormatInt(due.Add(time.Duration(i)*time.Millisecond).UnixMilli(), 10)
			return broker.Message{Lite: "deep__m", ID: strconv.Itoa(i), Body: []byte("x"), Properties: map[string]string{lite.PropertyDeadline: at}}
		})
		if err != nil {
			return nil, err
		}
		run, err := x.measure(ctx, TurnsRun{What: "deadlines", Due: o.Deadlines}, 2*time.Hour, func(ctx context.Context) (int, error) {
			before := x.b.Metrics().Expired.Load()
			for x.b.Metrics().Expired.Load()-before < int64(o.Deadlines) {
				if _, err := x.receive(ctx, 1, time.Second); err != nil {
					return 0, err
				}
			}
			return o.Deadlines, nil
		})
		if err != nil {
			return nil, fmt.Errorf("deadlines: %w", err)
		}
		runs = append(runs, run)
	}
	return runs, nil
}

// turnsOfWindows makes the windows of all cells end together: each cell has a waiting message.
func turnsOfWindows(ctx context.Context, o TurnsOptions) (runs []TurnsRun, err error) {
	x, err := newTurnsBench(o, "limits:\n  - {user: \"*\", window: 1/1h, window_at: release}\n")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, x.close()) }()
	for n := range o.Runs + 1 {
		if err := x.send(ctx, o.Cells, func(i int) broker.Message {
			return broker.Message{Lite: "u" + strconv.Itoa(i) + "__m", ID: fmt.Sprint(n, "-", i), Body: []byte("x")}
		}); err != nil {
			return nil, err
		}
	}
	for range o.Runs {
		// One message of each cell is delivered, the next one waits for the end of the window.
		if got, err := x.receive(ctx, o.Cells, time.Second); err != nil || got < o.Cells {
			return nil, fmt.Errorf("windows: %d of %d messages came: %w", got, o.Cells, err)
		}
		if got, err := x.receive(ctx, 1, 0); err != nil || got > 0 {
			return nil, fmt.Errorf("windows: %d messages passed outside their windows: %w", got, err)
		}
		run, err := x.measure(ctx, TurnsRun{What: "windows", Due: o.Cells}, time.Hour, func(ctx context.Context) (int, error) {
			for {
				s, err := x.stats(ctx)
				if err != nil || s.Groups[0].Ready >= o.Cells {
					return s.Groups[0].Ready, err
				}
				select {
				case <-ctx.Done():
					return s.Groups[0].Ready, ctx.Err()
				case <-time.After(5 * time.Millisecond):
				}
			}
		})
		if err != nil {
			return nil, fmt.Errorf("windows: %w", err)
		}
		runs = append(runs, run)
	}
	return runs, nil
}
