package node

import (
	"context"
	"fmt"

	"github.com/penstockmq/penstock/broker/admin"
	"github.com/penstockmq/penstock/consumer"
	"github.com/penstockmq/penstock/consumer/forward"
	"github.com/penstockmq/penstock/consumer/mq"
)

// startPool runs the consumer pool.
func (n *Node) startPool(ctx context.Context, s *steering) error {
	router, err := n.newRouter()
	if err != nil {
		return err
	}
	requests, err := n.openRequests(ctx)
	if err != nil {
		return fmt.Errorf("pool: %w", err)
	}
	opts := n.clientOptions("pool")
	opts.Group, opts.Workers, opts.Invisible, opts.Grace = n.opts.Group, n.opts.Workers, n.opts.Invisible, n.opts.Grace
	opts.StopNow = n.opts.StopNow
	from, err := mq.NewConsumer(mq.Kind(n.opts.Adapter), opts)
	if err != nil {
		return err
	}
	metrics := new(consumer.Metrics)
	pool, err := consumer.New(consumer.Options{
		Consumer: from, Downstream: router, Policy: s.policy.Current, NATS: n.nats, Store: requests, Concurrency: n.concurrency(),
		Workers: n.opts.Workers, Share: n.opts.Share,
		Attempts: n.opts.Attempts, BackoffMin: n.opts.BackoffMin, BackoffMax: n.opts.BackoffMax,
		Metrics: metrics, Observer: newPoolObserver(n.registry), Logger: n.log.With("part", "pool"),
	})
	if err != nil {
		return err
	}
	registerPool(n.registry, metrics)
	if s.signals != nil {
		n.onClose(front, unsubscribe(s.signals.Subscribe(pool.Signal)))
	}
	if n.broker == nil && !n.opts.Parts.Has(Gateway) {
		n.checks = append(n.checks, admin.Check{Name: "broker", Run: n.checkBroker})
	}
	n.run(front, "pool", pool.Run)
	return nil
}

// newRouter builds the downstream of each model.
func (n *Node) newRouter() (*forward.Router, error) {
	routes := map[string]forward.Downstream{}
	var fallback forward.Downstream
	for i, m := range n.opts.Models {
		d, err := n.newDownstream(m)
		if err != nil {
			return nil, fmt.Errorf("%w: models[%d]: %w", ErrOptions, i, err)
		}
		if m.Name == Wildcard {
			fallback = d
			continue
		}
		routes[m.Name] = d
	}
	return forward.NewRouter(routes, fallback), nil
}

func (n *Node) newDownstream(m ModelOptions) (forward.Downstream, error) {
	switch {
	case m.Subject != "":
		return forward.NewNATS(n.nats, forward.NATSOptions{Subject: m.Subject, Total: m.Total})
	case m.Topic != "":
		producer, err := n.newProducer("forward")
		if err != nil {
			return nil, err
		}
		return forward.NewTopic(producer, forward.TopicOptions{Topic: m.Topic, Total: m.Total})
	default:
		return forward.NewHTTP(forward.HTTPOptions{
			URL: m.URL, Key: m.Key, UserHeader: m.UserHeader, Allow: m.Allow,
			Connect: m.Connect, FirstByte: m.FirstByte, Idle: m.Idle, Total: m.Total,
		})
	}
}

// concurrency looks up the bound of a model: its own, or that of the wildcard's entry,
// which holds for each model that it takes.
func (n *Node) concurrency() func(model string) int {
	bounds := map[string]int{}
	for _, m := range n.opts.Models {
		bounds[m.Name] = m.Concurrency
	}
	return func(model string) int {
		if b, ok := bounds[model]; ok {
			return b
		}
		return bounds[Wildcard]
	}
}
