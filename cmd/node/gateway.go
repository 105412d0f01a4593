package node

import (
	"context"
	"fmt"
	"net"

	"github.com/penstockmq/penstock/broker/admin"
	"github.com/penstockmq/penstock/consumer/mq"
	"github.com/penstockmq/penstock/gateway"
	"github.com/penstockmq/penstock/suspend/policy"
)

// brokerEndpoint is where the clients in this process find the broker.
func (n *Node) brokerEndpoint() string {
	switch {
	case n.addrs.GRPC != "":
		return reachable(n.addrs.GRPC)
	case n.opts.Broker != "":
		return n.opts.Broker
	default:
		return n.opts.GRPC
	}
}

// reachable turns the address of a listener on all interfaces into one to connect to.
func reachable(addr string) string {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return addr
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		return net.JoinHostPort("localhost", port)
	}
	return addr
}

// checkBroker says whether a broker elsewhere can be reached.
func (n *Node) checkBroker(ctx context.Context) error {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", n.brokerEndpoint())
	if err != nil {
		return err
	}
	return conn.Close()
}

// clientOptions are what every client of the broker in this process has in common.
func (n *Node) clientOptions(part string) mq.Options {
	return mq.Options{
		Endpoint: n.brokerEndpoint(), TLS: n.opts.BrokerTLS && n.broker == nil, Topic: n.opts.Topic,
		Logger: n.log.With("part", part),
	}
}

func (n *Node) newProducer(part string) (mq.Producer, error) {
	p, err := mq.NewProducer(mq.Kind(n.opts.Adapter), n.clientOptions(part))
	if err != nil {
		return nil, err
	}
	n.onClose(front, p.Close)
	return p, nil
}

// startGateway serves the HTTP front.
func (n *Node) startGateway(ctx context.Context, limits func() *policy.Document) error {
	keys, err := gateway.OpenKeys(n.opts.Keys, n.log.With("part", "gateway"))
	if err != nil {
		return fmt.Errorf("%w: keys: %w", ErrOptions, err)
	}
	n.run(base, "keys", keys.Run)
	requests, err := n.openRequests(ctx)
	if err != nil {
		return fmt.Errorf("gateway: %w", err)
	}
	producer, err := n.newProducer("gateway")
	if err != nil {
		return fmt.Errorf("gateway: %w", err)
	}
	grace := n.opts.Grace
	if grace == 0 {
		grace = -1 // the gateway's own zero is its default
	}
	n.gateway, err = gateway.New(gateway.Options{
		Topic: n.opts.Topic, Producer: producer, NATS: n.nats, Requests: requests, Keys: keys, Policy: limits,
		Models: n.servedModels(), DefaultTimeout: n.opts.RequestTimeout, AsyncTimeout: n.opts.AsyncTimeout,
		MaxTimeout: n.opts.MaxTimeout, KeepAlive: n.opts.KeepAlive, WriteTimeout: n.opts.WriteTimeout, Grace: grace, StopNow: n.opts.StopNow, MaxBodyBytes: int64(n.opts.MaxBody),
		Explain:  n.newExplain(producer),
		Observer: newGatewayObserver(n.registry), Logger: n.log.With("part", "gateway"),
	})
	if err != nil {
		return err
	}
	n.onClose(front, n.gateway.Close)
	registerGateway(n.registry, n.gateway)
	if n.broker == nil {
		n.checks = append(n.checks, admin.Check{Name: "broker", Run: n.checkBroker})
	}
	ln, err := listen(ctx, "http", n.opts.HTTP)
	if err != nil {
		return err
	}
	n.addrs.HTTP = ln.Addr().String()
	n.run(front, "gateway", func(ctx context.Context) error { return n.gateway.Serve(ctx, ln) })
	return nil
}

// servedModels are those the gateway lets in: all, when a route takes all or when
// this process knows no routes.
func (n *Node) servedModels() []string {
	var names []string
	for _, m := range n.opts.Models {
		if m.Name == Wildcard {
			return nil
		}
		names = append(names, m.Name)
	}
	return names
}
