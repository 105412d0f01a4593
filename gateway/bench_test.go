package gateway

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/penstockmq/penstock/consumer/mq"
	"github.com/penstockmq/penstock/consumer/reply"
)

// BenchmarkSync is one request through the handler and over NATS, the model's time taken off: no HTTP connection, a
// broker that takes no time.
func BenchmarkSync(b *testing.B) {
	ns, err := reply.StartServer(reply.ServerOptions{})
	if err != nil {
		b.Fatal(err)
	}
	defer ns.Close()
	var conns [2]*nats.Conn
	for i := range conns {
		if conns[i], err = ns.Connect(); err != nil {
			b.Fatal(err)
		}
		defer conns[i].Close()
	}
	secret, entry, err := NewKey("alice", "")
	if err != nil {
		b.Fatal(err)
	}
	keys, err := NewKeySet(entry)
	if err != nil {
		b.Fatal(err)
	}
	broker := newFakeBroker()
	g, err := New(Options{Producer: broker, NATS: conns[0], Keys: keys})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = g.Close() }()
	if err := conns[0].Flush(); err != nil {
		b.Fatal(err)
	}
	go work(broker.sent, conns[1])
	defer close(broker.sent)

	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			req := httptest.NewRequest(http.MethodPost, "/v1/chat/completions", strings.NewReader(chatBody))
			req.Header.Set("Authorization", "Bearer "+secret)
			w := httptest.NewRecorder()
			g.ServeHTTP(w, req)
			if text, _ := io.ReadAll(w.Body); w.Code != 200 || len(text) == 0 {
				b.Errorf("status %d: %s", w.Code, text)
			}
		}
	})
}

// work answers every message at once. It ends when sent is closed.
func work(sent <-chan mq.Outgoing, nc *nats.Conn) {
	for m := range sent {
		req, err := reply.FromProperties(m.Properties)
		if err != nil {
			panic(err)
		}
		if err := reply.NewWriter(nc, req, 1).Answer(200, jsonHeader, []byte(completion), reply.Usage{}); err != nil {
			panic(err)
		}
	}
}
