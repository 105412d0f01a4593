package quota

// kind is a kind of limit. The values are in records: never renumber them, append only.
type kind uint8

const (
	kindRate     kind = 1
	kindWindow   kind = 2
	kindQuota    kind = 3
	kindObserved kind = 4
	kindInFlight kind = 5 // no state: the account counts
	kindTokens   kind = 6
	kindBytesIn  kind = 7
	kindBytesOut kind = 8
	kindAdaptive kind = 9
	kindLearned  kind = 10 // no limit: the output that a cell is expected to cause
	kindSignal   kind = 11 // no limit: a factor of zero

	kinds = 12
)

var kindNames = [kinds]string{
	kindRate: "rate", kindWindow: "window", kindQuota: "quota", kindObserved: "observed", kindInFlight: "in_flight",
	kindTokens: "tokens", kindBytesIn: "bytes_in", kindBytesOut: "bytes_out", kindAdaptive: "adaptive",
	kindLearned: "learned", kindSignal: "signal",
}

func (k kind) String() string {
	if k < kinds {
		return kindNames[k]
	}
	return ""
}

// of is the part of a cost that a limit of this kind counts when a message goes.
func (k kind) of(c Cost) int64 {
	switch k {
	case kindRate, kindWindow, kindQuota, kindObserved:
		return c.Requests
	case kindTokens:
		return c.Tokens
	case kindBytesIn:
		return c.BytesIn
	case kindInFlight, kindBytesOut, kindAdaptive, kindLearned, kindSignal:
	}
	return 0
}

// countsCost is whether what a message costs makes a difference to a limit of this kind.
func (k kind) countsCost() bool {
	return k != kindInFlight && k != kindAdaptive && k != kindBytesOut
}
