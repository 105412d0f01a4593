package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstockmq/penstock/broker"
	"github.com/penstockmq/penstock/broker/admin"
	"github.com/penstockmq/penstock/consumer/reply"
	"github.com/penstockmq/penstock/gateway"
)

// Addresses are where the parts of a node listen; empty for those it does not have.
type Addresses struct {
	GRPC, HTTP, Admin, NATS string
}

// String is the line that servers print when they serve.
func (a Addresses) String() string {
	var b strings.Builder
	b.WriteString("ready")
	for _, part := range []struct{ name, addr string }{
		{"grpc", a.GRPC}, {"http", a.HTTP}, {"admin", a.Admin}, {"nats", a.NATS},
	} {
		if part.addr != "" {
			fmt.Fprintf(&b, " %s=%s", part.name, part.addr)
		}
	}
	return b.String()
}

// Node is a running process's worth of parts.
type Node struct {
	// Immutable after Start.
	opts     Options
	log      *slog.Logger
	addrs    Addresses
	registry *prometheus.Registry
	checks   []admin.Check
	broker   *broker.Broker
	recorder admin.Recorder
	gateway  *gateway.Gateway
	nats     *nats.Conn
	requests *reply.Store // store of asynchronous requests; nil: no part uses one
	stages   [stages]stage

	stopping atomic.Bool
	// failed is closed when a part has failed; failure is written before.
	failed   chan struct{}
	failOnce sync.Once
	failure  error
	stopOnce sync.Once
	stopErr  error
}

// The stages in the order in which they stop.
const (
	front = iota
	core
	base
	stages
)

// stage is a set of parts that stop together.
type stage struct {
	ctx    context.Context
	cancel context.CancelFunc
	parts  sync.WaitGroup
	// closers are called in reverse order when the parts have stopped.
	closers []func() error
}

// stop ends the parts, waits for them, and closes what they used.
func (s *stage) stop() error {
	s.cancel()
	s.parts.Wait()
	var errs []error
	for _, f := range slices.Backward(s.closers) {
		errs = append(errs, f())
	}
	return errors.Join(errs...)
}

// Start checks opts and starts what opts.Parts names. When it returns, every part
// listens. ctx bounds the start only.
func Start(ctx context.Context, opts Options) (*Node, error) {
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	n := &Node{opts: opts, log: opts.Logger, registry: admin.NewRegistry(opts.Version), failed: make(chan struct{})}
	if n.log == nil {
		n.log = slog.New(slog.DiscardHandler)
		n.opts.Logger = n.log
	}
	for i := range n.stages {
		n.stages[i].ctx, n.stages[i].cancel = context.WithCancel(context.Background())
	}
	if err := n.start(ctx); err != nil {
		return nil, errors.Join(err, n.Stop())
	}
	return n, nil
}

func (n *Node) start(ctx context.Context) error {
	if err := n.startData(ctx); err != nil {
		return err
	}
	if err := n.startNATS(); err != nil {
		return err
	}
	steering, err := n.startSteering(ctx)
	if err != nil {
		return err
	}
	if n.opts.Parts.Has(Broker) {
		if err := n.startBroker(ctx, steering); err != nil {
			return err
		}
	}
	if n.opts.Parts.Has(Gateway) {
		if err := n.startGateway(ctx, steering.policy.Current); err != nil {
			return err
		}
	}
	if n.opts.Parts.Has(Pool) {
		if err := n.startPool(ctx, steering); err != nil {
			return err
		}
		n.startPoller(steering)
	}
	if n.opts.Parts.Has(Admin) {
		return n.startAdmin(ctx, steering)
	}
	return nil
}

// Addrs are where the parts listen: the free ports that were found for port 0.
func (n *Node) Addrs() Addresses { return n.addrs }

// Broker is the one of this process; nil if it runs none.
func (n *Node) Broker() *broker.Broker { return n.broker }

// Registry has the metrics of all parts.
func (n *Node) Registry() *prometheus.Registry { return n.registry }

// Run blocks until ctx is done or a part failed, then stops the node.
func (n *Node) Run(ctx context.Context) error {
	select {
	case <-ctx.Done():
	case <-n.failed:
	}
	return n.Stop()
}

// Stop stops the stages in order and closes what they used. It returns the error of
// the part that failed, if one did. It may be called twice.
func (n *Node) Stop() error {
	n.stopOnce.Do(func() {
		n.stopping.Store(true)
		var errs []error
		for i := range n.stages {
			errs = append(errs, n.stages[i].stop())
		}
		select {
		case <-n.failed:
			// What the others say on closing follows from it.
			n.stopErr = n.failure
		default:
			n.stopErr = errors.Join(errs...)
		}
	})
	return n.stopErr
}

// run starts a part in a stage. run must return when its ctx is done; an earlier
// return, or an error, is a failure of the node.
func (n *Node) run(in int, name string, run func(ctx context.Context) error) {
	s := &n.stages[in]
	s.parts.Go(func() {
		err := run(s.ctx)
		switch {
		case err != nil:
			n.fail(fmt.Errorf("%s: %w", name, err))
		case s.ctx.Err() == nil:
			n.fail(fmt.Errorf("%s: stopped by itself", name))
		}
	})
}

func (n *Node) fail(err error) {
	n.failOnce.Do(func() {
		n.failure = err
		close(n.failed)
	})
}

// onClose notes what to close when a stage has stopped, last first.
func (n *Node) onClose(in int, f func() error) {
	n.stages[in].closers = append(n.stages[in].closers, f)
}

// listen opens a listener for the address of a key.
func listen(ctx context.Context, key, addr string) (net.Listener, error) {
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", key, err)
	}
	return ln, nil
}
