package reply

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
)

// newNATS starts a server without a listener and returns a connection to it.
func newNATS(t *testing.T, opts ServerOptions) (*Server, *nats.Conn) {
	t.Helper()
	s, err := StartServer(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s, connect(t, s)
}

func connect(t *testing.T, s *Server) *nats.Conn {
	t.Helper()
	nc, err := s.Connect()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

func TestServerServesOverTCP(t *testing.T) {
	s, _ := newNATS(t, ServerOptions{Addr: "127.0.0.1:0"})
	if strings.HasSuffix(s.Addr().String(), ":0") || strings.HasSuffix(s.Addr().String(), ":4222") {
		t.Fatalf("port 0 gave %s", s.Addr())
	}
	nc, err := nats.Connect(s.ns.ClientURL())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	if got := nc.MaxPayload(); got != 8<<20 {
		t.Errorf("payload limit %d, want 8 MiB", got)
	}
}

func TestServerSaysWhyItDoesNotStart(t *testing.T) {
	s, _ := newNATS(t, ServerOptions{Addr: "127.0.0.1:0"})
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		opts ServerOptions
		want string
	}{
		"port taken":       {ServerOptions{Addr: s.Addr().String()}, "in use"},
		"no address":       {ServerOptions{Addr: "localhost"}, "address"},
		"no port":          {ServerOptions{Addr: "localhost:http2000"}, "port"},
		"dir is a file":    {ServerOptions{Dir: file}, "nats server"},
		"payload negative": {ServerOptions{MaxPayload: -1}, "max_payload"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := StartServer(tt.opts)
			if err == nil {
				got.Close()
				t.Fatal("started")
			}
			if !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %q does not say %q", err, tt.want)
			}
		})
	}
}

// TestServerIsQuiet must not run beside others: it stands in for standard output and standard error.
func TestServerIsQuiet(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, stderr := os.Stdout, os.Stderr
	os.Stdout, os.Stderr = w, w
	s, err := StartServer(ServerOptions{Addr: "127.0.0.1:0", Dir: t.TempDir()})
	if err == nil {
		s.Close()
		s.Close() // twice does no harm
	}
	os.Stdout, os.Stderr = stdout, stderr
	if err := errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	if len(text) > 0 {
		t.Errorf("the server printed %q", text)
	}
}

func TestServerKeepsJetStream(t *testing.T) {
	dir := t.TempDir()
	s, nc := newNATS(t, ServerOptions{Dir: dir})
	store, err := OpenStore(t.Context(), nc, StoreOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := store.Create(t.Context(), Record{ID: "a", User: "u"}); err != nil {
		t.Fatal(err)
	}
	nc.Close()
	s.Close()

	_, nc = newNATS(t, ServerOptions{Dir: dir})
	store, err = OpenStore(t.Context(), nc, StoreOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := store.Get(t.Context(), "a", "u"); err != nil {
		t.Errorf("after a restart: %v", err)
	}
}
