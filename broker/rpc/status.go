package rpc

import (
	"context"
	"errors"
	"fmt"

	v2 "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"

	"github.com/penstockmq/penstock/broker"
	"github.com/penstockmq/penstock/broker/lite"
	"github.com/penstockmq/penstock/suspend"
)

// statusTable is the one place that says which RocketMQ code a condition has. The
// first entry that matches an error with errors.Is wins; what matches none is an
// INTERNAL_SERVER_ERROR. It is never written to.
//
// Official clients try a settlement again for ever unless the code is OK or
// INVALID_RECEIPT_HANDLE, and a send at most three times, at once, or after a pause
// if the code is TOO_MANY_REQUESTS. So conditions that pass by themselves are
// TOO_MANY_REQUESTS, and one that never passes must not be.
var statusTable = [...]struct {
	err  error
	code v2.Code
}{
	{lite.ErrName, v2.Code_ILLEGAL_LITE_TOPIC},
	{lite.ErrTopic, v2.Code_ILLEGAL_TOPIC},
	{lite.ErrGroup, v2.Code_ILLEGAL_CONSUMER_GROUP},
	{lite.ErrCell, v2.Code_ILLEGAL_LITE_TOPIC},
	// User and model travel as message properties; RocketMQ has this one code for
	// faulty keys and values.
	{lite.ErrUser, v2.Code_ILLEGAL_MESSAGE_PROPERTY_KEY},
	{lite.ErrModel, v2.Code_ILLEGAL_MESSAGE_PROPERTY_KEY},

	{suspend.ErrNegative, v2.Code_ILLEGAL_INVISIBLE_TIME},
	{suspend.ErrTooLong, v2.Code_ILLEGAL_INVISIBLE_TIME},
	// Of penstock.v1: RocketMQ's calls name no scope.
	{suspend.ErrScope, v2.Code_BAD_REQUEST},
	{suspend.ErrTarget, v2.Code_BAD_REQUEST},

	{broker.ErrTopicNotFound, v2.Code_TOPIC_NOT_FOUND},
	{broker.ErrGroupNotFound, v2.Code_CONSUMER_GROUP_NOT_FOUND},
	{broker.ErrGroupBound, v2.Code_BAD_REQUEST},
	{broker.ErrExists, v2.Code_BAD_REQUEST},
	{broker.ErrInUse, v2.Code_BAD_REQUEST},
	{broker.ErrInvalidHandle, v2.Code_INVALID_RECEIPT_HANDLE},
	{broker.ErrStaleHandle, v2.Code_INVALID_RECEIPT_HANDLE},
	{broker.ErrNotQueued, v2.Code_MESSAGE_NOT_FOUND},
	{broker.ErrBucketNotFound, v2.Code_MESSAGE_NOT_FOUND},
	// To look again would find as much to look at.
	{broker.ErrScanLimit, v2.Code_BAD_REQUEST},
	{broker.ErrInvalidArgument, v2.Code_BAD_REQUEST},
	{lite.ErrDeadline, v2.Code_BAD_REQUEST},
	{broker.ErrDeadlinePassed, v2.Code_BAD_REQUEST},
	{broker.ErrBodyTooLarge, v2.Code_MESSAGE_BODY_TOO_LARGE},
	{broker.ErrBucketFull, v2.Code_TOO_MANY_REQUESTS},
	{broker.ErrBucketBytes, v2.Code_TOO_MANY_REQUESTS},
	{broker.ErrTooManyWaiters, v2.Code_TOO_MANY_REQUESTS},
	{broker.ErrTooManyHolds, v2.Code_TOO_MANY_REQUESTS},
	{broker.ErrBusy, v2.Code_TOO_MANY_REQUESTS},
	// RocketMQ has no code for a full disk. This code means that the message could not be kept,
	// and differs from that of a full bucket, which concerns only the sender.
	{broker.ErrDiskFull, v2.Code_MASTER_PERSISTENCE_TIMEOUT},
	{broker.ErrTooManyBuckets, v2.Code_LITE_TOPIC_QUOTA_EXCEEDED},
	{broker.ErrTooManyUserBuckets, v2.Code_LITE_TOPIC_QUOTA_EXCEEDED},
	{broker.ErrSubscriptionQuota, v2.Code_LITE_SUBSCRIPTION_QUOTA_EXCEEDED},
	{broker.ErrClosed, v2.Code_HA_NOT_AVAILABLE},

	{context.DeadlineExceeded, v2.Code_PROXY_TIMEOUT},
	{context.Canceled, v2.Code_PROXY_TIMEOUT},
}

// codeError is a refusal found in this package, with its code.
type codeError struct {
	code v2.Code
	text string
}

func (e *codeError) Error() string { return e.text }

// refuse makes an error that has this code on the wire.
func refuse(code v2.Code, format string, args ...any) error {
	return &codeError{code: code, text: fmt.Sprintf(format, args...)}
}

// codeOf says which code err has on the wire.
func codeOf(err error) v2.Code {
	if err == nil {
		return v2.Code_OK
	}
	if ce, ok := errors.AsType[*codeError](err); ok {
		return ce.code
	}
	for i := range statusTable {
		if errors.Is(err, statusTable[i].err) {
			return statusTable[i].code
		}
	}
	return v2.Code_INTERNAL_SERVER_ERROR
}

// statusOf is err as a response has it.
func statusOf(err error) *v2.Status {
	if err == nil {
		return &v2.Status{Code: v2.Code_OK, Message: "ok"}
	}
	return &v2.Status{Code: codeOf(err), Message: err.Error()}
}

// commonStatus sums up the entries of a response: their code if they have one in
// common, else MULTIPLE_RESULTS.
func commonStatus(entries []*v2.Status) *v2.Status {
	for _, s := range entries[1:] {
		if s.GetCode() != entries[0].GetCode() {
			return &v2.Status{Code: v2.Code_MULTIPLE_RESULTS, Message: "entries differ"}
		}
	}
	return entries[0]
}
