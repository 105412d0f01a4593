package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"
)

const (
	headerReadMax = 10 * time.Second
	idleMax       = 2 * time.Minute
	headerBytes   = 64 << 10

	// farewell is how long requests that were told to end may take to write their last words.
	farewell = time.Second

	// lastWords is the time for which a gateway that must stop now waits for the ends of answers from the workers: an end from
	// a worker names the cause better.
	lastWords = 500 * time.Millisecond
)

// Run listens on Options.Addr and serves until ctx is done, see Serve.
func (g *Gateway) Run(ctx context.Context) error {
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "tcp", g.opts.Addr)
	if err != nil {
		return fmt.Errorf("gateway: %w", err)
	}
	return g.Serve(ctx, ln)
}

// Serve serves on ln until ctx is done and then stops: no new connections; requests that no worker has yet are taken out
// of their buckets and answered with 503; running ones may finish within Options.Grace, then they are cancelled and
// answered with 503. It returns nil after a stop, whoever had to be told to leave. A gateway serves once.
func (g *Gateway) Serve(ctx context.Context, ln net.Listener) error {
	srv := &http.Server{
		Handler: g,
		// No ReadTimeout and no WriteTimeout: a request may wait for hours. Reading a body and each single write have a
		// deadline of their own, see call.
		ReadHeaderTimeout: headerReadMax,
		IdleTimeout:       idleMax,
		MaxHeaderBytes:    headerBytes,
		ConnContext:       withConn,
		ErrorLog:          slog.NewLogLogger(g.opts.Logger.Handler(), slog.LevelWarn),
	}
	failed := make(chan error, 1)
	go func() { failed <- srv.Serve(listener{ln, g.strangers}) }() // ends at the latest with srv.Close below
	select {
	case err := <-failed: // the listener broke: nobody can come any more
		g.startDrain(errStopping)
		g.endRuns(errStopping)
		return fmt.Errorf("gateway: %w", errors.Join(err, srv.Close()))
	case <-ctx.Done():
	}
	return g.stop(srv, failed)
}

func (g *Gateway) stop(srv *http.Server, failed <-chan error) error {
	g.startDrain(errStopping)
	err := shutdown(srv, max(g.opts.Grace, 0), g.opts.StopNow)
	g.endRuns(errStopping)
	if errors.Is(err, context.DeadlineExceeded) {
		err = shutdown(srv, farewell, nil)
	}
	if errors.Is(err, context.DeadlineExceeded) {
		g.opts.Logger.Warn("connections closed with requests under way", "active", g.metrics.Active.Load())
		err = srv.Close()
	}
	if served := <-failed; err == nil && !errors.Is(served, http.ErrServerClosed) {
		err = served
	}
	if err != nil {
		return fmt.Errorf("stop gateway: %w", err)
	}
	return nil
}

// shutdown waits at most d for the running requests, and at most lastWords after now is closed.
func shutdown(srv *http.Server, d time.Duration, now <-chan struct{}) error {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- srv.Shutdown(ctx) }() // ends with ctx
	select {
	case err := <-ended:
		return err
	case <-now:
	}
	last, end := context.WithTimeout(ctx, lastWords)
	defer end()
	select {
	case err := <-ended:
		return err
	case <-last.Done():
		return last.Err()
	}
}
