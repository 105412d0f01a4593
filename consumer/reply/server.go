package reply

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// ServerOptions configures the embedded NATS server.
type ServerOptions struct {
	// Addr is where it listens, host:port; port 0 picks a free one. Empty means in-process connections only. There is
	// no authentication: an address that is not loopback opens replies and cancels to whoever reaches it.
	Addr string
	// Dir holds JetStream's files. Empty means no JetStream.
	Dir string
	// MaxPayload bounds a message, in bytes. 0 means 8 MiB.
	MaxPayload int
	// ReadyMax is how long StartServer waits for the server to serve. 0 means 10 s.
	ReadyMax time.Duration
	// Logger gets the server's log. Nil means it is dropped.
	Logger *slog.Logger

	maxStore int64        // of JetStream, in bytes; 0: maxStoreDefault. For tests
	probe    func() error // checks that the volume can be written to. For tests; nil: writes a file
}

// maxStoreDefault bounds the space that all streams of JetStream may reserve, in bytes. Each stream has a bound of its own. The
// server's default is three quarters of the free space at its start: on a volume that has filled up since, it would refuse
// to open existing streams.
const maxStoreDefault = 1 << 50

// Server is a NATS server inside this process.
type Server struct {
	ns     *server.Server
	once   sync.Once
	repair *repair // nil without JetStream
}

// StartServer returns when the server serves. Nothing is written to standard output, and no signal handler is installed.
func StartServer(opts ServerOptions) (*Server, error) {
	if opts.MaxPayload == 0 {
		opts.MaxPayload = 8 << 20
	}
	if opts.MaxPayload < 0 || opts.MaxPayload > math.MaxInt32 {
		return nil, errors.New("nats: max_payload: want 1 to 2147483647 bytes")
	}
	if opts.ReadyMax <= 0 {
		opts.ReadyMax = 10 * time.Second
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	if opts.maxStore == 0 {
		opts.maxStore = maxStoreDefault
	}
	config := &server.Options{
		NoSigs:         true,
		NoLog:          true,
		DontListen:     opts.Addr == "",
		MaxPayload:     int32(opts.MaxPayload),
		MaxControlLine: 4096,
		JetStream:      opts.Dir != "",
		StoreDir:       opts.Dir,
		// The server's own default is to sync every two minutes: a power cut would lose the writes acknowledged in that time.
		// A stream that needs no durability sets PersistMode.
		SyncAlways:        true,
		JetStreamMaxStore: opts.maxStore,
	}
	if opts.Addr != "" {
		var err error
		if config.Host, config.Port, err = splitAddr(opts.Addr); err != nil {
			return nil, err
		}
	}
	ns, err := server.NewServer(config)
	if err != nil {
		return nil, fmt.Errorf("nats server: %w", err)
	}
	return start(ns, opts)
}

func start(ns *server.Server, opts ServerOptions) (*Server, error) {
	fatal := make(chan error, 1)
	s := &Server{ns: ns}
	adapter := slogAdapter{log: opts.Logger, fatal: fatal}
	if opts.Dir != "" {
		s.repair = newRepair(ns, opts)
		adapter.broken = s.repair.broken
	}
	ns.SetLoggerV2(adapter, false, false, false)
	ready := make(chan bool, 1)
	go func() { // ends by itself: at the latest after ReadyMax
		ns.Start()
		ready <- ns.ReadyForConnections(opts.ReadyMax)
	}()
	var err error
	select {
	case ok := <-ready:
		if ok {
			s.repair.start()
			return s, nil
		}
		err = fmt.Errorf("nats server: not ready after %s", opts.ReadyMax)
	case err = <-fatal:
	}
	s.Close()
	return nil, err
}

// Addr is the address it listens on, nil if it does not.
func (s *Server) Addr() net.Addr { return s.ns.Addr() }

// Connect opens a connection that does not go through the network.
func (s *Server) Connect(opts ...nats.Option) (*nats.Conn, error) {
	nc, err := nats.Connect("", append([]nats.Option{nats.InProcessServer(s.ns)}, opts...)...)
	if err != nil {
		return nil, fmt.Errorf("connect to the nats server of this process: %w", err)
	}
	return nc, nil
}

// Close stops the server and waits for it. Connections are to be closed first. It may be called twice.
func (s *Server) Close() {
	s.once.Do(func() {
		s.repair.stop()
		s.ns.Shutdown()
		s.ns.WaitForShutdown()
	})
}

func splitAddr(addr string) (string, int, error) {
	host, text, err := net.SplitHostPort(addr)
	if err != nil {
		return "", 0, fmt.Errorf("nats: address %q: %w", addr, err)
	}
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return "", 0, fmt.Errorf("nats: address %q: port: %w", addr, err)
	}
	if port == 0 {
		return host, server.RANDOM_PORT, nil // the server's own zero means 4222
	}
	return host, int(port), nil
}

// slogAdapter gives the server's log to slog. The messages are the server's, so they are values and not constants.
type slogAdapter struct {
	log   *slog.Logger
	fatal chan error // the first fatal message: the server logs it and returns, as if the process had ended
	// broken gets a token when a stream cannot write any more. The server only logs this state; it cannot be queried.
	broken chan struct{}
}

// brokenStream is a part of the log message of a stream that refuses all further writes, in lower case.
const brokenStream = "critical write error"

func (a slogAdapter) write(level slog.Level, format string, v []any) {
	if a.log.Enabled(context.Background(), level) {
		a.log.Log(context.Background(), level, "nats server", "text", fmt.Sprintf(format, v...))
	}
}

// Noticef logs at debug: the server's notices are a banner at start and stop.
func (a slogAdapter) Noticef(format string, v ...any) { a.write(slog.LevelDebug, format, v) }

// Warnf logs a warning.
func (a slogAdapter) Warnf(format string, v ...any) { a.write(slog.LevelWarn, format, v) }

// Errorf logs an error.
func (a slogAdapter) Errorf(format string, v ...any) {
	if strings.Contains(strings.ToLower(format), brokenStream) {
		select {
		case a.broken <- struct{}{}:
		default: // nil, or a token is there already
		}
	}
	a.write(slog.LevelError, format, v)
}

// Debugf logs at debug.
func (a slogAdapter) Debugf(format string, v ...any) { a.write(slog.LevelDebug, format, v) }

// Tracef drops: traces hold message bodies.
func (a slogAdapter) Tracef(string, ...any) {}

// Fatalf hands the message to StartServer, or logs it when the server runs already.
func (a slogAdapter) Fatalf(format string, v ...any) {
	select {
	case a.fatal <- fmt.Errorf("nats server: "+format, v...):
	default:
	}
	a.write(slog.LevelError, format, v)
}
