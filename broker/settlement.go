package broker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/penstockmq/penstock/broker/dispatch"
	"github.com/penstockmq/penstock/suspend"
	"github.com/penstockmq/penstock/suspend/quota"
)

// Then is what becomes of a message that is settled with SettleWith.
type Then uint8

const (
	// ThenAck settles the message.
	ThenAck Then = iota
	// ThenSuspend gives it back with its attempt uncounted and holds its bucket for
	// Settlement.For.
	ThenSuspend
	// ThenRetry ends its lease after Settlement.For, as a failed attempt.
	ThenRetry
	// ThenReject makes it a dead letter.
	ThenReject
)

// Settlement is what a worker learned of a message, and what is to become of it.
type Settlement struct {
	// Settlement corrects what the delivery was charged.
	quota.Settlement
	Then Then
	// For is the length of ThenSuspend's hold or ThenRetry's wait.
	For time.Duration
	// By and Reason are stored with a hold and a dead letter, cut to suspend.MaxNoteBytes.
	By, Reason string
}

// validate names the field that is out of its limits.
func (s *Settlement) validate() error {
	switch {
	case s.Then > ThenReject:
		return fmt.Errorf("%w: then %d is outside 0 to %d", ErrInvalidArgument, s.Then, ThenReject)
	case s.Outcome > quota.Unsent:
		return fmt.Errorf("%w: outcome %d is outside 0 to %d", ErrInvalidArgument, s.Outcome, quota.Unsent)
	case s.Then == ThenRetry:
		if err := durationInRange("retry", s.For, 0, maxInvisible); err != nil {
			return err
		}
	}
	for _, n := range []struct {
		field        string
		v, low, high int64
	}{
		{"tokens", s.Tokens, -1, maxUsage},
		{"output tokens", s.OutputTokens, -1, maxUsage},
		{"bytes out", s.BytesOut, 0, maxUsage},
		{"latency", int64(s.Latency), 0, int64(renewMax)},
	} {
		if n.v < n.low || n.v > n.high {
			return fmt.Errorf("%w: %s %d is outside %d to %d", ErrInvalidArgument, n.field, n.v, n.low, n.high)
		}
	}
	return nil
}

const (
	// maxUsage bounds the tokens and bytes of one call.
	maxUsage = 1 << 40
	// renewMax bounds the latency of one call: no lease lives longer.
	renewMax = 12 * time.Hour
)

func (s *Settlement) then() dispatch.Then {
	switch s.Then {
	case ThenSuspend:
		return dispatch.ThenSuspend(s.For, s.By, s.Reason)
	case ThenRetry:
		return dispatch.ThenRetry(s.For)
	case ThenReject:
		return dispatch.ThenReject(suspend.Note(s.Reason))
	default:
		return dispatch.ThenAck()
	}
}

// SettleWith is Ack, Suspend, ChangeInvisible or DeadLetter for workers that know what
// the call used: the limits it was charged to are corrected in the same write. A message
// whose lease ended before is settled and corrects nothing.
//
// Errors: those of the method that Then stands for; ErrInvalidArgument for a value out
// of its limits.
func (b *Broker) SettleWith(ctx context.Context, topic, group, handle string, s Settlement) error {
	if err := s.validate(); err != nil {
		return err
	}
	return b.settle(ctx, topic, group, handle, s.Then == ThenReject, func(o *owner, now time.Time, h dispatch.Handle) error {
		if s.Then == ThenReject {
			o.reject(h)
		}
		err := o.m.Settle(now, h, s.Settlement, s.then())
		o.countSettled(now, h, s.Then, s.Settlement, err)
		return err
	})
}

// countSettled notes how a message of a worker was settled.
func (o *owner) countSettled(now time.Time, h dispatch.Handle, t Then, used quota.Settlement, err error) {
	switch {
	case err == nil && t == ThenAck:
		o.metrics.Acks.Add(1)
	case err == nil && t == ThenSuspend:
		o.metrics.Suspends.Add(1)
	case errors.Is(err, dispatch.ErrStaleHandle):
		o.metrics.StaleAcks.Add(1)
	}
	if err == nil && (t == ThenAck || t == ThenReject) {
		o.ended(now, h.Group, h.Bucket, h.Offset, true, used)
	}
}

// HoldFor is a worker's suspend of any scope: the target is held for d from now, for
// this group; a longer hold stays as it is, and d = 0 changes nothing. d over the group's
// MaxSuspend counts as MaxSuspend: a worker passes on the pause that a model asked for, and a
// refusal would hold nothing at all. It returns the hold in force.
//
// Errors: suspend.ErrNegative; suspend.ErrTooLong for more than MaxSuspend and 24 h;
// suspend.ErrTarget and suspend.ErrScope. Nothing was changed then.
func (b *Broker) HoldFor(ctx context.Context, topic, group string, target suspend.Target, d time.Duration, by, reason string) (suspend.Hold, error) {
	o, g, err := b.route(ctx, topic, group)
	if err != nil {
		return suspend.Hold{}, err
	}
	var inForce suspend.Hold
	err = o.call(ctx, &settleCommand{reply: newReply(), settle: func(now time.Time) error {
		state, ok := o.groups[g]
		if !ok { // the bucket was deleted meanwhile
			return fmt.Errorf("%w: %q", ErrGroupNotFound, group)
		}
		d, err := suspend.ClampDuration(d, state.cfg.MaxSuspend)
		if err != nil {
			return err
		}
		inForce, err = o.m.ExtendHold(now, g, suspend.Hold{Target: target, Until: now.Add(d), By: by, Reason: reason})
		return err
	}})
	return inForce, err
}
