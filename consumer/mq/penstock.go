package mq

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	v2 "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/penstockmq/penstock/broker/rpc/penstockv1"
)

// penstock is the second service of a Penstock broker, as far as the broker has one. Safe for concurrent use.
type penstock struct {
	// Immutable.
	link         *link
	stub         penstockv1.PenstockClient
	topic, group string
	log          *slog.Logger

	features *atomic.Pointer[Features] // of the Consumer, which may be asked before and after Run
}

func newPenstock(l *link, o Options, features *atomic.Pointer[Features]) *penstock {
	return &penstock{
		link: l, stub: penstockv1.NewPenstockClient(l.conn), topic: o.Topic, group: o.Group, log: o.Logger, features: features,
	}
}

// known are the features as they were last described.
func (p *penstock) known() Features { return featuresOf(p.features) }

func featuresOf(p *atomic.Pointer[Features]) Features {
	if f := p.Load(); f != nil {
		return *f
	}
	return Features{}
}

// describe asks what the broker can do. An error means that it could not be asked; a broker without the service, or one that
// refuses the question, has no features.
func (p *penstock) describe(ctx context.Context) error {
	ctx, cancel := p.link.call(ctx)
	defer cancel()
	answer, err := p.stub.Describe(ctx, &penstockv1.DescribeRequest{Topic: p.topic, Group: p.group})
	if passes(err) {
		return fmt.Errorf("describe broker: %w", err)
	}
	if err != nil && status.Code(err) != codes.Unimplemented {
		p.log.Warn("broker does not say what it can do", "error", err)
	}
	has := func(name string) bool { return slices.Contains(answer.GetFeatures(), name) }
	f := Features{
		Version: answer.GetVersion(),
		Limits:  has("limits"), Settle: has("settle"), Holds: has("holds"), Scopes: has("scopes"), Explain: has("explain"), Renew: has("renew"),
	}
	if last := p.features.Swap(&f); last == nil || *last != f {
		p.log.Info("broker described", "version", f.Version, "limits", f.Limits, "settle", f.Settle, "scopes", f.Scopes)
	}
	return nil
}

// passes says whether a call that failed with err may succeed without anybody's doing.
func passes(err error) bool {
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.ResourceExhausted, codes.Aborted:
		return true
	default:
		return false
	}
}

// gone notes that the service is not there any more: another kind of broker has taken the address.
func (p *penstock) gone(err error) {
	if status.Code(err) == codes.Unimplemented {
		p.features.Store(&Features{})
	}
}

// scopesOnWire are the scopes of a [Hold] as the service has them. It is never written to.
var scopesOnWire = map[string]penstockv1.Scope{
	"bucket": penstockv1.Scope_SCOPE_BUCKET, "row": penstockv1.Scope_SCOPE_ROW, "column": penstockv1.Scope_SCOPE_COLUMN,
	"level": penstockv1.Scope_SCOPE_LEVEL, "all": penstockv1.Scope_SCOPE_ALL,
}

// held asks for v's hold and returns what is left to do of v. A hold that cannot be had becomes a longer wait of the bucket.
func (p *penstock) held(ctx context.Context, v Verdict) Verdict {
	h := v.Hold
	if h == nil {
		return v
	}
	v.Hold = nil
	can := p.known()
	if can.Holds && (can.Scopes || h.Scope == "bucket") {
		err := p.hold(ctx, *h)
		if err == nil {
			return v
		}
		p.gone(err)
		p.log.Warn("hold was not taken; the bucket alone is suspended", "scope", h.Scope, "name", h.Name, "error", err)
	}
	v.After = max(v.After, h.For)
	return v
}

func (p *penstock) hold(ctx context.Context, h Hold) error {
	scope, ok := scopesOnWire[h.Scope]
	if !ok {
		return fmt.Errorf("hold: scope: %q is none of bucket, row, column, level, all", h.Scope)
	}
	ctx, cancel := p.link.call(ctx)
	defer cancel()
	_, err := p.stub.Hold(ctx, &penstockv1.HoldRequest{
		Topic: p.topic, Group: p.group, Scope: scope, Name: h.Name, Duration: durationpb.New(ceilMilli(h.For)), Reason: h.Reason,
	})
	if err != nil {
		return fmt.Errorf("hold: %w", err)
	}
	return nil
}

// settle settles deliveries with what was learned about them. There is an error for each entry, or one for all.
func (p *penstock) settle(ctx context.Context, entries []*penstockv1.SettleEntry) ([]error, error) {
	ctx, cancel := p.link.call(ctx)
	defer cancel()
	answer, err := p.stub.Settle(ctx, &penstockv1.SettleRequest{Topic: p.topic, Group: p.group, Entries: entries})
	if err == nil && len(answer.GetResults()) != len(entries) {
		err = fmt.Errorf("%d results for %d entries", len(answer.GetResults()), len(entries))
	}
	if err != nil {
		p.gone(err)
		return nil, fmt.Errorf("settle: %w", err)
	}
	errs := make([]error, len(entries))
	for i, r := range answer.GetResults() {
		errs[i] = stale(codeError(&v2.Status{Code: v2.Code(r.GetCode()), Message: r.GetMessage()}))
	}
	return errs, nil
}

// errNoRenew: the broker does not implement Renew.
var errNoRenew = errors.New("no honest renewal")

// renew extends a lease to d from now. errStale: the lease has ended; errNoRenew: use RocketMQ's call.
func (p *penstock) renew(ctx context.Context, handle string, d time.Duration) error {
	if !p.known().Renew {
		return errNoRenew
	}
	ctx, cancel := p.link.call(ctx)
	defer cancel()
	answer, err := p.stub.Renew(ctx, &penstockv1.RenewRequest{
		Topic: p.topic, Group: p.group, Entries: []*penstockv1.RenewEntry{{ReceiptHandle: handle, Duration: durationpb.New(d)}},
	})
	switch {
	case status.Code(err) == codes.Unimplemented:
		p.gone(err)
		return errNoRenew
	case err == nil && len(answer.GetResults()) != 1:
		err = fmt.Errorf("%d results for one entry", len(answer.GetResults()))
	case err == nil:
		r := answer.GetResults()[0]
		err = stale(codeError(&v2.Status{Code: v2.Code(r.GetCode()), Message: r.GetMessage()}))
	}
	if err != nil {
		return fmt.Errorf("renew: %w", err)
	}
	return nil
}

// settleOne is settle for one.
func (p *penstock) settleOne(ctx context.Context, e *penstockv1.SettleEntry) error {
	errs, err := p.settle(ctx, []*penstockv1.SettleEntry{e})
	if err != nil {
		return err
	}
	return errs[0]
}

// entryOf is a verdict as the service takes it. REQUIRES: v has a Settlement.
func entryOf(v Verdict, handle string) *penstockv1.SettleEntry {
	s := v.Settlement
	e := &penstockv1.SettleEntry{
		ReceiptHandle: handle, Action: actionsOnWire[v.Kind], Outcome: outcomesOnWire[s.Outcome],
		BytesOut: max(s.BytesOut, 0), Usage: &penstockv1.Usage{},
	}
	if v.Kind == VerdictSuspend || v.Kind == VerdictRetry {
		e.Duration = durationpb.New(ceilMilli(v.After))
	}
	if s.InputTokens >= 0 {
		e.Usage.InputTokens = new(s.InputTokens)
	}
	if s.OutputTokens >= 0 {
		e.Usage.OutputTokens = new(s.OutputTokens)
	}
	if s.Latency > 0 {
		e.Latency = durationpb.New(s.Latency)
	}
	return e
}

var actionsOnWire = [...]penstockv1.Action{
	VerdictRetry: penstockv1.Action_ACTION_RETRY, VerdictAck: penstockv1.Action_ACTION_ACK,
	VerdictSuspend: penstockv1.Action_ACTION_SUSPEND, VerdictReject: penstockv1.Action_ACTION_REJECT,
}

var outcomesOnWire = [...]penstockv1.Outcome{
	OutcomeUnknown: penstockv1.Outcome_OUTCOME_UNSPECIFIED, OutcomeGood: penstockv1.Outcome_OUTCOME_GOOD,
	OutcomeOverload: penstockv1.Outcome_OUTCOME_OVERLOAD, OutcomeTimeout: penstockv1.Outcome_OUTCOME_TIMEOUT,
	OutcomeFailed: penstockv1.Outcome_OUTCOME_FAILED, OutcomeUnused: penstockv1.Outcome_OUTCOME_UNUSED,
}

// errNotTold is why a settlement is not offered: the verdict has none, or the broker takes none.
var errNotTold = errors.New("no settlement")

// tell settles one delivery with its settlement; errNotTold if it has to be settled the plain way.
func (p *penstock) tell(ctx context.Context, v Verdict, handle string) error {
	if !p.tells(v) {
		return errNotTold
	}
	err := p.settleOne(ctx, entryOf(v, handle))
	if refused(err) {
		return errNotTold
	}
	return err
}

// refused says whether the broker will never take a settlement, as another kind of broker will not. The message itself can
// be settled all the same, and has to be: else it comes again.
func refused(err error) bool {
	switch {
	case errors.Is(err, errStale):
		return false
	case status.Code(err) == codes.InvalidArgument:
		return true
	default:
		return hopeless(err)
	}
}

func (p *penstock) tells(v Verdict) bool {
	return v.Settlement != nil && p.known().Settle && int(v.Kind) < len(actionsOnWire) && int(v.Settlement.Outcome) < len(outcomesOnWire)
}

// describePeriod is how often an adapter without a connection of its own to watch asks again.
const describePeriod = 30 * time.Second
