package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/sync/errgroup"

	"github.com/penstockmq/penstock/broker"
	"github.com/penstockmq/penstock/broker/rpc"
)

// testBroker is a broker with its gRPC server on a free loopback port, over a data
// folder that goes away with it.
type testBroker struct {
	opts  broker.Options
	addr  string
	stop  context.CancelFunc
	parts *errgroup.Group
	b     *broker.Broker
}

func startBroker(opts broker.Options) (*testBroker, error) {
	dir, err := os.MkdirTemp("", "penstock-bench-")
	if err != nil {
		return nil, err
	}
	opts.Dir = dir
	t := &testBroker{opts: opts, addr: "127.0.0.1:0"}
	if err := t.open(); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return t, nil
}

func (t *testBroker) open() (err error) {
	if t.b, err = broker.Open(t.opts); err != nil {
		return err
	}
	if err := t.serve(); err != nil {
		return errors.Join(err, t.b.Close())
	}
	return nil
}

func (t *testBroker) serve() error {
	s, err := rpc.New(rpc.Options{Broker: t.b, Logger: t.opts.Logger})
	if err != nil {
		return err
	}
	var lc net.ListenConfig
	l, err := lc.Listen(context.Background(), "tcp", t.addr)
	if err != nil {
		return err
	}
	t.addr = l.Addr().String()
	ctx, stop := context.WithCancel(context.Background())
	t.stop, t.parts = stop, &errgroup.Group{}
	t.parts.Go(func() error { return s.Run(ctx, l) })
	return nil
}

// reopen stops the broker and starts it again at the same address.
func (t *testBroker) reopen() error {
	if err := t.halt(); err != nil {
		return err
	}
	return t.open()
}

func (t *testBroker) halt() error {
	t.stop()
	if err := errors.Join(t.parts.Wait(), t.b.Close()); err != nil {
		return fmt.Errorf("stop broker: %w", err)
	}
	return nil
}

func (t *testBroker) close() error {
	return errors.Join(t.halt(), os.RemoveAll(t.opts.Dir))
}
