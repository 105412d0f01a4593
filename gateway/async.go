package gateway

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/penstockmq/penstock/broker/lite"
	"github.com/penstockmq/penstock/consumer/reply"
)

// pollHint is the Retry-After of a request that has not ended, when nothing better is known.
const pollHint = time.Second

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

// async stores a record of the question, sends it and answers 202.
//
// The record comes first: a worker must find it. A gateway that crashes between the two leaves a record that says queued
// until its deadline has passed and expired from then on; nobody was told its id.
func (x *exchange) async() error {
	store := x.g.opts.Requests
	if store == nil {
		return errNoAsync
	}
	ctx, cancel := x.context()
	defer cancel()
	rec := reply.Record{
		ID: x.c.id, User: x.cell.User, Model: x.cell.Model, State: reply.StateQueued,
		Created: x.c.arrived.Round(0), Deadline: x.deadline.Round(0),
	}
	if err := store.Create(ctx, rec); err != nil {
		if ctx.Err() != nil {
			return reason(context.Cause(ctx))
		}
		return x.c.storeError(err)
	}
	if err := x.enqueue(ctx, reply.Request{Async: true, Stream: x.q.stream}); err != nil {
		x.endRecord(err)
		x.c.refuse(err)
		if x.sent { // its outcome is unknown
			x.withdraw()
		}
		return nil
	}
	x.g.metrics.Async.Add(1)
	if x.rules.cell.Depth == 0 && x.rules.cell.DepthBytes == 0 {
		x.g.admission.untrack(x.pass.place) // no cap asks for it
	}
	x.noteHandle()
	if ctx.Err() != nil { // the caller has left without learning the id
		err := reason(context.Cause(ctx))
		x.endRecord(err)
		x.c.refuse(err)
		x.withdraw()
		x.leave()
		return nil
	}
	return x.accepted(rec)
}

func (x *exchange) accepted(rec reply.Record) error {
	h := x.c.w.Header()
	h.Set("Location", "/v1/requests/"+rec.ID)
	h.Set("Preference-Applied", "respond-async")
	setRetryAfter(h, max(pollHint, paceOf(x.rules.cell, time.Now()).interval))
	h.Set(headerRequestState, string(rec.State))
	return x.c.json(http.StatusAccepted, documentOf(rec))
}

// noteHandle keeps the way to recall the message. Without it a cancel goes by id, which works as well but leaves the
// message in its bucket until a worker finds the record cancelled.
func (x *exchange) noteHandle() {
	if x.handle == "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), withdrawMax)
	defer cancel()
	err := x.g.opts.Requests.SetRecallHandle(ctx, x.c.id, x.handle)
	if err != nil && !errors.Is(err, reply.ErrFinal) { // final: the answer is there already
		x.g.opts.Logger.Warn("recall handle not kept", "request_id", x.c.id, "error", err)
	}
}

// endRecord ends the record of a request that was not accepted. A worker that meets the message after it does not run it.
func (x *exchange) endRecord(err error) {
	ctx, cancel := context.WithTimeout(context.Background(), withdrawMax)
	defer cancel()
	row := statusOf(err)
	failErr := x.g.opts.Requests.Fail(ctx, x.c.id, reply.Failure{
		Status: row.http, Code: row.code, Type: row.kind, Message: row.condition.Error(),
	})
	if failErr != nil && !errors.Is(failErr, reply.ErrFinal) {
		x.g.opts.Logger.Warn("record of a refused request not ended", "request_id", x.c.id, "error", failErr)
	}
}

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
		setRetryAfter(c.w.Header(), pollHint)
		d := documentOf(rec)
		if rec.State == reply.StateQueued {
			g.explain(c.r.Context(), rec, &d)
		}
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

func (g *Gateway) result(c *call, rec reply.Record) error {
	body, err := g.opts.Requests.Body(c.r.Context(), rec)
	if errors.Is(err, reply.ErrNotFound) {
		return errResultGone
	}
	if err != nil {
		return c.recordError(err)
	}
	copyHeader(c.w.Header(), rec.Header)
	return c.whole(rec.Status, body)
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
