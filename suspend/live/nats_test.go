package live

import (
	"log/slog"
	"net"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/penstockmq/penstock/consumer/reply"
)

// patience bounds the waits for what is to happen at once. It is no measure: whoever needs it all has failed.
const patience = 30 * time.Second

// natsServer is a server that can be stopped and started again at the same address.
type natsServer struct {
	t    *testing.T
	dir  string
	addr string
	s    *reply.Server
}

func newNATS(t *testing.T) *natsServer {
	t.Helper()
	n := &natsServer{t: t, dir: t.TempDir(), addr: "127.0.0.1:0"}
	n.start()
	n.addr = n.s.Addr().String()
	t.Cleanup(func() { n.s.Close() })
	return n
}

func (n *natsServer) start() {
	n.t.Helper()
	s, err := reply.StartServer(reply.ServerOptions{Addr: n.addr, Dir: n.dir})
	if err != nil {
		n.t.Fatal(err)
	}
	n.s = s
}

// connect is one process's connection. It is back soon after the server is.
func (n *natsServer) connect() *nats.Conn {
	n.t.Helper()
	_, port, err := net.SplitHostPort(n.addr)
	if err != nil {
		n.t.Fatal(err)
	}
	nc, err := nats.Connect("nats://127.0.0.1:"+port, nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond))
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(nc.Close)
	return nc
}

// stop ends the server and waits until the connection has noticed.
func (n *natsServer) stop(nc *nats.Conn) {
	n.t.Helper()
	gone := nc.StatusChanged(nats.RECONNECTING, nats.DISCONNECTED)
	defer nc.RemoveStatusListener(gone)
	n.s.Close()
	receive(n.t, gone)
}

// restart starts the server again and waits until the connection is back.
func (n *natsServer) restart(nc *nats.Conn) {
	n.t.Helper()
	back := nc.StatusChanged(nats.CONNECTED)
	defer nc.RemoveStatusListener(back)
	n.start()
	if !nc.IsConnected() {
		receive(n.t, back)
	}
}

func receive[T any](t *testing.T, c <-chan T) T {
	t.Helper()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case v := <-c:
		return v
	case <-timer.C:
		t.Fatal("nothing came")
		panic("unreachable")
	}
}

// background runs f until the test ends, and wants nil from it.
func background(t *testing.T, closeIt func() error, run func() error) {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- run() }()
	t.Cleanup(func() {
		if err := closeIt(); err != nil {
			t.Error(err)
		}
		if err := receive(t, done); err != nil {
			t.Error(err)
		}
	})
}

func openPolicies(t *testing.T, nc *nats.Conn, log *journal) *Policies {
	t.Helper()
	p, err := OpenPolicies(t.Context(), nc, Options{Logger: slog.New(log)})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// runPolicies is a process that follows the policy.
func runPolicies(t *testing.T, nc *nats.Conn) *Policies {
	t.Helper()
	p := openPolicies(t, nc, &journal{})
	background(t, p.Close, func() error { return p.Run(t.Context()) })
	return p
}

func runSignals(t *testing.T, nc *nats.Conn) *Signals {
	t.Helper()
	s, err := OpenSignals(t.Context(), nc, Options{})
	if err != nil {
		t.Fatal(err)
	}
	background(t, s.Close, func() error { return s.Run(t.Context()) })
	return s
}
