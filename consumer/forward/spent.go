package forward

import (
	"net/http"
	"time"

	"github.com/penstockmq/penstock/consumer/reply"
)

// Spent is what a request cost, as far as it was seen from here.
type Spent struct {
	// Input and Output are tokens; 0: not known. They are the model's own numbers where it says them. Else Output is
	// counted from what was sent, which is fair as a charge and no number to show to anybody.
	Input, Output int64
	// BytesOut are bytes of the answer that the sink was given.
	BytesOut int64
	// FirstByte is the time from the request to the answer's first byte, 0 if none came; Total to its end.
	FirstByte, Total time.Duration
}

// Feedback is what an outcome says about the downstream's load.
type Feedback uint8

// Kinds of feedback.
const (
	Silent   Feedback = iota // nothing: the request was not tried, or was cancelled
	Good                     // it answered, be it with a refusal of the caller's own making
	Overload                 // it had no room
	Timeout                  // it took too long
	Broken                   // it failed otherwise
)

// Feedback says what o tells about its downstream.
func (o Outcome) Feedback() Feedback {
	if o.Unsent {
		return Silent
	}
	switch o.Kind {
	case Done:
		return Good
	case Refused:
		if o.Status >= http.StatusInternalServerError { // answered in the place of a downstream
			return Silent
		}
		return Good
	case Busy:
		return Overload
	case Cancelled:
		return Silent
	case Failed:
	}
	switch {
	case o.Failure.Code == CodeReply: // the downstream answered, and the sink did not take it
		return Silent
	case isOverload(o.Status):
		return Overload
	case o.Failure.Code == CodeTimeout, o.Status == http.StatusGatewayTimeout, o.Status == http.StatusRequestTimeout:
		return Timeout
	default:
		return Broken
	}
}

func isOverload(status int) bool {
	return status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable
}

// meter counts what one request costs while it runs. It belongs to the goroutine of its Forward, its sink included.
type meter struct {
	Sink

	begin  time.Time
	spent  Spent
	deltas int64 // events that carried content
	text   int64 // bytes of content
}

func newMeter(sink Sink) *meter { return &meter{Sink: sink, begin: time.Now()} }

// heard notes that bytes of the answer have come.
func (m *meter) heard() {
	if m.spent.FirstByte == 0 {
		m.spent.FirstByte = max(time.Since(m.begin), 1) // 0 means that none came
	}
}

// Chunk implements [Sink].
func (m *meter) Chunk(p []byte) error {
	m.spent.BytesOut += int64(len(p))
	return m.Sink.Chunk(p)
}

// Answer implements [Sink].
func (m *meter) Answer(status int, header http.Header, body []byte, u reply.Usage) error {
	m.spent.BytesOut += int64(len(body))
	return m.Sink.Answer(status, header, body, u)
}

// content notes content in one event, or in a whole answer.
func (m *meter) content(bytes int64) {
	if bytes > 0 {
		m.deltas++
		m.text += bytes
	}
}

// used notes what the model says. Its last word counts.
func (m *meter) used(u reply.Usage) {
	m.spent.Input, m.spent.Output = u.Input, u.Output
}

// bytesPerToken is what a token of English text has on average. Most servers send an event for each token; those that
// gather several are counted by their bytes.
const bytesPerToken = 4

// total closes the account and puts it into o.
func (m *meter) total(o Outcome) Outcome {
	m.spent.Total = time.Since(m.begin)
	if m.spent.Output == 0 {
		m.spent.Output = max(m.deltas, (m.text+bytesPerToken-1)/bytesPerToken)
	}
	o.Spent = m.spent
	return o
}
