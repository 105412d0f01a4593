package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/penstockmq/penstock/cmd/node"
)

// RatioOptions configure the ratio scenario. The zero value of a field takes its default.
type RatioOptions struct {
	// Users each send Bursts bursts of Size requests, Every apart. Defaults 10, 4, 30, 5 s.
	Users, Bursts, Size int
	Every               time.Duration
	// Rate is what each user may have a second. Default 10. A burst has to be through before the next one comes.
	Rate int
	// Logger takes what goes on inside; nil discards it.
	Logger *slog.Logger
}

// Ratio is the result of the scenario: one trace against a limiter and against buckets.
type Ratio struct {
	Scenario string  `json:"scenario"`
	Users    int     `json:"users"`
	Bursts   int     `json:"bursts"`
	Size     int     `json:"size"`
	EveryS   float64 `json:"every_s"`
	Rate     int     `json:"rate_per_s"`
	// Limiter answers 429 to what is over the rate, Buckets let it wait.
	Limiter RatioRun `json:"limiter"`
	Buckets RatioRun `json:"buckets"`
	Checks
}

// RatioRun is what callers saw.
type RatioRun struct {
	Sent     int     `json:"sent"`
	Answered int     `json:"answered"`
	Limited  int     `json:"limited"`
	Failed   int     `json:"failed"`
	WaitP50  float64 `json:"wait_p50_ms"` // in the queue, of the answered
	WaitP99  float64 `json:"wait_p99_ms"`
}

const (
	ratioLimiter = "version: 1\nlimits:\n  - {user: \"*\", model: \"*\", window: %d/1s, window_at: admission}\n"
	ratioBuckets = "version: 1\nlimits:\n  - {user: \"*\", model: \"*\", rate: %d/s, depth: 1000}\n"
)

const ratioBody = `{"model":"model-a","messages":[{"role":"user","content":"hello"}]}`

// RunRatio sends the same bursts over HTTP to a gateway that refuses what is over the limit and to one that queues it.
func RunRatio(ctx context.Context, o RatioOptions) (*Ratio, error) {
	setDefault(&o.Users, 10)
	setDefault(&o.Bursts, 4)
	setDefault(&o.Size, 30)
	setDefault(&o.Every, 5*time.Second)
	setDefault(&o.Rate, 10)
	if err := o.check(); err != nil {
		return nil, err
	}
	out := &Ratio{Scenario: "ratio", Users: o.Users, Bursts: o.Bursts, Size: o.Size, EveryS: o.Every.Seconds(), Rate: o.Rate}
	var err error
	if out.Limiter, err = o.run(ctx, fmt.Sprintf(ratioLimiter, o.Rate)); err != nil {
		return nil, fmt.Errorf("limiter: %w", err)
	}
	if out.Buckets, err = o.run(ctx, fmt.Sprintf(ratioBuckets, o.Rate)); err != nil {
		return nil, fmt.Errorf("buckets: %w", err)
	}
	out.atLeast("limited_at_the_limiter", float64(out.Limiter.Limited), 10)
	out.atLeast("limited_limiter_over_buckets", float64(out.Limiter.Limited)/max(1, float64(out.Buckets.Limited)), 10)
	out.atMost("buckets_unanswered", float64(out.Buckets.Sent-out.Buckets.Answered-out.Buckets.Limited), 0)
	// The cost: the last of a burst waits for all before it.
	out.atMost("buckets_wait_p99_ms", out.Buckets.WaitP99, 1.1*1000*float64(o.Size)/float64(o.Rate))
	return out, nil
}

func (o RatioOptions) check() error {
	switch {
	case o.Users < 1 || o.Bursts < 1 || o.Size < 1 || o.Users*o.Bursts*o.Size > 100_000:
		return fmt.Errorf("%d users with %d bursts of %d: want 1 to 100000 requests", o.Users, o.Bursts, o.Size)
	case o.Rate < 1 || o.Rate > 1000:
		return fmt.Errorf("rate %d is outside 1 to 1000", o.Rate)
	case o.Every > 10*time.Minute || o.Every < time.Duration(o.Size)*time.Second/time.Duration(o.Rate):
		return fmt.Errorf("every %v: a burst of %d takes %v at %d/s, at most 10m", o.Every, o.Size, time.Duration(o.Size)*time.Second/time.Duration(o.Rate), o.Rate)
	}
	return nil
}

// run starts everything in one process with a policy, and sends.
func (o RatioOptions) run(ctx context.Context, policy string) (_ RatioRun, err error) {
	dir, err := os.MkdirTemp("", "penstock-bench-")
	if err != nil {
		return RatioRun{}, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	_, url, stopModel, err := startModel(ctx)
	if err != nil {
		return RatioRun{}, err
	}
	defer stopModel()
	keys, opts, err := wholeOptions(dir, url, policy, o.Users, o.Logger)
	if err != nil {
		return RatioRun{}, err
	}
	n, err := node.Start(ctx, opts)
	if err != nil {
		return RatioRun{}, err
	}
	defer func() { err = errors.Join(err, n.Stop()) }()
	l := &ratioLoad{
		url:    "http://" + n.Addrs().HTTP,
		client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: o.Users * o.Size}},
	}
	defer l.client.CloseIdleConnections()
	l.send(ctx, o, keys)
	return l.result(), ctx.Err()
}

// ratioLoad sends and counts answers.
type ratioLoad struct {
	url    string
	client *http.Client

	mu    sync.Mutex
	run   RatioRun        // guarded by mu
	waits []time.Duration // guarded by mu
}

// send lets every user send its bursts, all requests of a burst at once, and returns when all are answered.
func (l *ratioLoad) send(ctx context.Context, o RatioOptions, keys map[string]string) {
	var requests sync.WaitGroup
	begin := time.Now()
	for burst := range o.Bursts {
		if !pause(ctx, time.Until(begin.Add(time.Duration(burst)*o.Every))) {
			break
		}
		for _, key := range keys {
			for range o.Size {
				requests.Go(func() { l.request(ctx, key) })
			}
		}
	}
	requests.Wait()
}

func (l *ratioLoad) request(ctx context.Context, key string) {
	status, wait, err := postChat(ctx, l.client, l.url, key, []byte(ratioBody))
	l.mu.Lock()
	defer l.mu.Unlock()
	l.run.Sent++
	switch {
	case err == nil && status == http.StatusOK:
		l.run.Answered++
		l.waits = append(l.waits, wait)
	case err == nil && status == http.StatusTooManyRequests:
		l.run.Limited++
	default:
		l.run.Failed++
	}
}

func (l *ratioLoad) result() RatioRun {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.run.WaitP50, l.run.WaitP99 = ms(quantile(l.waits, 0.5)), ms(quantile(l.waits, 0.99))
	return l.run
}

// Print writes tables.
func (r *Ratio) Print(w io.Writer) error {
	fmt.Fprintf(w, "%d users, %d bursts of %d each, %.0f s apart; %d/s for each user\n", r.Users, r.Bursts, r.Size, r.EveryS, r.Rate)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "variant\tsent\tanswered\t429\tfailed\twait p50 ms\twait p99 ms\t")
	for _, v := range []struct {
		name string
		RatioRun
	}{{"limiter", r.Limiter}, {"buckets", r.Buckets}} {
		fmt.Fprintf(t, "%s\t%d\t%d\t%d\t%d\t%.0f\t%.0f\t\n", v.name, v.Sent, v.Answered, v.Limited, v.Failed, v.WaitP50, v.WaitP99)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	return r.print(w)
}
