package rpc

import (
	"context"

	v2 "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/penstockmq/penstock/broker"
	"github.com/penstockmq/penstock/broker/dispatch"
	"github.com/penstockmq/penstock/broker/lite"
	"github.com/penstockmq/penstock/broker/rpc/penstockv1"
	"github.com/penstockmq/penstock/suspend"
)

// Explain says why a message waits. Without a group it is the only one that reads the
// parent topic.
//
// Errors: ILLEGAL_TOPIC, ILLEGAL_CONSUMER_GROUP; BAD_REQUEST for none of recall_handle,
// bucket and request_id, or a request id that is none; ILLEGAL_LITE_TOPIC,
// INVALID_RECEIPT_HANDLE; TOPIC_NOT_FOUND, CONSUMER_GROUP_NOT_FOUND,
// MESSAGE_NOT_FOUND.
func (p *penstockServer) Explain(ctx context.Context, r *penstockv1.ExplainRequest) (*penstockv1.ExplainResponse, error) {
	if err := checkGiven(r.GetTopic(), r.GetGroup()); err != nil {
		return nil, err
	}
	x, err := p.explain(ctx, r)
	if err != nil {
		return nil, err
	}
	return explanationToWire(x), nil
}

func (p *penstockServer) explain(ctx context.Context, r *penstockv1.ExplainRequest) (broker.Explanation, error) {
	b, topic, group := p.s.broker, r.GetTopic(), r.GetGroup()
	switch of := r.GetOf().(type) {
	case *penstockv1.ExplainRequest_RecallHandle:
		return b.ExplainHandle(ctx, topic, group, of.RecallHandle)
	case *penstockv1.ExplainRequest_Bucket:
		if err := lite.CheckName(of.Bucket); err != nil {
			return broker.Explanation{}, err
		}
		return b.Explain(ctx, topic, group, of.Bucket, broker.NextMessage)
	case *penstockv1.ExplainRequest_RequestId:
		if n := len(of.RequestId); n == 0 || n > maxMessageIDBytes {
			return broker.Explanation{}, refuse(v2.Code_BAD_REQUEST, "request_id has %d bytes, want 1 to %d", n, maxMessageIDBytes)
		}
		name, offset, ok, err := b.FindRequest(ctx, topic, of.RequestId)
		if err != nil {
			return broker.Explanation{}, err
		}
		if !ok {
			return broker.Explanation{}, refuse(v2.Code_MESSAGE_NOT_FOUND, "request_id %q: no message of it is kept", of.RequestId)
		}
		return b.Explain(ctx, topic, group, name, offset)
	default:
		return broker.Explanation{}, refuse(v2.Code_BAD_REQUEST, "none of recall_handle, bucket and request_id is given")
	}
}

// states are the broker's words for a state. It is never written to.
var states = map[string]penstockv1.State{
	dispatch.WaitQueued.String():  penstockv1.State_STATE_QUEUED,
	dispatch.WaitOut.String():     penstockv1.State_STATE_OUT,
	dispatch.WaitHeld.String():    penstockv1.State_STATE_HELD,
	dispatch.WaitLimited.String(): penstockv1.State_STATE_LIMITED,
	dispatch.WaitFull.String():    penstockv1.State_STATE_IN_FLIGHT,
	dispatch.WaitReady.String():   penstockv1.State_STATE_READY,
	broker.StateEmpty:             penstockv1.State_STATE_EMPTY,
}

func explanationToWire(x broker.Explanation) *penstockv1.ExplainResponse {
	out := &penstockv1.ExplainResponse{
		Bucket: x.Bucket, Offset: x.Offset, State: states[x.State], Position: int64(x.Position),
		Since: timestampOf(x.Since), Until: timestampOf(x.Until), Opens: x.Opens, EstimatedStart: timestampOf(x.EstimatedStart),
		User: x.Cell.User, Model: x.Cell.Model, Level: uint32(x.Level), RequestId: x.RequestID,
		PolicyNotice: x.PolicyNotice,
		Limits:       make([]*penstockv1.LimitLine, len(x.Lines)),
	}
	if x.Gate != (suspend.Target{}) {
		out.Gate = &penstockv1.Gate{Scope: scopeToWire(x.Gate.Scope), Name: x.Gate.Name, Limit: x.Limit}
	}
	if h := x.Hold; !h.Until.IsZero() {
		out.Hold = &penstockv1.HoldLine{
			Scope: scopeToWire(h.Target.Scope), Name: h.Target.Name, Until: timestamppb.New(h.Until), By: h.By, Reason: h.Reason,
		}
	}
	for i, l := range x.Lines {
		out.Limits[i] = &penstockv1.LimitLine{
			Scope: l.Scope, Name: l.Name, Limit: l.Limit, Value: l.Value, Used: l.Used, Max: l.Max,
			Open: l.Open, Opens: timestampOf(l.Opens), Shadow: l.Shadow, WouldHold: l.WouldHold,
			FactorPermille: l.Factor, Stale: l.Stale, From: l.From,
		}
	}
	return out
}
