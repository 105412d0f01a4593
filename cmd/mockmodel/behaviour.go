package mockmodel

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Fault is what goes wrong with a call.
type Fault string

// Faults. Those in mid-answer strike after FaultAfter events of a stream, or half of a body.
const (
	FaultNone       Fault = ""
	FaultStatus     Fault = "status"      // answers Status with an error body
	FaultRefuse     Fault = "refuse"      // resets the connection before a byte
	FaultReset      Fault = "reset"       // resets the connection in mid-answer
	FaultNoEnd      Fault = "no_end"      // ends cleanly in mid-answer: a stream without [DONE], JSON cut short
	FaultBroken     Fault = "broken_json" // 200 and JSON that does not parse
	FaultBareError  Fault = "bare_error"  // a JSON error without event framing in mid-stream
	FaultErrorEvent Fault = "error_event" // a JSON error as an event in mid-stream, then [DONE]
	FaultHang       Fault = "hang"        // does not answer until the caller leaves
)

var faults = []Fault{
	FaultNone, FaultStatus, FaultRefuse, FaultReset, FaultNoEnd, FaultBroken, FaultBareError, FaultErrorEvent, FaultHang,
}

// Duration is a time.Duration that reads and prints as "50ms".
type Duration time.Duration

// MarshalText prints d.
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// UnmarshalText reads d; negative ones are refused.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	if err != nil {
		return errors.New("want a duration such as 50ms")
	}
	if v < 0 {
		return errors.New("duration is negative")
	}
	*d = Duration(v)
	return nil
}

// Behaviour is how a call goes.
type Behaviour struct {
	// Delay passes before the status.
	Delay Duration `json:"delay"`
	// FirstToken passes between the status and the first event of a stream; without a stream, before the status.
	FirstToken Duration `json:"first_token"`
	// Interval passes between tokens; without a stream, all of them before the status.
	Interval Duration `json:"interval"`
	// Tokens is the length of an answer; a request's max_tokens cuts it.
	Tokens int `json:"tokens"`
	// Fault is what goes wrong.
	Fault Fault `json:"fault"`
	// FaultAfter is the number of events before a fault in mid-stream.
	FaultAfter int `json:"fault_after"`
	// Status is that of FaultStatus.
	Status int `json:"status"`
	// RetryAfter comes with a Status of 429 or 503, and when the server is full. 0 sends none.
	RetryAfter Duration `json:"retry_after"`
}

// DefaultBehaviour answers 16 tokens at once.
func DefaultBehaviour() Behaviour {
	return Behaviour{Tokens: 16, FaultAfter: 3, Status: http.StatusInternalServerError}
}

const tokensMax = 1 << 20

// Validate returns all that is wrong with b.
func (b Behaviour) Validate() error {
	var errs []error
	if b.Delay < 0 || b.FirstToken < 0 || b.Interval < 0 || b.RetryAfter < 0 {
		errs = append(errs, errors.New("delay, first_token, interval, retry_after: want 0 or more"))
	}
	if b.Tokens < 0 || b.Tokens > tokensMax {
		errs = append(errs, fmt.Errorf("tokens: want 0 to %d", tokensMax))
	}
	if !slices.Contains(faults, b.Fault) {
		errs = append(errs, fmt.Errorf("fault: want one of %q", faults))
	}
	if b.FaultAfter < 0 {
		errs = append(errs, errors.New("fault_after: want 0 or more"))
	}
	if b.Status < 400 || b.Status > 599 {
		errs = append(errs, errors.New("status: want 400 to 599"))
	}
	return errors.Join(errs...)
}

// withHeaders is b with what a call asks for itself.
func (b Behaviour) withHeaders(h http.Header) (Behaviour, error) {
	var errs []error
	duration := func(name string, to *Duration) {
		if v := h.Get(name); v != "" {
			if err := to.UnmarshalText([]byte(v)); err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", name, err))
			}
		}
	}
	number := func(name string, to *int) {
		if v := h.Get(name); v != "" {
			n, err := strconv.Atoi(v)
			if err != nil {
				errs = append(errs, fmt.Errorf("%s: want a number", name))
				return
			}
			*to = n
		}
	}
	duration("X-Mock-Delay", &b.Delay)
	duration("X-Mock-First-Token", &b.FirstToken)
	duration("X-Mock-Interval", &b.Interval)
	duration("X-Mock-Retry-After", &b.RetryAfter)
	number("X-Mock-Tokens", &b.Tokens)
	number("X-Mock-Fault-After", &b.FaultAfter)
	number("X-Mock-Status", &b.Status)
	if v := h.Get("X-Mock-Fault"); v != "" {
		b.Fault = Fault(v)
	}
	return b, errors.Join(append(errs, b.Validate())...)
}

// Rule changes the behaviour of the calls that match all of its fields that are not empty.
type Rule struct {
	Model    string
	User     string
	Contains string // in the body
	Times    int    // how many calls it applies to; 0 means all
	Apply    func(*Behaviour)
}

func (r Rule) matches(c *Call, body []byte) bool {
	return (r.Model == "" || r.Model == c.Model) &&
		(r.User == "" || r.User == c.User) &&
		(r.Contains == "" || strings.Contains(string(body), r.Contains))
}
