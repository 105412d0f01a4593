package forward

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/penstockmq/penstock/consumer/reply"
)

// drainMax bounds the wait for a connection's end of body after the end mark: it makes the connection reusable, and a
// server that does not end the body is not waited for.
const drainMax = 10 * time.Millisecond

// stream hands on server-sent events one by one. The Head goes out with the first event, not with the upstream's status:
// until then a reset or an error event is a failure like any other, with a status of its own and a retry.
func (x *exchange) stream() Outcome {
	s := stream{exchange: x, ends: endMark(x.r.Path)}
	events := newEventReader(x.body(), x.h.opts.EventBytes)
	for {
		ev, err := events.next()
		if err != nil {
			return s.ended(err)
		}
		if o, over := s.event(ev); over {
			return o
		}
	}
}

type stream struct {
	*exchange
	ends    func(event) bool // nil if the API has no end mark
	started bool
	usage   reply.Usage
}

// endMark returns how the API of path says that a stream is whole.
func endMark(path string) func(event) bool {
	switch {
	case !strings.HasPrefix(path, "/v1/"):
		return nil
	case path == "/v1/responses":
		return func(e event) bool {
			return isDone(e.data) || e.name == "response.completed" || e.name == "response.failed" ||
				e.name == "response.incomplete"
		}
	default:
		return func(e event) bool { return isDone(e.data) }
	}
}

// event hands one event on and says whether the stream is over.
func (s *stream) event(ev event) (Outcome, bool) {
	raw := ev.raw
	if !isDone(ev.data) && s.wantsJSON() {
		c, valid := readChunk(ev.data)
		switch {
		case !valid:
			return s.broken(reply.Failure{}, CodeInvalid, "the upstream sent an event that is not valid JSON"), true
		case c.isError():
			return s.broken(failureOf(ev.data), CodeError, "the upstream failed in the middle of its answer"), true
		}
		if u := c.usage(); u != (reply.Usage{}) {
			s.usage = u
			s.meter.used(u)
		}
		s.meter.content(c.content())
		if s.asked {
			raw = withoutQuestion(raw, c)
		}
	}
	if len(raw) > 0 {
		if err := s.hand(raw); err != nil {
			return s.unanswered(err), true
		}
	}
	if s.ends != nil && s.ends(ev) {
		s.drain()
		return s.done(), true
	}
	return Outcome{}, false
}

func (s *stream) hand(raw []byte) error {
	if !s.started {
		if err := s.sink.Head(s.resp.StatusCode, kept(s.resp.Header)); err != nil {
			return err
		}
		s.started = true
	}
	// The upstream is not read until the sink has taken the head.
	return s.watch.hand(func() error { return s.sink.Chunk(raw) })
}

// unanswered is the outcome of an answer that the sink refused. If the request's ctx has ended, the caller has left.
func (s *stream) unanswered(err error) Outcome {
	if s.ctx.Err() != nil {
		return cancelled(s.ctx, s.started)
	}
	return unanswered(s.started, err)
}

func (s *stream) done() Outcome {
	return Outcome{Kind: Done, Status: s.resp.StatusCode, Started: s.started, Usage: s.usage}
}

// ended turns the end of the body into an outcome. A clean end counts only where the API has no end mark: a proxy in
// between turns a crash into a clean end.
func (s *stream) ended(err error) Outcome {
	var bare *bareJSON
	switch {
	case errors.Is(err, io.EOF) && s.ends == nil:
		if err := s.hand(nil); err != nil { // an empty stream still has a status
			return s.unanswered(err)
		}
		return s.done()
	case errors.Is(err, io.EOF):
		return s.broken(reply.Failure{}, CodeBroken, "the upstream's answer ended without its end mark")
	case errors.As(err, &bare):
		code := CodeInvalid
		f := failureOf(firstValue(bare.text))
		if f != (reply.Failure{}) {
			code = CodeError
		}
		return s.broken(f, code, "the upstream's answer fell out of its framing")
	case errors.Is(err, errTooLarge):
		return s.broken(reply.Failure{}, CodeTooLarge, "the upstream sent an event over the limit")
	default:
		return s.watch.failure(s.ctx, s.started, err)
	}
}

// broken is a stream that cannot become whole. What the upstream said about it, f, goes before our own words. An upstream
// that does not keep to its format would do the same again.
func (s *stream) broken(f reply.Failure, code, message string) Outcome {
	passes := code != CodeInvalid && code != CodeTooLarge
	if f.Code == "" {
		f.Code = code
	}
	if f.Message == "" {
		f.Message = message
	}
	if f.Status == 0 {
		f.Status = http.StatusBadGateway
	}
	return Outcome{
		Kind:    Failed,
		Status:  s.resp.StatusCode,
		Started: s.started,
		Retry:   passes && !s.started && mayPass(f.Status),
		Failure: f,
		Err:     fmt.Errorf("stream: %s", message),
	}
}

// mayPass says whether a request that met status may succeed later.
func mayPass(status int) bool {
	return status >= 500 || status == http.StatusTooManyRequests || status == http.StatusRequestTimeout
}

func (s *stream) drain() {
	s.watch.within(drainMax, "end of body")
	_, _ = io.CopyN(io.Discard, s.resp.Body, 4<<10) // an error only means that the connection is not kept
}

// firstValue is the first JSON value in text, or text if there is none.
func firstValue(text []byte) []byte {
	var value json.RawMessage
	if json.NewDecoder(bytes.NewReader(text)).Decode(&value) != nil {
		return text
	}
	return value
}
