package forward

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstockmq/penstock/cmd/mockmodel"
	"github.com/penstockmq/penstock/consumer/reply"
)

// asked is a streamed chat whose caller says nothing about usage.
func asked() Request {
	r := chat(true)
	r.Body = []byte(`{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}]}`)
	return r
}

// C70: what a streamed answer cost is known as well as that of one that does not stream, whether the caller asks for it or not, and a
// caller who does not ask sees the stream that there would be without the question.
func TestC70(t *testing.T) {
	var whole, want, got sink
	model := mock(t, nil)
	d := serve(t, model, HTTPOptions{})
	o := d.Forward(t.Context(), chat(false), &whole)
	if o.Spent.Output != 16 || o.Spent.Input == 0 {
		t.Fatalf("whole: %+v", o.Spent)
	}
	for name, r := range map[string]Request{"asked by the caller": chat(true), "not asked by the caller": asked()} {
		s := d.Forward(t.Context(), r, &sink{})
		if s.Kind != Done || s.Spent.Output != o.Spent.Output {
			t.Errorf("%s: %d tokens counted, %d of the same answer in one piece", name, s.Spent.Output, o.Spent.Output)
		}
	}
	plain := serve(t, mock(t, nil), HTTPOptions{NoStreamUsage: true})
	if s := plain.Forward(t.Context(), asked(), &want); s.Kind != Done || s.Usage != (reply.Usage{}) {
		t.Fatalf("a server that is not asked: %+v", s)
	}
	if s := d.Forward(t.Context(), asked(), &got); s.Usage.Output != 16 {
		t.Errorf("usage %+v", s.Usage)
	}
	if strings.Contains(got.body, "usage") || got.events() != want.events() {
		t.Errorf("the caller sees the question:\n%s\nwithout it:\n%s", got.body, want.body)
	}
}

// script is an upstream that writes a stream of these events, whatever it is asked.
func script(events ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for _, e := range events {
			_, _ = io.WriteString(w, "data: "+e+"\n\n")
		}
	}
}

func TestOnlyTheAnswerToTheQuestionIsTakenOut(t *testing.T) {
	const (
		text  = `{"choices":[{"delta":{"content":"say \",\\\"usage\\\":null\" please"}}],"usage":null}`
		clean = `{"choices":[{"delta":{"content":"say \",\\\"usage\\\":null\" please"}}]}`
		first = `{"usage": null, "choices":[{"delta":{"content":"a"}}]}`
		plain = `{ "choices":[{"delta":{"content":"a"}}]}`
		// Azure's first event has no choices, and others put the usage beside the last text.
		filter = `{"choices":[],"prompt_filter_results":[]}`
		last   = `{"choices":[{"delta":{"content":"b"}}],"usage":{"prompt_tokens":3,"completion_tokens":5}}`
		extra  = `{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":6}}`
	)
	upstream := script(filter, text, first, last, extra, "[DONE]")
	var s sink
	o := serve(t, upstream, HTTPOptions{}).Forward(t.Context(), asked(), &s)
	want := ""
	for _, e := range []string{filter, clean, plain, last, "[DONE]"} {
		want += "data: " + e + "\n\n"
	}
	if o.Kind != Done || s.body != want || o.Spent.Output != 6 || o.Spent.Input != 3 {
		t.Errorf("%+v\ngot  %q\nwant %q", o, s.body, want)
	}
	var all sink
	if o := serve(t, upstream, HTTPOptions{}).Forward(t.Context(), chat(true), &all); o.Kind != Done || !strings.Contains(all.body, extra) || !strings.Contains(all.body, text) {
		t.Errorf("a caller who asks does not get what came: %+v\n%s", o, all.body)
	}
}

// A caller who says anything about stream_options, or is not about to stream from OpenAI's API, is sent on unchanged.
func TestTheQuestionIsAddedWhereItBelongs(t *testing.T) {
	for _, tt := range []struct {
		path, body string
		stream     bool
		want       string
	}{
		{"/v1/chat/completions", ` { "stream":true}`, true, ` {"stream_options":{"include_usage":true}, "stream":true}`},
		{"/v1/completions", `{"stream":true}`, true, `{"stream_options":{"include_usage":true},"stream":true}`},
		{"/v1/chat/completions", `{"stream":true,"stream_options":{"include_usage":false}}`, true, ""},
		{"/v1/chat/completions", `{"stream":true,"stream_options":{}}`, true, ""},
		{"/v1/chat/completions", `{"stream":false}`, true, ""},
		{"/v1/chat/completions", `{}`, true, ""},
		{"/v1/chat/completions", `{"stream":true}`, false, ""},
		{"/v1/responses", `{"stream":true}`, true, ""},
		{"", `{"stream":true}`, true, ""},
		{"/v1/chat/completions", `[{"stream":true}]`, true, ""},
		{"/v1/chat/completions", `no json {"stream":true}`, true, ""},
	} {
		r := Request{Request: reply.Request{Path: tt.path, Stream: tt.stream}, Body: []byte(tt.body)}
		body, added := askUsage(r)
		want := tt.want
		if want == "" {
			want = tt.body
		}
		if string(body) != want || added != (tt.want != "") {
			t.Errorf("%s %s: %s, %v", tt.path, tt.body, body, added)
		}
	}
}

// An upstream that refuses the question gets the caller's own request, and is asked no more.
func TestAnUpstreamThatKnowsNoStreamOptions(t *testing.T) {
	calls, questions := 0, 0
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		calls++
		body, _ := io.ReadAll(r.Body)
		if strings.Contains(string(body), "stream_options") {
			questions++
			w.WriteHeader(http.StatusBadRequest)
			_, _ = io.WriteString(w, `{"error":{"message":"Unrecognized request argument: stream_options"}}`)
			return
		}
		script(`{"choices":[{"delta":{"content":"hello"}}]}`, "[DONE]")(w, r)
	})
	d := serve(t, h, HTTPOptions{})
	for range 2 {
		var s sink
		if o := d.Forward(t.Context(), asked(), &s); o.Kind != Done || s.events() != 2 {
			t.Errorf("%+v, %+v", o, s)
		}
	}
	if calls != 3 || questions != 1 {
		t.Errorf("%d calls, %d with the question", calls, questions)
	}
	var s sink
	if o := d.Forward(t.Context(), chat(true), &s); o.Kind != Refused || s.status != http.StatusBadRequest {
		t.Errorf("a caller's own stream_options: %+v", o)
	}
}

// A stream without usage is charged by what was sent: events that carry text, or their bytes if a server gathers tokens.
func TestStreamsWithoutUsageAreCounted(t *testing.T) {
	long := strings.Repeat("x", 41)
	for _, tt := range []struct {
		name   string
		path   string
		events []string
		want   int64
	}{
		{"role only", "/v1/chat/completions", []string{`{"choices":[{"delta":{"role":"assistant","content":""}}]}`, "[DONE]"}, 0},
		{"an event a token", "/v1/chat/completions", []string{
			`{"choices":[{"delta":{"content":"a"}}]}`, `{"choices":[{"delta":{"content":"b"}}]}`, `{"choices":[{"delta":{"reasoning_content":"c"}}]}`, "[DONE]",
		}, 3},
		{"gathered", "/v1/chat/completions", []string{`{"choices":[{"delta":{"content":"` + long + `"}}]}`, "[DONE]"}, 11},
		{"a tool call", "/v1/chat/completions", []string{`{"choices":[{"delta":{"tool_calls":[{"function":{"name":"f","arguments":"{}"}}]}}]}`, "[DONE]"}, 1},
		{"completions", "/v1/completions", []string{`{"choices":[{"text":"ab"}]}`, `{"choices":[{"text":"c"}]}`, "[DONE]"}, 2},
		{"responses", "/v1/responses", []string{
			`{"type":"response.output_text.delta","delta":"ab"}`, `{"type":"response.output_text.delta","delta":"c"}`, "[DONE]",
		}, 2},
		{"odd types", "/v1/chat/completions", []string{`{"choices":[{"delta":{"content":[{"type":"text","text":"abcde"}]}}],"type":7}`, "[DONE]"}, 2},
		{"broken off", "/v1/chat/completions", []string{`{"choices":[{"delta":{"content":"a"}}]}`, `{"choices":[{"delta":{"content":"b"}}]}`}, 2},
	} {
		r := chat(true)
		r.Path = tt.path
		var s sink
		o := serve(t, script(tt.events...), HTTPOptions{Allow: append(DefaultAllow(), "POST /v1/responses")}).Forward(t.Context(), r, &s)
		if o.Spent.Output != tt.want || o.Usage != (reply.Usage{}) {
			t.Errorf("%s: %+v, want %d tokens out", tt.name, o, tt.want)
		}
		if o.Spent.BytesOut != int64(len(s.body)) || s.body == "" {
			t.Errorf("%s: %d bytes counted, %d sent", tt.name, o.Spent.BytesOut, len(s.body))
		}
	}
	h := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"choices":[{"message":{"content":"`+long+`"}}]}`)
	})
	if o := serve(t, h, HTTPOptions{}).Forward(t.Context(), chat(false), &sink{}); o.Spent.Output != 11 {
		t.Errorf("in one piece: %+v", o.Spent)
	}
}

func TestTimesAndFeedback(t *testing.T) {
	second := mockmodel.Duration(time.Second)
	fault := func(f mockmodel.Fault, status int) func(*mockmodel.Behaviour) {
		return func(b *mockmodel.Behaviour) {
			if b.Fault = f; status != 0 {
				b.Status = status
			}
		}
	}
	for _, tt := range []struct {
		name         string
		how          func(*mockmodel.Behaviour)
		stream       bool
		want         Feedback
		first, total time.Duration
	}{
		{"stream", func(b *mockmodel.Behaviour) { b.FirstToken, b.Interval, b.Tokens = 2*second, second, 4 }, true, Good, 2 * time.Second, 5 * time.Second},
		{"400", fault(mockmodel.FaultStatus, 400), false, Good, -1, -1},
		{"429", fault(mockmodel.FaultStatus, 429), false, Overload, -1, -1},
		{"503", fault(mockmodel.FaultStatus, 503), true, Overload, -1, -1},
		{"502", fault(mockmodel.FaultStatus, 502), true, Broken, -1, -1},
		{"504", fault(mockmodel.FaultStatus, 504), true, Timeout, -1, -1},
		{"hangs", fault(mockmodel.FaultHang, 0), true, Timeout, 0, 30 * time.Second},
		{"refused connection", fault(mockmodel.FaultRefuse, 0), true, Broken, 0, -1},
		{"dies in mid-stream", fault(mockmodel.FaultReset, 0), true, Broken, -1, -1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := serve(t, mock(t, tt.how), HTTPOptions{FirstByte: 30 * time.Second}).Forward(t.Context(), chat(tt.stream), &sink{})
				if o.Feedback() != tt.want {
					t.Errorf("feedback %d, want %d, of %+v", o.Feedback(), tt.want, o)
				}
				if tt.first >= 0 && o.Spent.FirstByte.Truncate(time.Millisecond) != tt.first || tt.total >= 0 && o.Spent.Total != tt.total {
					t.Errorf("first byte after %v of %v, want %v of %v", o.Spent.FirstByte, o.Spent.Total, tt.first, tt.total)
				}
			})
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if o := serve(t, mock(t, nil), HTTPOptions{}).Forward(ctx, chat(true), &sink{}); o.Feedback() != Silent {
		t.Errorf("a caller who leaves says something about the load: %+v", o)
	}
}

func BenchmarkStreamEvent(b *testing.B) {
	data := []byte(`{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":" word"},"finish_reason":null}],"usage":null}`)
	raw := fmt.Appendf(nil, "data: %s\n\n", data)
	for b.Loop() {
		c, ok := readChunk(data)
		if !ok || c.content() != 5 || len(withoutQuestion(slices.Clone(raw), c)) == 0 {
			b.Fatal("not read")
		}
	}
}
