package quota

import (
	"time"

	"github.com/penstockmq/penstock/suspend"
	"github.com/penstockmq/penstock/suspend/limit"
)

// Cost is what one message counts for. Which part a limit counts follows from its kind: rates and windows count requests,
// token limits tokens, bytes_in the bytes that go to the model.
type Cost struct {
	Requests int64 // at least 1; 0 counts as 1
	Tokens   int64 // input and expected output together: what is reserved
	Output   int64 // of Tokens, the output that is expected; see Ledger.Expect
	BytesIn  int64
}

// Ask is a message that wants to go. Place.Level is the level that is in force for it.
type Ask struct {
	Place suspend.Place
	Cost  Cost
	// Since is when it began to wait for nothing but its gates and its turn; zero: not known, it has waited as long as
	// its gates were closed. A charge does not count as of an instant before it, see Ledger.Charge.
	Since time.Time
}

// Gate is a limit that keeps a place closed.
type Gate struct {
	// Target is where a bucket that is kept waits: Due and Free name it when there is reason to ask again.
	Target suspend.Target
	// Of is the target whose limit it is. It differs from Target where a column or a wider scope has room for others, but not
	// for what this message costs: the bucket then waits alone.
	Of suspend.Target
	// Limit is the kind: "rate", "window", "quota", "observed", "in_flight", "tokens", "bytes_in", "bytes_out", "adaptive"
	// or "signal".
	Limit string
	// Until is the earliest instant at which the gate is open if nothing else is charged; zero if it opens when something
	// in flight ends, or when a signal or a policy changes.
	Until time.Time
	// Never: the ask costs more than the limit ever gives.
	Never bool
}

// Outcome says what became of what a message had reserved.
type Outcome uint8

const (
	// Unknown: nothing was learned; the reservation stands.
	Unknown Outcome = iota
	// Used: the model answered; the reservation is replaced by what the Settlement knows.
	Used
	// Unused: the model was asked and did nothing. Tokens and bytes are given back, the request stays charged: it was made.
	Unused
	// Unsent: the message reached nobody. Everything is given back.
	Unsent
)

// Line is one limit, for people and machines.
type Line struct {
	Scope string    `json:"scope"`
	Name  string    `json:"name,omitempty"`
	Limit string    `json:"limit"`
	Value string    `json:"value"`
	Used  int64     `json:"used"`
	Max   int64     `json:"max"`
	Open  bool      `json:"open"`
	Opens time.Time `json:"opens,omitzero"`
	// Shadow: the rule counts what it would have held, in WouldHold, and holds nothing.
	Shadow    bool   `json:"shadow,omitempty"`
	WouldHold int64  `json:"would_hold,omitempty"`
	Factor    int64  `json:"factor_permille,omitempty"` // what signals leave of the limit, in thousandths; 0 on lines of limits: not scaled
	Stale     bool   `json:"stale,omitempty"`           // a signal that stopped coming decides the factor
	From      string `json:"from,omitempty"`            // the rule or signal that set it
}

// Record is the state of one account, to be stored under its target.
type Record struct {
	Target suspend.Target
	Data   []byte // nil: the account owes nothing, delete its record
}

// Stats are totals since New, and sizes.
type Stats struct {
	// Held counts how often a gate closed in front of something that waits, or a unit closed. WouldHold counts the messages
	// that shadow rules would have held.
	Held, WouldHold []Count
	Accounts        int
	InFlight        int64
}

// Count is how often something happened at the limits of one kind in one scope.
type Count struct {
	Scope suspend.Scope
	Limit string
	N     int64
}

// Settlement is what was learned when a message's lease ended.
type Settlement struct {
	Outcome Outcome
	// Tokens is what the call used, input and output together; -1 if that is not known.
	Tokens int64
	// OutputTokens is the output alone; -1 if that is not known. Without Tokens the input counts as it was reserved.
	OutputTokens int64
	BytesOut     int64
	// Feedback and Latency are for the adaptive window of the column; NoFeedback says nothing to it.
	Feedback limit.Outcome
	Latency  time.Duration // of the model; 0: not measured
}
