package chaos

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// requestTimeout is the timeout in the requests of waiting callers.
	requestTimeout = 20 * time.Second
	// patience is the wait after which a caller reports a hang: its timeout, the longest stall, and the slack of a busy machine.
	patience = requestTimeout + stallMax + 25*time.Second
	// settleMax bounds the time in which accepted requests end after the load.
	settleMax = 90 * time.Second
	// callerPace is the longest pause of a caller between two requests.
	callerPace = 200 * time.Millisecond
)

// callers are the clients of a gateway.
type callers struct {
	j      *journal
	addr   string
	keys   []string
	client *http.Client
	next   atomic.Int64
	wg     sync.WaitGroup
	// recordsMayBeGone: a 404 is no outcome, because the record of a request was lost and is made again when the request
	// runs. Immutable once calls are made.
	recordsMayBeGone bool
}

func newCallers(j *journal, addr string, keys []string) *callers {
	return &callers{j: j, addr: addr, keys: keys, client: &http.Client{
		// A caller that does not read keeps small buffers, so that the program meets the back-pressure soon.
		Transport: &http.Transport{MaxIdleConnsPerHost: 16, ReadBufferSize: 4 << 10, DialContext: smallBuffers},
	}}
}

func smallBuffers(ctx context.Context, network, addr string) (net.Conn, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, network, addr)
	if tcp, ok := conn.(*net.TCPConn); ok {
		err = errors.Join(err, tcp.SetReadBuffer(16<<10))
	}
	return conn, err
}

// start lets them call until ctx ends. wait returns when the last one has its outcome.
func (c *callers) start(ctx context.Context) {
	columns := []string{columnOpen, columnOpen, columnOpen, columnOpen, columnNarrow, columnPaced}
	for range 3 {
		c.wg.Go(func() { c.loop(ctx, func(key string) { c.later(key, pick(columns), time.Time{}, rand.N(3) == 0) }) })
	}
	for range 2 {
		c.wg.Go(func() { c.loop(ctx, func(key string) { c.now(key, pick(columns), false) }) })
		c.wg.Go(func() { c.loop(ctx, func(key string) { c.now(key, pick(columns), true) }) })
	}
	for range 2 {
		c.wg.Go(func() { c.loop(ctx, func(key string) { c.withoutReading(ctx, key) }) })
	}
}

func (c *callers) wait() { c.wg.Wait() }

func pick[T any](of []T) T { return of[rand.IntN(len(of))] }

func (c *callers) loop(ctx context.Context, call func(key string)) {
	for pause(ctx, rand.N(callerPace)) {
		call(pick(c.keys))
	}
}

// post sends a request and returns the answer, whose body the caller closes. The cancel function ends it.
func (c *callers) post(key, column, name string, stream bool, header ...string) (*http.Response, context.CancelFunc, error) {
	body, err := json.Marshal(map[string]any{
		"model": column, "stream": stream, "messages": []map[string]string{{"role": "user", "content": name}},
	})
	if err != nil {
		panic(err) // strings only
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+c.addr+"/v1/chat/completions", bytes.NewReader(body))
	if err != nil {
		panic(err) // a constant but for the address
	}
	r.Header.Set("Authorization", "Bearer "+key)
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	// Go sends a request again by itself when the server closes an idle connection; this stops it from doing so.
	r.GetBody = nil
	resp, err := c.client.Do(r)
	if err != nil {
		cancel()
		return nil, func() {}, err
	}
	return resp, cancel, nil
}

func (c *callers) name(kind string) string { return fmt.Sprintf("%s-%d", kind, c.next.Add(1)) }

// failed notes the outcome of a caller whose connection ended.
func (c *callers) failed(r *request, err error) {
	if errors.Is(err, context.DeadlineExceeded) {
		c.j.end(r, outcomeHung, "no outcome after %v: %v", patience, err)
		return
	}
	c.j.end(r, outcomeCut, "%v", err)
}

// later posts an asynchronous request. follow makes the caller poll it until it has ended.
func (c *callers) later(key, column string, notBefore time.Time, follow bool) {
	r := c.j.request(c.name("async"), column, notBefore)
	r.async = true
	resp, cancel, err := c.post(key, column, r.name, false, "Prefer", "respond-async")
	defer cancel()
	if err != nil {
		c.failed(r, err)
		return
	}
	body, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	if err != nil {
		c.failed(r, err)
		return
	}
	if resp.StatusCode != http.StatusAccepted {
		c.refused(r, resp.StatusCode, body)
		return
	}
	var d struct{ ID string }
	if err := json.Unmarshal(body, &d); err != nil || d.ID == "" {
		c.j.end(r, outcomeWrong, "202 without an id: %.200s", body)
		return
	}
	a := &accepted{request: r, id: d.ID, key: key}
	c.j.change(func() { r.accepted = true; c.j.accepted = append(c.j.accepted, a) })
	if follow {
		deadline := time.Now().Add(patience)
		for !c.poll(a) && time.Now().Before(deadline) && pause(context.Background(), 300*time.Millisecond) {
			continue
		}
	}
}

// accepted is an asynchronous request that was answered 202.
type accepted struct {
	*request
	id, key string
}

// poll asks for a request once and returns whether it has ended.
func (c *callers) poll(a *accepted) bool {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+c.addr+"/v1/requests/"+a.id, nil)
	if err != nil {
		panic(err) // a constant but for address and id
	}
	r.Header.Set("Authorization", "Bearer "+a.key)
	resp, err := c.client.Do(r)
	if err != nil {
		if errors.Is(err, context.DeadlineExceeded) {
			c.failed(a.request, err)
		}
		return false // the gateway may be down
	}
	body, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	switch {
	case err != nil, resp.StatusCode == http.StatusAccepted, resp.StatusCode == http.StatusServiceUnavailable, resp.StatusCode == http.StatusTooManyRequests:
		c.j.change(func() { a.detail = fmt.Sprintf("last answer: %d %.200s", resp.StatusCode, body) })
		return false
	case resp.StatusCode == http.StatusOK:
		c.answered(a.request, body)
	case resp.StatusCode == http.StatusNotFound && !c.recordsMayBeGone:
		c.j.end(a.request, outcomeCut, "404: %.200s", body) // judged as lost: it was accepted
	case resp.StatusCode == http.StatusNotFound:
		c.j.change(func() { a.detail = "last answer: 404" })
		return false
	default:
		c.refused(a.request, resp.StatusCode, body)
	}
	return true
}

// settle polls all accepted requests until they have ended, or settleMax is over.
func (c *callers) settle() {
	deadline := time.Now().Add(settleMax)
	var open []*accepted
	c.j.change(func() {
		for _, a := range c.j.accepted {
			if a.outcome == outcomeOpen {
				open = append(open, a)
			}
		}
	})
	for len(open) > 0 && time.Now().Before(deadline) {
		left := open[:0]
		for _, a := range open {
			if !c.poll(a) {
				left = append(left, a)
			}
		}
		if open = left; len(open) > 0 {
			pause(context.Background(), 500*time.Millisecond)
		}
	}
}

// answered checks that a whole answer repeats the name of its request.
func (c *callers) answered(r *request, body []byte) {
	var d struct {
		Choices []struct{ Message struct{ Content string } }
	}
	if err := json.Unmarshal(body, &d); err != nil || len(d.Choices) != 1 || d.Choices[0].Message.Content != r.name {
		c.j.end(r, outcomeWrong, "200 with %.200s", body)
		return
	}
	c.j.end(r, outcomeAnswered, "")
}

func (c *callers) refused(r *request, status int, body []byte) {
	var d struct{ Error struct{ Code string } }
	if err := json.Unmarshal(body, &d); err != nil || d.Error.Code == "" {
		c.j.end(r, outcomeNoReason, "%d with %.200s", status, body)
		return
	}
	c.j.end(r, outcomeRefused, "%d %s", status, d.Error.Code)
}

// now posts a request and waits for its answer.
func (c *callers) now(key, column string, stream bool) {
	kind := "sync"
	if stream {
		kind = "stream"
	}
	r := c.j.request(c.name(kind), column, time.Time{})
	resp, cancel, err := c.post(key, column, r.name, stream, "X-Request-Timeout", requestTimeout.String())
	defer cancel()
	if err != nil {
		c.failed(r, err)
		return
	}
	defer func() { _ = resp.Body.Close() }()
	if stream && resp.StatusCode == http.StatusOK {
		c.read(r, resp.Body)
		return
	}
	body, err := io.ReadAll(resp.Body)
	switch {
	case err != nil:
		c.failed(r, err)
	case resp.StatusCode == http.StatusOK:
		c.answered(r, body)
	default:
		c.refused(r, resp.StatusCode, body)
	}
}

// read reads the events of a stream to their end.
func (c *callers) read(r *request, body io.Reader) {
	lines := bufio.NewScanner(body)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			continue
		}
		if data == "[DONE]" {
			c.j.end(r, outcomeAnswered, "")
			return
		}
		var d struct {
			Choices []struct{ Delta struct{ Content string } }
			Error   *struct{ Code string }
		}
		err := json.Unmarshal([]byte(data), &d)
		switch {
		case err == nil && d.Error != nil:
			c.refused(r, http.StatusOK, []byte(data))
			return
		case err != nil || len(d.Choices) > 0 && d.Choices[0].Delta.Content != r.name:
			c.j.end(r, outcomeWrong, "event %.200s", data)
			return
		}
		c.j.change(func() {
			if r.firstByte.IsZero() {
				r.firstByte = time.Now()
			}
		})
	}
	if err := lines.Err(); err != nil {
		c.failed(r, err)
		return
	}
	c.j.end(r, outcomeWrong, "a stream that ends without [DONE] and without an error")
}

// withoutReading opens a long stream, reads nothing of it, and leaves after some seconds.
func (c *callers) withoutReading(ctx context.Context, key string) {
	r := c.j.request(c.name("flood"), columnFlood, time.Time{})
	resp, cancel, err := c.post(key, columnFlood, r.name, true, "X-Request-Timeout", requestTimeout.String())
	defer cancel()
	if err != nil {
		c.failed(r, err)
		return
	}
	pause(ctx, 5*time.Second)
	c.j.end(r, outcomeLeft, "")
	cancel()
	_ = resp.Body.Close()
}
