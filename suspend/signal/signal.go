package signal

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/penstockmq/penstock/suspend"
)

// Bounds of a signal.
const (
	// Full is the factor that cuts nothing, in permille.
	Full = 1000
	// MaxSourceBytes bounds a source.
	MaxSourceBytes = 256
	// MaxReasonBytes is where a reason is cut: it is a note for people.
	MaxReasonBytes = 512
	// MaxBytes bounds the JSON of a signal.
	MaxBytes = 4 << 10
	// MaxFor is the longest that a signal may hold without being renewed.
	MaxFor = 31 * 24 * time.Hour
)

// ErrInvalid is wrapped by every error about a signal that cannot be one.
var ErrInvalid = errors.New("invalid signal")

// Kind says where a signal comes from, and so what happens when its time is over. The names are on the wire.
type Kind uint8

// The kinds.
const (
	// Alarm was raised by somebody's monitoring. Past Until it is over.
	Alarm Kind = iota
	// Poll is a metric that is read again and again. Past Until it is stale: its reader is gone or cannot read, and Default
	// holds until it comes back.
	Poll
	// Manual was set by an operator. It ends at Until, or if that is zero when it is dropped.
	Manual

	kinds = 3
)

var kindNames = [kinds]string{Alarm: "alarm", Poll: "poll", Manual: "manual"}

func (k Kind) String() string {
	if k < kinds {
		return kindNames[k]
	}
	return fmt.Sprintf("kind(%d)", uint8(k))
}

// ParseKind is the inverse of String: "alarm", "poll" or "manual".
func ParseKind(s string) (Kind, error) {
	for i, name := range kindNames {
		if s == name {
			return Kind(i), nil
		}
	}
	return 0, fmt.Errorf("%w: kind %q, it is alarm, poll or manual", ErrInvalid, s)
}

// Signal asks that the limits of a target be scaled for a time.
type Signal struct {
	Target   suspend.Target // Scope Column or Level
	Source   string         // who says it, unique within the target: a later signal replaces an earlier one of the same source
	Permille int64          // factor in thousandths, 0 (closed) to 1000 (not cut)
	Default  int64          // Kind Poll: the factor once it is stale, 0 to 1000
	At       time.Time      // when it was measured or raised
	Until    time.Time      // Alarm: it ends. Poll: it is stale. Manual: it ends, zero: never
	Kind     Kind
	Reason   string // for people, cut to MaxReasonBytes
	// Sender identifies the sender of an alarm: its proof, SenderToken or SenderSNS and the topic, or SenderAddress and the address.
	// Empty for signals that were not posted, and for alarms of older versions.
	Sender string
}

// Kinds of senders. SenderSNS is followed by the ARN of a topic, SenderAddress by an address.
const (
	SenderToken   = "token"
	SenderSNS     = "sns "
	SenderAddress = "address "
)

// Proven reports whether the signal comes from Penstock, an operator, or a sender with a proof. Unproven signals are
// displaced first.
func (s Signal) Proven() bool {
	return s.Kind != Alarm || s.Sender == SenderToken || strings.HasPrefix(s.Sender, SenderSNS)
}

// Validate reports, as ErrInvalid, which field is wrong and what it may be.
func (s Signal) Validate() error {
	if s.Target.Scope != suspend.Column && s.Target.Scope != suspend.Level {
		return fmt.Errorf("%w: scope: is %v, it is column or level", ErrInvalid, s.Target.Scope)
	}
	if err := s.Target.Validate(); err != nil {
		return fmt.Errorf("%w: name: %w", ErrInvalid, err)
	}
	switch {
	case s.Source == "":
		return fmt.Errorf("%w: source: is empty, want 1 to %d bytes", ErrInvalid, MaxSourceBytes)
	case len(s.Source) > MaxSourceBytes:
		return fmt.Errorf("%w: source: has %d bytes, the limit is %d", ErrInvalid, len(s.Source), MaxSourceBytes)
	case !utf8.ValidString(s.Source):
		return fmt.Errorf("%w: source: is not UTF-8", ErrInvalid)
	case len(s.Sender) > MaxSourceBytes:
		return fmt.Errorf("%w: sender: has %d bytes, the limit is %d", ErrInvalid, len(s.Sender), MaxSourceBytes)
	case !utf8.ValidString(s.Sender):
		return fmt.Errorf("%w: sender: is not UTF-8", ErrInvalid)
	case s.Permille < 0 || s.Permille > Full:
		return fmt.Errorf("%w: permille: is %d, want 0 to %d", ErrInvalid, s.Permille, Full)
	case s.Default < 0 || s.Default > Full:
		return fmt.Errorf("%w: default: is %d, want 0 to %d", ErrInvalid, s.Default, Full)
	case s.Kind >= kinds:
		return fmt.Errorf("%w: kind: is %d, it is alarm, poll or manual", ErrInvalid, uint8(s.Kind))
	case s.At.IsZero():
		return fmt.Errorf("%w: at: is missing", ErrInvalid)
	case s.Until.IsZero() && s.Kind != Manual:
		return fmt.Errorf("%w: until: is missing, only a manual signal has no end", ErrInvalid)
	case !s.Until.IsZero() && s.Until.Sub(s.At) > MaxFor:
		return fmt.Errorf("%w: until: is %v after at, the limit is %v", ErrInvalid, s.Until.Sub(s.At), MaxFor)
	}
	return nil
}

// wire is the JSON form of a Signal. A field may be added; one that is unknown is ignored, so that processes of two
// versions can run side by side.
type wire struct {
	Scope    string    `json:"scope"`
	Name     string    `json:"name"`
	Source   string    `json:"source"`
	Kind     string    `json:"kind"`
	Permille int64     `json:"permille"`
	Default  int64     `json:"default,omitempty"`
	At       time.Time `json:"at"`
	Until    time.Time `json:"until,omitzero"`
	Reason   string    `json:"reason,omitempty"`
	Sender   string    `json:"sender,omitempty"`
}

// MarshalJSON implements [json.Marshaler]; instants are in UTC. It refuses what Validate refuses.
func (s Signal) MarshalJSON() ([]byte, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	return json.Marshal(wire{
		Scope: s.Target.Scope.String(), Name: s.Target.Name, Source: s.Source, Kind: s.Kind.String(),
		Permille: s.Permille, Default: s.Default, At: s.At.UTC(), Until: s.Until.UTC(), Reason: cut(s.Reason),
		Sender: s.Sender,
	})
}

// UnmarshalJSON implements [json.Unmarshaler]. Its errors wrap ErrInvalid.
func (s *Signal) UnmarshalJSON(data []byte) error {
	if len(data) > MaxBytes {
		return fmt.Errorf("%w: has %d bytes, the limit is %d", ErrInvalid, len(data), MaxBytes)
	}
	var w wire
	if err := json.Unmarshal(data, &w); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	scope, err := suspend.ParseScope(w.Scope)
	if err != nil {
		return fmt.Errorf("%w: scope: %w", ErrInvalid, err)
	}
	kind, err := ParseKind(w.Kind)
	if err != nil {
		return err
	}
	read := Signal{
		Target: suspend.Target{Scope: scope, Name: w.Name}, Source: w.Source, Permille: w.Permille, Default: w.Default,
		At: w.At, Until: w.Until, Kind: kind, Reason: cut(w.Reason),
		Sender: w.Sender,
	}
	if err := read.Validate(); err != nil {
		return err
	}
	*s = read
	return nil
}

// cut shortens a text for people to MaxReasonBytes, between two characters, and makes it UTF-8.
func cut(text string) string {
	text = strings.ToValidUTF8(text, "\uFFFD")
	if len(text) <= MaxReasonBytes {
		return text
	}
	n := MaxReasonBytes
	for n > 0 && !utf8.RuneStart(text[n]) {
		n--
	}
	return text[:n]
}

// Ended says whether the signal is over at now. A poll never is: it gets stale.
func (s Signal) Ended(now time.Time) bool {
	return s.Kind != Poll && !s.Until.IsZero() && !now.Before(s.Until)
}
