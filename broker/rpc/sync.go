package rpc

import (
	"context"
	"time"

	v2 "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"

	"github.com/penstockmq/penstock/broker"
	"github.com/penstockmq/penstock/broker/dispatch"
	"github.com/penstockmq/penstock/broker/lite"
)

// SyncLiteSubscription changes which lite topics a client reads. `*` stands for all,
// those to come included, in any group; a client of a group with the wildcard
// attribute reads all whatever it names, as in RocketMQ.
//
// The offset option moves the group in the buckets that a PARTIAL_ADD names. tail_n
// counts from the end of the bucket and timestamp searches it; RocketMQ counts
// from the group's offset and ignores the time.
//
// Codes: ILLEGAL_TOPIC, ILLEGAL_CONSUMER_GROUP, ILLEGAL_LITE_TOPIC, ILLEGAL_OFFSET,
// BAD_REQUEST for an unknown action, too many names, or a group of another parent
// topic; TOPIC_NOT_FOUND, CONSUMER_GROUP_NOT_FOUND, LITE_SUBSCRIPTION_QUOTA_EXCEEDED.
func (s *Server) SyncLiteSubscription(ctx context.Context, r *v2.SyncLiteSubscriptionRequest) (*v2.SyncLiteSubscriptionResponse, error) {
	if err := checkNames(r.GetTopic(), r.GetGroup()); err != nil {
		return nil, err
	}
	action, err := syncAction(r.GetAction())
	if err != nil {
		return nil, err
	}
	if err := checkLiteNames(r.GetLiteTopicSet()); err != nil {
		return nil, err
	}
	position, err := positionOf(r.GetOffsetOption())
	if err != nil {
		return nil, err
	}
	who := callerOf(ctx)
	if err := s.broker.SyncSubscription(ctx, broker.SyncRequest{
		Topic:    r.GetTopic().GetName(),
		Group:    r.GetGroup().GetName(),
		Client:   who.id,
		Action:   action,
		Names:    r.GetLiteTopicSet(),
		Position: position,
	}); err != nil {
		return nil, err
	}
	s.clients.setSynced(who.id)
	return &v2.SyncLiteSubscriptionResponse{Status: statusOf(nil)}, nil
}

func syncAction(a v2.LiteSubscriptionAction) (dispatch.SyncAction, error) {
	switch a {
	case v2.LiteSubscriptionAction_PARTIAL_ADD:
		return dispatch.PartialAdd, nil
	case v2.LiteSubscriptionAction_PARTIAL_REMOVE:
		return dispatch.PartialRemove, nil
	case v2.LiteSubscriptionAction_COMPLETE_ADD:
		return dispatch.CompleteAdd, nil
	case v2.LiteSubscriptionAction_COMPLETE_REMOVE:
		return dispatch.CompleteRemove, nil
	default:
		return 0, refuse(v2.Code_BAD_REQUEST, "subscription action %d is unknown", int32(a))
	}
}

// checkLiteNames checks the names of all actions alike: one that is refused when it
// is added alone must not come in with a complete set.
func checkLiteNames(names []string) error {
	if len(names) > maxSyncNames {
		return refuse(v2.Code_BAD_REQUEST, "%d lite topics in one request, at most %d", len(names), maxSyncNames)
	}
	for _, name := range names {
		if name == lite.Wildcard {
			continue
		}
		if err := lite.CheckName(name); err != nil {
			return err
		}
	}
	return nil
}

// positionOf reads an offset option. None, and LAST, leave the group where it is.
func positionOf(o *v2.OffsetOption) (*broker.Position, error) {
	switch t := o.GetOffsetType().(type) {
	case nil:
		return nil, nil
	case *v2.OffsetOption_Policy_:
		switch t.Policy {
		case v2.OffsetOption_LAST:
			return &broker.Position{Kind: broker.AtLast}, nil
		case v2.OffsetOption_MIN:
			return &broker.Position{Kind: broker.AtMin}, nil
		case v2.OffsetOption_MAX:
			return &broker.Position{Kind: broker.AtMax}, nil
		default:
			return nil, refuse(v2.Code_ILLEGAL_OFFSET, "offset policy %d is unknown", int32(t.Policy))
		}
	case *v2.OffsetOption_Offset:
		if t.Offset < 0 {
			return nil, refuse(v2.Code_ILLEGAL_OFFSET, "offset %d is negative", t.Offset)
		}
		return &broker.Position{Kind: broker.AtOffset, Offset: t.Offset}, nil
	case *v2.OffsetOption_TailN:
		if t.TailN < 0 {
			return nil, refuse(v2.Code_ILLEGAL_OFFSET, "tail_n %d is negative", t.TailN)
		}
		return &broker.Position{Kind: broker.FromTail, Tail: t.TailN}, nil
	case *v2.OffsetOption_Timestamp:
		if t.Timestamp < 0 {
			return nil, refuse(v2.Code_ILLEGAL_OFFSET, "timestamp %d is negative, want Unix milliseconds", t.Timestamp)
		}
		return &broker.Position{Kind: broker.AtTime, Time: time.UnixMilli(t.Timestamp)}, nil
	default:
		return nil, refuse(v2.Code_ILLEGAL_OFFSET, "offset option is of an unknown kind")
	}
}
