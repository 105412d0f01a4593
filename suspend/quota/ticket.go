package quota

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/penstockmq/penstock/broker/lite"
)

// ErrRecord is wrapped by every error about bytes that are no ticket or no account: they are of another version, or damaged.
var ErrRecord = errors.New("bad quota record")

// ticketVersion is the first byte of a ticket. If you change what follows it, add a version and keep reading this one: the
// leases of a broker that is upgraded hold such tickets.
const ticketVersion = 1

// Ticket is what Charge has charged, kept with the lease until Free. The zero Ticket was charged nothing, and is counted
// in flight nowhere.
type Ticket struct {
	Requests int64
	Tokens   int64
	Output   int64
	BytesIn  int64
	Level    uint8 // the level it was charged to; the bucket's may have changed since
	Counted  bool  // it is counted in flight
	// Wide: it was charged while the policy had no limit at all, and its cell and row know nothing of it.
	Wide bool
}

// wideBit is Ticket.Wide in the byte of the level.
const wideBit = 0x80

// Append appends the ticket's encoding; nothing for a ticket that is not counted.
//
//	version 1 | wideBit, level | requests | tokens | output | bytes in     all but the first two as uvarints
func (t Ticket) Append(b []byte) []byte {
	if !t.Counted {
		return b
	}
	at := t.Level
	if t.Wide {
		at |= wideBit
	}
	b = append(b, ticketVersion, at)
	for _, n := range [...]int64{t.Requests, t.Tokens, t.Output, t.BytesIn} {
		b = binary.AppendUvarint(b, uint64(max(n, 0)))
	}
	return b
}

// DecodeTicket is the inverse of Append. No bytes are the zero Ticket, that of a lease from before there were tickets.
func DecodeTicket(b []byte) (Ticket, error) {
	if len(b) == 0 {
		return Ticket{}, nil
	}
	if b[0] != ticketVersion {
		return Ticket{}, fmt.Errorf("%w: a ticket of version %d, this program reads %d", ErrRecord, b[0], ticketVersion)
	}
	r := reader{b: b[1:]}
	at := r.byte()
	t := Ticket{Level: at &^ wideBit, Wide: at&wideBit != 0, Counted: true}
	t.Requests, t.Tokens, t.Output, t.BytesIn = r.count(), r.count(), r.count(), r.count()
	if t.Level >= levels || t.Output > t.Tokens {
		r.bad = true
	}
	if r.bad || len(r.b) > 0 {
		return Ticket{}, fmt.Errorf("%w: a ticket of %d bytes", ErrRecord, len(b))
	}
	return t, nil
}

// Bounds of what is believed of one call. A number that a broken model or a careless caller makes up would else close a
// row, and the column of everybody, for as long as it takes to pay it off: years.
const (
	// MaxTokens is the most tokens that a call can have used. Of one that says it used more nothing is known: what was
	// reserved stands.
	MaxTokens = 1 << 24
	// MaxExpected is the most output that is reserved for a call, whatever its caller allows. What it uses beyond becomes debt.
	MaxExpected = lite.MaxOutputTokens
	// MaxBytesOut is the most bytes that an answer can have.
	MaxBytesOut = 1 << 36
)

// OfFailure is the Outcome of a call that was refused or broke: it has used something if something has come of it.
func (s Settlement) OfFailure() Outcome {
	if s.OutputTokens < 0 && s.BytesOut == 0 {
		return Unused
	}
	return Used
}

// believed is what can be true of a settlement.
func (s Settlement) believed() Settlement {
	if s.Tokens > MaxTokens || s.OutputTokens > MaxTokens {
		s.Tokens, s.OutputTokens = -1, -1
	}
	s.BytesOut = min(max(s.BytesOut, 0), MaxBytesOut)
	return s
}

// correction is what is to be charged beside what the ticket was charged; negative: given back.
func (t Ticket) correction(s Settlement) Cost {
	switch s.Outcome {
	case Unknown:
	case Used:
		switch {
		case s.Tokens >= 0:
			return Cost{Tokens: s.Tokens - t.Tokens}
		case s.OutputTokens >= 0:
			return Cost{Tokens: s.OutputTokens - t.Output}
		}
	case Unused:
		return Cost{Tokens: -t.Tokens, BytesIn: -t.BytesIn}
	case Unsent:
		return Cost{Requests: -t.Requests, Tokens: -t.Tokens, BytesIn: -t.BytesIn}
	}
	return Cost{}
}

// output is what the message used beside the input that was reserved; false if nothing is known, or nobody counts tokens.
// What the input was guessed wrong by counts as output: then the next reservations are right by their sum, and calls that
// run at once do not each pass on a guess that is too low.
func (t Ticket) output(s Settlement) (int64, bool) {
	switch {
	case s.Outcome != Used || t.Tokens == 0:
		return 0, false
	case s.Tokens >= 0:
		return max(s.Tokens-(t.Tokens-t.Output), 0), true
	case s.OutputTokens >= 0:
		return s.OutputTokens, true
	}
	return 0, false
}
