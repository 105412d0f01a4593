package test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"

	"github.com/penstockmq/penstock/cmd/mockmodel"
)

// Both ways of speaking to the broker have to serve an OpenAI SDK the same.
func TestOpenAISync(t *testing.T) {
	t.Parallel()
	for _, adapter := range []string{"stubs", "official"} {
		t.Run(adapter, func(t *testing.T) {
			s := up(t, setup{args: []string{"--adapter", adapter}})
			client, direct := s.ask("alice"), s.stub.direct()

			var resp *http.Response
			got, err := client.Chat.Completions.New(t.Context(), chat("hello"), option.WithResponseInto(&resp))
			must(t, err)
			want, err := direct.Chat.Completions.New(t.Context(), chat("hello"))
			must(t, err)
			if got.RawJSON() != want.RawJSON() {
				t.Errorf("chat: got %s, the model itself answers %s", got.RawJSON(), want.RawJSON())
			}
			if id := resp.Header.Get("X-Request-Id"); id == "" || id != s.stub.Calls(0)[0].RequestID {
				t.Errorf("request id %q, that of the model's call is %q", id, s.stub.Calls(0)[0].RequestID)
			}
			if _, err := strconv.ParseUint(resp.Header.Get("X-Queue-Time-Ms"), 10, 63); err != nil {
				t.Errorf("time queued: %v", err)
			}
			if user := s.stub.Calls(0)[0].User; user != "alice" {
				t.Errorf("the model saw user %q", user)
			}

			text := openai.CompletionNewParams{Model: model, Prompt: openai.CompletionNewParamsPromptUnion{OfString: openai.String("once")}}
			gotText, err := client.Completions.New(t.Context(), text)
			must(t, err)
			wantText, err := direct.Completions.New(t.Context(), text)
			must(t, err)
			if gotText.RawJSON() != wantText.RawJSON() {
				t.Errorf("completion: got %s, want %s", gotText.RawJSON(), wantText.RawJSON())
			}

			embed := openai.EmbeddingNewParams{Model: model, Input: openai.EmbeddingNewParamsInputUnion{OfArrayOfStrings: []string{"a", "b"}}}
			gotVectors, err := client.Embeddings.New(t.Context(), embed)
			must(t, err)
			wantVectors, err := direct.Embeddings.New(t.Context(), embed)
			must(t, err)
			if gotVectors.RawJSON() != wantVectors.RawJSON() || len(gotVectors.Data) != 2 {
				t.Errorf("embeddings: got %s, want %s", gotVectors.RawJSON(), wantVectors.RawJSON())
			}

			models, err := client.Models.List(t.Context())
			must(t, err)
			if len(models.Data) != 1 || models.Data[0].ID != model {
				t.Errorf("models: %s", models.RawJSON())
			}

			// The same over a stream, and many at once: none may get another's answer.
			if got, want := chunks(t, client, "stream"), chunks(t, direct, "stream"); !slices.Equal(got, want) {
				t.Errorf("chunks: got %q, want %q", got, want)
			}
			const many = 40
			answers := make([]<-chan answer, many)
			for i := range answers {
				answers[i] = s.begin(t.Context(), users[i%len(users)], "number "+strconv.Itoa(i))
			}
			for i, c := range answers {
				got := await(t, c, "answer")
				want, err := direct.Chat.Completions.New(t.Context(), chat("number "+strconv.Itoa(i)))
				must(t, err)
				if got.err != nil || got.text != want.Choices[0].Message.Content {
					t.Errorf("request %d: %q, %v; want %q", i, got.text, got.err, want.Choices[0].Message.Content)
				}
			}
			if s.stop() != 0 {
				t.Errorf("exit: %v", s.err)
			}
		})
	}
}

// chunks reads a stream to its end.
func chunks(t *testing.T, client *openai.Client, text string) []string {
	t.Helper()
	params := chat(text)
	params.StreamOptions.IncludeUsage = openai.Bool(true)
	stream := client.Chat.Completions.NewStreaming(t.Context(), params)
	defer stream.Close()
	var all []string
	for stream.Next() {
		all = append(all, stream.Current().RawJSON())
	}
	must(t, stream.Err())
	if len(all) < 3 {
		t.Fatalf("%d chunks", len(all))
	}
	return all
}

// TestOpenAIStreamQueued has a caller read a stream whose request waits in its bucket:
// the comments that keep the connection alive are not for it to see.
func TestOpenAIStreamQueued(t *testing.T) {
	t.Parallel()
	s := up(t, setup{args: []string{"--keep-alive", "100ms"}})
	s.stub.on("", func(b *mockmodel.Behaviour) { b.Interval = mockmodel.Duration(20 * time.Millisecond) })
	lift := s.hold("alice")
	got := make(chan []string, 1)
	go func() { got <- chunks(t, s.ask("alice"), "slow") }()
	s.waitMetric("penstock_gateway_queued_requests", 1)
	watch(t, enough, func() bool { return s.metric("penstock_gateway_keepalives_total") >= 3 },
		func() string { return "no keep-alives" })
	if calls := s.stub.Stats().Calls; calls != 0 {
		t.Errorf("a bucket that is held let %d requests out", calls)
	}
	lift()
	if got, want := await(t, got, "stream"), chunks(t, s.stub.direct(), "slow"); !slices.Equal(got, want) {
		t.Errorf("chunks: got %q, want %q", got, want)
	}
}

// document is what a caller sees of an asynchronous request that has not ended.
type document struct {
	ID    string `json:"id"`
	State string `json:"state"`
	Error *struct {
		Code string `json:"code"`
	} `json:"error"`
}

// async starts an asynchronous chat completion and returns its URL below /v1/.
func (s *system) async(user, text string) (path string, d document) {
	s.t.Helper()
	var resp *http.Response
	err := s.ask(user).Post(s.t.Context(), "chat/completions", chat(text), &d,
		option.WithHeader("Prefer", "respond-async"), option.WithResponseInto(&resp))
	must(s.t, err)
	if resp.StatusCode != http.StatusAccepted {
		s.t.Fatalf("async: %s", resp.Status)
	}
	path, ok := strings.CutPrefix(resp.Header.Get("Location"), "/v1/")
	if !ok || path != "requests/"+d.ID {
		s.t.Fatalf("async: location %q, id %q", resp.Header.Get("Location"), d.ID)
	}
	return path, d
}

// state reads an asynchronous request: its document, or the result and a nil document.
func (s *system) state(user, path string) (d *document, result *openai.ChatCompletion, err error) {
	var resp *http.Response
	var raw json.RawMessage
	if err := s.ask(user).Get(s.t.Context(), path, nil, &raw, option.WithResponseInto(&resp)); err != nil {
		return nil, nil, err
	}
	if resp.StatusCode == http.StatusAccepted {
		d = new(document)
		return d, nil, json.Unmarshal(raw, d)
	}
	result = new(openai.ChatCompletion)
	return nil, result, result.UnmarshalJSON(raw)
}

func TestOpenAIAsync(t *testing.T) {
	t.Parallel()
	s := up(t, setup{})
	running := make(chan struct{})
	s.stub.AddRule(mockmodel.Rule{Contains: "later", Times: 1, Apply: func(b *mockmodel.Behaviour) {
		b.Delay = mockmodel.Duration(2 * time.Second)
		close(running)
	}})
	lift := s.hold("alice")
	path, d := s.async("alice", "later")
	if d.State != "queued" {
		t.Errorf("state %q, want queued", d.State)
	}
	inState := func(want string) {
		t.Helper()
		d, _, err := s.state("alice", path)
		must(t, err)
		if d == nil || d.State != want {
			t.Errorf("%+v, want state %s", d, want)
		}
	}
	inState("queued")
	if _, _, err := s.state("bob", path); code(err) != "request_not_found" {
		t.Errorf("another user reads it: %v", err)
	}
	lift()
	await(t, running, "call")
	inState("running")
	var result *openai.ChatCompletion
	watch(t, enough, func() bool {
		var err error
		_, result, err = s.state("alice", path)
		must(t, err)
		return result != nil
	}, func() string { return "no result" })
	want, err := s.stub.direct().Chat.Completions.New(t.Context(), chat("later"))
	must(t, err)
	if result.RawJSON() != want.RawJSON() {
		t.Errorf("result %s, want %s", result.RawJSON(), want.RawJSON())
	}
	if _, again, err := s.state("alice", path); err != nil || again == nil || again.RawJSON() != result.RawJSON() {
		t.Errorf("a second read: %v", err)
	}
}

// code is the code of an error in OpenAI's shape.
func code(err error) string {
	if refused, ok := errors.AsType[*openai.Error](err); ok {
		return refused.Code
	}
	return ""
}

// TestOpenAICancelQueued takes requests out of a bucket that is held: by a caller that
// goes away, and by a DELETE. The bucket then opens, and only what was sent after them
// reaches the model.
func TestOpenAICancelQueued(t *testing.T) {
	t.Parallel()
	s := up(t, setup{})
	lift := s.hold("alice")
	ctx, cancel := context.WithCancel(t.Context())
	left := s.begin(ctx, "alice", "left")
	s.waitMetric("penstock_broker_messages", 1)
	path, _ := s.async("alice", "deleted")
	s.waitMetric("penstock_broker_messages", 2)

	cancel()
	if a := await(t, left, "call that was left"); !errors.Is(a.err, context.Canceled) {
		t.Errorf("%+v", a)
	}
	s.waitMetric("penstock_broker_messages", 1)
	var d document
	must(t, s.ask("alice").Delete(t.Context(), path, nil, &d))
	if d.State != "cancelled" {
		t.Errorf("state %q, want cancelled", d.State)
	}
	s.waitMetric("penstock_broker_messages", 0)
	if _, _, err := s.state("alice", path); code(err) != "request_cancelled" {
		t.Errorf("a read after it: %v", err)
	}
	lift()
	s.succeeds("alice", "after them")
	if calls := s.stub.Calls(0); len(calls) != 1 {
		t.Errorf("the model was called %d times, want once: %+v", len(calls), calls)
	}
	s.metrics(map[string]float64{
		"penstock_broker_recalled_total": 2, "penstock_gateway_recalled_total": 2,
		"penstock_gateway_queued_requests": 0, "penstock_broker_dead_letters_total": 0,
	})
}

// TestOpenAICancelRunning ends requests at their model, whose connection closes. The
// callers that go away are TestC64's.
func TestOpenAICancelRunning(t *testing.T) {
	t.Parallel()
	s := up(t, setup{})
	s.stub.on("hang", func(b *mockmodel.Behaviour) { b.Fault = mockmodel.FaultHang })
	path, _ := s.async("alice", "hang")
	s.stub.wait("call", open(1))
	var d document
	must(t, s.ask("alice").Delete(t.Context(), path, nil, &d))
	if d.State != "cancelled" {
		t.Errorf("state %q, want cancelled", d.State)
	}
	s.stub.wait("connection closed", func(st mockmodel.Stats) bool { return st.Open == 0 && st.Aborted == 1 })
	s.waitMetric("penstock_broker_messages", 0)
	if _, _, err := s.state("alice", path); code(err) != "request_cancelled" {
		t.Errorf("a read after it: %v", err)
	}
	s.succeeds("alice", "after it")
	s.metrics(map[string]float64{
		"penstock_pool_cancelled_total": 1, "penstock_pool_dead_total": 0, "penstock_pool_retried_total": 0,
		"penstock_broker_redeliveries_total": 0, "penstock_broker_dead_letters_total": 0,
	})
}

func TestOpenAIDeadline(t *testing.T) {
	t.Parallel()
	s := up(t, setup{})
	lift := s.hold("alice")
	const deadline = 500 * time.Millisecond
	for _, value := range []string{"0.5", "500ms"} {
		a := s.complete(t.Context(), "alice", "too late", option.WithHeader("X-Request-Timeout", value))
		if a.status != http.StatusGatewayTimeout || a.code != "request_timeout" || a.kind != "timeout_error" {
			t.Errorf("timeout %s: %+v", value, a)
		}
		if a.took < deadline || a.took > deadline+slack {
			t.Errorf("timeout %s: answered after %v", value, a.took)
		}
		if a.header.Get("X-Request-Id") == "" || a.header.Get("X-Queue-Time-Ms") == "" {
			t.Errorf("timeout %s: header %v", value, a.header)
		}
	}
	path, _ := s.async("alice", "in time")
	lift()
	watch(t, enough, func() bool { _, result, _ := s.state("alice", path); return result != nil },
		func() string { return "no result" })
	if calls := s.stub.Stats().Calls; calls != 1 {
		t.Errorf("%d calls, want only the one without a deadline", calls)
	}

	// A model that is too slow is cut off at the deadline as well.
	s.stub.on("slow", func(b *mockmodel.Behaviour) { b.Fault = mockmodel.FaultHang })
	a := s.complete(t.Context(), "alice", "slow", option.WithHeader("X-Request-Timeout", "500ms"))
	if a.status != http.StatusGatewayTimeout || a.took < deadline {
		t.Errorf("slow model: %+v", a)
	}
	s.stub.wait("connection closed", func(st mockmodel.Stats) bool { return st.Open == 0 && st.Aborted == 1 })
	s.waitMetric("penstock_broker_messages", 0)
	s.metrics(map[string]float64{"penstock_pool_retried_total": 0, "penstock_broker_dead_letters_total": 0})
}

// retryAfter reads the header of a refusal, which is whole seconds from 1.
func retryAfter(t *testing.T, a answer) time.Duration {
	t.Helper()
	seconds, err := strconv.Atoi(a.header.Get("Retry-After"))
	if err != nil || seconds < 1 {
		t.Fatalf("Retry-After %q of %+v, want a number from 1", a.header.Get("Retry-After"), a)
	}
	return time.Duration(seconds) * time.Second
}

// TestOpenAIHardCap meets the fixed window: 429, and a retry when it says so passes.
func TestOpenAIHardCap(t *testing.T) {
	t.Parallel()
	s := up(t, setup{limits: "  - {user: alice, model: " + model + ", window: 2/3s}\n"})
	var refused answer
	for n := 0; refused.status != http.StatusTooManyRequests; n++ {
		if n > 4 { // the window may end once in between
			t.Fatalf("%d requests passed a window of 2", n)
		}
		refused = s.complete(t.Context(), "alice", "again")
	}
	at := time.Now()
	if refused.code != "rate_limit_exceeded" || refused.kind != "rate_limit_error" {
		t.Errorf("%+v", refused)
	}
	calls := s.stub.Stats().Calls
	s.succeeds("bob", "is not limited")
	until(t, at.Add(retryAfter(t, refused)))
	s.succeeds("alice", "retry")
	if got := s.stub.Stats().Calls; got != calls+2 {
		t.Errorf("%d calls, want %d: the refused one is among them", got, calls+2)
	}
}

// TestOpenAIFullBucket meets the rim of a bucket that drains at one a second: 429, and
// a retry when it says so has a place.
func TestOpenAIFullBucket(t *testing.T) {
	t.Parallel()
	s := up(t, setup{limits: "  - {user: alice, model: " + model + ", rate: 1/1s, depth: 2}\n"})
	var accepted []<-chan answer
	var refused answer
	for n := 0; refused.status != http.StatusTooManyRequests; n++ {
		if n > 9 { // one leaves in a second; nobody is so slow
			t.Fatal("the bucket does not fill")
		}
		a := s.begin(t.Context(), "alice", "one of many")
		accepted = append(accepted, a)
		watch(t, enough, func() bool {
			select {
			case refused = <-a:
				return true
			default:
				return s.metric("penstock_gateway_accepted_total") >= float64(n+1)
			}
		}, func() string { return "neither accepted nor refused" })
		if refused.err == nil {
			refused = answer{} // it went through at once
			accepted[n] = nil
		}
	}
	at := time.Now()
	accepted = accepted[:len(accepted)-1]
	if refused.code != "queue_full" || refused.kind != "rate_limit_error" {
		t.Errorf("%+v", refused)
	}
	until(t, at.Add(retryAfter(t, refused)))
	s.succeeds("alice", "retry")
	for _, c := range accepted {
		if c == nil {
			continue
		}
		if a := await(t, c, "one of many"); a.err != nil {
			t.Errorf("a request that was accepted: %v", a.err)
		}
	}
}

// TestOpenAIErrors has the errors that a caller makes, as the SDK reads them.
func TestOpenAIErrors(t *testing.T) {
	t.Parallel()
	s := up(t, setup{args: []string{"--max-body", "4KiB"}})
	raw := func(body string) func(context.Context, *openai.Client) error {
		return func(ctx context.Context, c *openai.Client) error {
			return c.Post(ctx, "chat/completions", nil, nil, option.WithRequestBody("application/json", []byte(body)))
		}
	}
	ask := func(name string, opts ...option.RequestOption) func(context.Context, *openai.Client) error {
		return func(ctx context.Context, c *openai.Client) error {
			params := chat("hello")
			params.Model = name
			_, err := c.Chat.Completions.New(ctx, params, opts...)
			return err
		}
	}
	for _, c := range []struct {
		name   string
		call   func(context.Context, *openai.Client) error
		status int
		code   string
		kind   string
		param  string
	}{
		{"bad key", ask(model, option.WithAPIKey("sk-penstock-guess")), 401, "invalid_api_key", "authentication_error", ""},
		{"no key", ask(model, option.WithHeaderDel("Authorization")), 401, "missing_api_key", "authentication_error", ""},
		{"unknown model", ask("other"), 404, "model_not_found", "invalid_request_error", "model"},
		{"wildcard model", ask("*"), 400, "invalid_value", "invalid_request_error", "model"},
		{"bad JSON", raw(`{"model": "m", "messages": [`), 400, "invalid_json", "invalid_request_error", "messages"},
		{"no JSON", raw(`hello`), 400, "invalid_json", "invalid_request_error", ""},
		{"no model", raw(`{"messages": []}`), 400, "missing_required_parameter", "invalid_request_error", "model"},
		{"large body", raw(`{"model": "m", "x": "` + strings.Repeat("x", 5<<10) + `"}`), 413, "request_too_large", "invalid_request_error", ""},
		{"bad timeout", ask(model, option.WithHeader("X-Request-Timeout", "soon")), 400, "invalid_request_timeout", "invalid_request_error", "X-Request-Timeout"},
		{
			"unknown URL", func(ctx context.Context, c *openai.Client) error { return c.Get(ctx, "files", nil, nil) },
			404, "unknown_url", "invalid_request_error", "",
		},
		{
			"wrong method", func(ctx context.Context, c *openai.Client) error { return c.Get(ctx, "chat/completions", nil, nil) },
			405, "method_not_allowed", "invalid_request_error", "",
		},
		{
			"unknown request", func(ctx context.Context, c *openai.Client) error { return c.Get(ctx, "requests/req_none", nil, nil) },
			404, "request_not_found", "invalid_request_error", "id",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			var e *openai.Error
			if err := c.call(t.Context(), s.ask("alice")); !errors.As(err, &e) {
				t.Fatalf("the SDK reads %v, want an API error", err)
			}
			if e.StatusCode != c.status || e.Code != c.code || e.Type != c.kind || e.Param != c.param || e.Message == "" {
				t.Errorf("%d %q %q %q %q, want %d %q %q %q", e.StatusCode, e.Code, e.Type, e.Param, e.Message, c.status, c.code, c.kind, c.param)
			}
			if e.Response.Header.Get("X-Request-Id") == "" || e.Response.Header.Get("X-Queue-Time-Ms") != "0" {
				t.Errorf("header %v", e.Response.Header)
			}
		})
	}
	if calls := s.stub.Stats().Calls; calls != 0 {
		t.Errorf("%d calls reached the model", calls)
	}
	s.metrics(map[string]float64{"penstock_broker_sends_total": 0})
}

// TestOpenAIKeyCommand makes a key while the gateway runs; it lets its user in, and no
// restart was needed.
func TestOpenAIKeyCommand(t *testing.T) {
	t.Parallel()
	s := up(t, setup{})
	s.keys["carol"] = strings.TrimSpace(run(t, "keys", "create", "--user", "carol", "--keys", s.file("keys.yaml")))
	watch(t, enough, func() bool { return s.complete(t.Context(), "carol", "hello").err == nil },
		func() string { return "the new key is refused" })
	if user := s.stub.Calls(0)[0].User; user != "carol" {
		t.Errorf("the model saw user %q", user)
	}
}
