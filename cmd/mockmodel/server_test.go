package mockmodel

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
)

func newServer(t *testing.T, opts Options) (*Server, *httptest.Server) {
	t.Helper()
	s, err := New(opts)
	if err != nil {
		t.Fatal(err)
	}
	h := httptest.NewServer(s)
	t.Cleanup(h.Close)
	return s, h
}

func client(h *httptest.Server, opts ...option.RequestOption) openai.Client {
	return openai.NewClient(append([]option.RequestOption{
		option.WithBaseURL(h.URL + "/v1"), option.WithAPIKey("k"), option.WithMaxRetries(0),
	}, opts...)...)
}

func question(model string) openai.ChatCompletionNewParams {
	return openai.ChatCompletionNewParams{
		Model: model, User: openai.String("u"),
		Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("how fast?")},
	}
}

func TestOpenAIClientUnderstands(t *testing.T) {
	s, h := newServer(t, Options{Models: []string{"m", "n"}, Key: "k"})
	c := client(h)
	ctx := t.Context()

	chat, err := c.Chat.Completions.New(ctx, question("m"))
	if err != nil {
		t.Fatal(err)
	}
	text := chat.Choices[0].Message.Content
	if len(strings.Fields(text)) != 16 || chat.Choices[0].FinishReason != "stop" || chat.Usage.CompletionTokens != 16 {
		t.Errorf("chat: %q, %+v", text, chat.Usage)
	}
	again, err := c.Chat.Completions.New(ctx, question("m"))
	if err != nil || again.Choices[0].Message.Content != text || again.ID != chat.ID {
		t.Errorf("the same request got %q, %v", again.Choices[0].Message.Content, err)
	}

	params := question("m")
	params.StreamOptions.IncludeUsage = openai.Bool(true)
	params.MaxTokens = openai.Int(5)
	stream := c.Chat.Completions.NewStreaming(ctx, params)
	var acc openai.ChatCompletionAccumulator
	for stream.Next() {
		acc.AddChunk(stream.Current())
	}
	if err := stream.Err(); err != nil {
		t.Fatal(err)
	}
	if len(strings.Fields(acc.Choices[0].Message.Content)) != 5 || acc.Choices[0].FinishReason != "length" || acc.Usage.CompletionTokens != 5 {
		t.Errorf("stream: %+v", acc.ChatCompletion)
	}

	completion, err := c.Completions.New(ctx, openai.CompletionNewParams{Model: "m"})
	if err != nil || len(strings.Fields(completion.Choices[0].Text)) != 16 {
		t.Errorf("completion: %+v, %v", completion, err)
	}
	embedding, err := c.Embeddings.New(ctx, openai.EmbeddingNewParams{
		Model: "n", Input: openai.EmbeddingNewParamsInputUnion{OfArrayOfStrings: []string{"a", "b"}},
	})
	if err != nil || len(embedding.Data) != 2 || len(embedding.Data[1].Embedding) != 8 {
		t.Errorf("embeddings: %+v, %v", embedding, err)
	}
	models, err := c.Models.List(ctx)
	if err != nil || len(models.Data) != 2 {
		t.Errorf("models: %+v, %v", models, err)
	}
	if _, err := c.Chat.Completions.New(ctx, question("other")); status(err) != http.StatusNotFound {
		t.Errorf("unknown model: %v", err)
	}
	if _, err := c.Chat.Completions.New(ctx, question("m"), option.WithAPIKey("l")); status(err) != http.StatusUnauthorized {
		t.Errorf("wrong key: %v", err)
	}

	stats, calls := s.Stats(), s.Calls(0)
	if stats.Calls != 7 || stats.Answered != 5 || stats.Refused != 2 || stats.Open != 0 || stats.Models["m"] != 5 {
		t.Errorf("stats %+v", stats)
	}
	first := calls[0]
	if first.User != "u" || first.Model != "m" || first.BodyHash != calls[1].BodyHash || first.BodyBytes == 0 ||
		first.State != StateAnswered || first.Status != 200 || !calls[2].Stream || calls[2].Events != 8 {
		t.Errorf("calls %+v", calls[:3])
	}
}

func status(err error) int {
	if e, ok := errors.AsType[*openai.Error](err); ok {
		return e.StatusCode
	}
	return 0
}

func TestFaults(t *testing.T) {
	events := func(n int) string { return fmt.Sprintf("%d events", n) }
	for _, tt := range []struct {
		fault  Fault
		stream bool
		want   string
	}{
		{FaultStatus, false, "503"},
		{FaultStatus, true, "503"},
		{FaultRefuse, false, "no answer"},
		{FaultRefuse, true, "no answer"},
		{FaultReset, false, "200, broken off"},
		{FaultReset, true, "200, broken off after " + events(3)},
		{FaultNoEnd, false, "200, not JSON"},
		{FaultNoEnd, true, "200, " + events(3)},
		{FaultBroken, false, "200, not JSON"},
		{FaultBroken, true, "200, " + events(4)},
		{FaultBareError, true, "200, " + events(3) + " and engine_dead"},
		{FaultErrorEvent, true, "200, " + events(5) + " and engine_dead"},
	} {
		t.Run(fmt.Sprintf("%s stream=%v", tt.fault, tt.stream), func(t *testing.T) {
			s, h := newServer(t, Options{})
			body := fmt.Sprintf(`{"model":"m","stream":%v}`, tt.stream)
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, h.URL+"/v1/chat/completions", strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("X-Mock-Fault", string(tt.fault))
			req.Header.Set("X-Mock-Status", "503")
			if got := describe(h.Client().Do(req)); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
			want := StateFaulted
			if tt.fault == FaultStatus {
				want = StateRefused
			}
			// The caller may know of the end before the server has written it down.
			ended := func(st Stats) bool { return st.Open == 0 }
			if err := s.Wait(t.Context(), ended); err != nil {
				t.Fatal(err)
			}
			if c := s.Calls(0)[0]; c.State != want {
				t.Errorf("recorded as %s, want %s", c.State, want)
			}
		})
	}
}

// describe says in words what an answer was.
func describe(resp *http.Response, err error) string {
	if err != nil {
		return "no answer"
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Sprint(resp.StatusCode)
	}
	body, err := io.ReadAll(resp.Body)
	out := "200, "
	stream := resp.Header.Get("Content-Type") == "text/event-stream"
	switch {
	case err != nil && stream:
		return out + fmt.Sprintf("broken off after %d events", strings.Count(string(body), "data: "))
	case err != nil:
		return out + "broken off"
	case stream:
		out += fmt.Sprintf("%d events", strings.Count(string(body), "data: "))
	case !json.Valid(body):
		return out + "not JSON"
	}
	if strings.Contains(string(body), "engine_dead") {
		out += " and engine_dead"
	}
	return out
}

// pipes serves s over connections in memory, for tests on a fake clock.
func pipes(t *testing.T, s *Server) *http.Client {
	t.Helper()
	l := &pipeListener{conns: make(chan net.Conn), closed: make(chan struct{})}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, l) }()
	transport := &http.Transport{DialContext: l.dial}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return &http.Client{Transport: transport}
}

type pipeListener struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (l *pipeListener) dial(context.Context, string, string) (net.Conn, error) {
	here, there := net.Pipe()
	select {
	case l.conns <- there:
		return here, nil
	case <-l.closed:
		return nil, net.ErrClosed
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

func post(ctx context.Context, c *http.Client, body string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://mock/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	return c.Do(req)
}

func TestTiming(t *testing.T) {
	how := DefaultBehaviour()
	how.Delay, how.FirstToken, how.Interval, how.Tokens = Duration(time.Second), Duration(100*time.Millisecond), Duration(10*time.Millisecond), 5
	for _, stream := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s, err := New(Options{Behaviour: how})
			if err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			resp, err := post(t.Context(), pipes(t, s), fmt.Sprintf(`{"model":"m","stream":%v}`, stream))
			if err != nil {
				t.Fatal(err)
			}
			if stream && time.Since(began) != time.Second {
				t.Errorf("status after %v, want 1s", time.Since(began))
			}
			_, err = io.ReadAll(resp.Body)
			if want := 1140 * time.Millisecond; err != nil || time.Since(began) != want {
				t.Errorf("stream=%v took %v, %v, want %v", stream, time.Since(began), err, want)
			}
			_ = resp.Body.Close()
		})
	}
}

func TestCapacity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		how := DefaultBehaviour()
		how.Delay, how.RetryAfter = Duration(time.Second), Duration(1500*time.Millisecond)
		s, err := New(Options{Behaviour: how, Capacity: 2, BusyStatus: http.StatusServiceUnavailable})
		if err != nil {
			t.Fatal(err)
		}
		c := pipes(t, s)
		codes := make(chan int, 3)
		for range 3 {
			go func() {
				resp, err := post(t.Context(), c, `{"model":"m"}`)
				if err != nil {
					t.Error(err)
					codes <- 0
					return
				}
				_ = resp.Body.Close()
				if resp.StatusCode != 200 && (resp.Header.Get("Retry-After") != "2" || resp.Header.Get("Retry-After-Ms") != "1500") {
					t.Errorf("headers of a full server: %v", resp.Header)
				}
				codes <- resp.StatusCode
			}()
		}
		got := map[int]int{<-codes: 1}
		got[<-codes]++
		got[<-codes]++
		if got[200] != 2 || got[503] != 1 {
			t.Errorf("answers %v", got)
		}
		if st := s.Stats(); st.MaxOpen != 2 || st.Full != 1 || st.Open != 0 {
			t.Errorf("stats %+v", st)
		}
	})
}

func TestCallerLeaves(t *testing.T) {
	for _, stream := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			how := DefaultBehaviour()
			how.FirstToken = Duration(20 * time.Second)
			s, err := New(Options{Behaviour: how})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			resp, err := post(ctx, pipes(t, s), fmt.Sprintf(`{"model":"m","stream":%v}`, stream))
			if err == nil {
				_, err = io.ReadAll(resp.Body)
				_ = resp.Body.Close()
			}
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Fatalf("got %v", err)
			}
			synctest.Wait()
			c := s.Calls(0)[0]
			if c.State != StateAborted || c.Ended.Sub(c.Began) != time.Second {
				t.Errorf("stream=%v: %s after %v", stream, c.State, c.Ended.Sub(c.Began))
			}
		})
	}
}

func TestHistoryIsBounded(t *testing.T) {
	s, h := newServer(t, Options{History: 3})
	for range 5 {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, h.URL+"/", strings.NewReader("x"))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := h.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
	}
	calls := s.Calls(0)
	if len(calls) != 3 || calls[0].Number != 3 || s.Stats().Calls != 5 || len(s.Calls(4)) != 1 {
		t.Errorf("kept %+v", calls)
	}
}

func TestControl(t *testing.T) {
	s, h := newServer(t, Options{})
	do := func(method, path, body string) (int, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, h.URL+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := h.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(text)
	}
	for _, tt := range []struct {
		method, path, body string
		code               int
		says               string
	}{
		{"PATCH", "/control/behaviour", `{"tokens":3,"delay":"1ms"}`, 200, `"tokens":3`},
		{"GET", "/control/behaviour", "", 200, `"delay":"1ms"`},
		{"PATCH", "/control/behaviour", `{"token":3}`, 400, "token"},
		{"PATCH", "/control/behaviour", `{"delay":"-1s"}`, 400, "negative"},
		{"PATCH", "/control/behaviour", `{"fault":"fire"}`, 400, "fault"},
		{"POST", "/control/rules", `{"model":"m","times":1,"set":{"fault":"status","status":418}}`, 204, ""},
		{"POST", "/control/rules", `{"contains":"poison","set":{"fault":"status","status":422}}`, 204, ""},
		{"POST", "/control/rules", `{"set":{"speed":1}}`, 400, "speed"},
		{"POST", "/v1/chat/completions", `{"model":"m"}`, 418, "mock_fault"},
		{"POST", "/v1/chat/completions", `{"model":"m"}`, 200, `"completion_tokens":3`},
		{"POST", "/v1/chat/completions", `{"model":"m","x":"poison"}`, 422, "mock_fault"},
		{"POST", "/v1/chat/completions", `not JSON`, 400, "invalid_json"},
		{"GET", "/control/stats", "", 200, `"refused":3`},
		{"GET", "/control/calls?after=2", "", 200, `"number":3`},
		{"GET", "/control/calls?after=x", "", 400, "after"},
		{"DELETE", "/control/rules", "", 204, ""},
		{"POST", "/v1/chat/completions", `{"x":"poison"}`, 200, ""},
		{"POST", "/control/reset", "", 204, ""},
		{"GET", "/control/stats", "", 200, `"calls":0`},
	} {
		code, text := do(tt.method, tt.path, tt.body)
		if code != tt.code || !strings.Contains(text, tt.says) {
			t.Errorf("%s %s %s: %d %s, want %d and %q", tt.method, tt.path, tt.body, code, text, tt.code, tt.says)
		}
	}
	if len(s.Calls(0)) != 0 {
		t.Error("calls after a reset")
	}
}

func TestOptionsAreChecked(t *testing.T) {
	for name, opts := range map[string]Options{
		"busy_status": {BusyStatus: 500},
		"capacity":    {Capacity: -1},
		"status":      {Behaviour: Behaviour{Tokens: 1, Status: 200}},
		"fault":       {Behaviour: Behaviour{Status: 500, Fault: "x"}},
	} {
		if _, err := New(opts); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
