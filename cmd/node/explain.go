package node

import (
	"context"
	"errors"

	"github.com/penstockmq/penstock/broker"
	"github.com/penstockmq/penstock/consumer/mq"
	"github.com/penstockmq/penstock/gateway"
)

// newExplain says how the gateway finds out why a request waits: it asks the broker of this process, or else the one
// elsewhere, if the adapter can. Nil: nobody can be asked.
func (n *Node) newExplain(p mq.Producer) gateway.Explain {
	if n.broker != nil {
		return n.explainHere
	}
	e, ok := p.(mq.Explainer)
	if !ok {
		return nil
	}
	return func(ctx context.Context, _, handle string) (gateway.Explanation, error) {
		x, err := e.Explain(ctx, n.opts.Topic, n.opts.Group, handle)
		if errors.Is(err, mq.ErrNotQueued) {
			err = errors.Join(gateway.ErrGone, err)
		}
		return gateway.Explanation{Position: x.Position, EstimatedStart: x.EstimatedStart, WaitingFor: x.WaitingFor}, err
	}
}

func (n *Node) explainHere(ctx context.Context, _, handle string) (gateway.Explanation, error) {
	x, err := n.broker.ExplainHandle(ctx, n.opts.Topic, n.opts.Group, handle)
	if errors.Is(err, broker.ErrNotQueued) || errors.Is(err, broker.ErrBucketNotFound) {
		err = errors.Join(gateway.ErrGone, err)
	}
	if err != nil {
		return gateway.Explanation{}, err
	}
	return gateway.Explanation{
		Position: int64(x.Position), EstimatedStart: x.EstimatedStart, WaitingFor: waitingFor(x),
	}, nil
}

// waitingFor is the closed gate in words.
func waitingFor(x broker.Explanation) string {
	switch {
	case x.Limit != "":
		return x.Limit + " of " + x.Gate.String()
	case !x.Hold.Until.IsZero():
		return "suspend of " + x.Hold.Target.String()
	}
	return ""
}
