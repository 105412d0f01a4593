package rpc

import (
	"context"
	"strings"
	"time"

	v2 "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/penstockmq/penstock/broker/lite"
	"github.com/penstockmq/penstock/broker/rpc/penstockv1"
)

// penstockMethods is the prefix of the full names of penstock.v1's methods.
const penstockMethods = "/penstock.v1.Penstock/"

// penstockServer is the service beside RocketMQ's. It has a type of its own because
// its methods' errors are gRPC's own.
type penstockServer struct {
	penstockv1.UnimplementedPenstockServer

	s *Server
}

func isPenstock(method string) bool { return strings.HasPrefix(method, penstockMethods) }

// grpcCodes says which gRPC code a refusal has whose RocketMQ code is known. What is
// not here is InvalidArgument below 50000 and Internal from there on. It is never
// written to.
var grpcCodes = map[v2.Code]codes.Code{
	v2.Code_TOPIC_NOT_FOUND:          codes.NotFound,
	v2.Code_CONSUMER_GROUP_NOT_FOUND: codes.NotFound,
	v2.Code_MESSAGE_NOT_FOUND:        codes.NotFound,
	v2.Code_TOO_MANY_REQUESTS:        codes.ResourceExhausted,
	v2.Code_NOT_IMPLEMENTED:          codes.Unimplemented,
	v2.Code_HA_NOT_AVAILABLE:         codes.Unavailable,
	v2.Code_PROXY_TIMEOUT:            codes.DeadlineExceeded,
	// The disk is nearly full.
	v2.Code_MASTER_PERSISTENCE_TIMEOUT: codes.ResourceExhausted,
}

// refusePenstock is st as a gRPC error, with st's code among its details.
func refusePenstock(st *v2.Status) error {
	code, ok := grpcCodes[st.GetCode()]
	if !ok {
		code = codes.InvalidArgument
		if st.GetCode() >= v2.Code_INTERNAL_ERROR {
			code = codes.Internal
		}
	}
	out := status.New(code, st.GetMessage())
	fault := &penstockv1.Fault{RocketmqCode: int32(st.GetCode()), RocketmqName: st.GetCode().String()}
	if with, err := out.WithDetails(fault); err == nil { // cannot fail: the code is not OK, the detail is a message
		out = with
	}
	return out.Err()
}

// checkPenstockNames checks the parent topic and the group of a request, by name.
func checkPenstockNames(topic, group string) error {
	if err := lite.CheckTopic(topic); err != nil {
		return err
	}
	return lite.CheckGroup(group)
}

// checkGiven is checkPenstockNames for names that may be left out.
func checkGiven(topic, group string) error {
	if topic != "" {
		if err := lite.CheckTopic(topic); err != nil {
			return err
		}
	}
	if group != "" {
		return lite.CheckGroup(group)
	}
	return nil
}

// Describe says what this broker can do. For a group that the policies do not apply
// to, limits is not among the features: its consumers may have rules of their own.
//
// Errors: ILLEGAL_TOPIC and ILLEGAL_CONSUMER_GROUP for a name that is given and cannot
// be one. Whether topic and group exist is not asked: a client describes first.
func (p *penstockServer) Describe(_ context.Context, r *penstockv1.DescribeRequest) (*penstockv1.DescribeResponse, error) {
	if err := checkGiven(r.GetTopic(), r.GetGroup()); err != nil {
		return nil, err
	}
	features := []string{"settle", "holds", "scopes", "explain", "renew"}
	if group, ok := p.s.broker.Group(r.GetGroup()); !ok || !group.Unlimited {
		features = append(features, "limits")
	}
	return &penstockv1.DescribeResponse{Version: p.s.opts.Version, Features: features}, nil
}

// durationOf reads a duration that has to be one, from 0 on. Its upper bound is the
// broker's.
func durationOf(field string, d *durationpb.Duration) (time.Duration, error) {
	if d == nil {
		return 0, nil
	}
	if !d.IsValid() {
		return 0, refuse(v2.Code_ILLEGAL_INVISIBLE_TIME, "%s %ds %dns is no duration", field, d.GetSeconds(), d.GetNanos())
	}
	if v := d.AsDuration(); v >= 0 {
		return v, nil
	}
	return 0, refuse(v2.Code_ILLEGAL_INVISIBLE_TIME, "%s %v is negative, want 0 or more", field, d.AsDuration())
}

// timestampOf is nil for the zero time: absent means not known.
func timestampOf(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}
