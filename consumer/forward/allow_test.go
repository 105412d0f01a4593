package forward

import (
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/penstockmq/penstock/consumer/reply"
)

// seen is an upstream that notes each request.
type seen struct{ requests []*http.Request }

func (s *seen) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.requests = append(s.requests, r)
	w.Header().Set("Content-Type", "application/json")
	_, _ = io.WriteString(w, "{}")
}

// Any producer of the broker can set method, path and content type of a request that carries the platform's key.
func TestOnlyListedEndpointsGetTheKey(t *testing.T) {
	for _, tt := range []struct{ method, path string }{
		{"DELETE", "/v1/files/file-1"},
		{"GET", "/v1/organization/users"},
		{"GET", "/v1/chat/completions"},
		{"post", "/v1/chat/completions"},
		{"POST ", "/v1/chat/completions"},
		{"CONNECT", "/v1/chat/completions"},
		{"GET / HTTP/1.1\r\nX: y", "/v1/chat/completions"},
		{"", "/v1/responses"},
		{"", "/../../admin"},
		{"", "/v1/../admin"},
		{"", "/v1/chat/completions/../../files"},
		{"", "/v1/%2e%2e/%2e%2e/admin"},
		{"", "/v1/chat%2Fcompletions"},
		{"", "/v1/chat/completions?api=1"},
		{"", "/v1/chat/completions#f"},
		{"", "/v1/chat/completions\r\nX: y"},
		{"", "/v1//chat/completions"},
		{"", "//evil.example/v1/chat/completions"},
		{"", "http://evil.example/v1/chat/completions"},
		{"", "v1/chat/completions"},
		{"", "/v1/chat/completions/"},
		{"", "/V1/chat/completions"},
		{"", "/chat/completions"},
		{"", " /v1/chat/completions"},
		{"", "."},
		{"", "/"},
		{"GET", ""},
	} {
		model := &seen{}
		r := chat(false)
		r.Method, r.Path = tt.method, tt.path
		var s sink
		o := serve(t, model, HTTPOptions{Key: "secret"}).Forward(t.Context(), r, &s)
		if o.Kind != Failed || o.Retry || !o.Unsent || o.Failure.Status != 403 || o.Failure.Code != CodeNotAllowed || !s.untouched() {
			t.Errorf("%q %q: %+v", tt.method, tt.path, o)
		}
		if o.Feedback() != Silent {
			t.Errorf("%q %q: feedback %v of an upstream that was not asked", tt.method, tt.path, o.Feedback())
		}
		if n := len(model.requests); n != 0 {
			t.Errorf("%q %q: %d calls", tt.method, tt.path, n)
		}
	}
}

func TestWhatAGatewaySendsIsAllowedByDefault(t *testing.T) {
	for _, path := range append(reply.Paths(), "") {
		for _, method := range []string{"", "POST"} {
			model := &seen{}
			r := chat(false)
			r.Method, r.Path = method, path
			if o := serve(t, model, HTTPOptions{}).Forward(t.Context(), r, &sink{}); o.Kind != Done || len(model.requests) != 1 {
				t.Errorf("%q %q: %+v, %d calls", method, path, o, len(model.requests))
			}
		}
	}
}

func TestAllowReplacesTheDefault(t *testing.T) {
	model := &seen{}
	d := serve(t, model, HTTPOptions{Allow: []string{"GET /v1/models", "POST /v1/responses"}})
	for endpoint, want := range map[string]Kind{
		"GET /v1/models": Done, "POST /v1/responses": Done, "POST /v1/models": Failed, "POST /v1/chat/completions": Failed, "POST ": Failed,
	} {
		r := chat(false)
		r.Method, r.Path, _ = strings.Cut(endpoint, " ")
		if o := d.Forward(t.Context(), r, &sink{}); o.Kind != want {
			t.Errorf("%s: %+v", endpoint, o)
		}
	}
}

func TestCheckAllow(t *testing.T) {
	for entry, valid := range map[string]bool{
		"POST": true, "GET /v1/models": true, "DELETE /v1/files/file-1": true, "GET /": true,
		"": false, "post /v1/x": false, "POST  /v1/x": false, "POST v1/x": false, "POST /v1/../x": false, "POST /v1//x": false,
		"POST /v1/x/": false, "POST /v1/%2e": false, "POST /v1/x?y": false, "POST /v1/x y": false, "POST /v1/x\n": false,
		"CONNECT /x": false, "TRACE /x": false, "POST http://h/x": false, "POST ": false, "* /v1/x": false,
		"POST /" + strings.Repeat("x", allowPathMax): false,
	} {
		if err := CheckAllow(entry); (err == nil) != valid {
			t.Errorf("%q: %v", entry, err)
		}
	}
	if _, err := NewHTTP(HTTPOptions{URL: "http://h", Allow: []string{"x"}}); err == nil || !strings.Contains(err.Error(), "allow:") {
		t.Errorf("error is %v", err)
	}
	if _, err := NewHTTP(HTTPOptions{URL: "http://h", Allow: make([]string, allowMax+1)}); err == nil {
		t.Errorf("more than %d entries are taken", allowMax)
	}
}

// A request's properties reach the upstream as these headers only, whatever its producer wrote into them.
func TestHeadersOfAProducerThatReachTheUpstream(t *testing.T) {
	model := &seen{}
	d := serve(t, model, HTTPOptions{Key: "secret", UserHeader: "X-User"})
	r := chat(false)
	r.ContentType = "text/plain; charset=utf-8"
	if o := d.Forward(t.Context(), r, &sink{}); o.Kind != Done {
		t.Fatalf("%+v", o)
	}
	got := model.requests[0]
	want := []string{"Authorization", "Content-Length", "Content-Type", "User-Agent", "X-Request-Id", "X-User"}
	if names := slices.Sorted(maps.Keys(got.Header)); !slices.Equal(names, want) {
		t.Errorf("headers %v, want %v", names, want)
	}
	if got.Host != "upstream" || got.Header.Get("Authorization") != "Bearer secret" || got.Header.Get("Content-Type") != r.ContentType {
		t.Errorf("host %q, headers %v", got.Host, got.Header)
	}
	for _, contentType := range []string{"text/plain\r\nAuthorization: Bearer mine", "text/plain\nX: y", "no type at all", "/", strings.Repeat("x", 300)} {
		r.ContentType = contentType
		o := d.Forward(t.Context(), r, &sink{})
		if o.Kind != Failed || o.Retry || !o.Unsent || o.Failure.Code != CodeContentType || o.Failure.Status != 400 {
			t.Errorf("content type %.32q: %+v", contentType, o)
		}
	}
	if len(model.requests) != 1 {
		t.Errorf("%d calls", len(model.requests))
	}
}
