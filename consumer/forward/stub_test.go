package forward

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstockmq/penstock/cmd/mockmodel"
	"github.com/penstockmq/penstock/consumer/reply"
)

// sink records an answer.
type sink struct {
	status  int
	header  http.Header
	whole   bool     // it came by Answer
	chunks  []string // or by Chunk
	body    string
	refuses error         // returned by every method
	first   chan struct{} // closed at the first chunk, if not nil
	holds   time.Duration // that the first chunk takes, in a synctest bubble
	ends    context.CancelCauseFunc
}

func (s *sink) Head(status int, header http.Header) error {
	if s.status != 0 {
		return errors.New("second head")
	}
	s.status, s.header = status, header
	if s.ends != nil {
		return nil
	}
	return s.refuses
}

func (s *sink) Chunk(p []byte) error {
	if s.status == 0 {
		return errors.New("chunk without head")
	}
	if s.first != nil && len(s.chunks) == 0 {
		close(s.first)
	}
	if s.holds > 0 && len(s.chunks) == 0 {
		time.Sleep(s.holds)
	}
	if s.ends != nil {
		s.ends(s.refuses)
	}
	s.chunks = append(s.chunks, string(p))
	s.body += string(p)
	return s.refuses
}

func (s *sink) Answer(status int, header http.Header, body []byte, _ reply.Usage) error {
	if s.status != 0 {
		return errors.New("answer after head")
	}
	s.status, s.header, s.whole, s.body = status, header, true, string(body)
	return s.refuses
}

func (s *sink) untouched() bool { return s.status == 0 }

// upstream is an HTTP downstream whose server is in memory, so that it works on a fake clock too.
type upstream struct {
	*HTTP
	dials *atomic.Int32
}

func serve(t *testing.T, h http.Handler, opts HTTPOptions) upstream {
	t.Helper()
	if opts.URL == "" {
		opts.URL = "http://upstream/v1"
	}
	d, err := NewHTTP(opts)
	if err != nil {
		t.Fatal(err)
	}
	l := &pipeListener{conns: make(chan net.Conn), closed: make(chan struct{})}
	transport, ok := d.client.Transport.(*http.Transport)
	if !ok {
		t.Fatalf("transport is a %T", d.client.Transport)
	}
	transport.DialContext = l.dial
	server := &http.Server{Handler: h, ReadHeaderTimeout: time.Minute}
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(l) }) // until Close
	t.Cleanup(func() {
		d.Close()
		_ = server.Close()
		serving.Wait()
	})
	return upstream{d, &l.dials}
}

func mock(t *testing.T, how func(*mockmodel.Behaviour)) *mockmodel.Server {
	t.Helper()
	b := mockmodel.DefaultBehaviour()
	if how != nil {
		how(&b)
	}
	s, err := mockmodel.New(mockmodel.Options{Behaviour: b})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

type pipeListener struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
	dials  atomic.Int32
}

func (l *pipeListener) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	here, there := net.Pipe()
	select {
	case l.conns <- there:
		l.dials.Add(1)
		return here, nil
	case <-l.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *pipeListener) Addr() net.Addr { return &net.UnixAddr{Name: "pipe"} }

func chat(stream bool) Request {
	body := `{"model":"m"}`
	if stream {
		body = `{"model":"m","stream":true,"stream_options":{"include_usage":true}}`
	}
	return Request{
		Request: reply.Request{ID: "r1", User: "u", Model: "m", Path: "/v1/chat/completions", Stream: stream},
		Body:    []byte(body),
		Attempt: 1,
	}
}

// events is how many server-sent events are in the sink.
func (s *sink) events() int { return strings.Count(s.body, "data: ") }
