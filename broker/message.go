package broker

import (
	"time"
)

// Encoding says how a body is encoded; the broker never looks inside.
type Encoding uint8

// Encodings that a sender may name.
const (
	Identity Encoding = iota
	Gzip
)

// Message is what a sender hands in. Body and the maps belong to the broker once
// Send was called.
type Message struct {
	// Lite is the name of the bucket: the lite topic under the parent topic.
	Lite string
	// ID is the client's message id, stored and echoed.
	ID           string
	Tag          string
	Keys         []string
	Properties   map[string]string
	Body         []byte
	Encoding     Encoding
	Born         time.Time
	BornHost     string
	TraceContext string
}

// Receipt says where a message was stored. It is given out when the message is
// durable.
type Receipt struct {
	MessageID string
	Offset    uint64
	// RecallHandle cancels the message while it is queued; see Broker.Recall.
	RecallHandle string
}

// Delivery is one message handed to a consumer under a lease.
type Delivery struct {
	Message
	// Handle settles the message; it names the lease.
	Handle string
	Offset uint64
	// Attempt is 1 for the first delivery; suspends do not count.
	Attempt int
	Stored  time.Time
	// InvisibleUntil is when the lease ends.
	InvisibleUntil time.Time
}

// ReceiveRequest asks for messages of all buckets the client reads.
type ReceiveRequest struct {
	Topic, Group, Client string
	// Max bounds the messages of one answer, at most one of each bucket; 1 to 1024.
	Max int
	// Invisible is the lease's length; up to 12 h.
	Invisible time.Duration
	// AutoRenew lets the broker extend the lease while the client gives signs of life.
	AutoRenew bool
	// AttemptID, when not empty, makes a repeated poll return the same messages again.
	AttemptID string
	// Wait is how long to wait for a first message; 0 asks once.
	Wait time.Duration
}
