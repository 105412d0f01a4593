package gateway

import (
	"bufio"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/penstockmq/penstock/consumer/reply"
)

func event(n string) []byte { return []byte(`data: {"id":"` + n + `"}` + "\n\n") }

// openStream starts a stream and returns its reader; it blocks until the header has come.
func (r *rig) openStream(body string) <-chan *http.Response {
	opened := make(chan *http.Response, 1)
	go func() {
		resp, err := r.do(r.t.Context(), http.MethodPost, "/v1/chat/completions", body)
		if err == nil {
			opened <- resp
		}
	}()
	return opened
}

// Each event is passed on as it comes, and none is held for the next.
func TestStreamIsPassedOnAsItComes(t *testing.T) {
	r := newRig(t, nil)
	opened := r.openStream(streamBody)
	j := r.take()
	if !j.Stream {
		t.Error("the worker is not told that it is a stream")
	}
	must(t, j.Head(200, sseHeader))
	resp := receive(t, opened, "no header before the first event")
	defer func() { _ = resp.Body.Close() }()
	if resp.Header.Get("Content-Type") != eventStream || resp.Header.Get(headerQueueTime) == "" || resp.Header.Get(headerRequestID) != j.ID {
		t.Errorf("%v", resp.Header)
	}
	lines := bufio.NewReader(resp.Body)
	for _, n := range []string{"1", "2", "3"} {
		text := event(n)
		must(t, j.Chunk(text[:5])) // half an event is kept until it is whole
		must(t, j.Chunk(text[5:]))
		line, err := lines.ReadString('\n')
		must(t, err)
		if line+"\n" != string(text) {
			t.Fatalf("got %q", line)
		}
		_, err = lines.ReadString('\n')
		must(t, err)
	}
	must(t, j.Chunk([]byte("data: [DONE]")))
	must(t, j.End(reply.Usage{}))
	rest, err := io.ReadAll(lines)
	must(t, err)
	if string(rest) != "data: [DONE]" {
		t.Errorf("rest %q", rest)
	}
}

// C66: three whole events, half of a fourth, then the model dies.
func TestStreamThatBreaksOff(t *testing.T) {
	r := newRig(t, nil)
	got := r.chat(streamBody)
	j := r.take()
	must(t, j.Head(200, sseHeader))
	for _, n := range []string{"1", "2", "3"} {
		must(t, j.Chunk(event(n)))
	}
	must(t, j.Chunk([]byte(`data: {"id":"4`)))
	must(t, j.Fail(reply.Failure{Status: 502, Code: "upstream_reset", Message: "connection reset"}))
	a := receive(t, got, "no answer")
	must(t, a.err)
	want := string(event("1")) + string(event("2")) + string(event("3")) +
		`data: {"error":{"message":"connection reset","type":"server_error","param":null,"code":"upstream_reset"}}` + "\n\n"
	if a.status != 200 || a.body != want {
		t.Errorf("status %d\n%s\nwant\n%s", a.status, a.body, want)
	}
	if r.g.metrics.Broken.Load() != 1 {
		t.Error("not counted as broken")
	}
}

// A second attempt after bytes of the first, as after a consumer's crash: an error event, and the worker is stopped.
func TestStreamThatBeginsAgain(t *testing.T) {
	r := newRig(t, nil)
	got := r.chat(streamBody)
	j := r.take()
	must(t, j.Head(200, sseHeader))
	must(t, j.Chunk(event("1")))
	second := reply.NewWriter(r.pool, j.Request, 2)
	stopped := make(chan struct{}, 2)
	defer r.cancels.Register(j.ID, func() { stopped <- struct{}{} })()
	must(t, second.Head(200, sseHeader))
	a := receive(t, got, "no answer")
	if strings.Count(a.body, `"error"`) != 1 || !strings.Contains(a.body, reply.CodeReplyRestart) {
		t.Errorf("%s", a.body)
	}
	receive(t, stopped, "the second attempt was not cancelled")
}

// C68: a refusal before the first byte keeps its HTTP status.
func TestStreamRefusedBeforeTheFirstByte(t *testing.T) {
	r := newRig(t, nil)
	for _, status := range []int{503, 400} {
		got := r.chat(streamBody)
		j := r.take()
		must(t, j.Fail(reply.Failure{Status: status, Code: "refused", Message: "no"}))
		receive(t, got, "no answer").check(t, status, "refused")

		got = r.chat(streamBody)
		j = r.take()
		must(t, j.Answer(status, jsonHeader, []byte(`{"error":{"message":"no","type":"t","code":"theirs"}}`), reply.Usage{}))
		receive(t, got, "no answer").check(t, status, "theirs")
	}
}

// C68: after a keep-alive the refusal is an event.
func TestStreamRefusedAfterAKeepAlive(t *testing.T) {
	r := newRig(t, func(o *Options) { o.KeepAlive = 10 * time.Millisecond })
	for _, tt := range []struct {
		name   string
		answer func(j job) error
		want   string
	}{
		{"failure", func(j job) error { return j.Fail(reply.Failure{Status: 503, Code: "overloaded", Message: "no"}) }, `"code":"overloaded"`},
		{"model's own error", func(j job) error {
			return j.Answer(400, jsonHeader, []byte(`{"error":{"message":"too long","type":"t","code":"context_length"}}`), reply.Usage{})
		}, `{"error":{"message":"too long","type":"t","param":null,"code":"context_length"}}`},
		{"error page", func(j job) error {
			return j.Answer(502, http.Header{"Content-Type": {"text/html"}}, []byte("<h1>bad\ngateway</h1>"), reply.Usage{})
		}, `status 502: \u003ch1\u003ebad\ngateway`},
		{"no stream", func(j job) error { return j.Answer(200, jsonHeader, []byte(`{"id":"x"}`), reply.Usage{}) }, `"code":"upstream_error"`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			opened := r.openStream(streamBody)
			j := r.peek()
			resp := receive(t, opened, "no keep-alive came while the request was queued")
			defer func() { _ = resp.Body.Close() }()
			must(t, tt.answer(j))
			text, err := io.ReadAll(resp.Body)
			must(t, err)
			var events []string
			for line := range strings.SplitSeq(string(text), "\n") {
				if line != "" && !strings.HasPrefix(line, ":") {
					events = append(events, line)
				}
			}
			if resp.StatusCode != 200 || resp.Header.Get("Content-Type") != eventStream || resp.Header.Get(headerQueueTime) == "" {
				t.Errorf("status %d %v", resp.StatusCode, resp.Header)
			}
			if len(events) != 1 || !strings.HasPrefix(events[0], "data: {\"error\":") || !strings.Contains(events[0], tt.want) {
				t.Errorf("events %q", events)
			}
			if !strings.HasPrefix(string(text), ": keep-alive\n\n") {
				t.Errorf("begins with %q", text)
			}
		})
	}
}

// A stream that had keep-alives is a good stream, with its queue time in a comment.
func TestStreamAfterAKeepAlive(t *testing.T) {
	r := newRig(t, func(o *Options) { o.KeepAlive = 10 * time.Millisecond })
	opened := r.openStream(streamBody)
	j := r.peek()
	resp := receive(t, opened, "no keep-alive")
	defer func() { _ = resp.Body.Close() }()
	must(t, j.Started(time.Now(), true))
	must(t, j.Answer(200, sseHeader, event("1"), reply.Usage{}))
	text, err := io.ReadAll(resp.Body)
	must(t, err)
	if !strings.Contains(string(text), ": queue-time-ms=") || !strings.Contains(string(text), string(event("1"))) {
		t.Errorf("%q", text)
	}
}

// The deadline bounds the wait: a stream that has begun outlives it.
func TestStreamOutlivesItsDeadline(t *testing.T) {
	r := newRig(t, func(o *Options) { o.KeepAlive = 20 * time.Millisecond })
	got := r.chat(streamBody, "X-Request-Timeout: 1")
	j := r.take()
	must(t, j.Head(200, sseHeader))
	must(t, j.Chunk(event("1")))
	<-time.After(time.Until(j.Deadline) + 10*time.Millisecond)
	must(t, j.Chunk(event("2")))
	must(t, j.End(reply.Usage{}))
	a := receive(t, got, "no answer")
	if strings.Contains(a.body, "error") || !strings.Contains(a.body, string(event("2"))) {
		t.Errorf("%s", a.body)
	}
	if !strings.Contains(a.body, ": keep-alive\n\n") {
		t.Error("no keep-alive in the pause")
	}
}

// An answer that begins and never goes on has lost its worker.
func TestAnswerStalls(t *testing.T) {
	r := newRig(t, func(o *Options) { o.StallTimeout = 20 * time.Millisecond })
	for _, header := range []http.Header{sseHeader, jsonHeader} {
		got := r.chat(streamBody)
		j := r.take()
		stopped := make(chan struct{}, 2)
		defer r.cancels.Register(j.ID, func() { stopped <- struct{}{} })()
		must(t, j.Head(200, header))
		a := receive(t, got, "no answer")
		if !strings.Contains(a.body, `"code":"answer_stalled"`) {
			t.Errorf("status %d %s", a.status, a.body)
		}
		receive(t, stopped, "not cancelled at the worker")
	}
}

// The pool's word for a passed deadline is the gateway's own.
func TestPoolNoticesTheDeadlineFirst(t *testing.T) {
	r := newRig(t, nil)
	got := r.chat(chatBody)
	must(t, r.take().Fail(reply.Failure{Status: 504, Code: codeDeadline, Message: "late"}))
	receive(t, got, "no answer").check(t, 504, "request_timeout")
}

// A pool that took this gateway for dead has dropped the request: its caller may try again at once.
func TestACallerOfADroppedRequestMayTryAgain(t *testing.T) {
	r := newRig(t, nil)
	got := r.chat(chatBody)
	must(t, r.take().Fail(reply.Failure{Status: 503, Code: reply.CodeGatewayAway, Message: "cut off"}))
	a := receive(t, got, "no answer")
	a.check(t, 503, "reply_unavailable")
	if a.header.Get("Retry-After") == "" {
		t.Errorf("no Retry-After in %v", a.header)
	}
}
