package node

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/penstockmq/penstock/broker"
	"github.com/penstockmq/penstock/broker/admin"
	"github.com/penstockmq/penstock/broker/rpc"
)

// grpcStopGrace is for calls under way when the gRPC server stops: sends that wait
// for the disk, acks. Long polls end at once.
const grpcStopGrace = time.Second

// startBroker opens the store, creates the configured topics and groups, and serves.
func (n *Node) startBroker(ctx context.Context) error {
	notices := rpc.NewNotices()
	b, err := broker.Open(broker.Options{
		Dir:           filepath.Join(n.opts.Data, "store"),
		AsyncFlush:    n.opts.Flush == FlushAsync,
		CacheBytes:    int64(n.opts.Cache),
		AutoCreate:    n.opts.AutoCreate,
		AutoTopic:     broker.TopicConfig{TTL: n.opts.TTL},
		AutoGroup:     broker.GroupConfig{InFlight: n.opts.InFlight, MaxAttempts: n.opts.MaxAttempts, MaxSuspend: n.opts.MaxSuspend},
		MaxBodyBytes:  int(n.opts.MaxBody),
		OnUnsubscribe: notices.Unsubscribe,
		Observer:      admin.NewObserver(n.registry),
		Log:           n.log.With("part", "broker"),
	})
	if err != nil {
		return fmt.Errorf("broker: %w", err)
	}
	n.broker = b
	n.onClose(core, b.Close)
	n.run(core, "broker", b.Run)
	admin.RegisterBroker(n.registry, b)
	n.checks = append(n.checks, admin.Check{Name: "broker", Run: func(ctx context.Context) error {
		_, err := b.Stats(ctx) // answered by every owner loop
		return err
	}})
	if err := n.provision(ctx); err != nil {
		return err
	}
	return n.serveGRPC(ctx, notices)
}

func (n *Node) serveGRPC(ctx context.Context, notices *rpc.Notices) error {
	var config *tls.Config
	if n.opts.TLSCert != "" {
		pair, err := tls.LoadX509KeyPair(n.opts.TLSCert, n.opts.TLSKey)
		if err != nil {
			return fmt.Errorf("tls-cert: %w", err)
		}
		config = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	}
	server, err := rpc.New(rpc.Options{
		Broker: n.broker, Notices: notices, TLS: config, StopGrace: grpcStopGrace,
		MaxBodyBytes:    int(n.opts.MaxBody),
		MaxRequestBytes: int(max(16*MiB, n.opts.MaxBody+MiB)),
		Log:             n.log.With("part", "grpc"),
	})
	if err != nil {
		return err
	}
	ln, err := listen(ctx, "grpc", n.opts.GRPC)
	if err != nil {
		return err
	}
	n.addrs.GRPC = ln.Addr().String()
	n.run(core, "grpc", func(ctx context.Context) error { return server.Run(ctx, ln) })
	return nil
}

// provision creates the configured topics and groups that do not exist.
func (n *Node) provision(ctx context.Context) error {
	topics := []broker.TopicConfig{{Name: n.opts.Topic, TTL: n.opts.TTL}}
	for _, t := range n.opts.Topics {
		topics = append(topics, broker.TopicConfig{
			Name: t.Name, TTL: t.TTL, ExpireBacklog: t.ExpireBacklog,
			MaxMessages: t.MaxMessages, MaxBytes: int64(t.MaxBytes), MaxBuckets: t.MaxBuckets,
		})
	}
	groups := []broker.GroupConfig{{
		Name: n.opts.Group, Topic: n.opts.Topic, Wildcard: true,
		InFlight: n.opts.InFlight, MaxAttempts: n.opts.MaxAttempts, MaxSuspend: n.opts.MaxSuspend,
	}}
	for _, g := range n.opts.Groups {
		groups = append(groups, broker.GroupConfig{
			Name: g.Name, Topic: g.Topic, Wildcard: g.Wildcard, Exclusive: g.Exclusive, InFlight: g.InFlight,
			MaxAttempts: g.MaxAttempts, MaxSuspend: g.MaxSuspend, StartLatest: g.StartLatest,
		})
	}
	for _, t := range topics {
		if err := n.broker.CreateTopic(ctx, t); err != nil && !errors.Is(err, broker.ErrExists) {
			return fmt.Errorf("create parent topic %q: %w", t.Name, err)
		}
	}
	for _, g := range groups {
		err := n.broker.CreateGroup(ctx, g)
		if errors.Is(err, broker.ErrExists) {
			n.compareGroup(g)
			continue
		}
		if err != nil {
			return fmt.Errorf("create group %q: %w", g.Name, err)
		}
	}
	return nil
}

// compareGroup tells when the configuration says something that is not in force: a
// group keeps the settings it was created with.
func (n *Node) compareGroup(want broker.GroupConfig) {
	have, ok := n.broker.Group(want.Name)
	if !ok {
		return
	}
	differs := func(want, have int) bool { return want != 0 && want != have }
	if differs(want.InFlight, have.InFlight) || differs(want.MaxAttempts, have.MaxAttempts) ||
		want.Wildcard != have.Wildcard || want.Topic != have.Topic {
		n.log.Warn("group exists with other settings than the configuration has; those it was created with are in force",
			"group", want.Name, "in_flight", have.InFlight, "max_attempts", have.MaxAttempts, "wildcard", have.Wildcard, "topic", have.Topic)
	}
}
