package rpc

import (
	"cmp"
	"context"
	"errors"

	v2 "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
	"golang.org/x/sync/errgroup"

	"github.com/penstockmq/penstock/broker"
	"github.com/penstockmq/penstock/broker/rpc/penstockv1"
	"github.com/penstockmq/penstock/suspend/limit"
	"github.com/penstockmq/penstock/suspend/quota"
)

const (
	// settlesAtOnce bounds the entries of one call that are with the owner loop at the
	// same time. They meet in one turn of it, so a call waits for one write, not for
	// as many as it has entries.
	settlesAtOnce = 64
	// maxUsage bounds each number of a usage: the sum of input and output is then within
	// what the broker takes for one call.
	maxUsage = int64(1) << 39
)

// Settle ends deliveries and tells what their requests used. Each entry has its own
// result; a stale handle is what it is in RocketMQ's call for the same action.
//
// Errors of the call: ILLEGAL_TOPIC, ILLEGAL_CONSUMER_GROUP, BAD_REQUEST for no entry
// or over 1,024 or a group of another parent topic; TOPIC_NOT_FOUND,
// CONSUMER_GROUP_NOT_FOUND.
// Of an entry: INVALID_RECEIPT_HANDLE; BAD_REQUEST for an unknown action or outcome or
// a number out of its limits; ILLEGAL_INVISIBLE_TIME; and what the plain calls have.
func (p *penstockServer) Settle(ctx context.Context, r *penstockv1.SettleRequest) (*penstockv1.SettleResponse, error) {
	topic, group, entries := r.GetTopic(), r.GetGroup(), r.GetEntries()
	sts, err := p.each(topic, group, len(entries), func(i int) (func() error, error) {
		s, err := settlementOf(entries[i])
		s.By = callerOf(ctx).id
		return func() error { return p.s.broker.SettleWith(ctx, topic, group, entries[i].GetReceiptHandle(), s) }, err
	})
	if err != nil {
		return nil, err
	}
	results := make([]*penstockv1.SettleResult, len(sts))
	for i, st := range sts {
		results[i] = &penstockv1.SettleResult{Code: int32(st.GetCode()), Message: st.GetMessage()}
	}
	return &penstockv1.SettleResponse{Results: results}, nil
}

// each carries out the n entries of a call, settlesAtOnce at a time, and returns the status
// of each, without a message for OK. prepare checks entry i and returns the operation on the
// broker. The error concerns the whole call.
func (p *penstockServer) each(topic, group string, n int, prepare func(i int) (func() error, error)) ([]*v2.Status, error) {
	if err := checkPenstockNames(topic, group); err != nil {
		return nil, err
	}
	if n == 0 || n > maxAckEntries {
		return nil, refuse(v2.Code_BAD_REQUEST, "%d entries, want 1 to %d", n, maxAckEntries)
	}
	errs := make([]error, n)
	var calls errgroup.Group
	calls.SetLimit(settlesAtOnce)
	for i := range n {
		ask, err := prepare(i)
		if err != nil {
			errs[i] = err
			continue
		}
		one := func() error { errs[i] = ask(); return nil }
		if i == n-1 {
			_ = one() // here: most calls under little load have one entry
			break
		}
		calls.Go(one)
	}
	_ = calls.Wait() // none returns an error
	sts := make([]*v2.Status, n)
	for i, err := range errs {
		switch {
		case isOfTheCall(err):
			return nil, err
		case err == nil:
			sts[i] = &v2.Status{Code: v2.Code_OK}
		default:
			sts[i] = p.s.statusOf(err)
		}
	}
	return sts, nil
}

// isOfTheCall reports whether an entry's error applies to all entries of the call.
func isOfTheCall(err error) bool {
	for _, e := range []error{broker.ErrTopicNotFound, broker.ErrGroupNotFound, broker.ErrGroupBound, broker.ErrClosed} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// settlementOf reads an entry.
func settlementOf(e *penstockv1.SettleEntry) (broker.Settlement, error) {
	var s broker.Settlement
	d, err := durationOf("duration", e.GetDuration())
	switch e.GetAction() {
	case penstockv1.Action_ACTION_ACK:
		s.Then = broker.ThenAck
	case penstockv1.Action_ACTION_SUSPEND:
		s.Then, s.For, s.Reason = broker.ThenSuspend, d, cmp.Or(e.GetReason(), suspendReason)
	case penstockv1.Action_ACTION_RETRY:
		s.Then, s.For = broker.ThenRetry, d
		if d > maxInvisible {
			err = errors.Join(err, refuse(v2.Code_ILLEGAL_INVISIBLE_TIME, "duration %v is over %v", d, maxInvisible))
		}
	case penstockv1.Action_ACTION_REJECT:
		s.Then, s.Reason = broker.ThenReject, cmp.Or(e.GetReason(), "given up by consumer")
	default:
		err = errors.Join(err, refuse(v2.Code_BAD_REQUEST, "action %v is none of ack, suspend, retry, reject", e.GetAction()))
	}
	if err != nil {
		return s, err
	}
	s.Settlement, err = usedOf(e)
	return s, err
}

// usedOf is what the request behind an entry used, as the ledger takes it.
func usedOf(e *penstockv1.SettleEntry) (quota.Settlement, error) {
	u := quota.Settlement{Tokens: -1, OutputTokens: -1, BytesOut: e.GetBytesOut()}
	latency, err := durationOf("latency", e.GetLatency())
	if err != nil {
		return u, err
	}
	u.Latency = latency
	for _, f := range []struct {
		field string
		v     int64
	}{
		{"usage.input_tokens", e.GetUsage().GetInputTokens()},
		{"usage.output_tokens", e.GetUsage().GetOutputTokens()},
		{"bytes_out", e.GetBytesOut()},
	} {
		if f.v < 0 || f.v > maxUsage {
			return u, refuse(v2.Code_BAD_REQUEST, "%s %d is outside 0 to %d", f.field, f.v, maxUsage)
		}
	}
	if usage := e.GetUsage(); usage != nil {
		if usage.OutputTokens != nil {
			u.OutputTokens = usage.GetOutputTokens()
		}
		if usage.OutputTokens != nil && usage.InputTokens != nil {
			u.Tokens = usage.GetInputTokens() + usage.GetOutputTokens()
		}
	}
	return outcomeOf(e.GetOutcome(), u)
}

// outcomeOf completes u with what an outcome says about the reservation.
func outcomeOf(o penstockv1.Outcome, u quota.Settlement) (quota.Settlement, error) {
	switch o {
	case penstockv1.Outcome_OUTCOME_UNSPECIFIED:
		u.Outcome = quota.Unknown
	case penstockv1.Outcome_OUTCOME_GOOD:
		u.Outcome, u.Feedback = quota.Used, limit.Good
	case penstockv1.Outcome_OUTCOME_OVERLOAD:
		u.Outcome, u.Feedback = u.OfFailure(), limit.Overload
	case penstockv1.Outcome_OUTCOME_TIMEOUT:
		u.Outcome, u.Feedback = quota.Used, limit.Timeout
	case penstockv1.Outcome_OUTCOME_FAILED:
		u.Outcome = u.OfFailure()
	case penstockv1.Outcome_OUTCOME_UNUSED:
		u.Outcome = quota.Unsent
	default:
		return u, refuse(v2.Code_BAD_REQUEST, "outcome %d is unknown", int32(o))
	}
	return u, nil
}
