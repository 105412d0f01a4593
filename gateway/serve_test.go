package gateway

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/penstockmq/penstock/consumer/reply"
)

// serve puts the rig's gateway behind its own server; stop begins its stop, done has Serve's result.
func (r *rig) serve() (stop context.CancelFunc, done <-chan error) {
	r.t.Helper()
	var lc net.ListenConfig
	ln, err := lc.Listen(r.t.Context(), "tcp", "127.0.0.1:0")
	must(r.t, err)
	r.url = "http://" + ln.Addr().String()
	ctx, stop := context.WithCancel(r.t.Context())
	result := make(chan error, 1)
	go func() { result <- r.g.Serve(ctx, ln) }()
	return stop, result
}

// C125: a stop ends what is queued at once and lets what runs finish.
func TestStop(t *testing.T) {
	r := newRig(t, func(o *Options) { o.Grace = patience })
	stop, done := r.serve()
	queued := r.chat(chatBody)
	q := r.peek()
	running := r.chat(chatBody)
	j := r.take()
	unseen := r.chat(streamBody) // at a worker, but no frame has said so
	u := r.peek()
	r.broker.deliver(u.ID)

	stop()
	a := receive(t, queued, "a queued request outlived the stop")
	a.check(t, 503, "gateway_stopping")
	if a.header.Get("Retry-After") == "" {
		t.Error("no Retry-After")
	}
	if h := receive(t, r.broker.recalled, "not recalled"); h != q.ID {
		t.Errorf("recalled %s", h)
	}
	must(t, j.Answer(200, jsonHeader, []byte(`{"n":1}`), reply.Usage{}))
	receive(t, running, "no answer").check(t, 200, "")
	must(t, u.Answer(200, sseHeader, event("1"), reply.Usage{}))
	if a := receive(t, unseen, "no answer"); a.status != 200 || !strings.Contains(a.body, string(event("1"))) {
		t.Errorf("%+v", a)
	}
	must(t, receive(t, done, "the gateway does not stop"))
	if resp, err := r.do(t.Context(), http.MethodGet, "/v1/models", ""); err == nil {
		_ = resp.Body.Close()
		t.Error("a stopped gateway answers")
	}
	must(t, r.g.Close())
	must(t, r.g.Close())
}

// Running requests that outlast the grace are cancelled and told so.
func TestStopEndsTheGrace(t *testing.T) {
	r := newRig(t, func(o *Options) { o.Grace = 10 * time.Millisecond })
	stop, done := r.serve()
	running := r.chat(chatBody)
	j := r.take()
	stopped := make(chan struct{}, 2)
	defer r.cancels.Register(j.ID, func() { stopped <- struct{}{} })()
	streaming := r.openStream(streamBody)
	s := r.take()
	must(t, s.Head(200, sseHeader))
	resp := receive(t, streaming, "no header")
	defer func() { _ = resp.Body.Close() }()

	stop()
	receive(t, running, "no answer").check(t, 503, "gateway_stopping")
	receive(t, stopped, "not cancelled at the worker")
	var text strings.Builder
	buf := make([]byte, 4096)
	for {
		n, err := resp.Body.Read(buf)
		text.Write(buf[:n])
		if err != nil {
			break
		}
	}
	if strings.Count(text.String(), `"code":"gateway_stopping"`) != 1 {
		t.Errorf("the stream ended with %q", text.String())
	}
	must(t, receive(t, done, "the gateway does not stop"))
}

// StopNow ends the grace, and leaves the worker that ends as well the last word.
func TestStopNowEndsTheGrace(t *testing.T) {
	now := make(chan struct{})
	r := newRig(t, func(o *Options) { o.Grace, o.StopNow = time.Hour, now })
	stop, done := r.serve()
	silent := r.chat(chatBody)
	r.take()
	streaming := r.openStream(streamBody)
	s := r.take()
	must(t, s.Head(200, sseHeader))
	resp := receive(t, streaming, "no header")
	defer func() { _ = resp.Body.Close() }()
	stop()
	close(now)
	must(t, s.Fail(reply.Failure{Status: 503, Code: "worker_stopped", Message: "the worker stopped"}))
	text, err := io.ReadAll(resp.Body)
	if err != nil || strings.Count(string(text), `"code":"worker_stopped"`) != 1 {
		t.Errorf("the stream ended with %q, %v", text, err)
	}
	receive(t, silent, "no answer").check(t, 503, "gateway_stopping")
	must(t, receive(t, done, "the gateway does not stop"))
}

func TestStopRefusesNewRequests(t *testing.T) {
	r := newRig(t, nil)
	must(t, r.g.Close())
	r.ask(http.MethodPost, "/v1/chat/completions", chatBody).check(t, 503, "gateway_stopping")
	r.nothingSent()
}

func TestRunSaysWhenItCannotListen(t *testing.T) {
	var lc net.ListenConfig
	ln, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	must(t, err)
	defer func() { _ = ln.Close() }()
	r := newRig(t, func(o *Options) { o.Addr = ln.Addr().String() })
	if err := r.g.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("error %v", err)
	}
}

func TestServeStopsBeforeItsFirstRequest(t *testing.T) {
	r := newRig(t, func(o *Options) { o.Addr = "127.0.0.1:0" })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.g.Run(ctx); err != nil && !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

func TestOptionsNameTheirFaults(t *testing.T) {
	_, err := New(Options{
		Addr: "nowhere", Name: "a.b", Topic: "a b", Models: []string{"ok", "*"},
		KeepAlive: time.Microsecond, DefaultTimeout: 48 * time.Hour, MaxBodyBytes: -1,
	})
	for _, key := range []string{"addr", "name", "topic", "producer", "models[1]", "keep_alive", "default_timeout", "max_body_bytes"} {
		if err == nil || !strings.Contains(err.Error(), key) {
			t.Errorf("no word about %s in: %v", key, err)
		}
	}
}
