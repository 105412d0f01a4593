package mq

import (
	"context"
	"fmt"
	"time"

	v2 "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/penstockmq/penstock/broker/rpc/penstockv1"
)

// Explanation is why a message waits.
type Explanation struct {
	Position       int64     // undelivered messages of its bucket before it
	EstimatedStart time.Time // zero: unknown
	// WaitingFor is the closed gate in words, such as "rate of bucket x" or "suspend of column m"; empty: none is closed.
	WaitingFor string
}

// Explainer is what a Producer is beside that if it can ask why a message waits. Only Penstock's broker knows; of another
// one the answer is an error.
type Explainer interface {
	// Explain returns the state of the message of a recall handle, for the group that it waits for. [ErrNotQueued]: the broker
	// does not have the message any more.
	Explain(ctx context.Context, topic, group, recallHandle string) (Explanation, error)
}

// Explain implements [Explainer].
func (p *stubsProducer) Explain(ctx context.Context, topic, group, recallHandle string) (Explanation, error) {
	ctx, cancel := p.link.call(ctx)
	defer cancel()
	answer, err := penstockv1.NewPenstockClient(p.link.conn).Explain(ctx, &penstockv1.ExplainRequest{
		Topic: topic, Group: group, Of: &penstockv1.ExplainRequest_RecallHandle{RecallHandle: recallHandle},
	})
	if isGone(err) {
		return Explanation{}, fmt.Errorf("explain: %w: %w", ErrNotQueued, err)
	}
	if err != nil {
		return Explanation{}, fmt.Errorf("explain: %w", err)
	}
	return Explanation{
		Position: answer.GetPosition(), EstimatedStart: timeOf(answer.GetEstimatedStart()), WaitingFor: gateText(answer),
	}, nil
}

// isGone reports whether the broker answered that it does not have the message.
func isGone(err error) bool {
	for _, d := range status.Convert(err).Details() {
		if f, ok := d.(*penstockv1.Fault); ok && f.GetRocketmqCode() == int32(v2.Code_MESSAGE_NOT_FOUND) {
			return true
		}
	}
	return false
}

func gateText(answer *penstockv1.ExplainResponse) string {
	if g := answer.GetGate(); g.GetLimit() != "" {
		return g.GetLimit() + " of " + scopeText(g.GetScope(), g.GetName())
	}
	if h := answer.GetHold(); h != nil {
		return "suspend of " + scopeText(h.GetScope(), h.GetName())
	}
	return ""
}

func scopeText(scope penstockv1.Scope, name string) string {
	for text, s := range scopesOnWire {
		if s == scope && name == "" {
			return text
		}
		if s == scope {
			return text + " " + name
		}
	}
	return name
}

func timeOf(t *timestamppb.Timestamp) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.AsTime()
}
