package forward

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/penstockmq/penstock/consumer/reply"
)

// Request is one delivery of one request.
type Request struct {
	reply.Request

	Body    []byte
	Attempt int // delivery attempt, 1 for the first
}

// Downstream is where requests of a model go.
type Downstream interface {
	// Forward sends r and gives its answer to sink as it comes. It returns at once when ctx is done, with the
	// connection to the upstream closed.
	Forward(ctx context.Context, r Request, sink Sink) Outcome
}

// Sink takes the answer: either one Answer, or one Head and then Chunks. It gets nothing before the upstream's status is
// known, and nothing of an answer that is to be tried again. An error ends the request: the caller cannot be reached.
//
// [reply.Writer] and [reply.Collector] are sinks. Whether the answer is whole is told by the [Outcome], not to the sink.
type Sink interface {
	// Head starts an answer that comes in parts.
	Head(status int, header http.Header) error
	// Chunk is some bytes of it: of a stream of events, always whole events. The bytes are not kept.
	Chunk(p []byte) error
	// Answer is a whole answer. The bytes belong to the sink.
	Answer(status int, header http.Header, body []byte, u reply.Usage) error
}

// Kind tells outcomes apart.
type Kind uint8

// Kinds of outcomes.
const (
	// Done: the upstream answered 2xx, and the sink has all of it. Settle with Usage.
	Done Kind = iota + 1
	// Refused: the upstream answered 4xx, or no downstream may have it; the sink has the whole answer. Sending the
	// same request again would be refused again.
	Refused
	// Busy: the upstream has no room for the time After. The sink has nothing; the attempt does not count.
	Busy
	// Failed: no whole answer. If Started, the sink has a part of it and the request must not be sent again; else it
	// has nothing, and Retry says whether another attempt may do better.
	Failed
	// Cancelled: ctx ended; its cause says why. The sink has nothing, or if Started a part.
	Cancelled
)

var kindNames = [...]string{
	Done: "done", Refused: "refused", Busy: "busy", Failed: "failed", Cancelled: "cancelled",
}

// String returns the kind as metrics name it.
func (k Kind) String() string {
	if int(k) < len(kindNames) && kindNames[k] != "" {
		return kindNames[k]
	}
	return fmt.Sprintf("kind(%d)", uint8(k))
}

// Outcome is what became of a request.
type Outcome struct {
	Kind    Kind
	Status  int           // the upstream's HTTP status; 0 if it gave none
	After   time.Duration // Busy: how long to hold, more than 0
	Started bool          // Failed, Cancelled: the sink has had a Head
	Retry   bool          // Failed: another attempt may succeed
	Unsent  bool          // Failed, Refused: the request was sent to no downstream: it used nothing and taught nothing
	Failure reply.Failure // Busy, Failed, Cancelled: for the caller, if this was the last attempt
	Usage   reply.Usage   // Done: zero if the upstream does not say
	Spent   Spent         // what it cost, whatever became of it
	Err     error         // Failed, Cancelled: for the log; names no key and holds no body
}

// Codes of failures that this package finds itself; an upstream's own code takes their place if it has one.
const (
	CodeUnreachable = "upstream_unreachable" // no connection, or reset before the first byte
	CodeTimeout     = "upstream_timeout"     // connect, first byte, idle or total
	CodeBroken      = "upstream_broken"      // reset, or ended without its end mark, in mid-answer
	CodeInvalid     = "upstream_invalid"     // an answer that is not what its type says
	CodeTooLarge    = "upstream_too_large"   // an answer over the limit
	CodeError       = "upstream_error"       // an error status, or an error event in a stream
	CodeBusy        = "upstream_busy"        // 429 or 503
	CodeReply       = "reply_failed"         // the sink refused
	CodeCancelled   = "cancelled"            // ctx ended
	CodeNoModel     = "model_not_found"      // no route
	CodeBodyLarge   = "request_too_large"    // the downstream cannot take the body
	CodeNotAllowed  = "endpoint_not_allowed" // method and path are not in the downstream's allow list
	CodeContentType = "bad_content_type"     // the content type is no media type
)

// failed is a failure before the first byte.
func failed(status int, code, message string, retry bool, err error) Outcome {
	return Outcome{
		Kind:    Failed,
		Retry:   retry,
		Failure: reply.Failure{Status: status, Code: code, Message: message},
		Err:     err,
	}
}

// cancelled is the outcome of a request whose ctx ended.
func cancelled(ctx context.Context, started bool) Outcome {
	err := context.Cause(ctx)
	return Outcome{
		Kind:    Cancelled,
		Started: started,
		Failure: reply.Failure{Status: http.StatusGatewayTimeout, Code: CodeCancelled, Message: "the request was stopped"},
		Err:     err,
	}
}

// unanswered is the outcome of a sink that refused: the model has run, and nobody can be told. It is not sent again.
func unanswered(started bool, err error) Outcome {
	o := failed(http.StatusBadGateway, CodeReply, "the answer could not be handed to its caller", false,
		fmt.Errorf("hand on the answer: %w", err))
	o.Started = started
	return o
}
