package reply

import (
	"errors"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/penstockmq/penstock/broker/lite"
)

// Message properties that describe a request. The first seven are read by the broker as well.
const (
	PropertyRequestID   = lite.PropertyRequestID
	PropertyUser        = lite.PropertyUser
	PropertyModel       = lite.PropertyModel
	PropertyDeadline    = lite.PropertyDeadline // Unix milliseconds
	PropertyLevel       = lite.PropertyLevel
	PropertyInputTokens = lite.PropertyInputTokens
	PropertyMaxTokens   = lite.PropertyMaxTokens
	PropertyMethod      = "penstock-method"
	PropertyPath        = "penstock-path"
	PropertyContentType = "penstock-content-type"
	PropertyReply       = "penstock-reply"    // NATS subject
	PropertyWindow      = "penstock-window"   // bytes of body that may be sent before the first grant; absent: the reader gives no credit
	PropertyStream      = "penstock-stream"   // "true" or absent
	PropertyAsync       = "penstock-async"    // "true" or absent
	PropertyAccepted    = "penstock-accepted" // Unix milliseconds
)

// ErrRequest is wrapped by every fault of a request's description.
var ErrRequest = errors.New("reply: malformed request")

// Request describes a request to a model beside its body. It travels in the properties of the message that carries the
// body. All fields but Accepted are optional: a message that a plain RocketMQ client sent has none of them.
type Request struct {
	ID          string    // 1 to 64 of [A-Za-z0-9_-]; required if Async
	User, Model string    // the cell
	Method      string    // HTTP method, empty means POST
	Path        string    // "/v1/chat/completions"; empty means the downstream's own address
	ContentType string    // of the body, empty means application/json
	Reply       string    // subject of the reply stream, empty when nobody waits
	Window      int64     // bytes of body that may be sent before the first grant; 0: the reader grants nothing and takes all
	Stream      bool      // the caller asked for server-sent events
	Async       bool      // the answer goes to the Store
	Deadline    time.Time // the caller does not wait longer; zero means no deadline
	Accepted    time.Time // when the gateway took it
	Level       uint8     // importance, 0 to lite.MaxLevel, if HasLevel
	HasLevel    bool      // the API key has an importance; else the policy decides by user and model
	InputTokens int64     // of the prompt, an estimate; 0: unknown
	MaxTokens   int64     // that the answer may have; 0: unknown
}

// tokenRE is what may stand as one token of a NATS subject here: no dot, no wildcard, no space.
var tokenRE = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// Properties returns the message properties of r. Deadlines are rounded up to the millisecond: never early.
func (r Request) Properties() map[string]string {
	p := make(map[string]string, 15)
	set := func(key, value string) {
		if value != "" {
			p[key] = value
		}
	}
	set(PropertyRequestID, r.ID)
	set(PropertyUser, r.User)
	set(PropertyModel, r.Model)
	set(PropertyMethod, r.Method)
	set(PropertyPath, r.Path)
	set(PropertyContentType, r.ContentType)
	set(PropertyReply, r.Reply)
	if r.Window > 0 {
		p[PropertyWindow] = strconv.FormatInt(r.Window, 10)
	}
	if r.Stream {
		p[PropertyStream] = "true"
	}
	if r.Async {
		p[PropertyAsync] = "true"
	}
	if !r.Deadline.IsZero() {
		p[PropertyDeadline] = strconv.FormatInt(millisUp(r.Deadline), 10)
	}
	if !r.Accepted.IsZero() {
		p[PropertyAccepted] = strconv.FormatInt(r.Accepted.UnixMilli(), 10)
	}
	if r.HasLevel {
		p[PropertyLevel] = strconv.Itoa(int(r.Level))
	}
	if r.InputTokens > 0 {
		p[PropertyInputTokens] = strconv.FormatInt(r.InputTokens, 10)
	}
	if r.MaxTokens > 0 {
		p[PropertyMaxTokens] = strconv.FormatInt(r.MaxTokens, 10)
	}
	return p
}

// FromProperties reads a request back. Properties it does not know are ignored; a malformed one is an error that wraps
// [ErrRequest] and names the property, because a guessed reply subject or deadline would be worse than none.
func FromProperties(p map[string]string) (Request, error) {
	r := Request{
		ID:          p[PropertyRequestID],
		User:        p[PropertyUser],
		Model:       p[PropertyModel],
		Method:      p[PropertyMethod],
		Path:        p[PropertyPath],
		ContentType: p[PropertyContentType],
		Reply:       p[PropertyReply],
		Stream:      p[PropertyStream] == "true",
		Async:       p[PropertyAsync] == "true",
	}
	if r.ID != "" && !tokenRE.MatchString(r.ID) {
		return Request{}, fmt.Errorf("%w: %s: want 1 to 64 of [A-Za-z0-9_-]", ErrRequest, PropertyRequestID)
	}
	if r.Async && r.ID == "" { // its record would have no name
		return Request{}, fmt.Errorf("%w: %s is true and %s is missing", ErrRequest, PropertyAsync, PropertyRequestID)
	}
	if r.Reply != "" && !isReplySubject(r.Reply) {
		return Request{}, fmt.Errorf("%w: %s: want %s.<gateway>.<request>", ErrRequest, PropertyReply, replyPrefix)
	}
	var err error
	if r.Window, _, err = numberProperty(p, PropertyWindow, math.MaxInt32); err != nil {
		return Request{}, err
	}
	if r.Deadline, err = lite.ParseDeadline(p[PropertyDeadline]); err != nil {
		return Request{}, fmt.Errorf("%w: %w", ErrRequest, err)
	}
	if r.Accepted, err = timeProperty(p, PropertyAccepted); err != nil {
		return Request{}, err
	}
	if err = r.setStamps(p); err != nil {
		return Request{}, err
	}
	return r, nil
}

// setStamps reads what says how important and how large the request is.
func (r *Request) setStamps(p map[string]string) error {
	level, hasLevel, err := numberProperty(p, PropertyLevel, lite.MaxLevel)
	if err != nil {
		return err
	}
	r.Level, r.HasLevel = uint8(level), hasLevel
	if r.InputTokens, _, err = numberProperty(p, PropertyInputTokens, lite.MaxTokens); err != nil {
		return err
	}
	r.MaxTokens, _, err = numberProperty(p, PropertyMaxTokens, lite.MaxTokens)
	return err
}

func numberProperty(p map[string]string, key string, most int64) (n int64, found bool, err error) {
	value := p[key]
	if value == "" {
		return 0, false, nil
	}
	n, err = strconv.ParseInt(value, 10, 64)
	if err != nil || n < 0 || n > most {
		return 0, false, fmt.Errorf("%w: %s: want a whole number from 0 to %d", ErrRequest, key, most)
	}
	return n, true, nil
}

func timeProperty(p map[string]string, key string) (time.Time, error) {
	value := p[key]
	if value == "" {
		return time.Time{}, nil
	}
	ms, err := strconv.ParseInt(value, 10, 64)
	if err != nil || ms <= 0 || ms >= lite.NoDeadlineMillis {
		return time.Time{}, fmt.Errorf("%w: %s: invalid value %.64q: want Unix milliseconds from 1 to %d", ErrRequest, key, value, lite.NoDeadlineMillis-1)
	}
	return time.UnixMilli(ms), nil
}

// millisUp is the first whole millisecond at or after t.
func millisUp(t time.Time) int64 {
	ms := t.UnixMilli()
	if t.After(time.UnixMilli(ms)) {
		ms++
	}
	return ms
}

const (
	replyPrefix  = "penstock.reply"
	cancelPrefix = "penstock.cancel"
	creditPrefix = "penstock.credit"
)

// CheckID says whether id may name a request.
func CheckID(id string) error {
	if !tokenRE.MatchString(id) {
		return fmt.Errorf("%w: id: want 1 to 64 of [A-Za-z0-9_-]", ErrRequest)
	}
	return nil
}

// isReplySubject keeps a message that anybody may have sent from making the pool publish elsewhere.
func isReplySubject(s string) bool { return hasTwoTokens(s, replyPrefix) }

// isCreditSubject prevents a frame from making the gateway publish on another subject.
func isCreditSubject(s string) bool { return hasTwoTokens(s, creditPrefix) }

func hasTwoTokens(s, prefix string) bool {
	rest, ok := strings.CutPrefix(s, prefix+".")
	if !ok {
		return false
	}
	first, second, ok := strings.Cut(rest, ".")
	return ok && tokenRE.MatchString(first) && tokenRE.MatchString(second)
}
