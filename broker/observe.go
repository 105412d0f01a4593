package broker

import (
	"time"

	"github.com/penstockmq/penstock/broker/lite"
	"github.com/penstockmq/penstock/suspend/quota"
)

// Released is a delivery, for recording traces. It is told twice: when the message is
// handed to a consumer, and with Ended set when its lease is over.
type Released struct {
	Topic, Group, Lite string
	Cell               lite.Cell
	// Level is what the sender stamped on the message, -1 if nothing.
	Level   int8
	Offset  uint64
	Attempt int
	Cost    quota.Cost
	// Stored is when the message came, At when it was handed over.
	Stored, At time.Time
	// Ended is when its lease ended; zero while it runs. Settled is whether it ended
	// with the message done, and not suspended, failed or timed out.
	Ended   time.Time
	Settled bool
	// Used is what the worker said that the call used; with Outcome Unknown it said
	// nothing.
	Used quota.Settlement
}

// Service is how long the consumer had the message; 0 while it has it.
func (r *Released) Service() time.Duration {
	if r.Ended.IsZero() {
		return 0
	}
	return r.Ended.Sub(r.At)
}

// Discarded is a message that the broker settled and that nobody was given, or not
// successfully: whoever waits for its answer waits in vain. One whose poll was given up
// while its deadline passed may be told twice.
type Discarded struct {
	Topic, Lite string
	// Group is the one that gave the message up; empty when it is gone for all.
	Group  string
	Offset uint64
	// Message has no body.
	Message Message
	// Reason is one of the Discard constants, or the reason of the dead letter.
	Reason string
}

// Reasons of a Discarded, beside those of dead letters.
const (
	DiscardPurged   = "purged"
	DiscardDeadline = "deadline passed while queued"
	DiscardExpired  = "bucket expired with its messages"
)
