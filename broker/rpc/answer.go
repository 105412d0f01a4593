package rpc

import (
	v2 "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
)

// answerWith builds the response that carries nothing but a status to a unary
// request. It is how a call is refused before, or instead of, its handler. ok is
// false for a request that RocketMQ's service does not have.
func answerWith(request any, st *v2.Status) (response any, ok bool) {
	switch request.(type) {
	case *v2.QueryRouteRequest:
		return &v2.QueryRouteResponse{Status: st}, true
	case *v2.HeartbeatRequest:
		return &v2.HeartbeatResponse{Status: st}, true
	case *v2.SendMessageRequest:
		return &v2.SendMessageResponse{Status: st}, true
	case *v2.QueryAssignmentRequest:
		return &v2.QueryAssignmentResponse{Status: st}, true
	case *v2.AckMessageRequest:
		return &v2.AckMessageResponse{Status: st}, true
	case *v2.ForwardMessageToDeadLetterQueueRequest:
		return &v2.ForwardMessageToDeadLetterQueueResponse{Status: st}, true
	case *v2.UpdateOffsetRequest:
		return &v2.UpdateOffsetResponse{Status: st}, true
	case *v2.GetOffsetRequest:
		return &v2.GetOffsetResponse{Status: st}, true
	case *v2.QueryOffsetRequest:
		return &v2.QueryOffsetResponse{Status: st}, true
	case *v2.EndTransactionRequest:
		return &v2.EndTransactionResponse{Status: st}, true
	case *v2.NotifyClientTerminationRequest:
		return &v2.NotifyClientTerminationResponse{Status: st}, true
	case *v2.ChangeInvisibleDurationRequest:
		return &v2.ChangeInvisibleDurationResponse{Status: st}, true
	case *v2.RecallMessageRequest:
		return &v2.RecallMessageResponse{Status: st}, true
	case *v2.SyncLiteSubscriptionRequest:
		return &v2.SyncLiteSubscriptionResponse{Status: st}, true
	default:
		return nil, false
	}
}

// statusFrame is a message of a server stream that carries a status, for the
// streams that have such a thing.
func statusFrame(method string, st *v2.Status) (frame any, ok bool) {
	switch method {
	case v2.MessagingService_ReceiveMessage_FullMethodName:
		return &v2.ReceiveMessageResponse{Content: &v2.ReceiveMessageResponse_Status{Status: st}}, true
	case v2.MessagingService_PullMessage_FullMethodName:
		return &v2.PullMessageResponse{Content: &v2.PullMessageResponse_Status{Status: st}}, true
	default:
		return nil, false
	}
}
