package forward

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/penstockmq/penstock/consumer/reply"
)

// HTTP is an upstream that speaks HTTP: an OpenAI-compatible model server, or any other for requests without a path.
type HTTP struct {
	opts   HTTPOptions
	base   *url.URL
	client *http.Client
	allow  map[string]bool // pairs of method and path; immutable
	// usageRefused is set when the upstream does not know the question of askUsage.
	usageRefused atomic.Bool
}

// NewHTTP returns the downstream of opts, or an error that names every option that is wrong.
func NewHTTP(opts HTTPOptions) (*HTTP, error) {
	if err := opts.fill(); err != nil {
		return nil, fmt.Errorf("http downstream: %w", err)
	}
	base, err := url.Parse(opts.URL)
	if err != nil {
		return nil, errors.New("http downstream: url: malformed")
	}
	transport := &http.Transport{
		DialContext:         (&net.Dialer{Timeout: opts.Connect}).DialContext,
		TLSHandshakeTimeout: opts.Connect,
		MaxConnsPerHost:     opts.Conns,
		MaxIdleConns:        opts.IdleConns,
		MaxIdleConnsPerHost: opts.IdleConns,
		IdleConnTimeout:     opts.IdleConn,
		DisableCompression:  true, // events are to come when they are written, not when a window of gzip is full
		ForceAttemptHTTP2:   true,
		ReadBufferSize:      16 << 10,
	}
	return &HTTP{opts: opts, base: base, allow: allowed(opts.Allow), client: &http.Client{
		Transport: transport,
		// A redirect would take the body, and perhaps the key, where nobody configured it.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}

// Close closes idle connections; running requests go on.
func (h *HTTP) Close() { h.client.CloseIdleConnections() }

// Forward implements [Downstream].
func (h *HTTP) Forward(ctx context.Context, r Request, sink Sink) Outcome {
	if f, refused := h.refusal(r); refused {
		return unsent(f)
	}
	watch, stop := watchdog(ctx, h.opts.Total)
	defer stop()
	body, asked := r.Body, false
	if !h.opts.NoStreamUsage && !h.usageRefused.Load() {
		body, asked = askUsage(r)
	}
	m := newMeter(sink)
	o, blamed := h.exchange(ctx, watch, r, body, m, asked)
	if blamed {
		// The upstream refuses what the caller never asked for. It is asked no more.
		h.usageRefused.Store(true)
		o, _ = h.exchange(ctx, watch, r, r.Body, m, false)
	}
	return m.total(o)
}

// exchange sends one request. blamed says that the upstream refused it for what we put in, see askUsage; the sink has
// nothing then.
func (h *HTTP) exchange(ctx context.Context, watch *watch, r Request, body []byte, m *meter, asked bool) (o Outcome, blamed bool) {
	watch.within(h.opts.FirstByte, "first byte")
	req, err := h.request(watch.ctx, r, body)
	if err != nil {
		return unsent(reply.Failure{
			Status: http.StatusBadRequest, Code: "bad_request", Message: "the request cannot be sent over HTTP",
		}), false
	}
	resp, err := h.client.Do(req)
	if err != nil {
		return watch.failure(ctx, false, withoutURL(err)), false
	}
	// Closing an unread body closes the connection: an upstream that still generates notices at once.
	defer func() { _ = resp.Body.Close() }()
	x := exchange{h: h, r: r, sink: m, meter: m, ctx: ctx, watch: watch, resp: resp, asked: asked}
	o = x.answer()
	return o, x.blamed
}

// request builds the upstream's request. None of the caller's headers go along but the content type: the caller's
// credential is Penstock's, the upstream's is the platform's.
func (h *HTTP) request(ctx context.Context, r Request, body []byte) (*http.Request, error) {
	method := r.Method
	if method == "" {
		method = http.MethodPost
	}
	req, err := http.NewRequestWithContext(ctx, method, h.address(r.Path), bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	contentType := r.ContentType
	if contentType == "" {
		contentType = "application/json"
	}
	req.Header.Set("Content-Type", contentType)
	req.Header.Set("User-Agent", "penstock")
	if r.Stream {
		req.Header.Set("Accept", "text/event-stream")
	}
	if h.opts.Key != "" {
		req.Header.Set("Authorization", "Bearer "+string(h.opts.Key))
	}
	if r.ID != "" {
		req.Header.Set("X-Request-Id", r.ID)
	}
	if h.opts.UserHeader != "" && r.User != "" {
		req.Header.Set(h.opts.UserHeader, r.User)
	}
	// The body may be sent twice by net/http if a kept connection turns out closed before a byte of the answer; for
	// a POST it does so only when nothing was written. So no request reaches a model twice by its doing.
	return req, nil
}

// address joins the base and a request's path; both may have the /v1 that OpenAI SDKs put into the base.
func (h *HTTP) address(to string) string {
	if to == "" {
		return h.base.String()
	}
	u := *h.base
	base := strings.TrimSuffix(u.Path, "/")
	if strings.HasSuffix(base, "/v1") {
		to = strings.TrimPrefix(to, "/v1")
	}
	u.Path, u.RawPath = base+"/"+strings.TrimPrefix(to, "/"), ""
	return u.String()
}

// exchange is one request whose upstream has answered with a status.
type exchange struct {
	h     *HTTP
	r     Request
	sink  Sink
	meter *meter          // sink, as what it also is
	ctx   context.Context // the pool's; watch.ctx ends earlier
	watch *watch
	resp  *http.Response
	asked bool // the body has the question of askUsage
	// blamed is set when the upstream refused the question.
	blamed bool
}

func (x *exchange) answer() Outcome {
	switch code := x.resp.StatusCode; {
	case code >= 200 && code < 300:
		if x.isStream() {
			return x.stream()
		}
		return x.whole()
	case isOverload(code):
		return x.busy()
	case mayPass(code):
		return x.refusedForNow(true)
	case code >= 400:
		return x.refused()
	default: // 1xx and 3xx have no place in an API
		return failed(http.StatusBadGateway, CodeInvalid, "the upstream redirected the request", false,
			fmt.Errorf("upstream answered %d", code))
	}
}

func (x *exchange) isStream() bool {
	kind, _, err := mime.ParseMediaType(x.resp.Header.Get("Content-Type"))
	return err == nil && kind == "text/event-stream"
}

// wantsJSON says whether a body that is no JSON is a fault: the upstream says it is, or the API has nothing else.
func (x *exchange) wantsJSON() bool {
	if strings.HasPrefix(x.r.Path, "/v1/") {
		return true
	}
	kind, _, err := mime.ParseMediaType(x.resp.Header.Get("Content-Type"))
	return err == nil && (kind == "application/json" || strings.HasSuffix(kind, "+json"))
}

// whole hands on an answer that does not stream. It is read to its end first, so that one that breaks off can be tried
// again and one that is no JSON becomes an error instead of a caller's parse error (C29).
func (x *exchange) whole() Outcome {
	body, err := x.read(x.h.opts.BodyBytes)
	switch {
	case errors.Is(err, errTooLarge):
		return x.failed(CodeTooLarge, "the upstream's answer is over the limit", false, err)
	case err != nil:
		return x.watch.failure(x.ctx, false, err)
	}
	c, valid := readChunk(body)
	if !valid && x.wantsJSON() {
		return x.failed(CodeInvalid, "the upstream's answer is not valid JSON", false, errNotJSON)
	}
	u := c.usage()
	x.meter.used(u)
	x.meter.content(c.content())
	if err := x.sink.Answer(x.resp.StatusCode, kept(x.resp.Header), body, u); err != nil {
		return unanswered(false, err)
	}
	return Outcome{Kind: Done, Status: x.resp.StatusCode, Usage: u}
}

// busy is a 429 or 503. With a Retry-After it says when to come back; without, it is a failure that may pass.
func (x *exchange) busy() Outcome {
	after, ok := retryAfter(x.resp.Header, time.Now(), x.h.opts.RetryAfter)
	if !ok {
		return x.refusedForNow(true)
	}
	o := x.refusedForNow(false)
	if o.Kind == Cancelled {
		return o
	}
	return Outcome{Kind: Busy, Status: x.resp.StatusCode, After: after, Failure: o.Failure}
}

// refusedForNow is an error status that another attempt may not meet. The upstream's words are kept for the caller: if
// this was the last attempt, it gets them with the real status (C68).
func (x *exchange) refusedForNow(retry bool) Outcome {
	x.watch.within(min(x.h.opts.Idle, errorBodyMax), "error body")
	body, err := x.read(errorBytes)
	if err != nil && x.ctx.Err() != nil {
		return cancelled(x.ctx, false)
	}
	f := failureOf(body)
	f.Status = x.resp.StatusCode
	if f.Code == "" {
		f.Code = CodeError
		if isOverload(x.resp.StatusCode) {
			f.Code = CodeBusy
		}
	}
	if f.Message == "" {
		f.Message = fmt.Sprintf("the upstream answered %d", x.resp.StatusCode)
	}
	return Outcome{
		Kind: Failed, Status: x.resp.StatusCode, Retry: retry, Failure: f,
		Err: fmt.Errorf("upstream answered %d", x.resp.StatusCode),
	}
}

// refused hands a 4xx to the caller as it is.
func (x *exchange) refused() Outcome {
	body, err := x.read(x.h.opts.BodyBytes)
	switch {
	case errors.Is(err, errTooLarge):
		return x.failed(CodeTooLarge, "the upstream's answer is over the limit", false, err)
	case err != nil:
		return x.watch.failure(x.ctx, false, err)
	case x.asked && blamesUsage(body):
		x.blamed = true
		return Outcome{}
	}
	header := kept(x.resp.Header)
	if err := x.sink.Answer(x.resp.StatusCode, header, body, reply.Usage{}); err != nil {
		return unanswered(false, err)
	}
	return Outcome{Kind: Refused, Status: x.resp.StatusCode}
}

func (x *exchange) failed(code, message string, retry bool, err error) Outcome {
	o := failed(http.StatusBadGateway, code, message, retry, err)
	o.Status = x.resp.StatusCode
	return o
}

const (
	errorBytes   = 64 << 10        // of an error's body: enough for any message
	errorBodyMax = 5 * time.Second // the status is known and waits for words only
)

var (
	errTooLarge = errors.New("answer over the limit")
	errNotJSON  = errors.New("answer is not JSON")
)

// read returns the body, at most limit bytes of it; what came before an error is returned with it.
func (x *exchange) read(limit int64) ([]byte, error) {
	var buf bytes.Buffer
	if n := x.resp.ContentLength; n > 0 && n <= limit {
		buf.Grow(int(n) + bytes.MinRead)
	}
	_, err := buf.ReadFrom(io.LimitReader(x.body(), limit+1))
	if err == nil && int64(buf.Len()) > limit {
		return buf.Bytes()[:limit], errTooLarge
	}
	return buf.Bytes(), err
}

// body is the upstream's body; each read restarts the idle time.
func (x *exchange) body() io.Reader {
	return &watchedReader{r: x.resp.Body, watch: x.watch, idle: x.h.opts.Idle, heard: x.meter.heard}
}
