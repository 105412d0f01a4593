package node

import (
	"context"
	"crypto/tls"
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

// startBroker opens the broker with the configured topics and groups, and serves.
func (n *Node) startBroker(ctx context.Context, s *steering) error {
	notices := rpc.NewNotices()
	teller := n.startTeller(ctx) // closed after the broker, which reports to it until its end
	b, err := broker.OpenContext(ctx, broker.Options{
		Dir:         filepath.Join(n.opts.Data, StoreFolder),
		DiskReserve: int64(n.opts.DiskReserve),
		FreeSpace:   n.room,
		AsyncFlush:  n.opts.Flush == FlushAsync,
		CacheBytes:  int64(n.opts.Cache),
		Topics:      n.opts.topics(),
		Groups:      n.opts.groups(),
		AutoCreate:  n.opts.AutoCreate,
		AutoTopic:   broker.TopicConfig{TTL: n.opts.TTL, UnservedTTL: n.opts.UnservedTTL, MaxUserBuckets: n.opts.MaxUserBuckets},
		AutoGroup: broker.GroupConfig{
			InFlight: n.opts.InFlight, MaxAttempts: n.opts.MaxAttempts, MaxSuspend: n.opts.MaxSuspend, Retention: n.opts.GroupRetention,
		},
		MaxAutoTopics: n.opts.MaxAutoTopics,
		MaxAutoGroups: n.opts.MaxAutoGroups,
		MaxBodyBytes:  int(n.opts.MaxBody),
		OnUnsubscribe: notices.Unsubscribe,
		Observer:      admin.NewObserver(n.registry),
		Policy:        s.policy.Current(),
		PolicyNotice:  s.notice,
		OnRelease:     n.recorder.Released,
		OnDiscard:     teller.discarded,
		Logger:        n.log.With("part", "broker"),
	})
	if err != nil {
		return fmt.Errorf("broker: %w", err)
	}
	n.broker = b
	n.onClose(core, b.Close)
	n.run(core, "broker", b.Run)
	n.run(core, "ballast", n.keepBallast)
	admin.RegisterBroker(n.registry, b)
	n.checks = append(n.checks, admin.Check{Name: "broker", Run: func(ctx context.Context) error {
		_, err := b.Stats(ctx) // answered by every owner loop
		return err
	}})
	n.checks = append(n.checks, admin.Check{Name: "store", Run: func(context.Context) error {
		if err := b.Damaged(); err != nil {
			return fmt.Errorf("%w: %w", admin.ErrDegraded, err)
		}
		return nil
	}}, admin.Check{Name: "disk", Run: func(context.Context) error {
		// Degraded, and not unavailable: acks and purges must get through, since they free space.
		if s := b.Space(); s.Refusing {
			return fmt.Errorf("%w: %d bytes are free, %d are kept in reserve: new messages are refused", admin.ErrDegraded, s.Free, s.Reserve)
		}
		return nil
	}})
	if err := n.steerBroker(ctx, s); err != nil {
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
		Broker: n.broker, Notices: notices, TLS: config, StopGrace: grpcStopGrace, Version: n.opts.Version,
		MaxBodyBytes:    int(n.opts.MaxBody),
		MaxRequestBytes: int(max(16*MiB, n.opts.MaxBody+MiB)),
		Logger:          n.log.With("part", "grpc"),
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
	n.run(front, "polls", func(ctx context.Context) error {
		<-ctx.Done()
		server.EndPolls()
		return nil
	})
	return nil
}

// topics are the parent topics of the configuration.
func (o *Options) topics() []broker.TopicConfig {
	topics := []broker.TopicConfig{{Name: o.Topic, TTL: o.TTL, UnservedTTL: o.UnservedTTL, MaxUserBuckets: o.MaxUserBuckets}}
	for _, t := range o.Topics {
		topics = append(topics, broker.TopicConfig{
			Name: t.Name, TTL: t.TTL, ExpireBacklog: t.ExpireBacklog,
			MaxMessages: t.MaxMessages, MaxBytes: int64(t.MaxBytes), MaxBuckets: t.MaxBuckets,
			UnservedTTL: o.UnservedTTL, MaxUserBuckets: o.MaxUserBuckets,
		})
	}
	return topics
}

// groups are the consumer groups of the configuration.
func (o *Options) groups() []broker.GroupConfig {
	groups := []broker.GroupConfig{{
		Name: o.Group, Topic: o.Topic, Wildcard: true,
		InFlight: o.InFlight, MaxAttempts: o.MaxAttempts, MaxSuspend: o.MaxSuspend,
	}}
	for _, g := range o.Groups {
		groups = append(groups, broker.GroupConfig{
			Name: g.Name, Topic: g.Topic, Wildcard: g.Wildcard, Exclusive: g.Exclusive, InFlight: g.InFlight,
			MaxAttempts: g.MaxAttempts, MaxSuspend: g.MaxSuspend, StartLatest: g.StartLatest,
			Retention: g.Retention,
		})
	}
	return groups
}
