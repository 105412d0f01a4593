package broker

import (
	"context"
	"fmt"
	"time"

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
	// By and Reason are noted with a hold and a dead letter.
	By, Reason string
}

// SettleWith is Ack, Suspend, ChangeInvisible and DeadLetter for workers that know what
// the call used: the limits it was charged to are corrected in the same write. The
// handle is the one of the lease that ThenRetry began, else it is empty.
//
// Errors: those of the method that Then stands for; ErrInvalidArgument for a value out
// of its limits.
func (b *Broker) SettleWith(ctx context.Context, topic, group, handle string, s Settlement) (string, error) {
	switch s.Then {
	case ThenAck:
		errs, err := b.Ack(ctx, topic, group, []string{handle})
		if err == nil {
			err = errs[0]
		}
		return "", err
	case ThenSuspend:
		return "", b.Suspend(ctx, topic, group, handle, s.For, s.By, s.Reason)
	case ThenRetry:
		return b.ChangeInvisible(ctx, topic, group, handle, s.For)
	case ThenReject:
		return "", b.DeadLetter(ctx, topic, group, handle, s.Reason)
	default:
		return "", fmt.Errorf("%w: settlement %d", ErrInvalidArgument, s.Then)
	}
}

// HoldFor is a worker's suspend of any scope: the target is held for d from now, for
// this group; a longer hold stays as it is, and d = 0 changes nothing. It returns the
// hold in force.
//
// Errors: suspend.ErrNegative, suspend.ErrTooLong, suspend.ErrTarget and
// suspend.ErrScope, with nothing changed.
func (b *Broker) HoldFor(ctx context.Context, topic, group string, target suspend.Target, d time.Duration, by, reason string) (suspend.Hold, error) {
	o, g, err := b.route(ctx, topic, group)
	if err != nil {
		return suspend.Hold{}, err
	}
	if err := suspend.CheckDuration(d, maxSuspend); err != nil {
		return suspend.Hold{}, err
	}
	var inForce suspend.Hold
	err = o.call(ctx, &settleCommand{reply: newReply(), settle: func(now time.Time) error {
		var err error
		inForce, err = o.m.ExtendHold(now, g, suspend.Hold{Target: target, Until: now.Add(suspend.RoundUp(d)), By: by, Reason: reason})
		return err
	}})
	return inForce, err
}
