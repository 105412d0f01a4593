package node

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/penstockmq/penstock/broker"
	"github.com/penstockmq/penstock/consumer/reply"
)

// teller tells callers that the broker has given up their request: purged, expired, or tried too often. They would wait for
// their deadline otherwise.
type teller struct {
	n        *Node
	requests *reply.Store // nil without NATS: nobody is told
}

// tellMax bounds the time to tell one caller.
const tellMax = 2 * time.Second

// newTeller opens the store of asynchronous requests. Without it only those who wait on a connection are told.
func (n *Node) newTeller(ctx context.Context) *teller {
	t := &teller{n: n}
	if n.nats == nil {
		return t
	}
	requests, err := n.openRequests(ctx)
	if err != nil {
		n.log.Warn("callers of asynchronous requests are not told when the broker gives them up", "error", err)
		return t
	}
	t.requests = requests
	return t
}

// discarded is the broker's OnDiscard.
func (t *teller) discarded(d broker.Discarded) {
	req, err := reply.FromProperties(d.Message.Properties)
	if err != nil || t.n.nats == nil {
		return // it was sent by somebody else than a gateway
	}
	f := failureOf(d)
	if req.Async && t.requests != nil {
		ctx, cancel := context.WithTimeout(context.Background(), tellMax)
		defer cancel()
		err = t.requests.Fail(ctx, req.ID, 0, f)
	} else if req.Reply != "" {
		err = reply.NewWriter(t.n.nats, req, maxAttempt).Fail(f)
	}
	if err != nil && !errors.Is(err, reply.ErrFinal) && !errors.Is(err, reply.ErrNotFound) {
		t.n.log.Warn("caller could not be told that its request was given up", "request_id", req.ID, "reason", d.Reason, "error", err)
	}
}

// maxAttempt makes a frame of the broker newer than those of any worker.
const maxAttempt = 1 << 20

func failureOf(d broker.Discarded) reply.Failure {
	switch d.Reason {
	case broker.DiscardPurged:
		return reply.Failure{Status: http.StatusConflict, Code: "request_purged", Message: "an operator removed the request from its queue"}
	case broker.DiscardDeadline, broker.DiscardExpired:
		return reply.Failure{Status: http.StatusGatewayTimeout, Code: "deadline_exceeded", Message: "the request waited too long in its queue"}
	}
	return reply.Failure{Status: http.StatusBadGateway, Code: "request_given_up", Message: "the request was given up: " + d.Reason}
}
