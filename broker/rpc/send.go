package rpc

import (
	"context"
	"time"

	v2 "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
	"google.golang.org/grpc/peer"

	"github.com/penstockmq/penstock/broker"
)

// SendMessage stores messages, all or none, and answers when they are durable. The
// bucket of each is the one that its system_properties.lite_topic names, whatever
// queue the client picked.
//
// Codes, in the order of the checks: those of checkSend; TOPIC_NOT_FOUND;
// BAD_REQUEST for over 1,024 messages or a deadline that is no time;
// LITE_TOPIC_QUOTA_EXCEEDED when the topic has its maximum of buckets;
// TOO_MANY_REQUESTS when the bucket is full or the broker busy;
// MASTER_PERSISTENCE_TIMEOUT when the disk is nearly full. Every entry has the
// same code, since official clients send the whole batch again on any other answer.
func (s *Server) SendMessage(ctx context.Context, r *v2.SendMessageRequest) (*v2.SendMessageResponse, error) {
	in := r.GetMessages()
	if err := checkSend(in, s.opts.MaxBodyBytes); err != nil {
		return nil, err
	}
	host, now := remoteHost(ctx), time.Now()
	msgs := make([]broker.Message, len(in))
	for i, m := range in {
		msgs[i] = fromWire(m, host, now)
	}
	receipts, err := s.broker.Send(ctx, in[0].GetTopic().GetName(), msgs)
	if err != nil {
		return nil, err
	}
	ok := statusOf(nil)
	out := &v2.SendMessageResponse{Status: ok, Entries: make([]*v2.SendResultEntry, len(receipts))}
	for i, receipt := range receipts {
		out.Entries[i] = &v2.SendResultEntry{
			Status: ok, MessageId: receipt.MessageID, Offset: int64(receipt.Offset), RecallHandle: receipt.RecallHandle,
		}
	}
	return out, nil
}

// remoteHost is where a message came from when it does not say so itself.
func remoteHost(ctx context.Context) string {
	if p, ok := peer.FromContext(ctx); ok && p.Addr != nil {
		return p.Addr.String()
	}
	return ""
}

// fromWire is the message as it is stored. It shares memory with m.
func fromWire(m *v2.Message, host string, now time.Time) broker.Message {
	p := m.GetSystemProperties()
	out := broker.Message{
		Lite:         p.GetLiteTopic(),
		ID:           p.GetMessageId(),
		Tag:          p.GetTag(),
		Keys:         p.GetKeys(),
		Properties:   m.GetUserProperties(),
		Body:         m.GetBody(),
		BornHost:     p.GetBornHost(),
		TraceContext: p.GetTraceContext(),
		Born:         now,
	}
	if p.GetBodyEncoding() == v2.Encoding_GZIP {
		out.Encoding = broker.Gzip
	}
	if p.GetBornTimestamp().IsValid() {
		out.Born = p.GetBornTimestamp().AsTime()
	}
	if out.BornHost == "" {
		out.BornHost = host
	}
	return out
}

// optional is a string field that is absent when empty.
func optional(v string) *string {
	if v == "" {
		return nil
	}
	return new(v)
}
