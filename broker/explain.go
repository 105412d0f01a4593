package broker

import (
	"context"
	"fmt"
	"time"

	"github.com/penstockmq/penstock/broker/lite"
	"github.com/penstockmq/penstock/suspend"
	"github.com/penstockmq/penstock/suspend/quota"
)

// Explanation says why a message waits, or that it does not.
type Explanation struct {
	Topic, Group, Bucket string
	Cell                 lite.Cell
	// Level is the importance in force.
	Level uint8
	// Offset is the message's; -1 when the bucket has none to deliver.
	Offset int64
	// RequestID is the message's property, when it has one.
	RequestID string
	// State is "queued" behind others of its bucket, "out" with a consumer, "held" by a
	// suspend, "limited", "in_flight_full", or "ready" for the next poll.
	State string
	// Position counts the undelivered messages of the bucket before it; 0 is next.
	Position int
	// Gate is the limit it waits at; the zero Gate if none does.
	Gate quota.Gate
	// Hold is the suspend in force that ends last; its Until is zero if none is.
	Hold suspend.Hold
	// Since is when it began to wait there and Until when that ends; zero if not known.
	Since, Until time.Time
	// Opens says in words what ends the wait.
	Opens string
	// EstimatedStart is when it may be delivered if nothing else changes; zero if not
	// known.
	EstimatedStart time.Time
	// Lines are the limits that apply, with what is used of them now.
	Lines []quota.Line
}

// NextMessage as an offset means the message whose turn is next.
const NextMessage = -1

// Explain says where a message of a bucket stands with a group: the one at offset, or
// with NextMessage the next to be delivered. An empty group means the only one that
// reads the topic.
//
// Errors: ErrTopicNotFound, ErrGroupNotFound, ErrGroupBound; ErrBucketNotFound;
// ErrNotQueued when the message is settled or never was.
func (b *Broker) Explain(ctx context.Context, topic, group, name string, offset int64) (Explanation, error) {
	return Explanation{}, fmt.Errorf("%w: %q", ErrBucketNotFound, name)
}

// ExplainHandle is Explain for a message by the recall handle of its Receipt.
func (b *Broker) ExplainHandle(ctx context.Context, topic, group, recallHandle string) (Explanation, error) {
	return Explanation{}, ErrInvalidHandle
}

// FindRequest looks for the message of a request among what a topic keeps, by its
// property penstock-request-id: first in memory, then bucket by bucket in the store,
// at most maxScan messages. It is for people who have an id and no bucket; ctx ends it.
func (b *Broker) FindRequest(ctx context.Context, topic, requestID string) (name string, offset int64, ok bool, err error) {
	return "", 0, false, nil
}
