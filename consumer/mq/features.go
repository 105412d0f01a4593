package mq

import "time"

// Features is what a broker can do beside RocketMQ's protocol. The zero value is a broker of any other kind.
type Features struct {
	Version string // the broker's, for people
	Limits  bool   // it asks the policy's limits before it delivers: nobody else need
	Settle  bool   // it takes settlements
	Holds   bool   // it takes holds of a bucket
	Scopes  bool   // and of rows, columns, levels and all
	Explain bool   // it says why a message waits
	Renew   bool   // the broker distinguishes a renewed lease from an ended one
}

// Describer is what both adapters' Consumers are beside a [Consumer].
type Describer interface {
	// Features are those of the broker that Run is connected to. They are known before the first handler runs, and asked
	// for anew after a reconnect. The zero value before that.
	Features() Features
}

// Outcome is how the request behind a message went.
type Outcome uint8

// Outcomes. The zero one tells nothing: what the broker reserved stays charged.
const (
	OutcomeUnknown  Outcome = iota
	OutcomeGood             // the model answered, be it with a refusal of the caller's own making
	OutcomeOverload         // it had no room: 429, 503
	OutcomeTimeout          // it took too long
	OutcomeFailed           // it failed otherwise
	OutcomeUnused           // it was never asked: all that was reserved is given back
)

// Settlement is what was learned about a request, for the account of its cell. A broker that takes none does not hear of it.
type Settlement struct {
	Outcome Outcome
	// InputTokens and OutputTokens are what it used; -1: not known.
	InputTokens, OutputTokens int64
	BytesOut                  int64
	Latency                   time.Duration // to the answer's first byte; 0: none came
}

// Hold stops deliveries under more than the message's own bucket. A broker that takes none has the bucket suspended for as
// long instead, see [Verdict].
type Hold struct {
	Scope  string // "bucket", "row", "column", "level" or "all"
	Name   string
	For    time.Duration // more than 0
	Reason string        // for people
}

// With returns v with what was learned about its request.
func (v Verdict) With(s Settlement) Verdict {
	v.Settlement = &s
	return v
}
