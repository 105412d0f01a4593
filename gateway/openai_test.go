package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"

	"github.com/penstockmq/penstock/consumer/reply"
)

// The official client, unmodified.
func (r *rig) openAI(opts ...option.RequestOption) *openai.Client {
	client := openai.NewClient(append([]option.RequestOption{
		option.WithBaseURL(r.url + "/v1"), option.WithAPIKey(r.secret), option.WithMaxRetries(0),
	}, opts...)...)
	return &client
}

var chatParams = openai.ChatCompletionNewParams{
	Model:    "gpt-4o",
	Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("hi")},
}

const completion = `{"id":"c1","object":"chat.completion","created":1,"model":"gpt-4o","choices":[{"index":0,` +
	`"message":{"role":"assistant","content":"hello"},"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}`

func deltaEvent(text string) []byte {
	content, _ := json.Marshal(text) // a string
	return []byte(`data: {"id":"c1","object":"chat.completion.chunk","created":1,"model":"gpt-4o",` +
		`"choices":[{"index":0,"delta":{"content":` + string(content) + `},"finish_reason":null}]}` + "\n\n")
}

func TestOpenAIClientSync(t *testing.T) {
	r := newRig(t, func(o *Options) { o.Models = []string{"gpt-4o"} })
	client := r.openAI()
	done := make(chan string, 1)
	go func() {
		c, err := client.Chat.Completions.New(t.Context(), chatParams)
		if err != nil {
			done <- err.Error()
			return
		}
		done <- c.Choices[0].Message.Content
	}()
	must(t, r.take().Answer(200, jsonHeader, []byte(completion), reply.Usage{}))
	if got := receive(t, done, "no answer"); got != "hello" {
		t.Errorf("got %q", got)
	}
	page, err := client.Models.List(t.Context())
	must(t, err)
	if len(page.Data) != 1 || page.Data[0].ID != "gpt-4o" {
		t.Errorf("models %+v", page.Data)
	}
	one, err := client.Models.Get(t.Context(), "gpt-4o")
	must(t, err)
	if one.ID != "gpt-4o" || one.OwnedBy != "penstock" {
		t.Errorf("model %+v", one)
	}
}

func TestOpenAIClientEmbeddings(t *testing.T) {
	r := newRig(t, nil)
	client := r.openAI()
	done := make(chan int, 1)
	go func() {
		e, err := client.Embeddings.New(t.Context(), openai.EmbeddingNewParams{
			Model: "embed", Input: openai.EmbeddingNewParamsInputUnion{OfString: openai.String("x")},
		})
		if err != nil {
			done <- -1
			return
		}
		done <- len(e.Data[0].Embedding)
	}()
	j := r.take()
	if j.Path != "/v1/embeddings" || j.Model != "embed" {
		t.Errorf("%+v", j.Request)
	}
	const answer = `{"object":"list","model":"embed","data":[{"object":"embedding","index":0,"embedding":[0.1,0.2]}],"usage":{"prompt_tokens":1,"total_tokens":1}}`
	must(t, j.Answer(200, jsonHeader, []byte(answer), reply.Usage{}))
	if n := receive(t, done, "no answer"); n != 2 {
		t.Errorf("%d numbers", n)
	}
}

// streamText reads a stream to its end.
func streamText(ctx context.Context, client *openai.Client) (string, error) {
	stream := client.Chat.Completions.NewStreaming(ctx, chatParams)
	defer func() { _ = stream.Close() }()
	var text strings.Builder
	for stream.Next() {
		if chunk := stream.Current(); len(chunk.Choices) > 0 {
			text.WriteString(chunk.Choices[0].Delta.Content)
		}
	}
	return text.String(), stream.Err()
}

type streamed struct {
	text string
	err  error
}

func (r *rig) stream(client *openai.Client) <-chan streamed {
	done := make(chan streamed, 1)
	go func() {
		text, err := streamText(r.t.Context(), client)
		done <- streamed{text, err}
	}()
	return done
}

// With keep-alives in front and in between, and a failure at the end of one.
func TestOpenAIClientStream(t *testing.T) {
	r := newRig(t, func(o *Options) { o.KeepAlive = 5 * time.Millisecond })
	opened := make(chan struct{}, 2)
	client := r.openAI(option.WithMiddleware(func(req *http.Request, next option.MiddlewareNext) (*http.Response, error) {
		resp, err := next(req)
		opened <- struct{}{}
		return resp, err
	}))
	for _, fail := range []bool{false, true} {
		done := r.stream(client)
		j := r.peek()
		receive(t, opened, "no keep-alive opened the stream")
		must(t, j.Head(200, sseHeader))
		must(t, j.Chunk(deltaEvent("hel")))
		must(t, j.Chunk(deltaEvent("lo")))
		if fail {
			must(t, j.Fail(reply.Failure{Status: 502, Code: "upstream_reset", Message: "connection reset"}))
		} else {
			must(t, j.Chunk([]byte("data: [DONE]\n\n")))
			must(t, j.End(reply.Usage{}))
		}
		got := receive(t, done, "no answer")
		if got.text != "hello" || (got.err != nil) != fail {
			t.Errorf("fail %v: %q, %v", fail, got.text, got.err)
		}
		if fail && !strings.Contains(got.err.Error(), "connection reset") {
			t.Errorf("error %v", got.err)
		}
	}
}

func TestOpenAIClientErrors(t *testing.T) {
	r := newRig(t, func(o *Options) {
		o.Models = []string{"gpt-4o"}
		policyOf(t, `  - {user: "*", model: "*", window: 1/24h}`)(o)
	})
	check := func(err error, status int, code string) {
		t.Helper()
		var apiErr *openai.Error
		if !errors.As(err, &apiErr) || apiErr.StatusCode != status || apiErr.Code != code || apiErr.Message == "" {
			t.Errorf("error %#v, want %d %s", err, status, code)
		}
	}
	_, err := r.openAI(option.WithAPIKey("sk-wrong")).Chat.Completions.New(t.Context(), chatParams)
	check(err, 401, "invalid_api_key")
	unknown := chatParams
	unknown.Model = "other"
	_, err = r.openAI().Chat.Completions.New(t.Context(), unknown)
	check(err, 404, "model_not_found")

	// A deadline, of a stream too: nothing was sent, so it has its status.
	_, err = streamText(t.Context(), r.openAI(option.WithHeader("X-Request-Timeout", "500ms")))
	check(err, 504, "request_timeout")
	_, err = streamText(t.Context(), r.openAI())
	check(err, 429, "rate_limit_exceeded")
}
