package rpc

import (
	"context"
	"errors"
	"time"

	v2 "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/penstockmq/penstock/broker"
)

type receiveStream = grpc.ServerStreamingServer[v2.ReceiveMessageResponse]

// ReceiveMessage is a long poll over all buckets that the client reads, at most one
// message of each. The stream is: a status, the messages, the time of delivery. An
// empty poll has the status MESSAGE_NOT_FOUND, also when the server stops.
//
// Codes: ILLEGAL_TOPIC, ILLEGAL_CONSUMER_GROUP, ILLEGAL_INVISIBLE_TIME,
// ILLEGAL_POLLING_TIME, ILLEGAL_FILTER_EXPRESSION, BAD_REQUEST for a batch size under
// 1, a long attempt id or a group of another parent topic; TOPIC_NOT_FOUND, CONSUMER_GROUP_NOT_FOUND;
// TOO_MANY_REQUESTS when too many polls wait.
func (s *Server) ReceiveMessage(r *v2.ReceiveMessageRequest, stream receiveStream) error {
	request, err := s.receiveRequest(stream.Context(), r, time.Now())
	if err != nil {
		return err
	}
	ctx, cancel := s.whilePolling(stream.Context())
	defer cancel()
	got, err := s.broker.Receive(ctx, request)
	switch {
	case errors.Is(err, context.Canceled) && stream.Context().Err() == nil,
		errors.Is(err, broker.ErrClosed) && s.stopping.Err() != nil:
		got = nil // the server stops, or is about to
	case err != nil:
		return err
	}
	return s.answerReceive(stream, r.GetMessageQueue().GetTopic(), got)
}

// answerReceive writes the whole answer, or takes the messages back: they are free
// for others at once, and the delivery does not count as an attempt. What the
// client did read of a broken answer it drops; see the package comment. A context
// that ended before this function returns means the same: the client has not seen
// the end of the stream.
func (s *Server) answerReceive(stream receiveStream, topic *v2.Resource, got []broker.Delivery) error {
	written := false
	defer func() {
		if !written && len(got) > 0 {
			s.broker.Release(topic.GetName(), handlesOf(got))
		}
	}()
	if err := s.writeReceive(stream, topic, got); err != nil {
		return err
	}
	if err := stream.Context().Err(); err != nil {
		return err
	}
	written = true
	return nil
}

func (s *Server) writeReceive(stream receiveStream, topic *v2.Resource, got []broker.Delivery) error {
	st := statusOf(nil)
	if len(got) == 0 {
		st = &v2.Status{Code: v2.Code_MESSAGE_NOT_FOUND, Message: "no new message"}
	}
	if err := stream.Send(&v2.ReceiveMessageResponse{Content: &v2.ReceiveMessageResponse_Status{Status: st}}); err != nil {
		return err
	}
	now := time.Now()
	for i := range got {
		m := toWire(&got[i], topic, s.opts.BrokerName, now)
		if err := stream.Send(&v2.ReceiveMessageResponse{Content: &v2.ReceiveMessageResponse_Message{Message: m}}); err != nil {
			return err
		}
	}
	return stream.Send(&v2.ReceiveMessageResponse{
		Content: &v2.ReceiveMessageResponse_DeliveryTimestamp{DeliveryTimestamp: timestamppb.New(now)},
	})
}

func handlesOf(got []broker.Delivery) []string {
	out := make([]string, len(got))
	for i := range got {
		out[i] = got[i].Handle
	}
	return out
}

func (s *Server) receiveRequest(ctx context.Context, r *v2.ReceiveMessageRequest, now time.Time) (broker.ReceiveRequest, error) {
	topic := r.GetMessageQueue().GetTopic()
	if err := checkNames(topic, r.GetGroup()); err != nil {
		return broker.ReceiveRequest{}, err
	}
	if n := len(r.GetAttemptId()); n > maxAttemptIDBytes {
		return broker.ReceiveRequest{}, refuse(v2.Code_BAD_REQUEST, "attempt id has %d bytes, at most %d", n, maxAttemptIDBytes)
	}
	if r.GetBatchSize() < 1 {
		return broker.ReceiveRequest{}, refuse(v2.Code_BAD_REQUEST, "batch size is %d, at least 1", r.GetBatchSize())
	}
	if err := checkFilter(r.GetFilterExpression()); err != nil {
		return broker.ReceiveRequest{}, err
	}
	invisible, err := s.invisible(r)
	if err != nil {
		return broker.ReceiveRequest{}, err
	}
	wait, err := s.pollTime(ctx, r.GetLongPollingTimeout(), now)
	if err != nil {
		return broker.ReceiveRequest{}, err
	}
	return broker.ReceiveRequest{
		Topic:     topic.GetName(),
		Group:     r.GetGroup().GetName(),
		Client:    callerOf(ctx).id,
		Max:       min(int(r.GetBatchSize()), s.opts.ReceiveBatch),
		Invisible: invisible,
		AutoRenew: r.GetAutoRenew(),
		AttemptID: r.GetAttemptId(),
		Wait:      wait,
	}, nil
}

// checkFilter takes the expressions that filter nothing: lite topics are the filter.
func checkFilter(f *v2.FilterExpression) error {
	if e := f.GetExpression(); e != "" && (e != "*" || f.GetType() == v2.FilterType_SQL) {
		return refuse(v2.Code_ILLEGAL_FILTER_EXPRESSION, "filter expression %.80q: a lite consumer takes all, '*'", e)
	}
	return nil
}

// invisible is the length of the leases. With auto_renew the server chooses it and
// renews while the client lives; some clients without send none either.
func (s *Server) invisible(r *v2.ReceiveMessageRequest) (time.Duration, error) {
	if r.GetAutoRenew() || r.GetInvisibleDuration() == nil {
		return s.opts.DefaultInvisible, nil
	}
	d := r.GetInvisibleDuration().AsDuration()
	if !r.GetInvisibleDuration().IsValid() || d < s.opts.MinInvisible || d > maxInvisible {
		return 0, refuse(v2.Code_ILLEGAL_INVISIBLE_TIME, "invisible duration %v is outside %v to %v", d, s.opts.MinInvisible, maxInvisible)
	}
	return d, nil
}

// pollTime is how long a poll may wait: what it asks for, else until its deadline,
// at most PollMax, and always so that the answer reaches the caller in time.
func (s *Server) pollTime(ctx context.Context, asked *durationpb.Duration, now time.Time) (time.Duration, error) {
	wait := s.opts.PollMax
	if asked != nil {
		if !asked.IsValid() || asked.AsDuration() < 0 {
			return 0, refuse(v2.Code_ILLEGAL_POLLING_TIME, "long polling timeout %v is negative or no duration", asked.AsDuration())
		}
		wait = min(wait, asked.AsDuration())
	}
	if deadline, ok := ctx.Deadline(); ok {
		wait = min(wait, deadline.Sub(now)-replyMargin)
	}
	return max(0, wait), nil
}
