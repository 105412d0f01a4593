package broker

import (
	"sync/atomic"
	"time"
)

// Metrics counts what the broker did since it was opened. All fields may be read
// at any time.
type Metrics struct {
	Sends        atomic.Int64 // messages made durable
	SendRefused  atomic.Int64 // messages refused by a cap
	LateSends    atomic.Int64 // sends refused because a deadline had passed: clocks differ, or the sender was slow
	UserRefused  atomic.Int64 // sends refused because their user has its maximum of buckets
	Deliveries   atomic.Int64 // messages handed to a consumer
	Acks         atomic.Int64 // messages settled by an ack
	StaleAcks    atomic.Int64
	Suspends     atomic.Int64 // suspends that a worker asked for
	Redeliveries atomic.Int64 // deliveries with an attempt above 1
	LeasesEnded  atomic.Int64 // leases that ran out
	DeadLetters  atomic.Int64
	Unreadable   atomic.Int64 // dead letters of messages that are damaged on disk
	Expired      atomic.Int64 // messages whose deadline passed while queued
	Recalled     atomic.Int64
	Created      atomic.Int64 // buckets
	Deleted      atomic.Int64 // buckets
	EmptyPolls   atomic.Int64
	Turns        atomic.Int64 // batches written
	ClockSteps   atomic.Int64 // times the wall clock was set, seen by each parent topic
	Pauses       atomic.Int64 // times a parent topic's loop did not run for over 2 s
	// GroupsRetired counts groups removed because they had no client for longer than their
	// Retention, RetiredMessages the messages that were kept for those groups alone.
	GroupsRetired, RetiredMessages atomic.Int64
	// Discarded counts messages that the broker settled by itself: purged, expired, past
	// their deadline, dead letters that no consumer asked for.
	Discarded atomic.Int64
	// NoticesDropped counts what OnRelease and OnDiscard were not told because they
	// were slower than it came.
	NoticesDropped atomic.Int64
}

// Observer receives the durations that histograms are made of. Its methods are
// called from hot paths and must be quick and safe for concurrent use.
type Observer interface {
	// QueueTime is the time from a message's append to its delivery.
	QueueTime(time.Duration)
	// Turn reports the duration of one turn of an owner loop: other events of its parent topic
	// waited for that long.
	Turn(time.Duration)
	// Commit is the time from handing a batch to the store until it held.
	Commit(time.Duration)
}

type noObserver struct{}

func (noObserver) QueueTime(time.Duration) {}
func (noObserver) Turn(time.Duration)      {}
func (noObserver) Commit(time.Duration)    {}
