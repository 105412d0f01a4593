package gateway

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/penstockmq/penstock/broker/lite"
	"github.com/penstockmq/penstock/consumer/reply"
)

// requestDocument is what a caller sees of an asynchronous request. Instants are Unix seconds.
type requestDocument struct {
	ID         string    `json:"id"`
	Object     string    `json:"object"` // "request"
	State      string    `json:"state"`  // queued, running, done, failed, cancelled, expired
	Model      string    `json:"model"`
	CreatedAt  int64     `json:"created_at"`
	StartedAt  int64     `json:"started_at,omitempty"`
	FinishedAt int64     `json:"finished_at,omitempty"`
	ExpiresAt  int64     `json:"expires_at,omitempty"` // its deadline
	Error      *apiError `json:"error,omitempty"`      // failed only

	// Queued only, each if it is known.
	Position       *int64 `json:"position,omitempty"`        // how many of its bucket come before it
	EstimatedStart string `json:"estimated_start,omitempty"` // RFC 3339, in UTC
	WaitingFor     string `json:"waiting_for,omitempty"`     // the closed gate
}

func documentOf(r reply.Record) requestDocument {
	d := requestDocument{
		ID: r.ID, Object: "request", State: string(r.State), Model: r.Model,
		CreatedAt: seconds(r.Created), StartedAt: seconds(r.Started), FinishedAt: seconds(r.Finished),
		ExpiresAt: seconds(r.Deadline),
	}
	if r.Failure != nil {
		e := refusalOf(*r.Failure).document.Error
		d.Error = &e
	}
	return d
}

func seconds(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.Unix()
}

// async sends the question, stores its record and answers 202.
//
// The message comes first: a refused request then leaves nothing in the store, and the record is written once, with the
// handle of the message. A worker that is faster than the record makes the record itself. If the gateway crashes between
// the two, the request runs although no caller knows its id.
func (x *exchange) async() error {
	store := x.g.opts.Requests
	if store == nil {
		return errNoAsync
	}
	ctx, cancel := x.context()
	defer cancel()
	if err := store.Admit(ctx, x.cell.User); err != nil {
		if ctx.Err() != nil {
			return reason(context.Cause(ctx))
		}
		return x.c.admitError(err)
	}
	rec := reply.Record{
		ID: x.c.id, User: x.cell.User, Model: x.cell.Model, State: reply.StateQueued,
		Created: x.c.arrived.Round(0), Deadline: x.deadline.Round(0),
	}
	err := x.enqueue(ctx, reply.Request{Async: true, Stream: x.q.stream})
	if err != nil {
		if x.sent { // its outcome is unknown
			x.abandon(rec, err)
		}
		x.c.refuse(err) // last: when the caller has its answer, Close must already wait for the goroutine of abandon
		return nil
	}
	if ctx.Err() != nil { // the caller has left without learning the id
		err = reason(context.Cause(ctx))
	} else {
		rec.RecallHandle = x.handle
		err = x.keep(rec)
	}
	if err != nil {
		x.leave()
		x.abandon(rec, err)
		x.c.refuse(err)
		return nil
	}
	x.g.metrics.Async.Add(1)
	if x.rules.cell.Depth == 0 && x.rules.cell.DepthBytes == 0 {
		x.g.admission.untrack(x.pass.place) // no cap counts it
	}
	return x.accepted(rec)
}

// keepMax bounds the writing of a record.
const keepMax = 5 * time.Second

// keep stores the record of a message that was sent, also when the caller has left.
func (x *exchange) keep(rec reply.Record) error {
	ctx, cancel := context.WithTimeout(context.Background(), keepMax)
	defer cancel()
	err := x.g.opts.Requests.Create(ctx, rec)
	if err == nil || errors.Is(err, reply.ErrExists) { // a worker has made it
		return nil
	}
	return x.c.admitError(err)
}

// abandon takes back a request that is refused with err although its message was, or may have been, sent. If the message
// cannot be removed from its bucket, the record of the request is ended, so that no worker runs it. The write is repeated
// in the background until it succeeds, since the caller already has its answer.
func (x *exchange) abandon(rec reply.Record, err error) {
	g := x.g
	row := statusOf(err)
	f := reply.Failure{Status: row.http, Code: row.code, Type: row.kind, Message: row.condition.Error()}
	handle := x.handle
	select {
	case g.burials <- struct{}{}:
	default:
		g.opts.Logger.Warn("too many refused requests wait to be taken back, this one may run", "request_id", rec.ID)
		return
	}
	g.buried.Go(func() {
		defer func() { <-g.burials }()
		g.bury(rec, handle, f)
	})
}

const (
	// burialsMax bounds the requests that are taken back at the same time.
	burialsMax = 1024
	buryFirst  = 100 * time.Millisecond
	buryMost   = 10 * time.Second
)

// bury returns when the request is recalled, when its record is ended, at its deadline, or when the gateway stops.
func (g *Gateway) bury(rec reply.Record, handle string, f reply.Failure) {
	if g.withdraw(rec.ID, handle) {
		return
	}
	for wait := buryFirst; ; wait = min(2*wait, buryMost) {
		ctx, cancel := context.WithTimeout(context.Background(), keepMax)
		err := g.opts.Requests.Bury(ctx, rec, f)
		cancel()
		if err == nil || errors.Is(err, reply.ErrFinal) {
			return
		}
		if !rec.Deadline.IsZero() && time.Now().After(rec.Deadline) {
			return // no worker runs it
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-g.ended.Done():
			timer.Stop()
			g.opts.Logger.Warn("record of a refused request not ended, it may run", "request_id", rec.ID, "error", err)
			return
		}
	}
}

func (x *exchange) accepted(rec reply.Record) error {
	h := x.c.w.Header()
	h.Set("Location", "/v1/requests/"+rec.ID)
	h.Set("Preference-Applied", "respond-async")
	setRetryAfter(h, max(pollHint, paceOf(x.rules.cell, time.Now()).interval))
	h.Set(headerRequestState, string(rec.State))
	return x.c.json(http.StatusAccepted, documentOf(rec))
}

// admitError returns the refusal for a store that takes no new request.
func (c *call) admitError(err error) error {
	switch {
	case errors.Is(err, reply.ErrUserFull):
		return after(errUserStore, userStoreRetry, "%s", strings.TrimPrefix(err.Error(), "reply: "))
	case errors.Is(err, reply.ErrFull):
		c.g.metrics.StoreFull.Add(1)
		return after(errStoreFull, storeRetry, "the store of asynchronous requests is full")
	}
	return c.storeError(err)
}

const (
	// storeRetry and userStoreRetry are the Retry-After of a full store: room appears as results age.
	storeRetry     = 30 * time.Second
	userStoreRetry = time.Minute
)

func (c *call) storeError(err error) error {
	c.g.opts.Logger.Warn("request store failed", "request_id", c.id, "error", err)
	return after(errReplies, brokerRetry, "the store of asynchronous requests cannot be reached")
}

// getRequest answers GET /v1/requests/{id}, see the package comment.
func (g *Gateway) getRequest(c *call) error {
	rec, err := g.record(c)
	if err != nil {
		return err
	}
	c.queued, c.begun = rec.Created, rec.Started
	c.w.Header().Set(headerRequestState, string(rec.State))
	switch rec.State {
	case reply.StateDone:
		return g.result(c, rec)
	case reply.StateFailed:
		failure := reply.Failure{}
		if rec.Failure != nil {
			failure = *rec.Failure
		}
		c.ended(rec, failure)
	case reply.StateCancelled:
		c.ended(rec, errCancelled)
	case reply.StateExpired:
		c.ended(rec, errDeadline)
	case reply.StateQueued, reply.StateRunning:
		d := documentOf(rec)
		wait, lost := g.explain(c.r.Context(), rec, &d)
		if lost {
			return g.lost(c, rec)
		}
		setRetryAfter(c.w.Header(), wait)
		return c.json(http.StatusAccepted, d)
	}
	return nil
}

// ended answers for a request that has no result: with its error, in a document that also names id and state.
func (c *call) ended(rec reply.Record, err error) {
	if c.begun.IsZero() {
		c.begun = rec.Finished // it left its bucket without a worker
	}
	out := refusalOf(err)
	out.document.ID, out.document.State = rec.ID, string(rec.State)
	c.refuseAs(err, out)
}

// lost ends a request whose message the broker does not have any more. An outcome is stored before its message is settled,
// so the record is read once more first.
func (g *Gateway) lost(c *call, rec reply.Record) error {
	ctx := c.r.Context()
	err := g.opts.Requests.Fail(ctx, rec.ID, 0, reply.Failure{
		Status: http.StatusBadGateway, Code: codeLost, Type: typeServer, Message: "the request was given up and its outcome could not be stored",
	})
	if err != nil && !errors.Is(err, reply.ErrFinal) {
		return c.recordError(err)
	}
	if rec, err = g.opts.Requests.Get(ctx, rec.ID, c.user); err != nil {
		return c.recordError(err)
	}
	if !rec.State.Final() { // a worker of a NATS replica that is behind: the next poll sees it
		setRetryAfter(c.w.Header(), pollHint)
		return c.json(http.StatusAccepted, documentOf(rec))
	}
	return g.getRequest(c)
}

// codeLost is the code of a request without a message and without an outcome.
const codeLost = "request_lost"

// result passes on a stored answer piece by piece: a caller that reads slowly costs the memory of one piece.
func (g *Gateway) result(c *call, rec reply.Record) error {
	if rec.Object != "" {
		if err := c.hold(reply.ResultChunk); err != nil {
			return err
		}
		defer c.release()
	}
	body, err := g.opts.Requests.Open(c.r.Context(), rec)
	if errors.Is(err, reply.ErrNotFound) {
		return errResultGone
	}
	if err != nil {
		return c.recordError(err)
	}
	piece := make([]byte, min(rec.Size, reply.ResultChunk))
	n, err := io.ReadFull(body, piece) // an unreadable result is then an error before the head is sent
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && rec.Size > 0 {
		return c.recordError(err)
	}
	copyHeader(c.w.Header(), rec.Header)
	if rec.Status == http.StatusNoContent || rec.Status == http.StatusNotModified {
		return c.whole(rec.Status, nil)
	}
	c.w.Header().Set("Content-Length", strconv.Itoa(rec.Size))
	c.head(rec.Status)
	for {
		if err := c.write(piece[:n]); err != nil {
			return err
		}
		if n, err = body.Read(piece); n == 0 && errors.Is(err, io.EOF) {
			return c.flush()
		}
		if err != nil {
			g.opts.Logger.Warn("stored result broke off", "request_id", rec.ID, "error", err)
			return c.recordError(err) // the head was sent, so the connection is cut
		}
	}
}

// record reads the record that the URL names. One whose deadline has passed is expired: nobody else would say so of a
// message that the broker dropped.
func (g *Gateway) record(c *call) (reply.Record, error) {
	if g.opts.Requests == nil {
		return reply.Record{}, errNoAsync
	}
	ctx, id := c.r.Context(), c.r.PathValue("id")
	rec, err := g.opts.Requests.Get(ctx, id, c.user)
	if err == nil && !rec.State.Final() && !rec.Deadline.IsZero() && time.Now().After(rec.Deadline) {
		if err = g.opts.Requests.Expire(ctx, id); err == nil || errors.Is(err, reply.ErrFinal) {
			rec, err = g.opts.Requests.Get(ctx, id, c.user)
		}
	}
	return rec, c.recordError(err)
}

func (c *call) recordError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, reply.ErrNotFound):
		return refuse(errNoRequest, "id", "no such request")
	case c.r.Context().Err() != nil:
		return errCallerGone
	}
	return c.storeError(err)
}

// cancelRequest answers DELETE /v1/requests/{id}. The record is ended first: from then on no worker starts the request,
// whatever becomes of the message.
func (g *Gateway) cancelRequest(c *call) error {
	if g.opts.Requests == nil {
		return errNoAsync
	}
	id := c.r.PathValue("id")
	before, err := g.opts.Requests.Cancel(c.r.Context(), id, c.user)
	if err != nil && !errors.Is(err, reply.ErrFinal) {
		return c.recordError(err)
	}
	rec, getErr := g.opts.Requests.Get(c.r.Context(), id, c.user)
	if getErr != nil {
		return c.recordError(getErr)
	}
	c.queued, c.begun = rec.Created, rec.Started
	if c.begun.IsZero() {
		c.begun = rec.Finished
	}
	c.w.Header().Set(headerRequestState, string(rec.State))
	answerErr := c.json(http.StatusOK, documentOf(rec))
	if err == nil { // it had not ended
		g.withdraw(id, before.RecallHandle)
		if p := g.admission.find(lite.Cell{User: before.User, Model: before.Model}, id); p != nil {
			g.admission.leave(time.Now(), p)
		}
	}
	return answerErr
}
