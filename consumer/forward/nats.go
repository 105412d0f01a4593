package forward

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/penstockmq/penstock/consumer/reply"
)

// Headers of a request to a NATS service, beside Content-Type.
const (
	headerRequestID = "Penstock-Request-Id"
	headerUser      = "Penstock-User"
	headerModel     = "Penstock-Model"
	headerAttempt   = "Penstock-Attempt"

	headersMax = 4 << 10 // bytes they take of a server's payload limit
)

// NATSOptions configures a [NATS] downstream.
type NATSOptions struct {
	// Subject receives the requests, such as a subject of a NATS micro service.
	Subject string
	// Total bounds the wait for the reply. 0 means 10 min.
	Total time.Duration
	// RetryAfter bounds what a service may ask for. 0 means 1 h.
	RetryAfter time.Duration
}

// NATS is a service that answers requests on a subject. The answer is one message, so it does not stream. A service says
// that it failed by the headers of NATS micro: Nats-Service-Error-Code, an HTTP status, and Nats-Service-Error; with 429 or
// 503 it may add Retry-After.
type NATS struct {
	nc   *nats.Conn
	opts NATSOptions
}

// NewNATS returns the downstream of opts over nc, which the caller keeps open and closes.
func NewNATS(nc *nats.Conn, opts NATSOptions) (*NATS, error) {
	if opts.Subject == "" {
		return nil, errors.New("nats downstream: subject: is empty")
	}
	if opts.Total < 0 || opts.RetryAfter < 0 {
		return nil, errors.New("nats downstream: total, retry_after: want 0 or more")
	}
	if opts.Total == 0 {
		opts.Total = 10 * time.Minute
	}
	if opts.RetryAfter == 0 {
		opts.RetryAfter = time.Hour
	}
	return &NATS{nc: nc, opts: opts}, nil
}

// Forward implements [Downstream].
func (n *NATS) Forward(ctx context.Context, r Request, sink Sink) Outcome {
	if ctx.Err() != nil {
		return cancelled(ctx, false)
	}
	if limit := n.nc.MaxPayload() - headersMax; int64(len(r.Body)) > limit {
		return refuse(sink, http.StatusRequestEntityTooLarge, CodeBodyLarge,
			fmt.Sprintf("the body has %d bytes, the downstream takes %d", len(r.Body), limit))
	}
	wait, cancel := context.WithTimeoutCause(ctx, n.opts.Total, fmt.Errorf("%w: total, %s", errTimeout, n.opts.Total))
	defer cancel()
	count := newMeter(sink)
	m, err := n.nc.RequestMsgWithContext(wait, n.message(r))
	if err != nil {
		return count.total(n.failure(ctx, wait, err))
	}
	count.heard()
	o := n.answer(m, count)
	if o.Kind == Done {
		count.used(o.Usage)
	}
	return count.total(o)
}

func (n *NATS) message(r Request) *nats.Msg {
	m := nats.NewMsg(n.opts.Subject)
	m.Data = r.Body
	contentType := r.ContentType
	if contentType == "" {
		contentType = "application/json"
	}
	m.Header.Set("Content-Type", contentType)
	for name, value := range map[string]string{
		headerRequestID: r.ID, headerUser: r.User, headerModel: r.Model, headerAttempt: strconv.Itoa(r.Attempt),
	} {
		if value != "" {
			m.Header.Set(name, value)
		}
	}
	return m
}

func (n *NATS) failure(ctx, wait context.Context, err error) Outcome {
	switch {
	case ctx.Err() != nil:
		return cancelled(ctx, false)
	case errors.Is(err, nats.ErrNoResponders):
		return failed(http.StatusServiceUnavailable, CodeUnreachable, "no service listens for this model", true, err)
	case wait.Err() != nil:
		return failed(http.StatusGatewayTimeout, CodeTimeout, "the service took too long", true, context.Cause(wait))
	default:
		return failed(http.StatusBadGateway, CodeUnreachable, "the service could not be asked", true, err)
	}
}

func (n *NATS) answer(m *nats.Msg, sink Sink) Outcome {
	header := http.Header{}
	if contentType := m.Header.Get("Content-Type"); contentType != "" {
		header.Set("Content-Type", contentType)
	}
	text := m.Header.Get(micro.ErrorCodeHeader)
	if text == "" {
		u := usageOf(m.Data)
		if err := sink.Answer(http.StatusOK, header, m.Data, u); err != nil {
			return unanswered(false, err)
		}
		return Outcome{Kind: Done, Status: http.StatusOK, Usage: u}
	}
	status, err := strconv.Atoi(text)
	if err != nil || status < 400 || status > 599 {
		status = http.StatusBadGateway
	}
	return n.refused(m, status, header, sink)
}

// refused is an answer with an error status: the rules of [HTTP] over again.
func (n *NATS) refused(m *nats.Msg, status int, header http.Header, sink Sink) Outcome {
	message := oneLine(m.Header.Get(micro.ErrorHeader))
	if message == "" {
		message = fmt.Sprintf("the service answered %d", status)
	}
	if !mayPass(status) {
		if len(m.Data) == 0 {
			return refuse(sink, status, CodeError, message)
		}
		if err := sink.Answer(status, header, m.Data, reply.Usage{}); err != nil {
			return unanswered(false, err)
		}
		return Outcome{Kind: Refused, Status: status}
	}
	o := failed(status, CodeError, message, true, fmt.Errorf("service answered %d", status))
	o.Status = status
	if isOverload(status) {
		o.Failure.Code = CodeBusy
		if after, ok := retryAfter(http.Header(m.Header), time.Now(), n.opts.RetryAfter); ok {
			return Outcome{Kind: Busy, Status: status, After: after, Failure: o.Failure}
		}
	}
	return o
}
