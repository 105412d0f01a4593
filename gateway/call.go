package gateway

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/penstockmq/penstock/consumer/reply"
)

const (
	headerRequestID    = "X-Request-Id"
	headerQueueTime    = "X-Queue-Time-Ms"
	headerRequestState = "X-Request-State"
	eventStream        = "text/event-stream"
)

// call is one HTTP request and what has been answered so far. It belongs to the request's goroutine.
type call struct {
	g     *Gateway
	w     http.ResponseWriter
	r     *http.Request
	rc    *http.ResponseController
	id    string
	route string
	user  string // who owns the API key
	key   string // its name; empty: it has none

	caller caller // zero until the key is known
	quota  quota  // the limit that binds; zero: none does

	arrived time.Time // with its monotonic reading: deadlines count from here
	queued  time.Time // the request went into a bucket; zero: it did not
	begun   time.Time // a worker took it; zero: none has

	held    int64 // bytes of the body that count in shares
	hasBody bool  // the body was read to its end

	wrote  bool // the header is out
	events bool // what is being written is an event stream
	abort  bool // the answer cannot be ended well: the connection is to be cut

	status int    // of the outcome, for metrics
	code   string // of the outcome, for metrics
}

func (g *Gateway) newCall(w http.ResponseWriter, r *http.Request, route string) *call {
	c := &call{
		g: g, w: w, r: r, rc: http.NewResponseController(w),
		id: newID(), route: route, arrived: time.Now(), code: "ok",
	}
	w.Header().Set(headerRequestID, c.id)
	if own := callerID(r.Header); own != "" {
		w.Header().Set("X-Client-Request-Id", own)
	}
	return c
}

// newID has 130 random bits, so that ids neither meet nor can be guessed; all of it fits into a NATS subject.
func newID() string { return "req_" + strings.ToLower(rand.Text()) }

// body reads the request's body. Its first bytes, and each further bodyStep, must arrive within Options.BodyTimeout. Bytes
// count from their arrival until release.
func (c *call) body() ([]byte, error) {
	// The deadline must be gone before the wait: net/http reads on in the background to see the caller leave, and takes a
	// time-out there for just that. It clears the deadline itself at a body's end, but an empty body has none. A writer
	// without deadlines (tests) is read without.
	bounded := true
	extend := func() { bounded = c.rc.SetReadDeadline(time.Now().Add(c.g.opts.BodyTimeout)) == nil }
	body, err := readBody(c.w, c.r, c.g.opts.MaxBodyBytes, c.hold, extend)
	if err == nil {
		c.hasBody = true
		if bounded && c.rc.SetReadDeadline(time.Time{}) != nil {
			return nil, errCallerGone
		}
	}
	if errors.Is(err, errSlowBody) {
		c.g.metrics.SlowBodies.Add(1)
	}
	return body, err
}

// hold counts n more bytes of the body.
func (c *call) hold(n int64) error {
	err := c.g.shares.take(c.user, holding{bytes: n})
	if err != nil {
		c.g.metrics.Shared.Add(shared(err))
		return err
	}
	c.held += n
	return nil
}

// release gives the body's bytes back. It may be called more than once.
func (c *call) release() {
	c.g.shares.give(c.user, holding{bytes: c.held})
	c.held = 0
}

// unreadMax bounds the time for the unread rest of a body: net/http reads the rest before it sends an answer, to use the
// connection again.
const unreadMax = time.Second

// boundUnread sets the read deadline of an unread body. Without it a caller without a key could hold a connection and the
// request on it forever.
func (c *call) boundUnread() {
	if !c.hasBody && c.r.ContentLength != 0 {
		_ = c.rc.SetReadDeadline(time.Now().Add(unreadMax)) // not supported in tests without a connection
	}
}

// queueTime is how long the request was in its bucket, so far if no worker has it.
func (c *call) queueTime(now time.Time) time.Duration {
	switch {
	case c.queued.IsZero():
		return 0
	case c.begun.IsZero():
		return max(now.Sub(c.queued), 0)
	default:
		return max(c.begun.Sub(c.queued), 0)
	}
}

// begin notes that a worker took the request, by the worker's clock, which may differ from ours.
func (c *call) begin(at time.Time) {
	now := time.Now()
	if at.IsZero() || at.After(now) {
		at = now
	}
	first := c.begun.IsZero()
	c.begun = at
	if first {
		c.g.opts.Observer.QueueTime(c.queueTime(now))
	}
}

// head sends status and header. REQUIRES: not called before.
func (c *call) head(status int) {
	now := time.Now()
	c.w.Header().Set(headerQueueTime, strconv.FormatInt(c.queueTime(now).Milliseconds(), 10))
	c.quota.write(c.w.Header(), now)
	c.extend(now)
	c.boundUnread()
	c.wrote, c.status = true, status
	c.w.WriteHeader(status)
}

// extend sets the deadline of the next write. A write that blocks longer means that the caller does not read, see writePiece.
func (c *call) extend(now time.Time) {
	_ = c.rc.SetWriteDeadline(now.Add(c.g.opts.WriteTimeout)) // not supported in tests without a connection
}

// writePiece is the size of one write, in bytes. Within Options.WriteTimeout the caller must take writePiece, or the part of
// sendBuffer that must drain before a write continues if that is more: about 3 KiB/s by default.
const writePiece = 16 << 10

func (c *call) write(p []byte) error {
	for len(p) > 0 {
		n := min(len(p), writePiece)
		c.extend(time.Now())
		if _, err := c.w.Write(p[:n]); err != nil { //nolint:gosec // the upstream's answer, passed on as it is
			return c.unread(err)
		}
		p = p[n:]
	}
	return nil
}

// unread returns the error for a failed write: the caller left, or did not read for too long.
func (c *call) unread(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		c.g.metrics.Unread.Add(1)
	}
	return errCallerGone
}

func (c *call) flush() error {
	if err := c.rc.Flush(); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return c.unread(err)
	}
	return nil
}

// whole sends a complete answer.
func (c *call) whole(status int, body []byte) error {
	if status != http.StatusNoContent && status != http.StatusNotModified {
		c.w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	} else {
		body = nil
	}
	c.head(status)
	if err := c.write(body); err != nil {
		return err
	}
	return c.flush()
}

func (c *call) json(status int, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("%w: encode answer: %w", errInternal, err)
	}
	c.w.Header().Set("Content-Type", "application/json")
	return c.whole(status, body)
}

// refuse answers err in the way that is still possible: as an HTTP error, as the last event of a stream, or by cutting
// the connection, so that no part is taken for the whole.
func (c *call) refuse(err error) { c.refuseAs(err, refusalOf(err)) }

func (c *call) refuseAs(err error, out refusal) {
	c.status, c.code = out.http, out.code
	if _, ok := errors.AsType[reply.Failure](err); ok {
		c.code = "upstream_failure" // it is the model that refuses
	} else if out.http == http.StatusTooManyRequests || out.http == http.StatusServiceUnavailable {
		c.g.metrics.Refused.Add(1)
	}
	switch {
	case errors.Is(err, errCallerGone):
		c.abort = c.wrote
	case !c.wrote:
		c.refuseWhole(out)
	case c.events:
		c.g.metrics.Broken.Add(1)
		if c.write(out.event()) != nil || c.flush() != nil {
			c.abort = true
		}
	default:
		c.g.metrics.Broken.Add(1)
		c.abort = true
	}
}

func (c *call) refuseWhole(out refusal) {
	h := c.w.Header()
	if out.http == http.StatusServiceUnavailable && out.retry > 0 {
		out.retry = c.caller.later(out.retry) // it is a guess, and everybody's
	}
	if out.retry > 0 {
		setRetryAfter(h, out.retry)
	}
	if !out.quota.isZero() {
		c.quota = out.quota
	}
	if out.http == http.StatusUnauthorized {
		h.Set("WWW-Authenticate", "Bearer")
	}
	h.Set("Content-Type", "application/json")
	_ = c.whole(out.http, out.body()) // the caller has left: there is nobody to tell
}
