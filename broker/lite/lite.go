// Package lite owns the names of the broker: parent topics, consumer groups, lite
// topics, and the one-to-one relation between a user+model pair and the lite topic
// that is its bucket.
//
// It never does I/O and keeps no state. The broker, the gateway and the consumer
// pool call it; they have to agree on the name of a bucket without asking each
// other. All functions are pure and safe for concurrent use.
package lite

import "errors"

// Limits of names. Those of topics, groups and lite topics are RocketMQ's (client
// Validators and proxy GrpcValidator); those of users and models are ours.
const (
	// MaxNameBytes bounds the name of a lite topic.
	MaxNameBytes = 64
	// MaxTopicBytes bounds the name of a parent topic.
	MaxTopicBytes = 127
	// MaxGroupBytes bounds the name of a consumer group.
	MaxGroupBytes = 120
	// MaxUserBytes bounds a user, in bytes of UTF-8.
	MaxUserBytes = 128
	// MaxModelBytes bounds a model, in bytes of UTF-8.
	MaxModelBytes = 128

	// MaxLevel is the least important level; there are MaxLevel + 1.
	MaxLevel = 3
	// MaxTokens bounds PropertyInputTokens.
	MaxTokens = 1_000_000_000
	// MaxOutputTokens bounds PropertyMaxTokens. No model gives such a long answer.
	MaxOutputTokens = 1 << 20
	// MaxCost bounds PropertyCost.
	MaxCost = 1_000_000

	// Wildcard in a subscription means all lite topics of the parent that exist or
	// ever will. It is not a name: nothing can be sent to it.
	Wildcard = "*"
)

// Message properties that the broker itself reads. Those that only gateway and pool
// exchange are in package consumer/reply.
const (
	// PropertyUser and PropertyModel name the cell of a message; see Resolve.
	PropertyUser  = "penstock-user"
	PropertyModel = "penstock-model"
	// PropertyDeadline is an instant in Unix milliseconds, decimal. A message that
	// is still queued then is settled as expired and never delivered.
	PropertyDeadline = "penstock-deadline"
	// PropertyRequestID is the gateway's id of the request that a message carries.
	PropertyRequestID = "penstock-request-id"
	// PropertyLevel is the importance that the sender stamps, decimal: 0 is the most
	// important, MaxLevel the least. Without it the policy decides.
	PropertyLevel = "penstock-level"
	// PropertyInputTokens is how many tokens the request puts in, decimal, an estimate.
	PropertyInputTokens = "penstock-input-tokens" //nolint:gosec // tokens of a model, and no secret
	// PropertyMaxTokens is the most tokens that the answer may have, decimal.
	PropertyMaxTokens = "penstock-max-tokens" //nolint:gosec // as above
	// PropertyCost is how many requests this one counts as, decimal; without it 1.
	PropertyCost = "penstock-cost"
)

// Errors of the checks. The text that wraps them names the field, the fault and the
// limit, and is fit for the sender of the name.
var (
	ErrName  = errors.New("illegal lite topic")
	ErrTopic = errors.New("illegal topic")
	ErrGroup = errors.New("illegal consumer group")
	ErrUser  = errors.New("illegal user")
	ErrModel = errors.New("illegal model")
	// ErrCell: the user and model of a message do not belong to the lite topic it
	// was sent to.
	ErrCell = errors.New("lite topic belongs to another user and model")
)

// Cell is one bucket's place in the matrix: its row (user) and column (model).
type Cell struct {
	User, Model string
}
