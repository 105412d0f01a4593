package rpc

import (
	"context"

	v2 "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
)

// QueryAssignment gives every consumer of a group the one queue. Each assignment
// becomes one concurrent long poll in an official client, and a change of it a
// second one, so it is one and stays as it is.
//
// Codes: ILLEGAL_TOPIC, ILLEGAL_CONSUMER_GROUP, TOPIC_NOT_FOUND,
// CONSUMER_GROUP_NOT_FOUND, BAD_REQUEST for a group of another parent topic.
func (s *Server) QueryAssignment(ctx context.Context, r *v2.QueryAssignmentRequest) (*v2.QueryAssignmentResponse, error) {
	topic, group := r.GetTopic(), r.GetGroup()
	if err := checkNames(topic, group); err != nil {
		return nil, err
	}
	if err := s.broker.CheckGroup(ctx, topic.GetName(), group.GetName()); err != nil {
		return nil, err
	}
	return &v2.QueryAssignmentResponse{
		Status:      statusOf(nil),
		Assignments: []*v2.Assignment{{MessageQueue: s.queue(ctx, topic, r.GetEndpoints())}},
	}, nil
}
