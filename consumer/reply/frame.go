package reply

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
)

// Kind tells the frames of a reply stream apart.
type Kind uint8

// Kinds of frames. A reader never sees kindAnswer, the packed form of Head, Chunk and End, and kindProbe, which the inbox
// answers.
const (
	Started Kind = iota + 1 // a worker has the request; informational
	Head                    // status and headers are known; bytes follow
	Chunk                   // bytes of the body
	End                     // the answer is whole
	Error                   // no whole answer will come
	kindAnswer
	kindProbe // a writer without credit asks for credit
)

var kindNames = [...]string{
	Started: "started", Head: "head", Chunk: "chunk", End: "end", Error: "error", kindAnswer: "answer",
	kindProbe: "probe",
}

// String returns the kind's name on the wire.
func (k Kind) String() string {
	if int(k) < len(kindNames) && kindNames[k] != "" {
		return kindNames[k]
	}
	return "kind(" + strconv.Itoa(int(k)) + ")"
}

func parseKind(s string) (Kind, bool) {
	for k, name := range kindNames {
		if name != "" && name == s {
			return Kind(k), true
		}
	}
	return 0, false
}

// Frame is one step of a reply. Fields beside Kind and Attempt are set for the kinds named.
type Frame struct {
	Kind    Kind
	Attempt int
	Begun   time.Time   // Started, Head, Error: when a worker took the request, zero if none did
	Status  int         // Head
	Header  http.Header // Head
	Credit  string      // Head: the subject on which the writer takes credit; empty: it needs none
	Data    []byte      // Chunk
	Usage   Usage       // End
	Failure Failure     // Error
}

// Usage is what an answer cost in tokens; zero when the model does not say.
type Usage struct {
	Input  int64 `json:"input,omitempty"`
	Output int64 `json:"output,omitempty"`
}

// Failure is why there is no (whole) answer, in the words the caller is to get.
type Failure struct {
	Status  int    `json:"status,omitempty"`  // HTTP status, if none has been sent yet
	Code    string `json:"code,omitempty"`    // stable, snake_case; an upstream's own code if it had one
	Type    string `json:"type,omitempty"`    // an upstream's own type, else empty
	Message string `json:"message,omitempty"` // one line
}

// Error makes a Failure an error.
func (f Failure) Error() string {
	return fmt.Sprintf("%d %s: %s", f.Status, f.Code, f.Message)
}

// Codes of failures that arise in a reply stream itself.
const (
	CodeReplyLost    = "reply_lost"       // a frame is missing
	CodeReplyRestart = "reply_restarted"  // a second attempt began after bytes of the first
	CodeReplySlow    = "reply_overflowed" // the reader was slower than its buffer allows
	// CodeGatewayAway: no model was called, because NATS knew no gateway to take the answer.
	CodeGatewayAway = "reply_unavailable"
)

// The wire form: one header that orders the frame, one with what is not body, and the body bytes as the payload.
//
//	Penstock-Frame: <kind> <attempt> <sequence>
//	Penstock-Meta:  {"begun":…,"status":…,"header":…,"credit":…,"usage":…,"failure":…}
//
// If you change this: gateways and pools of neighbouring versions run side by side, so only add keys to Penstock-Meta;
// a reader drops frames of a kind it does not know.
const (
	headerFrame = "Penstock-Frame"
	headerMeta  = "Penstock-Meta"

	// metaMax bounds headers and error texts, so that a frame fits into the smallest payload limit NATS servers have.
	metaMax = 32 << 10
)

var errFrame = errors.New("reply: malformed frame")

type meta struct {
	Begun   int64       `json:"begun,omitempty"` // Unix microseconds
	Status  int         `json:"status,omitempty"`
	Header  http.Header `json:"header,omitempty"`
	Credit  string      `json:"credit,omitempty"`
	Usage   *Usage      `json:"usage,omitempty"`
	Failure *Failure    `json:"failure,omitempty"`
}

// encode writes f as the message with number seq on subject.
func encode(subject string, seq uint64, f Frame) (*nats.Msg, error) {
	m := &nats.Msg{Subject: subject, Data: f.Data, Header: nats.Header{
		headerFrame: {f.Kind.String() + " " + strconv.Itoa(f.Attempt) + " " + strconv.FormatUint(seq, 10)},
	}}
	if f.Kind == Chunk || f.Kind == kindProbe {
		return m, nil
	}
	about := meta{Status: f.Status, Header: f.Header, Credit: f.Credit}
	if !f.Begun.IsZero() {
		about.Begun = f.Begun.UnixMicro()
	}
	if f.Usage != (Usage{}) {
		about.Usage = &f.Usage
	}
	if f.Failure != (Failure{}) {
		about.Failure = &f.Failure
	}
	text, err := json.Marshal(about)
	if err != nil {
		return nil, fmt.Errorf("encode frame: %w", err)
	}
	if len(text) > metaMax {
		return nil, fmt.Errorf("encode frame: %w: headers of %d bytes, limit %d", errFrame, len(text), metaMax)
	}
	if len(text) > len("{}") {
		m.Header[headerMeta] = []string{string(text)}
	}
	return m, nil
}

// decode is the pair of encode. It returns errFrame for anything it does not understand and never panics.
func decode(m *nats.Msg) (f Frame, seq uint64, err error) {
	kind, rest, _ := strings.Cut(m.Header.Get(headerFrame), " ")
	attempt, number, _ := strings.Cut(rest, " ")
	var known bool
	if f.Kind, known = parseKind(kind); !known {
		return Frame{}, 0, fmt.Errorf("%w: kind %q", errFrame, kind)
	}
	if f.Attempt, err = strconv.Atoi(attempt); err != nil || f.Attempt < 0 || f.Attempt > math.MaxInt32 {
		return Frame{}, 0, fmt.Errorf("%w: attempt %q", errFrame, attempt)
	}
	if seq, err = strconv.ParseUint(number, 10, 64); err != nil {
		return Frame{}, 0, fmt.Errorf("%w: sequence %q", errFrame, number)
	}
	f.Data = m.Data
	text := m.Header.Get(headerMeta)
	if text == "" {
		return f, seq, nil
	}
	var about meta
	if err := json.Unmarshal([]byte(text), &about); err != nil {
		return Frame{}, 0, fmt.Errorf("%w: %w", errFrame, err)
	}
	f.Status, f.Header, f.Credit = about.Status, about.Header, about.Credit
	if about.Begun != 0 {
		f.Begun = time.UnixMicro(about.Begun)
	}
	if about.Usage != nil {
		f.Usage = *about.Usage
	}
	if about.Failure != nil {
		f.Failure = *about.Failure
	}
	return f, seq, nil
}
