package rpc

import (
	"context"

	v2 "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"

	"github.com/penstockmq/penstock/broker/lite"
)

// RecallMessage cancels a message that is still queued, by the handle that came with
// its send receipt. RocketMQ has it for delayed messages only.
//
// Codes: ILLEGAL_TOPIC, TOPIC_NOT_FOUND, INVALID_RECEIPT_HANDLE for a handle that is
// no recall handle of this topic; MESSAGE_NOT_FOUND when the message is being
// processed or is gone.
func (s *Server) RecallMessage(ctx context.Context, r *v2.RecallMessageRequest) (*v2.RecallMessageResponse, error) {
	if err := lite.CheckTopic(r.GetTopic().GetName()); err != nil {
		return nil, err
	}
	id, err := s.broker.Recall(ctx, r.GetTopic().GetName(), r.GetRecallHandle())
	if err != nil {
		return nil, err
	}
	return &v2.RecallMessageResponse{Status: statusOf(nil), MessageId: id}, nil
}
