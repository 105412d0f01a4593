package rpc

import (
	"context"
	"errors"

	v2 "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"

	"github.com/penstockmq/penstock/broker"
)

// suspendReason is what an operator reads beside a hold that a consumer asked for.
const suspendReason = "suspended by consumer"

// staleRenewal is the message of an OK that extended no lease.
const staleRenewal = "stale receipt handle: the lease has ended and was not extended"

// ChangeInvisibleDuration has two meanings. With suspend, the message goes back with
// its attempt unchanged and the whole bucket is held for that long. Without, its
// lease ends that long from now; the handle stays the same, so a call whose answer was
// lost may be repeated.
//
// A handle that decodes is answered OK even if it is stale: official clients try
// again for ever on any other code, INVALID_RECEIPT_HANDLE included. The message of the
// status says whether the lease was extended, "ok", or that nothing was changed,
// staleRenewal. penstock.v1's Renew has a code for it. There is no shortest duration.
//
// A suspend over the group's maximum is cut to it: a refusal would cause a new delivery at
// once, or at the end of the lease with an attempt spent.
//
// Codes: ILLEGAL_TOPIC, ILLEGAL_CONSUMER_GROUP, ILLEGAL_INVISIBLE_TIME for none, a
// negative one, a suspend over 24 h and the group's longest one, or another change over
// 12 h; TOPIC_NOT_FOUND,
// CONSUMER_GROUP_NOT_FOUND, INVALID_RECEIPT_HANDLE.
func (s *Server) ChangeInvisibleDuration(ctx context.Context, r *v2.ChangeInvisibleDurationRequest) (*v2.ChangeInvisibleDurationResponse, error) {
	if err := checkNames(r.GetTopic(), r.GetGroup()); err != nil {
		return nil, err
	}
	d := r.GetInvisibleDuration().AsDuration()
	if !r.GetInvisibleDuration().IsValid() || d < 0 {
		return nil, refuse(v2.Code_ILLEGAL_INVISIBLE_TIME, "invisible duration %v is absent, negative or no duration", d)
	}
	handle := r.GetReceiptHandle()
	topic, group := r.GetTopic().GetName(), r.GetGroup().GetName()
	if r.GetSuspend() {
		if err := s.broker.Suspend(ctx, topic, group, handle, d, callerOf(ctx).id, suspendReason); err != nil {
			return nil, err
		}
		return &v2.ChangeInvisibleDurationResponse{Status: statusOf(nil), ReceiptHandle: handle}, nil
	}
	if d > maxInvisible {
		return nil, refuse(v2.Code_ILLEGAL_INVISIBLE_TIME, "invisible duration %v is over %v", d, maxInvisible)
	}
	st := statusOf(nil)
	err := s.broker.ChangeInvisible(ctx, topic, group, handle, d)
	if errors.Is(err, broker.ErrStaleHandle) {
		st.Message, err = staleRenewal, nil
	}
	if err != nil {
		return nil, err
	}
	return &v2.ChangeInvisibleDurationResponse{Status: st, ReceiptHandle: handle}, nil
}
