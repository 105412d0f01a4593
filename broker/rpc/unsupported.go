package rpc

import (
	"context"

	v2 "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
	"google.golang.org/grpc"
)

// The rest of MessagingService has no meaning for lite topics: transactions, and
// consumers that keep their own offsets. The answer is NOT_IMPLEMENTED in the
// status.

func notImplemented(what string) error {
	return refuse(v2.Code_NOT_IMPLEMENTED, "%s: not available for lite topics", what)
}

// EndTransaction is not implemented.
func (s *Server) EndTransaction(context.Context, *v2.EndTransactionRequest) (*v2.EndTransactionResponse, error) {
	return nil, notImplemented("end transaction")
}

// PullMessage is not implemented.
func (s *Server) PullMessage(*v2.PullMessageRequest, grpc.ServerStreamingServer[v2.PullMessageResponse]) error {
	return notImplemented("pull message")
}

// UpdateOffset is not implemented.
func (s *Server) UpdateOffset(context.Context, *v2.UpdateOffsetRequest) (*v2.UpdateOffsetResponse, error) {
	return nil, notImplemented("update offset")
}

// GetOffset is not implemented.
func (s *Server) GetOffset(context.Context, *v2.GetOffsetRequest) (*v2.GetOffsetResponse, error) {
	return nil, notImplemented("get offset")
}

// QueryOffset is not implemented.
func (s *Server) QueryOffset(context.Context, *v2.QueryOffsetRequest) (*v2.QueryOffsetResponse, error) {
	return nil, notImplemented("query offset")
}
