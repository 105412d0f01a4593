package mq

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	v2 "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
)

// Message is one delivery of one message.
type Message struct {
	ID         string
	Topic      string // parent topic
	Lite       string // lite topic: the bucket
	Body       []byte
	Properties map[string]string
	Keys       []string
	Tag        string
	Attempt    int // 1 for the first delivery; suspends do not count
	Born       time.Time
	Stored     time.Time // zero if the broker or the client does not say
	Received   time.Time
	Offset     int64 // in its lite topic
}

// Verdict is a handler's answer: what becomes of the message.
type Verdict struct {
	Kind  VerdictKind
	After time.Duration // of suspends and retries
	// Settlement is what was learned about the request; nil: nothing.
	Settlement *Settlement
	// Hold is asked for before the message is settled, so that the message is not out again first. Where the broker takes
	// none, After grows to at least its time. Nil: none.
	Hold *Hold
}

// VerdictKind tells verdicts apart. The zero kind counts as a retry: a handler that forgot to decide has failed.
type VerdictKind uint8

// Kinds of verdicts.
const (
	VerdictRetry VerdictKind = iota
	VerdictAck
	VerdictSuspend
	VerdictReject
)

// String returns the kind as metrics name it.
func (k VerdictKind) String() string {
	switch k {
	case VerdictRetry:
		return "retry"
	case VerdictAck:
		return "ack"
	case VerdictSuspend:
		return "suspend"
	case VerdictReject:
		return "reject"
	}
	return fmt.Sprintf("verdict(%d)", uint8(k))
}

// Ack settles the message: it is done.
func Ack() Verdict { return Verdict{Kind: VerdictAck} }

// Suspend gives the message back with its attempt unchanged and holds its bucket for d. d below [Consumer.SuspendStep] is
// rounded up to it, except 0: the message is free again at once, or as soon as the adapter can.
func Suspend(d time.Duration) Verdict { return Verdict{Kind: VerdictSuspend, After: max(d, 0)} }

// Retry says that the attempt failed: the message comes again with the next attempt after d at the earliest, and goes to
// the dead letters when the group's attempts are used up.
func Retry(d time.Duration) Verdict { return Verdict{Kind: VerdictRetry, After: max(d, 0)} }

// Reject moves the message to the dead letters.
func Reject() Verdict { return Verdict{Kind: VerdictReject} }

// Handler runs one message. It may take as long as it likes: its lease is renewed, see [Options].Invisible. ctx ends when
// the lease was lost ([ErrLeaseLost] is its cause: somebody else may have the message by now) or when the grace of a
// stopping consumer is over ([ErrStopping]). Handlers of different messages run at the same time. A panic is caught and
// counts as a retry.
type Handler func(ctx context.Context, m *Message) Verdict

// Consumer receives messages and settles them as a Handler says.
type Consumer interface {
	// Run receives until ctx is done and returns nil then: receiving ends at once, running handlers may finish within
	// Options.Grace, what is left goes back to the broker unharmed. An outage of the broker is waited out, at the start
	// too; only an answer that no patience will change, such as an unknown topic, is returned as an error.
	Run(ctx context.Context, h Handler) error
	// SuspendStep is the shortest suspend the adapter can answer. Waits below it are better slept.
	SuspendStep() time.Duration
}

// Outgoing is a message to send.
type Outgoing struct {
	Topic, Lite string
	Body        []byte // not empty; not to be changed before Send returns
	Properties  map[string]string
	Keys        []string
	Tag         string
}

// Receipt says where a message was stored. It is given when the message is durable.
type Receipt struct {
	MessageID    string
	RecallHandle string // for Recall; empty if the broker knows no recall of lite messages
	Offset       int64
}

// Producer sends messages.
type Producer interface {
	// Send stores m or returns why not: a [CodeError] if the broker refused it. If ctx ends first the message may have
	// been stored.
	Send(ctx context.Context, m Outgoing) (Receipt, error)
	// Recall takes a message out of its bucket. [ErrNotQueued] says that it is too late: it is running or gone.
	Recall(ctx context.Context, topic, handle string) error
	// Close ends the connection. It may be called twice.
	Close() error
}

// Errors and causes that callers tell apart.
var (
	// ErrNotQueued is returned by Recall for a message that is running or gone.
	ErrNotQueued = errors.New("message is not queued any more")
	// ErrLeaseLost is the cause of a handler's ctx when the broker could not be told in time that it still runs.
	ErrLeaseLost = errors.New("lease lost")
	// ErrStopping is the cause of a handler's ctx when the consumer's grace is over.
	ErrStopping = errors.New("consumer is stopping")
	// ErrClosed is returned by a Producer after Close, and by a Consumer that is run twice.
	ErrClosed = errors.New("closed")
)

// CodeError is a refusal by the broker.
type CodeError struct {
	Code    int32 // RocketMQ's, such as 40402
	Message string
}

// Error gives the code's name and the broker's text.
func (e *CodeError) Error() string {
	return fmt.Sprintf("%s (%d): %s", v2.Code(e.Code), e.Code, e.Message)
}

// Codes that callers of this package act on.
const (
	CodeBodyTooLarge   = int32(v2.Code_MESSAGE_BODY_TOO_LARGE)
	CodeTooMany        = int32(v2.Code_TOO_MANY_REQUESTS)          // busy, or the bucket is full
	CodeDiskFull       = int32(v2.Code_MASTER_PERSISTENCE_TIMEOUT) // of the broker
	CodeTooManyBuckets = int32(v2.Code_LITE_TOPIC_QUOTA_EXCEEDED)  // under the parent topic
)

// IsCode says whether err is a refusal with one of codes.
func IsCode(err error, codes ...int32) bool {
	var ce *CodeError
	if !errors.As(err, &ce) {
		return false
	}
	return slices.Contains(codes, ce.Code)
}
