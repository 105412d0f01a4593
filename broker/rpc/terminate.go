package rpc

import (
	"context"
	"errors"

	v2 "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"

	"github.com/penstockmq/penstock/broker"
)

// NotifyClientTermination is the good-bye of a client: its subscriptions are
// forgotten and its leases no longer renewed. Producers name no group; unknown
// clients and groups are fine, since all that is asked for holds already.
//
// Codes: none of its own.
func (s *Server) NotifyClientTermination(ctx context.Context, r *v2.NotifyClientTerminationRequest) (*v2.NotifyClientTerminationResponse, error) {
	if group := r.GetGroup().GetName(); group != "" {
		if err := s.broker.Terminate(ctx, group, callerOf(ctx).id); err != nil && !errors.Is(err, broker.ErrGroupNotFound) {
			return nil, err
		}
	}
	s.broker.ClientGone(callerOf(ctx).id)
	return &v2.NotifyClientTerminationResponse{Status: statusOf(nil)}, nil
}
