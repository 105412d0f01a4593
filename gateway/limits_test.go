package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstockmq/penstock/broker/lite"
	"github.com/penstockmq/penstock/consumer/mq"
	"github.com/penstockmq/penstock/consumer/reply"
	"github.com/penstockmq/penstock/suspend"
	"github.com/penstockmq/penstock/suspend/policy"
)

// documentFrom is an option that puts a whole policy in force.
func documentFrom(t *testing.T, text string) func(*Options) {
	t.Helper()
	doc, err := policy.Parse([]byte("version: 1\n" + text))
	must(t, err)
	return func(o *Options) { o.Policy = func() *policy.Document { return doc } }
}

// anonymous is a key source that takes every key and knows nobody.
type anonymous struct{}

func (anonymous) Owner(string) (Owner, bool) { return Owner{}, true }

// The last part of C59: a request with no user is never let in without limits.
func TestC59_NoUserIsRefused(t *testing.T) {
	r := newRig(t, policyOf(t, "  - {user: u1, window: 1/1s}\n"))
	r.ask(http.MethodPost, "/v1/chat/completions", chatBody, "Authorization: Bearer ").check(t, 401, "missing_api_key")
	r = newRig(t, func(o *Options) { o.Keys = anonymous{} })
	r.ask(http.MethodPost, "/v1/chat/completions", chatBody).check(t, 400, "invalid_value")
	r.ask(http.MethodPost, "/v1/chat/completions", chatBody, preferAsync).check(t, 400, "invalid_value")
	r.nothingSent()
}

// What a request weighs and how important it is stands in its message, and only the policy and the body's own fields say so.
func TestMessagesAreStamped(t *testing.T) {
	r := newRig(t, documentFrom(t, "importance: [{key: test, level: 3}, {user: bob, level: 0}]\n"))
	level := "penstock-level: 0" // a caller has no say in it
	for _, tt := range []struct {
		name, path, body string
		input, most      int64
	}{
		{"chat", "/v1/chat/completions", `{"model":"m","max_completion_tokens":7,"messages":[{"role":"user","content":"123456789"}]}`, 3, 7},
		{"completion", "/v1/completions", `{"model":"m","prompt":"1234","max_tokens":9}`, 1, 9},
		{"embedding", "/v1/embeddings", `{"model":"m","input":["1234","5678"]}`, 2, 0},
		{"no prompt", "/v1/chat/completions", `{"model":"m"}`, 1, 0},
		{"any body", "/v1/enqueue/m", "123456789", 3, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r.ask(http.MethodPost, tt.path, tt.body, preferAsync, level).check(t, 202, "")
			m := receive(t, r.broker.sent, "no message was sent")
			req, err := reply.FromProperties(m.Properties)
			must(t, err)
			if !req.HasLevel || req.Level != 3 || req.InputTokens != tt.input || req.MaxTokens != tt.most {
				t.Errorf("%+v", req)
			}
		})
	}
}

// A key without an importance of its own stamps no level: the broker knows the policy as well.
func TestLevelIsStampedForKeysOnly(t *testing.T) {
	r := newRig(t, documentFrom(t, "importance: [{user: alice, level: 3}]\n"))
	r.ask(http.MethodPost, "/v1/chat/completions", chatBody, preferAsync).check(t, 202, "")
	m := receive(t, r.broker.sent, "no message was sent")
	if level, stamped := m.Properties[lite.PropertyLevel]; stamped {
		t.Errorf("level %q", level)
	}
}

// The cell's deadline is the time limit of a request that names none; a caller's own wins, up to the gateway's maximum.
func TestDeadlineOfThePolicy(t *testing.T) {
	limits := policyOf(t, "  - {user: alice, deadline: 90s}\n  - {user: bob, deadline: 20h}\n")
	r := newRig(t, func(o *Options) {
		limits(o)
		o.MaxTimeout, o.DefaultTimeout, o.AsyncTimeout = 3*time.Hour, time.Hour, 2*time.Hour
	})
	for _, tt := range []struct {
		key, header string
		want        time.Duration
	}{
		{r.secret, "", 90 * time.Second},
		{r.secret, "X-Request-Timeout: 7200", 2 * time.Hour},
		{r.secret, "X-Request-Timeout: 5", 5 * time.Second},
		{r.other, "", 3 * time.Hour},
	} {
		before := time.Now()
		headers := []string{preferAsync, "Authorization: Bearer " + tt.key}
		if tt.header != "" {
			headers = append(headers, tt.header)
		}
		r.ask(http.MethodPost, "/v1/chat/completions", chatBody, headers...).check(t, 202, "")
		j := r.peek()
		if d := j.Deadline.Sub(before); d < tt.want || j.Deadline.After(time.Now().Add(tt.want+time.Millisecond)) {
			t.Errorf("%s: the deadline is in %s, want %s", tt.header, d, tt.want)
		}
	}
}

var rateLimitRE = regexp.MustCompile(`^"cell";r=(\d+);t=([1-9]\d*)$`)

// The fields of the limit that binds are on answers and on refusals, and those of the model's server are not.
func TestRateLimitFields(t *testing.T) {
	r := newRig(t, policyOf(t, `  - {user: "*", model: "*", window: 2/24h}`))
	check := func(a answer, left string) {
		t.Helper()
		if p := a.header.Get("RateLimit-Policy"); p != `"cell";q=2;w=86400` {
			t.Errorf("policy %s", p)
		}
		if m := rateLimitRE.FindStringSubmatch(a.header.Get("RateLimit")); m == nil || m[1] != left {
			t.Errorf("RateLimit %s, want %s left", a.header.Get("RateLimit"), left)
		}
	}
	got := r.chat(chatBody)
	theirs := http.Header{"Content-Type": {"application/json"}, "Ratelimit": {`"theirs";r=5`}, "RateLimit-Policy": {`"theirs";q=9`}}
	must(t, r.take().Answer(200, theirs, []byte("{}"), reply.Usage{}))
	check(receive(t, got, "no answer"), "1")
	check(r.ask(http.MethodPost, "/v1/chat/completions", chatBody, preferAsync), "0")
	refused := r.ask(http.MethodPost, "/v1/chat/completions", chatBody)
	refused.check(t, 429, "rate_limit_exceeded")
	check(refused, "0")
	if a := r.ask(http.MethodGet, "/v1/models", ""); a.header.Get("RateLimit") != "" {
		t.Errorf("%v", a.header)
	}

	free := newRig(t, nil)
	got = free.chat(chatBody)
	must(t, free.take().Answer(200, theirs, []byte("{}"), reply.Usage{}))
	if a := receive(t, got, "no answer"); a.header.Get("RateLimit") != "" || a.header.Get("RateLimit-Policy") != "" {
		t.Errorf("the model's own: %v", a.header)
	}
}

func TestRateLimitOfAQueue(t *testing.T) {
	r := newRig(t, policyOf(t, `  - {user: "*", model: "*", depth: 1, rate: 1/3s}`))
	a := r.ask(http.MethodPost, "/v1/chat/completions", chatBody, preferAsync)
	if p, l := a.header.Get("RateLimit-Policy"), a.header.Get("RateLimit"); p != `"queue";q=1;qu="concurrent-requests"` || l != `"queue";r=0` {
		t.Errorf("%s %s", p, l)
	}
	a = r.ask(http.MethodPost, "/v1/chat/completions", chatBody)
	a.check(t, 429, "queue_full")
	if l := a.header.Get("RateLimit"); l != `"queue";r=0;t=3` {
		t.Error(l)
	}
}

// After a long wait the state at admission is no longer true; the policy is.
func TestRateLimitOfAWindowThatEnded(t *testing.T) {
	q := windowQuota(suspend.Row, perMinute(5), 3, t0.Add(time.Minute))
	for now, want := range map[time.Time]string{t0.Add(30500 * time.Millisecond): `"row";r=3;t=30`, t0.Add(time.Minute): ""} {
		h := http.Header{}
		q.write(h, now)
		if h.Get("RateLimit") != want || h.Get("RateLimit-Policy") != `"row";q=5;w=60` {
			t.Errorf("%v", h)
		}
	}
}

// Each way to a 429 or 503 of the gateway's own is counted; a model's are not.
func TestRefusalsAreCounted(t *testing.T) {
	const post, chat = http.MethodPost, "/v1/chat/completions"
	r := newRig(t, policyOf(t, "  - {model: windowed, window: 1/24h}\n  - {model: deep, depth: 1}\n"))
	m := r.g.Metrics()
	expect := func(step string, refused, limited, full int64) {
		t.Helper()
		if m.Refused.Load() != refused || m.Limited[suspend.Bucket].Load() != limited || m.Full.Load() != full {
			t.Errorf("%s: refused %d, limited %d, full %d; want %d, %d, %d", step,
				m.Refused.Load(), m.Limited[suspend.Bucket].Load(), m.Full.Load(), refused, limited, full)
		}
	}
	for _, model := range []string{"windowed", "deep"} {
		body := `{"model":"` + model + `"}`
		r.ask(post, chat, body, preferAsync).check(t, 202, "")
		r.ask(post, chat, body).check(t, 429, map[string]string{"windowed": "rate_limit_exceeded", "deep": "queue_full"}[model])
	}
	expect("window and depth", 2, 1, 1)
	r.ask(post, chat, `{"model":"windowed"}`, preferAsync).check(t, 429, "rate_limit_exceeded")
	expect("asynchronous", 3, 2, 1)
	r.broker.refuseWith(&mq.CodeError{Code: codeTooManyRequests})
	r.ask(post, chat, chatBody).check(t, 429, "queue_full")
	expect("the broker's cap", 4, 2, 2)
	r.broker.refuseWith(errors.New("connection refused"))
	a := r.ask(post, chat, chatBody)
	a.check(t, 503, "broker_unavailable")
	if s, err := strconv.Atoi(a.header.Get("Retry-After")); err != nil || s < 2 || s > 4 {
		t.Errorf("Retry-After %q", a.header.Get("Retry-After"))
	}
	expect("no broker", 5, 2, 2)
	r.broker.refuseWith(nil)
	for len(r.broker.sent) > 0 {
		<-r.broker.sent
	}
	got := r.chat(chatBody)
	must(t, r.take().Fail(reply.Failure{Status: 429, Message: "slow down"}))
	receive(t, got, "no answer").check(t, 429, "upstream_error")
	expect("the model's own", 5, 2, 2)
}

// crew answers every message at once and notes its bucket and id. It ends with the test.
type crew struct {
	mu      sync.Mutex
	buckets map[string]int
	ids     map[string]int
}

func (r *rig) crew() *crew {
	w := &crew{buckets: map[string]int{}, ids: map[string]int{}}
	ctx, stop := context.WithCancel(r.t.Context())
	done := make(chan struct{})
	r.t.Cleanup(func() { stop(); <-done })
	go func() {
		defer close(done)
		for {
			select {
			case <-ctx.Done():
				return
			case m := <-r.broker.sent:
				w.note(m)
				req, err := reply.FromProperties(m.Properties)
				if err == nil {
					err = reply.NewWriter(r.pool, req, 1).Answer(200, jsonHeader, []byte(completion), reply.Usage{})
				}
				if err != nil {
					r.t.Error(err)
				}
			}
		}
	}()
	return w
}

func (w *crew) note(m mq.Outgoing) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.buckets[m.Lite]++
	w.ids[m.Properties[reply.PropertyRequestID]]++
}

// Whatever a caller says it is, its key says whose budget it uses.
func TestC95_CallerCannotChooseWhoseBudget(t *testing.T) {
	limits := policyOf(t, `  - {user: "*", model: "*", window: 1000000/24h}`)
	r := newRig(t, limits)
	w := r.crew()
	call := func(key, claim string) int {
		body := `{"model":"gpt-4o","user":"` + claim + `","messages":[]}`
		req := httptest.NewRequest(http.MethodPost, "/v1/chat/completions?user="+claim, strings.NewReader(body))
		for _, name := range []string{"X-Penstock-User", "penstock-user", "X-User", "X-User-Id", "User", "OpenAI-Organization", "X-Forwarded-User", "Cookie"} {
			req.Header.Set(name, claim)
		}
		req.Header.Set("X-Forwarded-For", claim)
		req.Header.Set("Forwarded", "for="+claim)
		if key != "" {
			req.Header.Set("Authorization", "Bearer "+key)
		}
		out := httptest.NewRecorder()
		r.g.ServeHTTP(out, req)
		return out.Code
	}
	used := func(user string) int64 {
		name, err := lite.Encode(lite.Cell{User: user, Model: "gpt-4o"})
		must(t, err)
		r.g.admission.mu.Lock()
		defer r.g.admission.mu.Unlock()
		return r.g.admission.used(suspend.Bucket, name)
	}
	const calls = 1000
	for i := range calls {
		claim := "bob"
		if i > 0 {
			claim = fmt.Sprint("tenant-", i)
		}
		if code := call(r.secret, claim); code != 200 {
			t.Fatalf("call %d: status %d", i, code)
		}
	}
	if used("alice") != calls || used("bob") != 0 {
		t.Errorf("alice has used %d, bob %d", used("alice"), used("bob"))
	}
	for i := range calls {
		if code := call("", "bob"); code != 401 {
			t.Fatalf("unauthenticated call %d: status %d", i, code)
		}
	}
	if used("alice") != calls || used("bob") != 0 {
		t.Errorf("after unauthenticated calls alice has used %d, bob %d", used("alice"), used("bob"))
	}
	if _, accounts, _ := r.g.admission.counts(); accounts != 1 {
		t.Errorf("%d accounts", accounts)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.buckets) != 1 || len(w.ids) != calls {
		t.Errorf("%d buckets, %d requests", len(w.buckets), len(w.ids))
	}
}

// A refusal is told at once: it waits neither for the requests that were let in nor for the limit. Senders that are told so
// keep their connections and send nothing twice. Nothing is answered before the last refusal of the first round has come, so a
// throttle that holds answers back would never end.
func TestC111_RefusalsComeAtOnce(t *testing.T) {
	const senders, asks, most = 20, 10, 5
	r := newRig(t, policyOf(t, fmt.Sprintf(`  - {user: "*", model: "*", window: %d/24h}`, most)))
	var connections atomic.Int64
	srv := httptest.NewUnstartedServer(r.g)
	srv.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			connections.Add(1)
		}
	}
	srv.Start()
	t.Cleanup(srv.Close)

	refusals := make(chan string, senders*asks) // Retry-After of each
	var accepted atomic.Int64
	var wait sync.WaitGroup
	for range senders {
		client := &http.Client{Transport: &http.Transport{}}
		t.Cleanup(client.CloseIdleConnections)
		wait.Go(func() {
			for range asks {
				req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, srv.URL+"/v1/chat/completions", strings.NewReader(chatBody))
				if err != nil {
					t.Error(err)
					return
				}
				req.Header.Set("Authorization", "Bearer "+r.secret)
				resp, err := client.Do(req)
				if err != nil {
					t.Error(err)
					return
				}
				_, err = io.Copy(io.Discard, resp.Body)
				if err = errors.Join(err, resp.Body.Close()); err != nil {
					t.Error(err)
				}
				switch resp.StatusCode {
				case 200:
					accepted.Add(1)
				case 429:
					refusals <- resp.Header.Get("Retry-After")
				default:
					t.Errorf("status %d", resp.StatusCode)
				}
			}
		})
	}
	check := func(n int) {
		for range n {
			hint := receive(t, refusals, "a refusal is held back")
			if s, err := strconv.Atoi(hint); err != nil || s < 1 {
				t.Errorf("Retry-After %q", hint)
			}
		}
	}
	check((senders - most) * asks) // those who were let in wait still
	r.crew()
	wait.Wait()
	check(most * (asks - 1))
	if len(refusals) != 0 || accepted.Load() != most || r.g.Metrics().Accepted.Load() != most {
		t.Errorf("%d refusals too many, %d answered, %d sent, want %d", len(refusals), accepted.Load(), r.g.Metrics().Accepted.Load(), most)
	}
	if n := connections.Load(); n > senders*11/10 {
		t.Errorf("%d connections of %d senders", n, senders)
	}
}
