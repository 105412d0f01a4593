package rpc

import (
	"context"

	v2 "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
)

// AckMessage settles messages, each by its handle alone: some clients leave the lite
// topic out. The response has an entry for each request entry, in order, and their
// common code or MULTIPLE_RESULTS.
//
// Codes: ILLEGAL_TOPIC, ILLEGAL_CONSUMER_GROUP, BAD_REQUEST for no entry or over 1,024,
// TOPIC_NOT_FOUND, CONSUMER_GROUP_NOT_FOUND. Of an entry: OK, also when the message
// was settled before; INVALID_RECEIPT_HANDLE when the handle is not one of this
// group, or its message is out again under a newer one. A client that gets anything
// else tries again for ever.
func (s *Server) AckMessage(ctx context.Context, r *v2.AckMessageRequest) (*v2.AckMessageResponse, error) {
	if err := checkNames(r.GetTopic(), r.GetGroup()); err != nil {
		return nil, err
	}
	entries := r.GetEntries()
	if len(entries) == 0 || len(entries) > maxAckEntries {
		return nil, refuse(v2.Code_BAD_REQUEST, "%d entries, want 1 to %d", len(entries), maxAckEntries)
	}
	handles := make([]string, len(entries))
	for i, e := range entries {
		handles[i] = e.GetReceiptHandle()
	}
	errs, err := s.broker.Ack(ctx, r.GetTopic().GetName(), r.GetGroup().GetName(), handles)
	if err != nil {
		return nil, err
	}
	results := make([]*v2.AckMessageResultEntry, len(entries))
	statuses := make([]*v2.Status, len(entries))
	for i, e := range entries {
		statuses[i] = s.statusOf(errs[i])
		results[i] = &v2.AckMessageResultEntry{MessageId: e.GetMessageId(), ReceiptHandle: e.GetReceiptHandle(), Status: statuses[i]}
	}
	return &v2.AckMessageResponse{Status: commonStatus(statuses), Entries: results}, nil
}
