package rpc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	v2 "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	"github.com/penstockmq/penstock/broker"
	"github.com/penstockmq/penstock/broker/rpc/penstockv1"
)

// Server serves one broker on one port.
type Server struct {
	v2.UnimplementedMessagingServiceServer

	// Immutable after New.
	opts    Options
	broker  *broker.Broker
	clients *clients
	log     *slog.Logger
	grpc    *grpc.Server

	// stopping is done when long polls and telemetry streams are to end.
	stopping context.Context
	stop     context.CancelFunc

	mu sync.Mutex // guards the following fields; nothing is done under it
	// polling is done when the polls that began under it are to end; each EndPolls
	// begins another. It ends with stopping.
	polling  context.Context
	endPolls context.CancelFunc
}

const (
	// A peer that is silent this long is asked for a sign of life, and given up when
	// none comes: a consumer that vanished without a FIN is noticed within 13 s.
	pingAfter   = 10 * time.Second
	pingTimeout = 3 * time.Second
	// Official clients ping as often as every 10 s, some without a call under way.
	// The second off is for pings that a busy network bunches.
	minPingInterval = 9 * time.Second
	// handshakeTimeout bounds the time until a connection speaks HTTP/2.
	handshakeTimeout = 20 * time.Second
	maxHeaderBytes   = 64 << 10
)

// New makes a server. It generates a certificate unless it is given one.
func New(opts Options) (*Server, error) {
	opts = opts.withDefaults()
	if err := opts.validate(); err != nil {
		return nil, fmt.Errorf("rpc options: %w", err)
	}
	creds, err := newSniffer(opts.TLS)
	if err != nil {
		return nil, err
	}
	s := &Server{opts: opts, broker: opts.Broker, clients: opts.Notices.clients, log: opts.Logger}
	s.stopping, s.stop = context.WithCancel(context.Background())
	s.polling, s.endPolls = context.WithCancel(s.stopping)
	s.grpc = grpc.NewServer(
		grpc.Creds(creds),
		grpc.ConnectionTimeout(handshakeTimeout),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: pingAfter, Timeout: pingTimeout}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minPingInterval, PermitWithoutStream: true}),
		grpc.MaxRecvMsgSize(opts.MaxRequestBytes),
		grpc.MaxHeaderListSize(maxHeaderBytes),
		grpc.MaxConcurrentStreams(opts.MaxStreams),
		grpc.StatsHandler(connectionWatch{clients: s.clients, gone: s.broker.ClientGone}),
		grpc.UnaryInterceptor(s.unary),
		grpc.StreamInterceptor(s.stream),
		// After Run nothing touches the broker any more, so it may be closed.
		grpc.WaitForHandlers(true),
	)
	v2.RegisterMessagingServiceServer(s.grpc, s)
	penstockv1.RegisterPenstockServer(s.grpc, &penstockServer{s: s})
	return s, nil
}

// Run serves ln until ctx is done, and closes ln. Then long polls end empty at
// once, other calls have Options.StopGrace to finish, and the rest is cut off. When
// Run returns no handler runs. It can be called once.
func (s *Server) Run(ctx context.Context, ln net.Listener) error {
	served := make(chan error, 1)
	go func() { served <- s.grpc.Serve(ln) }()
	select {
	case err := <-served:
		s.stop()
		s.grpc.Stop()
		return fmt.Errorf("serve grpc: %w", err)
	case <-ctx.Done():
	}
	// Clients are told to go elsewhere before their polls end; else they would poll
	// again on the old connection.
	drained := make(chan struct{})
	go func() { defer close(drained); s.grpc.GracefulStop() }()
	s.stop()
	grace := time.NewTimer(s.opts.StopGrace)
	defer grace.Stop()
	select {
	case <-drained:
	case <-grace.C:
		s.log.Warn("calls cut off", "grace", s.opts.StopGrace)
		s.grpc.Stop()
		<-drained
	}
	if err := <-served; err != nil && !errors.Is(err, grpc.ErrServerStopped) { // it was stopped before it began
		return fmt.Errorf("serve grpc: %w", err)
	}
	return nil
}

// EndPolls ends the long polls that wait, empty. It is for a process that is about
// to stop and lets other parts finish first: consumers elsewhere hear of it at once
// and not at the end of that grace (case C125). A poll that comes later waits again,
// until Run's end: an empty answer at once would have clients poll in a tight loop.
func (s *Server) EndPolls() {
	s.mu.Lock()
	end := s.endPolls
	s.polling, s.endPolls = context.WithCancel(s.stopping)
	s.mu.Unlock()
	end()
}

// whilePolling is ctx that also ends when polls are to.
func (s *Server) whilePolling(ctx context.Context) (context.Context, context.CancelFunc) {
	s.mu.Lock()
	polling := s.polling
	s.mu.Unlock()
	ctx, cancel := context.WithCancel(ctx)
	unhook := context.AfterFunc(polling, cancel)
	return ctx, func() { unhook(); cancel() }
}
