package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/penstockmq/penstock/cmd/mockmodel"
	"github.com/penstockmq/penstock/cmd/node"
	"github.com/penstockmq/penstock/gateway"
)

// DemoOptions configure a demo.
type DemoOptions struct {
	// Duration is how long users send; what is queued then is waited for. 1 s to 10 min.
	Duration time.Duration
	// JSON puts one object on the last line of Out, and plain lines before it.
	JSON bool
	// Terminal is whether Out can redraw a table in place.
	Terminal bool
	// Out takes the table and the summary.
	Out io.Writer
	// Logger takes what goes on inside; nil discards it.
	Logger *slog.Logger
}

// The demo's cast: every user bursts to one model and sends now and then to the
// other two. The first user's burst meets 1/s, the second user has 20/s everywhere.
const (
	demoUsers     = 12
	demoBurst     = 40
	demoSlowBurst = 10 // of the cell at 1/s
	demoEvery     = 2 * time.Second
	demoDelay     = 50 * time.Millisecond
	// demoDrain bounds the wait for what is queued when sending is over.
	demoDrain = 60 * time.Second
	// demoInFlight lets a cell at 20/s keep its pace at a model that takes 50 ms.
	demoInFlight = 4
)

var errDemo = errors.New("the demo did not go as expected")

const demoPolicy = `version: 1
limits:
  - {user: "*", model: "*", rate: 5/s}
  - {user: user-01, model: model-a, rate: 1/s}
  - {user: user-02, rate: 20/s}
`

// Demo runs everything in one process: broker, gateway, pool, NATS and a mock
// model, with a burst of tenants. It returns an error when a request was lost,
// rejected or answered twice, or a cell missed its pace by more than 5 %.
func Demo(ctx context.Context, o DemoOptions) error {
	if o.Duration < time.Second || o.Duration > 10*time.Minute {
		return fmt.Errorf("duration %v is outside 1s to 10m", o.Duration)
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	dir, err := os.MkdirTemp("", "penstock-demo-")
	if err != nil {
		return err
	}
	sum, err := demoIn(ctx, dir, o)
	if err = errors.Join(err, os.RemoveAll(dir)); err != nil {
		return err
	}
	if o.JSON {
		err = json.NewEncoder(o.Out).Encode(sum)
	} else {
		err = sum.print(o.Out)
	}
	if err == nil && !sum.asExpected() {
		err = errDemo
	}
	return err
}

// demoIn runs the demo over a data folder.
func demoIn(ctx context.Context, dir string, o DemoOptions) (DemoSummary, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	model, modelURL, stopModel, err := startModel(ctx)
	if err != nil {
		return DemoSummary{}, err
	}
	defer stopModel()
	keys, opts, err := wholeOptions(dir, modelURL, demoPolicy, demoUsers, o.Logger)
	if err != nil {
		return DemoSummary{}, err
	}
	n, err := node.Start(ctx, opts)
	if err != nil {
		return DemoSummary{}, err
	}
	fmt.Fprintf(o.Out, "gateway http://%s/v1, key of %s while the demo runs: %s\n", n.Addrs().HTTP, demoUser(0), keys[demoUser(0)])
	load := newDemoLoad("http://"+n.Addrs().HTTP, keys)
	load.run(ctx, o)
	if err := ctx.Err(); err != nil {
		return DemoSummary{}, errors.Join(err, n.Stop())
	}
	sum := load.summary(model.Calls(0))
	sum.Suspends = n.Broker().Metrics().Suspends.Load()
	return sum, n.Stop()
}

// startModel serves a mock model on loopback until stop is called.
func startModel(ctx context.Context) (_ *mockmodel.Server, url string, stop func(), err error) {
	behaviour := mockmodel.DefaultBehaviour()
	behaviour.Delay = mockmodel.Duration(demoDelay)
	m, err := mockmodel.New(mockmodel.Options{Behaviour: behaviour, History: 1_000_000})
	if err != nil {
		return nil, "", nil, err
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, "", nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	var g errgroup.Group
	g.Go(func() error { return m.Serve(ctx, l) })
	stop = func() {
		cancel()
		_ = g.Wait() // it only ends because of cancel
	}
	return m, "http://" + l.Addr().String() + "/v1", stop, nil
}

// wholeOptions are those of everything in one process over a data folder. It writes the policy and a key for each of the
// users, and returns the keys.
func wholeOptions(dir, modelURL, policy string, users int, log *slog.Logger) (map[string]string, node.Options, error) {
	opts := node.Defaults()
	opts.Parts = node.Whole
	opts.Data = filepath.Join(dir, "data")
	opts.GRPC, opts.HTTP, opts.Admin, opts.NATS = "127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0"
	opts.Policy, opts.Keys = filepath.Join(dir, "policy.yaml"), filepath.Join(dir, "keys.yaml")
	opts.AutoCreate, opts.InFlight, opts.Workers = true, demoInFlight, 256
	opts.RequestTimeout = opts.MaxTimeout
	opts.Models = []node.ModelOptions{{Name: node.Wildcard, URL: modelURL}}
	opts.Logger = log
	if err := os.WriteFile(opts.Policy, []byte(policy), 0o600); err != nil {
		return nil, opts, err
	}
	keys := map[string]string{}
	for i := range users {
		user := demoUser(i)
		secret, entry, err := gateway.NewKey(user, "bench")
		if err != nil {
			return nil, opts, err
		}
		if err := gateway.AppendKey(opts.Keys, entry); err != nil {
			return nil, opts, err
		}
		keys[user] = secret
	}
	return keys, opts, nil
}

func demoUser(i int) string { return fmt.Sprintf("user-%02d", i+1) }

// demoModels are the models; user i bursts to the model i modulo their number.
func demoModels() []string { return []string{"model-a", "model-b", "model-c"} }
