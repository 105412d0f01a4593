package rpc

import (
	"context"

	v2 "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
)

// Heartbeat is a sign of life, which admit has noted already. RocketMQ refuses
// clients that it has no settings of; after a restart that would be all of them.
//
// Codes: none but OK.
func (s *Server) Heartbeat(context.Context, *v2.HeartbeatRequest) (*v2.HeartbeatResponse, error) {
	return &v2.HeartbeatResponse{Status: statusOf(nil)}, nil
}
