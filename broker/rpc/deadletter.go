package rpc

import (
	"context"
	"errors"
	"fmt"

	v2 "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"

	"github.com/penstockmq/penstock/broker"
)

// ForwardMessageToDeadLetterQueue moves a message to the dead letters of its group,
// in one atomic write, and answers when that is durable. A stale handle has no
// effect and is OK: official clients try again for ever on any other code.
//
// Codes: ILLEGAL_TOPIC, ILLEGAL_CONSUMER_GROUP, TOPIC_NOT_FOUND,
// CONSUMER_GROUP_NOT_FOUND, INVALID_RECEIPT_HANDLE.
func (s *Server) ForwardMessageToDeadLetterQueue(ctx context.Context, r *v2.ForwardMessageToDeadLetterQueueRequest) (*v2.ForwardMessageToDeadLetterQueueResponse, error) {
	if err := checkNames(r.GetTopic(), r.GetGroup()); err != nil {
		return nil, err
	}
	reason := fmt.Sprintf("given up by consumer at attempt %d of %d", r.GetDeliveryAttempt(), r.GetMaxDeliveryAttempts())
	err := s.broker.DeadLetter(ctx, r.GetTopic().GetName(), r.GetGroup().GetName(), r.GetReceiptHandle(), reason)
	if err != nil && !errors.Is(err, broker.ErrStaleHandle) {
		return nil, err
	}
	return &v2.ForwardMessageToDeadLetterQueueResponse{Status: statusOf(nil)}, nil
}
