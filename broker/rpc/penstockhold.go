package rpc

import (
	"cmp"
	"context"

	v2 "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/penstockmq/penstock/broker/rpc/penstockv1"
	"github.com/penstockmq/penstock/suspend"
)

// scopes pairs the scopes of the wire with ours, both ways. It is never written to.
var scopes = [...]struct {
	wire penstockv1.Scope
	own  suspend.Scope
}{
	{penstockv1.Scope_SCOPE_BUCKET, suspend.Bucket},
	{penstockv1.Scope_SCOPE_ROW, suspend.Row},
	{penstockv1.Scope_SCOPE_COLUMN, suspend.Column},
	{penstockv1.Scope_SCOPE_LEVEL, suspend.Level},
	{penstockv1.Scope_SCOPE_ALL, suspend.All},
}

func scopeOf(s penstockv1.Scope) (suspend.Scope, error) {
	for _, p := range scopes {
		if p.wire == s {
			return p.own, nil
		}
	}
	return 0, refuse(v2.Code_BAD_REQUEST, "scope %v is none of SCOPE_BUCKET, SCOPE_ROW, SCOPE_COLUMN, SCOPE_LEVEL, SCOPE_ALL", s)
}

func scopeToWire(s suspend.Scope) penstockv1.Scope {
	for _, p := range scopes {
		if p.own == s {
			return p.wire
		}
	}
	return penstockv1.Scope_SCOPE_UNSPECIFIED
}

// Hold holds a bucket, row, column or level, or the whole group, for a consumer. It
// outlives the consumer, and a longer one that is in force stays.
//
// Errors: ILLEGAL_TOPIC, ILLEGAL_CONSUMER_GROUP, BAD_REQUEST for the scope or a name
// that does not fit it; ILLEGAL_INVISIBLE_TIME for a duration of 0 or less, or over 24 h and
// the longest suspend; TOPIC_NOT_FOUND, CONSUMER_GROUP_NOT_FOUND. A duration over only the longest
// suspend is cut to it.
func (p *penstockServer) Hold(ctx context.Context, r *penstockv1.HoldRequest) (*penstockv1.HoldResponse, error) {
	if err := checkPenstockNames(r.GetTopic(), r.GetGroup()); err != nil {
		return nil, err
	}
	scope, err := scopeOf(r.GetScope())
	if err != nil {
		return nil, err
	}
	target := suspend.Target{Scope: scope, Name: r.GetName()}
	if err := target.Validate(); err != nil {
		return nil, refuse(v2.Code_BAD_REQUEST, "%s", err) // a bad user or model is one of the target here
	}
	d, err := durationOf("duration", r.GetDuration())
	if err != nil {
		return nil, err
	}
	if d == 0 {
		return nil, refuse(v2.Code_ILLEGAL_INVISIBLE_TIME, "duration is absent or 0, want more")
	}
	by := cmp.Or(r.GetBy(), callerOf(ctx).id)
	hold, err := p.s.broker.HoldFor(ctx, r.GetTopic(), r.GetGroup(), target, d, by, cmp.Or(r.GetReason(), suspendReason))
	if err != nil {
		return nil, err
	}
	return &penstockv1.HoldResponse{Until: timestamppb.New(hold.Until)}, nil
}
