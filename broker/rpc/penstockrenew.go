package rpc

import (
	"context"
	"time"

	v2 "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"

	"github.com/penstockmq/penstock/broker/rpc/penstockv1"
)

// Renew extends leases. Each entry has its own result, and a stale handle is reported.
//
// Errors of the call: see Settle. Errors of an entry: INVALID_RECEIPT_HANDLE;
// ILLEGAL_INVISIBLE_TIME for a duration that is absent, 0, negative or over 12 h.
func (p *penstockServer) Renew(ctx context.Context, r *penstockv1.RenewRequest) (*penstockv1.RenewResponse, error) {
	topic, group, entries := r.GetTopic(), r.GetGroup(), r.GetEntries()
	sts, err := p.each(topic, group, len(entries), func(i int) (func() error, error) {
		d, err := renewalOf(entries[i])
		return func() error { return p.s.broker.ChangeInvisible(ctx, topic, group, entries[i].GetReceiptHandle(), d) }, err
	})
	if err != nil {
		return nil, err
	}
	results := make([]*penstockv1.RenewResult, len(sts))
	for i, st := range sts {
		results[i] = &penstockv1.RenewResult{Code: int32(st.GetCode()), Message: st.GetMessage()}
	}
	return &penstockv1.RenewResponse{Results: results}, nil
}

func renewalOf(e *penstockv1.RenewEntry) (time.Duration, error) {
	d, err := durationOf("duration", e.GetDuration())
	if err == nil && (d == 0 || d > maxInvisible) {
		err = refuse(v2.Code_ILLEGAL_INVISIBLE_TIME, "duration %v is absent, 0 or over %v", d, maxInvisible)
	}
	return d, err
}
