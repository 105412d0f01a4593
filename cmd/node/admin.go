package node

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"github.com/penstockmq/penstock/broker/admin"
)

const (
	adminHeaderMax = 5 * time.Second
	adminWriteMax  = time.Minute
	adminIdleMax   = time.Minute
	adminStopMax   = time.Second
)

var errStopping = errors.New("stopping")

// startAdmin serves operations, metrics and health. It is the last to stop, so that a
// stop can be watched.
func (n *Node) startAdmin(ctx context.Context, s *steering) error {
	checks := append([]admin.Check{{Name: "process", Run: func(context.Context) error {
		if n.stopping.Load() {
			return errStopping
		}
		return nil
	}}}, n.checks...)
	opts := admin.Options{
		Broker: n.broker, Recorder: &n.recorder, Registry: n.registry, Checks: checks, Logger: n.log.With("part", "admin"),
		Policy:     &admin.PolicySource{Path: s.path, Current: s.policy.Current, Live: s.store, Notice: s.notice},
		AlarmToken: string(n.opts.AlarmToken), SNS: admin.SNSOptions{Topics: n.opts.SNSTopics}, Hosts: n.opts.AdminHosts,
	}
	if s.signals != nil {
		opts.Signals = s.signals
		admin.RegisterSignals(n.registry, s.signals)
	}
	handler := admin.New(opts)
	ln, err := listen(ctx, "admin", n.opts.Admin)
	if err != nil {
		return err
	}
	n.addrs.Admin = ln.Addr().String()
	server := &http.Server{
		Handler: handler, ReadHeaderTimeout: adminHeaderMax, ReadTimeout: adminWriteMax, WriteTimeout: adminWriteMax,
		IdleTimeout: adminIdleMax, ErrorLog: slog.NewLogLogger(n.log.Handler(), slog.LevelDebug),
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(ln) }() // ends with the shutdown below
	n.run(base, "admin", func(ctx context.Context) error {
		select {
		case err := <-served:
			return err
		case <-ctx.Done():
		}
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), adminStopMax)
		defer cancel()
		if err := server.Shutdown(stop); err != nil {
			return server.Close() // a reader that does not read
		}
		return nil
	})
	return nil
}
