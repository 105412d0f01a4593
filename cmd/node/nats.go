package node

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/penstockmq/penstock/broker/admin"
	"github.com/penstockmq/penstock/consumer/reply"
)

const (
	natsReconnectWait = 250 * time.Millisecond
	// natsTry bounds one attempt to reach JetStream.
	natsTry = 2 * time.Second
)

// startNATS embeds a server, or connects to the one that is elsewhere, or both. A
// broker without either is told no policies or signals.
func (n *Node) startNATS() error {
	opts := []nats.Option{
		nats.Name("penstock"), nats.MaxReconnects(-1), nats.ReconnectWait(natsReconnectWait),
		nats.RetryOnFailedConnect(true),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err != nil && !n.stopping.Load() {
				n.log.Warn("nats connection lost", "error", err)
			}
		}),
		nats.ErrorHandler(func(_ *nats.Conn, sub *nats.Subscription, err error) {
			subject := ""
			if sub != nil {
				subject = sub.Subject
			}
			n.log.Warn("nats reports an error", "subject", subject, "error", err)
		}),
		nats.ReconnectHandler(func(*nats.Conn) { n.log.Info("nats connection back") }),
	}
	needed := n.opts.Parts&(Gateway|Pool) != 0 || n.opts.NATSURL != ""
	if n.opts.NATSURL == "" && n.opts.Parts.Has(NATS) {
		server, err := reply.StartServer(reply.ServerOptions{
			Addr: n.opts.NATS, Dir: filepath.Join(n.opts.Data, "nats"), Logger: n.log.With("part", "nats"),
		})
		if err != nil {
			return err
		}
		n.onClose(base, func() error { server.Close(); return nil })
		counters(n.registry, "nats", []counter{
			{"jetstream_restarts_total", "Restarts of the embedded JetStream because it could not write.", server.Restarts},
		})
		n.addrs.NATS = server.Addr().String()
		if n.nats, err = server.Connect(opts...); err != nil {
			return err
		}
	} else if needed {
		url := n.opts.NATSURL
		if url == "" {
			url = "nats://" + n.opts.NATS
		}
		var err error
		if n.nats, err = nats.Connect(url, opts...); err != nil {
			return fmt.Errorf("nats-url: %w", err)
		}
	} else {
		return nil
	}
	n.onClose(base, func() error { n.nats.Close(); return nil })
	n.checks = append(n.checks, admin.Check{Name: "nats", Run: n.checkNATS})
	return nil
}

var errNotConnected = errors.New("not connected")

func (n *Node) checkNATS(context.Context) error {
	if !n.nats.IsConnected() {
		return errNotConnected
	}
	return nil
}

// openRequests opens the store of asynchronous requests, once. The gateway's process decides on its settings.
func (n *Node) openRequests(ctx context.Context) (*reply.Store, error) {
	if n.requests != nil {
		return n.requests, nil
	}
	store, err := waitForNATS(ctx, n, func(ctx context.Context) (*reply.Store, error) {
		return reply.OpenStore(ctx, n.nats, reply.StoreOptions{
			Adopt: !n.opts.Parts.Has(Gateway), TTL: n.opts.AsyncTTL, TotalBytes: int64(n.opts.AsyncBytes),
			UserRecords: int64(n.opts.AsyncUserRecords), UserBytes: int64(n.opts.AsyncUserBytes),
		})
	})
	if err != nil {
		return nil, err
	}
	n.requests = store
	n.checks = append(n.checks, admin.Check{Name: "async", Run: func(ctx context.Context) error { return checkRequests(ctx, store) }})
	registerRequests(n.registry, store)
	if n.opts.Parts.Has(Gateway) {
		n.run(base, "use of the request store", store.Run)
	}
	return store, nil
}

// checkRequests fails while the store takes no writes. A full store is no failure: it stops asynchronous requests only.
func checkRequests(ctx context.Context, store *reply.Store) error {
	if err := store.Check(ctx); err != nil {
		return fmt.Errorf("request store: %w", err)
	}
	if err := store.Admit(ctx, ""); err != nil {
		return fmt.Errorf("%w: %w", admin.ErrDegraded, err)
	}
	return nil
}
