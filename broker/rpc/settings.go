package rpc

import (
	"time"

	v2 "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/penstockmq/penstock/broker"
	"github.com/penstockmq/penstock/broker/lite"
)

// checkSettings holds a client's type against the half of the settings it sends.
func checkSettings(in *v2.Settings) error {
	producer := in.GetClientType() == v2.ClientType_PRODUCER
	switch in.GetPubSub().(type) {
	case *v2.Settings_Publishing:
		if !producer {
			return refuse(v2.Code_UNRECOGNIZED_CLIENT_TYPE, "publishing settings of a %v, want PRODUCER", in.GetClientType())
		}
	case *v2.Settings_Subscription:
		if producer || in.GetClientType() == v2.ClientType_CLIENT_TYPE_UNSPECIFIED {
			return refuse(v2.Code_UNRECOGNIZED_CLIENT_TYPE, "subscription settings of a %v, want a consumer", in.GetClientType())
		}
	default:
		return refuse(v2.Code_UNRECOGNIZED_CLIENT_TYPE, "settings have neither publishing nor subscription")
	}
	return nil
}

// mergeSettings is the client's settings with everything filled in that some
// official client needs in order to start: a client that misses a value either
// waits for it for ever or takes zero for it.
func (s *Server) mergeSettings(who caller, in *v2.Settings) *v2.Settings {
	out, ok := proto.Clone(in).(*v2.Settings)
	if !ok {
		out = &v2.Settings{} // not reached: a clone has its original's type
	}
	out.Metric = &v2.Metric{On: false}
	switch ps := out.GetPubSub().(type) {
	case *v2.Settings_Publishing:
		s.fillPublishing(out, ps)
	case *v2.Settings_Subscription:
		s.fillSubscription(who, out, ps)
	}
	return out
}

func (s *Server) fillPublishing(out *v2.Settings, ps *v2.Settings_Publishing) {
	if ps.Publishing == nil {
		ps.Publishing = &v2.Publishing{}
	}
	ps.Publishing.MaxBodySize = int32(s.opts.MaxBodyBytes)
	ps.Publishing.ValidateMessageType = true
	out.BackoffPolicy = &v2.RetryPolicy{
		MaxAttempts: 3,
		Strategy:    exponential(10*time.Millisecond, time.Second),
	}
}

func (s *Server) fillSubscription(who caller, out *v2.Settings, ps *v2.Settings_Subscription) {
	if ps.Subscription == nil {
		ps.Subscription = &v2.Subscription{}
	}
	sub := ps.Subscription
	group := s.groupOf(sub)
	sub.Fifo = new(group.InFlight <= 1)
	sub.ReceiveBatchSize = new(int32(s.opts.ReceiveBatch))
	// Python takes whole seconds only.
	sub.LongPollingTimeout = durationpb.New(s.opts.PollMax.Truncate(time.Second))
	sub.LiteSubscriptionQuota = new(int32(group.ClientQuota))
	sub.MaxLiteTopicSize = proto.Int32(lite.MaxNameBytes)
	out.BackoffPolicy = consumerBackoff(who, out.GetUserAgent().GetLanguage(), group.MaxAttempts)
}

// groupOf returns the settings of a consumer's group, or those with which its first receive
// would create it. For a group that cannot be created on demand it returns RocketMQ's
// defaults, and a later request gets the error.
func (s *Server) groupOf(sub *v2.Subscription) broker.GroupConfig {
	topic := ""
	if entries := sub.GetSubscriptions(); len(entries) > 0 {
		topic = entries[0].GetTopic().GetName()
	}
	if group, ok := s.broker.PlannedGroup(topic, sub.GetGroup().GetName()); ok {
		return group
	}
	return broker.GroupConfig{InFlight: 1, MaxAttempts: 17, ClientQuota: 2000}
}

// retrySteps is RocketMQ's customized retry policy, in seconds.
var retrySteps = [...]int64{1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200}

// consumerBackoff says when a client itself tries a failed message again, and how
// often. No form suits all: Node understands only the exponential one, in whole
// seconds, and Python only the customized one.
func consumerBackoff(who caller, language v2.Language, maxAttempts int) *v2.RetryPolicy {
	p := &v2.RetryPolicy{MaxAttempts: int32(maxAttempts)}
	if who.language == "HTTP" || language == v2.Language_NODE_JS { // the header of Node's client says HTTP
		p.Strategy = exponential(time.Second, 2*time.Hour)
		return p
	}
	next := make([]*durationpb.Duration, len(retrySteps))
	for i, seconds := range retrySteps {
		next[i] = &durationpb.Duration{Seconds: seconds}
	}
	p.Strategy = &v2.RetryPolicy_CustomizedBackoff{CustomizedBackoff: &v2.CustomizedBackoff{Next: next}}
	return p
}

func exponential(initial, limit time.Duration) *v2.RetryPolicy_ExponentialBackoff {
	return &v2.RetryPolicy_ExponentialBackoff{ExponentialBackoff: &v2.ExponentialBackoff{
		Initial: durationpb.New(initial), Max: durationpb.New(limit), Multiplier: 2,
	}}
}
