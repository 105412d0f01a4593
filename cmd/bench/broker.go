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
	addr  string
	stop  context.CancelFunc
	parts *errgroup.Group
	b     *broker.Broker
	dir   string
}

func startBroker(opts broker.Options) (*testBroker, error) {
	dir, err := os.MkdirTemp("", "penstock-bench-")
	if err != nil {
		return nil, err
	}
	opts.Dir = dir
	b, err := broker.Open(opts)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	t := &testBroker{b: b, dir: dir}
	if err := t.serve(opts); err != nil {
		return nil, errors.Join(err, b.Close(), os.RemoveAll(dir))
	}
	return t, nil
}

func (t *testBroker) serve(opts broker.Options) error {
	s, err := rpc.New(rpc.Options{Broker: t.b, Log: opts.Log})
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	t.addr = l.Addr().String()
	ctx, stop := context.WithCancel(context.Background())
	t.stop = stop
	t.parts = &errgroup.Group{}
	t.parts.Go(func() error { return s.Run(ctx, l) })
	return nil
}

func (t *testBroker) close() error {
	t.stop()
	err := errors.Join(t.parts.Wait(), t.b.Close(), os.RemoveAll(t.dir))
	if err != nil {
		return fmt.Errorf("stop broker: %w", err)
	}
	return nil
}
