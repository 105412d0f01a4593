package forward

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstockmq/penstock/cmd/mockmodel"
	"github.com/penstockmq/penstock/consumer/reply"
)

func TestAnswerGoesThrough(t *testing.T) {
	model := mock(t, nil)
	d := serve(t, model, HTTPOptions{Key: "secret", UserHeader: "X-Penstock-User"})
	var whole, streamed sink
	o := d.Forward(t.Context(), chat(false), &whole)
	if o.Kind != Done || o.Usage.Output != 16 || !whole.whole || whole.status != 200 || !json.Valid([]byte(whole.body)) {
		t.Errorf("whole: %+v, %+v", o, whole)
	}
	s := d.Forward(t.Context(), chat(true), &streamed)
	if s.Kind != Done || s.Usage.Output != o.Usage.Output || streamed.whole || streamed.events() != 20 {
		t.Errorf("stream: %+v, %d events", s, streamed.events())
	}
	for _, c := range streamed.chunks {
		if !strings.HasPrefix(c, "data: ") || !strings.HasSuffix(c, "\n\n") {
			t.Errorf("chunk %q is not one event", c)
		}
	}
	if !strings.HasSuffix(streamed.body, "data: [DONE]\n\n") || streamed.header.Get("Content-Type") != "text/event-stream" {
		t.Errorf("end %q, header %v", streamed.chunks[len(streamed.chunks)-1], streamed.header)
	}
	call := model.Calls(0)[0]
	if call.User != "u" || call.RequestID != "r1" || call.Path != "/v1/chat/completions" {
		t.Errorf("the upstream saw %+v", call)
	}
	d.Forward(t.Context(), chat(false), &sink{})
	if n := d.dials.Load(); n != 1 {
		t.Errorf("%d connections for requests one after the other, also after a stream", n)
	}
}

// C29: an answer that is no answer costs one call and ends its request, whatever the bucket holds behind it.
func TestC29(t *testing.T) {
	for _, tt := range []struct {
		name   string
		how    func(*mockmodel.Behaviour)
		kind   Kind
		status int // of the caller, if this is the last attempt
		retry  bool
	}{
		{"400", func(b *mockmodel.Behaviour) { b.Fault, b.Status = mockmodel.FaultStatus, 400 }, Refused, 400, false},
		{"broken JSON", func(b *mockmodel.Behaviour) { b.Fault = mockmodel.FaultBroken }, Failed, 502, false},
		{"503", func(b *mockmodel.Behaviour) { b.Fault, b.Status = mockmodel.FaultStatus, 503 }, Failed, 503, true},
		{"500", func(b *mockmodel.Behaviour) { b.Fault = mockmodel.FaultStatus }, Failed, 500, true},
		{"429", func(b *mockmodel.Behaviour) { b.Fault, b.Status = mockmodel.FaultStatus, 429 }, Failed, 429, true},
		{"refused connection", func(b *mockmodel.Behaviour) { b.Fault = mockmodel.FaultRefuse }, Failed, 502, true},
		{"reset in the body", func(b *mockmodel.Behaviour) { b.Fault = mockmodel.FaultReset }, Failed, 502, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			model := mock(t, tt.how)
			var s sink
			o := serve(t, model, HTTPOptions{}).Forward(t.Context(), chat(false), &s)
			if o.Kind != tt.kind || o.Retry != tt.retry || o.Started {
				t.Errorf("got %+v", o)
			}
			status := o.Failure.Status
			if tt.kind == Refused {
				status = s.status
			} else if !s.untouched() {
				t.Errorf("the sink has %+v of a request that may be tried again", s)
			}
			if status != tt.status {
				t.Errorf("the caller would get %d, want %d", status, tt.status)
			}
			if n := model.Stats().Calls; n != 1 {
				t.Errorf("%d calls", n)
			}
		})
	}
}

// C68: a refusal before the first event keeps its status and its words, also when a stream was asked for.
func TestC68(t *testing.T) {
	for _, status := range []int{503, 400} {
		model := mock(t, func(b *mockmodel.Behaviour) { b.Fault, b.Status = mockmodel.FaultStatus, status })
		var s sink
		o := serve(t, model, HTTPOptions{}).Forward(t.Context(), chat(true), &s)
		switch {
		case status == 400 && (o.Kind != Refused || s.status != 400 || !strings.Contains(s.body, "mock_fault")):
			t.Errorf("400: %+v, %+v", o, s)
		case status == 503 && (o.Kind != Failed || !s.untouched() || o.Failure.Status != 503 || o.Failure.Code != "mock_fault"):
			t.Errorf("503: %+v, %+v", o, s)
		}
	}
}

// C66: a stream that dies after three events is a failure with the upstream's words, and no retry.
func TestC66(t *testing.T) {
	for _, tt := range []struct {
		fault mockmodel.Fault
		code  string
	}{
		{mockmodel.FaultReset, CodeBroken},
		{mockmodel.FaultNoEnd, CodeBroken},
		{mockmodel.FaultBareError, "engine_dead"},
		{mockmodel.FaultErrorEvent, "engine_dead"},
		{mockmodel.FaultBroken, CodeInvalid},
	} {
		t.Run(string(tt.fault), func(t *testing.T) {
			model := mock(t, func(b *mockmodel.Behaviour) { b.Fault = tt.fault })
			var s sink
			o := serve(t, model, HTTPOptions{}).Forward(t.Context(), chat(true), &s)
			if o.Kind != Failed || !o.Started || o.Retry || o.Failure.Code != tt.code || o.Failure.Message == "" {
				t.Errorf("got %+v", o)
			}
			if s.events() != 3 || strings.Contains(s.body, "stop") || strings.Contains(s.body, "engine") {
				t.Errorf("the caller got %q", s.body)
			}
		})
	}
}

// TestStreamDiesBeforeItsFirstEvent: the status has come, but nothing has gone to the caller, so it may be tried again.
func TestStreamDiesBeforeItsFirstEvent(t *testing.T) {
	for _, fault := range []mockmodel.Fault{
		mockmodel.FaultReset, mockmodel.FaultNoEnd, mockmodel.FaultBareError, mockmodel.FaultErrorEvent,
	} {
		model := mock(t, func(b *mockmodel.Behaviour) { b.Fault, b.FaultAfter = fault, 0 })
		var s sink
		o := serve(t, model, HTTPOptions{}).Forward(t.Context(), chat(true), &s)
		if o.Kind != Failed || o.Started || !o.Retry || !s.untouched() || o.Failure.Status != 502 {
			t.Errorf("%s: %+v, %+v", fault, o, s)
		}
	}
}

func TestBusy(t *testing.T) {
	for _, status := range []int{429, 503} {
		model := mock(t, func(b *mockmodel.Behaviour) {
			b.Fault, b.Status, b.RetryAfter = mockmodel.FaultStatus, status, mockmodel.Duration(1500*time.Millisecond)
		})
		var s sink
		o := serve(t, model, HTTPOptions{}).Forward(t.Context(), chat(true), &s)
		if o.Kind != Busy || o.After != 1500*time.Millisecond || o.Failure.Status != status || !s.untouched() {
			t.Errorf("%d: %+v", status, o)
		}
	}
}

// C64: a caller who leaves closes the upstream's connection at once, before and after the first token.
func TestC64(t *testing.T) {
	for _, stream := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			model := mock(t, func(b *mockmodel.Behaviour) { b.FirstToken = mockmodel.Duration(20 * time.Second) })
			d := serve(t, model, HTTPOptions{})
			cause := errors.New("the caller left")
			ctx, cancel := context.WithCancelCause(t.Context())
			time.AfterFunc(time.Second, func() { cancel(cause) })
			began := time.Now()
			o := d.Forward(ctx, chat(stream), &sink{})
			if o.Kind != Cancelled || o.Started || !errors.Is(o.Err, cause) || time.Since(began) != time.Second {
				t.Errorf("stream=%v: %+v after %v", stream, o, time.Since(began))
			}
			synctest.Wait()
			if c := model.Calls(0)[0]; c.State != mockmodel.StateAborted || c.Ended.Sub(began) != time.Second {
				t.Errorf("stream=%v: the upstream noticed: %s after %v", stream, c.State, c.Ended.Sub(began))
			}
		})
	}
}

func TestCancelInMidStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		model := mock(t, func(b *mockmodel.Behaviour) { b.Interval, b.Tokens = mockmodel.Duration(time.Second), 100 })
		ctx, cancel := context.WithTimeout(t.Context(), 2500*time.Millisecond)
		defer cancel()
		var s sink
		o := serve(t, model, HTTPOptions{}).Forward(ctx, chat(true), &s)
		if o.Kind != Cancelled || !o.Started || s.events() != 4 { // the role, tokens at 0 s, 1 s and 2 s
			t.Errorf("%+v, %d events", o, s.events())
		}
		synctest.Wait()
		if st := model.Stats(); st.Open != 0 || st.Aborted != 1 {
			t.Errorf("upstream: %+v", st)
		}
	})
}

// C73: a request whose time is up is not sent.
func TestC73(t *testing.T) {
	model := mock(t, nil)
	ctx, cancel := context.WithDeadline(t.Context(), time.Unix(1, 0))
	defer cancel()
	o := serve(t, model, HTTPOptions{}).Forward(ctx, chat(false), &sink{})
	if o.Kind != Cancelled || model.Stats().Calls != 0 {
		t.Errorf("%+v, %d calls", o, model.Stats().Calls)
	}
}

func TestTimeouts(t *testing.T) {
	second := mockmodel.Duration(time.Second)
	for _, tt := range []struct {
		name    string
		how     func(*mockmodel.Behaviour)
		opts    HTTPOptions
		stream  bool
		after   time.Duration
		started bool
	}{
		{"no status", func(b *mockmodel.Behaviour) { b.Fault = mockmodel.FaultHang }, HTTPOptions{FirstByte: 3 * time.Second}, false, 3 * time.Second, false},
		{"no first event", func(b *mockmodel.Behaviour) { b.FirstToken = 10 * second }, HTTPOptions{FirstByte: 3 * time.Second}, true, 3 * time.Second, false},
		{"pause between events", func(b *mockmodel.Behaviour) { b.Interval = 10 * second }, HTTPOptions{Idle: 2 * time.Second}, true, 2 * time.Second, true},
		{"too long in all", func(b *mockmodel.Behaviour) { b.Interval = second }, HTTPOptions{Total: 5500 * time.Millisecond}, true, 5500 * time.Millisecond, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				o := serve(t, mock(t, tt.how), tt.opts).Forward(t.Context(), chat(tt.stream), &sink{})
				if o.Kind != Failed || o.Failure.Code != CodeTimeout || o.Failure.Status != 504 || o.Started != tt.started || o.Retry == tt.started {
					t.Errorf("got %+v", o)
				}
				if took := time.Since(began); took != tt.after {
					t.Errorf("took %v, want %v", took, tt.after)
				}
			})
		})
	}
}

// Time in which the sink holds an answer back does not count against the upstream; later time does.
func TestSlowSinkIsNoSlowUpstream(t *testing.T) {
	for _, tt := range []struct {
		name  string
		how   func(*mockmodel.Behaviour)
		opts  HTTPOptions
		kind  Kind
		after time.Duration
	}{
		{"goes on", nil, HTTPOptions{Idle: 2 * time.Second, Total: 10 * time.Second}, Done, time.Minute},
		{
			"pauses afterwards", func(b *mockmodel.Behaviour) { b.Interval = mockmodel.Duration(90 * time.Second) },
			HTTPOptions{Idle: 2 * time.Second},
			Failed, time.Minute + 2*time.Second,
		},
		{
			"takes too long in all", func(b *mockmodel.Behaviour) { b.Tokens, b.Interval = 100, mockmodel.Duration(time.Second) },
			HTTPOptions{Total: 80 * time.Second},
			Failed, time.Minute + 80*time.Second,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := sink{holds: time.Minute}
				began := time.Now()
				o := serve(t, mock(t, tt.how), tt.opts).Forward(t.Context(), chat(true), &s)
				if o.Kind != tt.kind || !o.Started {
					t.Errorf("got %+v", o)
				}
				// Bytes that the upstream wrote meanwhile fit into the server's buffers and count for its time.
				if took := time.Since(began); took < time.Minute || took > tt.after {
					t.Errorf("took %v, want at most %v", took, tt.after)
				}
			})
		})
	}
}

// A sink that ends the request reports that the caller left; that is no fault of the upstream.
func TestSinkThatEndsTheRequest(t *testing.T) {
	cause := errors.New("the caller left")
	ctx, cancel := context.WithCancelCause(t.Context())
	s := sink{refuses: cause, ends: cancel}
	o := serve(t, mock(t, nil), HTTPOptions{}).Forward(ctx, chat(true), &s)
	if o.Kind != Cancelled || !errors.Is(o.Err, cause) || o.Feedback() != Silent {
		t.Errorf("got %+v", o)
	}
	o = serve(t, mock(t, nil), HTTPOptions{}).Forward(t.Context(), chat(true), &sink{refuses: cause})
	if o.Kind != Failed || o.Failure.Code != CodeReply || o.Feedback() != Silent {
		t.Errorf("got %+v", o)
	}
}

// TestUpstreamThatDoesNotEnd: after the end mark nothing is waited for.
func TestUpstreamThatDoesNotEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, "data: {}\n\ndata: [DONE]\n\n")
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		})
		began := time.Now()
		o := serve(t, h, HTTPOptions{}).Forward(t.Context(), chat(true), &sink{})
		if o.Kind != Done || time.Since(began) > drainMax {
			t.Errorf("%+v after %v", o, time.Since(began))
		}
	})
}

// TestEventsGoOnAsTheyCome: an event is with the caller before the upstream writes the next.
func TestEventsGoOnAsTheyCome(t *testing.T) {
	s := sink{first: make(chan struct{})}
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		_, _ = io.WriteString(w, ": hello\n\ndata: {}\n\n")
		_ = http.NewResponseController(w).Flush()
		select {
		case <-s.first:
			_, _ = io.WriteString(w, "data: [DONE]\n\n")
		case <-r.Context().Done():
		}
	})
	if o := serve(t, h, HTTPOptions{}).Forward(t.Context(), chat(true), &s); o.Kind != Done || len(s.chunks) != 2 {
		t.Errorf("%+v, %q", o, s.chunks)
	}
}

func TestOtherAnswers(t *testing.T) {
	answer := func(status int, kind, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", kind)
			w.Header().Set("Location", "http://elsewhere/")
			w.Header().Set("Set-Cookie", "a=b")
			w.Header().Set("X-Request-Id", "up1")
			w.WriteHeader(status)
			_, _ = io.WriteString(w, body)
		}
	}
	large := strings.Repeat("x", 200)
	for _, tt := range []struct {
		name   string
		h      http.HandlerFunc
		path   string
		kind   Kind
		code   string
		body   string
		stream bool
	}{
		{"redirect", answer(307, "", ""), "/v1/chat/completions", Failed, CodeInvalid, "", false},
		{"whole over the limit", answer(200, "application/json", `"`+large+`"`), "/v1/chat/completions", Failed, CodeTooLarge, "", false},
		{"refusal over the limit", answer(400, "application/json", large), "/v1/chat/completions", Failed, CodeTooLarge, "", false},
		{"event over the limit", answer(200, "text/event-stream", "data: "+large+"\n\n"), "/v1/chat/completions", Failed, CodeTooLarge, "", false},
		{"text where JSON is due", answer(200, "text/plain", "hello"), "/v1/chat/completions", Failed, CodeInvalid, "", false},
		{"text from any backend", answer(200, "text/plain", "hello"), "", Done, "", "hello", false},
		{"JSON though a stream was asked for", answer(200, "application/json", "{}"), "/v1/chat/completions", Done, "", "{}", true},
		{"stream of any backend", answer(200, "text/event-stream", "data: hello\n\n"), "", Done, "", "data: hello\n\n", true},
		{"empty stream of any backend", answer(200, "text/event-stream", ""), "", Done, "", "", true},
		{"responses API", answer(200, "text/event-stream", "event: response.completed\ndata: {\"response\":{\"usage\":{\"output_tokens\":1}}}\n\n"), "/v1/responses", Done, "", "event: response.completed\ndata: {\"response\":{\"usage\":{\"output_tokens\":1}}}\n\n", true},
		{"error event with a 4xx", answer(200, "text/event-stream", "data: {\"error\":{\"message\":\"too long\",\"code\":400}}\n\n"), "/v1/chat/completions", Failed, "400", "", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := chat(tt.stream)
			r.Path = tt.path
			var s sink
			o := serve(t, tt.h, HTTPOptions{BodyBytes: 100, EventBytes: 100, Allow: append(DefaultAllow(), "POST /v1/responses")}).Forward(t.Context(), r, &s)
			if o.Kind != tt.kind || o.Failure.Code != tt.code || s.body != tt.body || o.Retry {
				t.Errorf("%+v, %q", o, s.body)
			}
			if o.Kind == Done && (s.header.Get("Set-Cookie") != "" || s.header.Get("X-Request-Id") != "up1") {
				t.Errorf("the caller got headers %v", s.header)
			}
		})
	}
}

func TestSinkThatRefuses(t *testing.T) {
	for _, stream := range []bool{false, true} {
		gone := errors.New("gone")
		o := serve(t, mock(t, nil), HTTPOptions{}).Forward(t.Context(), chat(stream), &sink{refuses: gone})
		if o.Kind != Failed || o.Retry || o.Failure.Code != CodeReply || !errors.Is(o.Err, gone) {
			t.Errorf("stream=%v: %+v", stream, o)
		}
	}
}

func TestAddress(t *testing.T) {
	for _, tt := range [][3]string{
		{"http://h/v1", "/v1/chat/completions", "http://h/v1/chat/completions"},
		{"http://h/v1/", "/v1/chat/completions", "http://h/v1/chat/completions"},
		{"http://h", "/v1/chat/completions", "http://h/v1/chat/completions"},
		{"http://h/api/v1", "/v1/embeddings", "http://h/api/v1/embeddings"},
		{"http://h/openai/v1?api-version=2", "/v1/embeddings", "http://h/openai/v1/embeddings?api-version=2"},
		{"http://h/work", "", "http://h/work"},
	} {
		d, err := NewHTTP(HTTPOptions{URL: tt[0]})
		if err != nil {
			t.Fatal(err)
		}
		if got := d.address(tt[1]); got != tt[2] {
			t.Errorf("%s + %s = %s, want %s", tt[0], tt[1], got, tt[2])
		}
	}
}

func TestSecretsStayHidden(t *testing.T) {
	opts := HTTPOptions{URL: "http://u:passw0rd@127.0.0.1:1/v1", Key: "passw0rd"}
	d, err := NewHTTP(opts)
	if err != nil {
		t.Fatal(err)
	}
	o := d.Forward(t.Context(), chat(false), &sink{}) // nothing listens on port 1
	if o.Kind != Failed || !o.Retry || o.Failure.Code != CodeUnreachable {
		t.Errorf("got %+v", o)
	}
	_, bad := NewHTTP(HTTPOptions{URL: "http://u:passw0rd@h:x/"})
	text, err := opts.Key.MarshalText()
	for _, s := range []string{
		fmt.Sprintf("%v %+v %s %q %#v", opts.Key, opts.Key, opts.Key, opts.Key, opts.Key),
		fmt.Sprint(o.Err, o.Failure, bad, err, string(text), opts.Key.LogValue()),
	} {
		if strings.Contains(s, "passw0rd") {
			t.Errorf("shows the secret: %s", s)
		}
	}
}

func TestOptionsNameTheirFaults(t *testing.T) {
	_, err := NewHTTP(HTTPOptions{URL: "ftp://h", Key: "a\nb", Connect: -1, Conns: -1, BodyBytes: -1, RetryAfter: -1})
	if err == nil {
		t.Fatal("accepted")
	}
	for _, name := range []string{"url", "key", "connect", "conns", "body_bytes", "retry_after"} {
		if !strings.Contains(err.Error(), name+":") {
			t.Errorf("%q does not name %s", err, name)
		}
	}
}

func TestRetryAfter(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, tt := range []struct {
		name, value string
		want        time.Duration
	}{
		{"Retry-After", "3", 3 * time.Second},
		{"Retry-After", " 0.5 ", 500 * time.Millisecond},
		{"Retry-After", "0", retryAfterFloor},
		{"Retry-After", "99999999999999999999", time.Hour},
		{"Retry-After", "Fri, 02 Jan 2026 03:04:15 GMT", 10 * time.Second},
		{"Retry-After", "Fri, 02 Jan 2026 03:04:00 GMT", retryAfterFloor},
		{"Retry-After-Ms", "120", 120 * time.Millisecond},
		{"Retry-After", "-1", 0},
		{"Retry-After", "NaN", 0},
		{"Retry-After", "Inf", 0},
		{"Retry-After", "soon", 0},
		{"X", "", 0},
	} {
		h := http.Header{}
		h.Set(tt.name, tt.value)
		got, ok := retryAfter(h, now, time.Hour)
		if got != tt.want || ok != (tt.want != 0) {
			t.Errorf("%s: %q: %v, %v, want %v", tt.name, tt.value, got, ok, tt.want)
		}
	}
}

func TestFailureOf(t *testing.T) {
	for text, want := range map[string]reply.Failure{
		`{"error":{"message":"a\nb","type":"t","code":"c"}}`: {Message: "a b", Type: "t", Code: "c"},
		`{"error":{"message":"a","code":404}}`:               {Message: "a", Code: "404", Status: 404},
		`{"error":{"message":"a","code":null}}`:              {Message: "a"},
		`{"error":"a"}`:                                      {Message: "a"},
		`{"object":"error","message":"a","code":400}`:        {Message: "a", Code: "400", Status: 400},
		`{"detail":"a"}`:                                     {Message: "a"},
		`{"detail":[{"loc":[]}]}`:                            {},
		`{"error":null}`:                                     {},
		`<html>`:                                             {},
		``:                                                   {},
	} {
		if got := failureOf([]byte(text)); got != want {
			t.Errorf("%s: %+v, want %+v", text, got, want)
		}
	}
}

func TestReusedByManyAtOnce(t *testing.T) {
	model := mock(t, nil)
	d := serve(t, model, HTTPOptions{})
	outcomes := make(chan Outcome)
	for i := range 20 {
		go func() { outcomes <- d.Forward(t.Context(), chat(i%2 == 0), &sink{}) }()
	}
	for range 20 {
		if o := <-outcomes; o.Kind != Done {
			t.Errorf("got %+v", o)
		}
	}
	if st := model.Stats(); st.Answered != 20 {
		t.Errorf("upstream: %+v", st)
	}
}
