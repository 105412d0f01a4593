package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/penstockmq/penstock/broker/lite"
	"github.com/penstockmq/penstock/consumer/mq"
	"github.com/penstockmq/penstock/consumer/reply"
)

func TestSyncRequest(t *testing.T) {
	r := newRig(t, nil)
	got := r.chat(chatBody, "X-Request-Id: mine", "X-Penstock-User: bob", "penstock-user: bob")
	j := r.take()
	if j.User != "alice" || j.Model != "gpt-4o" || j.Path != "/v1/chat/completions" || j.Stream || j.Async {
		t.Errorf("request %+v", j.Request)
	}
	want, err := lite.Encode(lite.Cell{User: "alice", Model: "gpt-4o"})
	must(t, err)
	if j.lite != want || string(j.body) != chatBody {
		t.Errorf("bucket %s body %s", j.lite, j.body)
	}
	if j.Deadline.IsZero() || j.Accepted.IsZero() {
		t.Errorf("deadline %v accepted %v", j.Deadline, j.Accepted)
	}
	h := http.Header{"Content-Type": {"application/json"}, "X-Request-Id": {"theirs"}, "Set-Cookie": {"a=b"}, "X-Ratelimit-Left": {"3"}}
	must(t, j.Answer(201, h, []byte(`{"id":"x"}`), reply.Usage{}))
	a := receive(t, got, "no answer")
	a.check(t, 201, "")
	if a.body != `{"id":"x"}` || a.header.Get("X-Ratelimit-Left") != "3" || a.header.Get("Set-Cookie") != "" {
		t.Errorf("%v %s", a.header, a.body)
	}
	if a.header.Get(headerRequestID) != j.ID || a.header.Get("X-Client-Request-Id") != "mine" || a.header.Get("X-Upstream-Request-Id") != "theirs" {
		t.Errorf("ids: %v", a.header)
	}
}

// An answer of any size arrives whole, and one that breaks off is never taken for a whole one.
func TestLargeAnswers(t *testing.T) {
	r := newRig(t, nil)
	half := strings.Repeat("x", holdMax/2)
	for _, tt := range []struct {
		name   string
		halves int
		fail   bool
		check  func(a answer) bool
	}{
		{"held", 2, false, func(a answer) bool { return a.status == 200 && len(a.body) == holdMax }},
		{"passed on", 6, false, func(a answer) bool { return a.err == nil && len(a.body) == 3*holdMax }},
		{"held, breaks off", 1, true, func(a answer) bool { return a.status == 502 && errorCode(a.body) == "upstream_reset" }},
		{"passed on, breaks off", 6, true, func(a answer) bool { return a.status == 200 && errors.Is(a.err, io.ErrUnexpectedEOF) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := r.chat(chatBody)
			j := r.take()
			must(t, j.Head(200, http.Header{"Content-Type": {"text/plain"}, "Content-Encoding": {"identity"}}))
			for range tt.halves {
				must(t, j.Chunk([]byte(half)))
			}
			if tt.fail {
				must(t, j.Fail(reply.Failure{Status: 502, Code: "upstream_reset", Message: "reset"}))
			} else {
				must(t, j.End(reply.Usage{}))
			}
			a := receive(t, got, "no answer")
			if !tt.check(a) {
				t.Errorf("status %d, %d bytes, error %v", a.status, len(a.body), a.err)
			}
			if a.status == 502 && a.header.Get("Content-Encoding") != "" {
				t.Error("the error has the encoding of the answer")
			}
		})
	}
}

func TestEnqueueTakesAnyBody(t *testing.T) {
	r := newRig(t, nil)
	got := r.start(http.MethodPost, "/v1/enqueue/org/image%20model", "\x00\xffraw", "Content-Type: image/png")
	j := r.take()
	if j.Model != "org/image model" || j.ContentType != "image/png" || j.Path != "" || string(j.body) != "\x00\xffraw" {
		t.Errorf("%+v %q", j.Request, j.body)
	}
	must(t, j.Answer(200, http.Header{}, []byte("done"), reply.Usage{}))
	a := receive(t, got, "no answer")
	a.check(t, 200, "")
	if a.header.Get("Content-Type") != "application/octet-stream" {
		t.Errorf("type %q was guessed", a.header.Get("Content-Type"))
	}
	r.ask(http.MethodPost, "/v1/enqueue/m", "").check(t, 400, "missing_required_parameter")
}

// Everything that is refused before the broker: status, code, and no message sent (C93: no bucket made).
func TestRefusedBeforeTheBroker(t *testing.T) {
	r := newRig(t, func(o *Options) {
		o.MaxBodyBytes = 4096
		o.MaxTimeout = time.Hour
		o.Models = []string{"gpt-4o", "*bad*"}
	})
	const chat, post = "/v1/chat/completions", http.MethodPost
	for _, tt := range []struct {
		name, method, path, body, header string
		status                           int
		code                             string
	}{
		{"no key", post, chat, chatBody, "Authorization: ", 401, "missing_api_key"},
		{"not bearer", post, chat, chatBody, "Authorization: Basic abc", 401, "missing_api_key"},
		{"wrong key", post, chat, chatBody, "Authorization: Bearer sk-penstock-wrong", 401, "invalid_api_key"},
		{"huge key", post, chat, chatBody, "Authorization: Bearer " + strings.Repeat("k", 4000), 401, "invalid_api_key"},
		{"bad JSON", post, chat, `{"model":`, "", 400, "invalid_json"},
		{"no model", post, chat, `{}`, "", 400, "missing_required_parameter"},
		{"model type", post, chat, `{"model":1}`, "", 400, "invalid_value"},
		{"unknown model", post, chat, `{"model":"gpt-5"}`, "", 404, "model_not_found"},
		{"empty model", post, chat, `{"model":""}`, "", 400, "invalid_value"},
		{"wildcard model", post, chat, `{"model":"*"}`, "", 400, "invalid_value"},
		{"NUL in model", post, chat, `{"model":"a\u0000"}`, "", 400, "invalid_value"},
		{"newline in model", post, chat, `{"model":"a\n"}`, "", 400, "invalid_value"},
		{"blank after model", post, chat, `{"model":"gpt-4o "}`, "", 400, "invalid_value"},
		{"long model", post, chat, `{"model":"` + strings.Repeat("m", 2000) + `"}`, "", 400, "invalid_value"},
		{"no model in path", post, "/v1/enqueue/", "x", "", 400, "invalid_value"},
		{"wildcard in path", post, "/v1/enqueue/*", "x", "", 400, "invalid_value"},
		{"big body", post, chat, `{"model":"gpt-4o","x":"` + strings.Repeat("x", 4096) + `"}`, "", 413, "request_too_large"},
		{"bad timeout", post, chat, chatBody, "X-Request-Timeout: soon", 400, "invalid_request_timeout"},
		{"long timeout", post, chat, chatBody, "X-Request-Timeout: 3601", 400, "invalid_request_timeout"},
		{"wrong URL", post, "/v1/chat", chatBody, "", 404, "unknown_url"},
		{"wrong method", http.MethodGet, chat, "", "", 405, "method_not_allowed"},
		{"wrong model URL", http.MethodGet, "/v1/models/other", "", "", 404, "model_not_found"},
		{"unknown request", http.MethodGet, "/v1/requests/req_unknown", "", "", 404, "request_not_found"},
		{"bad request id", http.MethodDelete, "/v1/requests/a.b*", "", "", 404, "request_not_found"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var headers []string
			if tt.header != "" {
				headers = append(headers, tt.header)
			}
			a := r.ask(tt.method, tt.path, tt.body, headers...)
			a.check(t, tt.status, tt.code)
			if tt.status == 401 && a.header.Get("WWW-Authenticate") == "" {
				t.Error("no WWW-Authenticate")
			}
			if tt.status == 405 && a.header.Get("Allow") != "POST" {
				t.Errorf("Allow: %q", a.header.Get("Allow"))
			}
			r.nothingSent()
		})
	}
	if cells, _, _ := r.g.admission.counts(); cells != 0 {
		t.Errorf("%d cells are remembered", cells)
	}
}

// A body that is too large is refused without its length, too.
func TestChunkedBodyIsBounded(t *testing.T) {
	r := newRig(t, func(o *Options) { o.MaxBodyBytes = 1000 })
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, r.url+"/v1/enqueue/m",
		io.MultiReader(strings.NewReader(strings.Repeat("x", 2000)))) // a reader of unknown length
	must(t, err)
	req.Header.Set("api-key", r.secret)
	resp, err := http.DefaultClient.Do(req)
	must(t, err)
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != 413 {
		t.Errorf("status %d", resp.StatusCode)
	}
}

func TestBodyMustArriveInTime(t *testing.T) {
	r := newRig(t, func(o *Options) { o.BodyTimeout = 50 * time.Millisecond })
	body, w := io.Pipe()
	defer func() { _ = w.Close() }()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, r.url+"/v1/enqueue/m", body)
	must(t, err)
	req.Header.Set("Authorization", "Bearer "+r.secret)
	resp, err := http.DefaultClient.Do(req)
	must(t, err)
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != 408 {
		t.Errorf("status %d", resp.StatusCode)
	}
}

// The time for the body is over long before the answer comes: that must not look like a caller that left.
func TestLongWaitOutlivesTheBodysTime(t *testing.T) {
	r := newRig(t, func(o *Options) { o.BodyTimeout, o.KeepAlive = 20*time.Millisecond, 60*time.Millisecond })
	opened := r.openStream(streamBody)
	j := r.take()
	resp := receive(t, opened, "no keep-alive") // three times the body's time has passed
	defer func() { _ = resp.Body.Close() }()
	must(t, j.Answer(200, sseHeader, []byte("data: [DONE]\n\n"), reply.Usage{}))
	text, err := io.ReadAll(resp.Body)
	must(t, err)
	if !strings.Contains(string(text), "data: [DONE]") {
		t.Errorf("%q", text)
	}
}

func TestFailureOfTheModel(t *testing.T) {
	r := newRig(t, nil)
	got := r.chat(chatBody)
	j := r.take()
	must(t, j.Fail(reply.Failure{Status: 503, Code: "overloaded", Message: "no room"}))
	a := receive(t, got, "no answer")
	a.check(t, 503, "overloaded")
	if !strings.Contains(a.body, "no room") {
		t.Errorf("body %s", a.body)
	}
	select {
	case h := <-r.broker.recalled:
		t.Errorf("%s was recalled after the worker had ended it", h)
	default:
	}
}

func TestWindowRefusesWith429(t *testing.T) {
	r := newRig(t, policyOf(t, `  - {user: "*", model: "*", window: 1/24h}`))
	got := r.chat(chatBody)
	j := r.take()
	a := r.ask(http.MethodPost, "/v1/chat/completions", chatBody)
	a.check(t, 429, "rate_limit_exceeded")
	if a.header.Get("Retry-After") == "" || a.header.Get(headerQueueTime) != "0" {
		t.Errorf("%v", a.header)
	}
	must(t, j.Answer(200, jsonHeader, []byte("{}"), reply.Usage{}))
	receive(t, got, "no answer").check(t, 200, "")
}

func TestFullQueueRefusesWith429(t *testing.T) {
	r := newRig(t, policyOf(t, `  - {user: "*", model: "*", depth: 1, rate: 1/3s}`))
	got := r.chat(chatBody)
	j := r.peek()
	a := r.ask(http.MethodPost, "/v1/chat/completions", chatBody)
	a.check(t, 429, "queue_full")
	if ra := a.header.Get("Retry-After"); ra != "3" {
		t.Errorf("Retry-After %s, want 3: one place every 3 s", ra)
	}
	must(t, j.Answer(200, jsonHeader, []byte("{}"), reply.Usage{}))
	receive(t, got, "no answer").check(t, 200, "")
	second := r.chat(chatBody)
	must(t, r.take().Answer(200, jsonHeader, []byte("{}"), reply.Usage{}))
	receive(t, second, "no answer").check(t, 200, "")
}

func TestBrokerRefuses(t *testing.T) {
	r := newRig(t, policyOf(t, `  - {user: "*", model: "*", window: 1/24h}`))
	for _, tt := range []struct {
		err    error
		status int
		code   string
		retry  bool
	}{
		{&mq.CodeError{Code: 42900}, 429, "queue_full", true},
		{&mq.CodeError{Code: 42901}, 429, "too_many_queues", true},
		{&mq.CodeError{Code: 41301}, 413, "request_too_large", false},
		{&mq.CodeError{Code: 40402}, 503, "broker_unavailable", true},
		{&mq.CodeError{Code: mq.CodeDiskFull}, 503, "storage_full", true},
		{fmt.Errorf("connection refused"), 503, "broker_unavailable", true},
	} {
		r.broker.refuseWith(tt.err)
		a := r.ask(http.MethodPost, "/v1/chat/completions", chatBody)
		a.check(t, tt.status, tt.code) // and not 429 from the window: what was not sent was not charged
		if got := a.header.Get("Retry-After"); (got != "") != tt.retry || got == "0" {
			t.Errorf("%v: Retry-After %q", tt.err, got)
		}
	}
}

func TestModels(t *testing.T) {
	r := newRig(t, func(o *Options) { o.Models = []string{"b", "a/b"} })
	a := r.ask(http.MethodGet, "/v1/models", "")
	a.check(t, 200, "")
	if !strings.Contains(a.body, `"id":"a/b"`) || !strings.Contains(a.body, `"object":"list"`) {
		t.Error(a.body)
	}
	one := r.ask(http.MethodGet, "/v1/models/a/b", "")
	one.check(t, 200, "")
	if !strings.Contains(one.body, `"id":"a/b"`) {
		t.Error(one.body)
	}
}

func TestTooManyActive(t *testing.T) {
	r := newRig(t, func(o *Options) { o.MaxActive = 1 })
	got := r.chat(chatBody)
	j := r.take()
	r.ask(http.MethodGet, "/v1/models", "").check(t, 503, "gateway_overloaded")
	must(t, j.Answer(200, jsonHeader, []byte("{}"), reply.Usage{}))
	receive(t, got, "no answer").check(t, 200, "")
}

// Bodies in memory are bounded; they count until the broker has them.
func TestBodiesAreBounded(t *testing.T) {
	r := newRig(t, func(o *Options) { o.MaxBodyBytes, o.MaxBufferBytes = 1000, 1000 })
	body, w := io.Pipe()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, r.url+"/v1/enqueue/m", body)
	must(t, err)
	req.Header.Set("Authorization", "Bearer "+r.secret)
	slow := make(chan int, 1)
	go func() {
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			slow <- 0
			return
		}
		_ = resp.Body.Close()
		slow <- resp.StatusCode
	}()
	_, err = io.WriteString(w, "x")
	must(t, err)
	for code := ""; code == ""; { // until the other request has been seen by the gateway
		a := r.ask(http.MethodPost, "/v1/enqueue/other", "y", "X-Request-Timeout: 1ms")
		if code = errorCode(a.body); code == "request_timeout" {
			code = ""
		}
		if code != "" {
			a.check(t, 503, "gateway_overloaded")
		}
	}
	must(t, w.Close())
	for {
		if j := r.take(); j.Model == "m" {
			got := r.start(http.MethodPost, "/v1/enqueue/next", strings.Repeat("z", 1000)) // the first is still waiting
			next := r.take()
			must(t, next.Answer(200, jsonHeader, nil, reply.Usage{}))
			receive(t, got, "no answer").check(t, 200, "")
			must(t, j.Answer(200, jsonHeader, nil, reply.Usage{}))
			break
		}
	}
	if status := receive(t, slow, "no answer"); status != 200 {
		t.Errorf("status %d", status)
	}
	if n := r.g.shares.held().bytes; n != 0 {
		t.Errorf("%d bytes are still counted", n)
	}
}

func TestNATSIsGone(t *testing.T) {
	var nc *nats.Conn
	r := newRig(t, func(o *Options) { nc = o.NATS })
	nc.Close()
	a := r.ask(http.MethodPost, "/v1/chat/completions", chatBody)
	a.check(t, 503, "reply_unavailable")
	if a.header.Get("Retry-After") == "" {
		t.Error("no Retry-After")
	}
	r.nothingSent()
}

// recorder is an Observer that keeps what it was told.
type recorder struct{ requests chan string }

func (o recorder) Request(route, code string, status int, _ time.Duration) {
	o.requests <- fmt.Sprintf("%s %s %d", route, code, status)
}
func (recorder) QueueTime(time.Duration) {}

// C64: the caller leaves; what is queued is recalled, what runs is cancelled, and it counts as cancelled.
func TestCallerLeaves(t *testing.T) {
	seen := recorder{requests: make(chan string, 16)}
	r := newRig(t, func(o *Options) { o.Observer = seen })
	for _, body := range []string{chatBody, streamBody} {
		ctx, leave := context.WithCancel(t.Context())
		go func() {
			if resp, err := r.do(ctx, http.MethodPost, "/v1/chat/completions", body); err == nil {
				_ = resp.Body.Close()
			}
		}()
		queued := r.peek()
		leave()
		if h := receive(t, r.broker.recalled, "not recalled"); h != queued.ID {
			t.Errorf("recalled %s, want %s", h, queued.ID)
		}
		if got := receive(t, seen.requests, "not observed"); got != "/v1/chat/completions client_closed_request 499" {
			t.Errorf("observed %s", got)
		}

		ctx, leave = context.WithCancel(t.Context())
		go func() {
			if resp, err := r.do(ctx, http.MethodPost, "/v1/chat/completions", body); err == nil {
				_ = resp.Body.Close()
			}
		}()
		running := r.take()
		stopped := make(chan string, 1)
		defer r.cancels.Register(running.ID, func() {
			select {
			case stopped <- running.ID:
			default:
			}
		})()
		leave()
		receive(t, stopped, "not cancelled at the worker")
		receive(t, seen.requests, "not observed")
	}
	if _, _, queued := r.g.admission.counts(); queued != 0 {
		t.Errorf("%d places are still held", queued)
	}
}

// A caller that leaves during the send does not cut it: what was stored is known, and is recalled.
func TestCallerLeavesDuringTheSend(t *testing.T) {
	seen := recorder{requests: make(chan string, 16)}
	r := newRig(t, func(o *Options) { o.Observer = seen })
	for _, prefer := range []string{"", "respond-async"} {
		r.broker.hold = make(chan struct{})
		ctx, leave := context.WithCancel(t.Context())
		req := httptest.NewRequestWithContext(ctx, http.MethodPost, "/v1/chat/completions", strings.NewReader(chatBody))
		req.Header.Set("Authorization", "Bearer "+r.secret)
		req.Header.Set("Prefer", prefer)
		go r.g.ServeHTTP(httptest.NewRecorder(), req)
		receive(t, r.broker.sending, "nothing is being sent")
		leave()
		close(r.broker.hold)
		j := r.peek()
		if h := receive(t, r.broker.recalled, "not recalled"); h != j.ID {
			t.Errorf("recalled %s", h)
		}
		if got := receive(t, seen.requests, "not observed"); !strings.Contains(got, "client_closed_request") {
			t.Errorf("observed %s", got)
		}
		if rec, err := r.store.Get(t.Context(), j.ID, "alice"); !errors.Is(err, reply.ErrNotFound) {
			t.Errorf("record %+v, %v", rec, err)
		}
	}
}

// C73: the deadline is watched while the request is queued and while it runs.
func TestDeadline(t *testing.T) {
	r := newRig(t, nil)
	got := r.chat(chatBody, "X-Request-Timeout: 50ms")
	j := r.peek()
	if left := time.Until(j.Deadline); left > 51*time.Millisecond {
		t.Errorf("the message's deadline is %s away", left)
	}
	a := receive(t, got, "no answer")
	a.check(t, 504, "request_timeout")
	if a.header.Get(headerQueueTime) == "0" {
		t.Error("a request that ended in its queue was there for no time")
	}
	receive(t, r.broker.recalled, "not recalled")

	got = r.chat(chatBody, "X-Request-Timeout: 1")
	j = r.take()
	stopped := make(chan struct{}, 2)
	defer r.cancels.Register(j.ID, func() { stopped <- struct{}{} })()
	receive(t, got, "no answer").check(t, 504, "request_timeout")
	receive(t, stopped, "not cancelled at the worker")
}

// A send whose outcome is unknown may have stored the message: it is cancelled by id.
func TestUncertainSendIsCancelled(t *testing.T) {
	r := newRig(t, nil)
	r.broker.refuseWith(errors.New("connection reset"))
	sub, err := r.pool.SubscribeSync("penstock.cancel.*")
	must(t, err)
	must(t, r.pool.Flush())
	a := r.ask(http.MethodPost, "/v1/chat/completions", chatBody)
	a.check(t, 503, "broker_unavailable")
	m, err := sub.NextMsg(patience)
	must(t, err)
	if !strings.HasSuffix(m.Subject, a.header.Get(headerRequestID)) {
		t.Errorf("cancelled %s", m.Subject)
	}
}
