package sim

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/penstockmq/penstock/broker/lite"
)

// Bounds of a trace.
const (
	MaxRequests  = 10_000_000
	maxLineBytes = 64 << 10
	maxCost      = 1_000_000_000
	maxSpan      = 31 * 24 * time.Hour
	firstYear    = 1970
	lastYear     = 2200
)

// ErrTrace is wrapped by every fault of a trace; the error names line and field.
var ErrTrace = errors.New("invalid trace")

// Request is one line of a trace.
type Request struct {
	// Time is the arrival: in a file an RFC 3339 instant, or seconds since any zero.
	Time Instant `json:"time"`
	User string  `json:"user"`
	// Model names the column.
	Model string `json:"model"`
	// Cost is what the request counts against rates and windows; 0 is 1.
	Cost int64 `json:"cost,omitempty"`
	// InputTokens and OutputTokens are what the model will count; MaxTokens is what the caller allows, and so what is
	// reserved while the cell has no past. All may be 0.
	InputTokens  int64 `json:"input_tokens,omitempty"`
	OutputTokens int64 `json:"output_tokens,omitempty"`
	MaxTokens    int64 `json:"max_tokens,omitempty"`
	// Bytes is the size of the body.
	Bytes int64 `json:"bytes,omitempty"`
	// Level is the importance stamped by the sender; nil leaves it to the policy.
	Level *uint8 `json:"level,omitempty"`
	// ServiceTime is how long a worker and the model are busy with it: in a file a duration such as "300ms", or seconds.
	ServiceTime Span `json:"service_time"`
}

// level is the importance that was stamped, -1 if none was.
func (q *Request) level() int8 {
	if q.Level == nil {
		return -1
	}
	return int8(*q.Level)
}

// Instant is a point on the trace's own clock.
type Instant struct{ time.Time }

// UnmarshalJSON reads an RFC 3339 text or a number of seconds.
func (t *Instant) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '"' {
		var s string
		if err := json.Unmarshal(b, &s); err != nil {
			return err
		}
		at, err := time.Parse(time.RFC3339Nano, s)
		if err != nil {
			return fmt.Errorf("time: %q is neither an RFC 3339 instant nor a number of seconds", s)
		}
		t.Time = at
		return nil
	}
	d, err := seconds(b, math.MaxInt32)
	if err != nil {
		return fmt.Errorf("time: %w", err)
	}
	t.Time = time.Unix(0, 0).UTC().Add(d)
	return nil
}

// MarshalJSON writes RFC 3339 with nanoseconds.
func (t Instant) MarshalJSON() ([]byte, error) {
	return json.Marshal(t.UTC().Format(time.RFC3339Nano))
}

// Span is a length of time.
type Span time.Duration

// UnmarshalJSON reads a duration's text or a number of seconds.
func (s *Span) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '"' {
		var text string
		if err := json.Unmarshal(b, &text); err != nil {
			return err
		}
		d, err := time.ParseDuration(text)
		if err != nil {
			return fmt.Errorf("service_time: %q is neither a duration such as 300ms nor a number of seconds", text)
		}
		*s = Span(d)
		return nil
	}
	d, err := seconds(b, maxSpan.Seconds())
	if err != nil {
		return fmt.Errorf("service_time: %w", err)
	}
	*s = Span(d)
	return nil
}

// MarshalJSON writes the duration's text.
func (s Span) MarshalJSON() ([]byte, error) { return json.Marshal(time.Duration(s).String()) }

func seconds(b []byte, most float64) (time.Duration, error) {
	f, err := strconv.ParseFloat(string(b), 64)
	if err != nil || math.IsNaN(f) || f < 0 || f > most {
		return 0, fmt.Errorf("%.40s: want seconds from 0 to %.0f", b, most)
	}
	return time.Duration(math.Round(f * float64(time.Second))), nil
}

// ReadTrace reads JSON lines; empty ones are skipped. The requests come back in the order of their arrival, those of
// one instant in the order of their lines.
func ReadTrace(r io.Reader) ([]Request, error) {
	var out []Request
	sc := bufio.NewScanner(r)
	sc.Buffer(make([]byte, 0, 4096), maxLineBytes)
	line := 0
	for sc.Scan() {
		line++
		text := bytes.TrimSpace(sc.Bytes())
		if len(text) == 0 {
			continue
		}
		q, err := parseLine(text)
		if err != nil {
			return nil, fmt.Errorf("%w: line %d: %w", ErrTrace, line, err)
		}
		if len(out) == MaxRequests {
			return nil, fmt.Errorf("%w: line %d: more than %d requests", ErrTrace, line, MaxRequests)
		}
		out = append(out, q)
	}
	if err := sc.Err(); err != nil {
		return nil, fmt.Errorf("%w: line %d: %w", ErrTrace, line+1, err)
	}
	slices.SortStableFunc(out, func(a, b Request) int { return a.Time.Compare(b.Time.Time) })
	if n := len(out); n > 0 && out[n-1].Time.Sub(out[0].Time.Time) > maxSpan {
		return nil, fmt.Errorf("%w: it lasts %v, the limit is %v", ErrTrace, out[n-1].Time.Sub(out[0].Time.Time), maxSpan)
	}
	return out, nil
}

func parseLine(text []byte) (Request, error) {
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	var q Request
	if err := dec.Decode(&q); err != nil {
		return q, err
	}
	if dec.More() {
		return q, errors.New("more than one value")
	}
	return q, q.check()
}

// check refuses what the machine could not take.
func (q Request) check() error {
	switch y := q.Time.Year(); {
	case q.Time.IsZero():
		return errors.New("time: is missing")
	case y < firstYear || y >= lastYear: // instants are kept in nanoseconds, which reach to 2262
		return fmt.Errorf("time: %v is outside the years %d to %d", q.Time, firstYear, lastYear-1)
	}
	if err := lite.CheckUser(q.User); err != nil {
		return fmt.Errorf("user: %w", err)
	}
	if err := lite.CheckModel(q.Model); err != nil {
		return fmt.Errorf("model: %w", err)
	}
	if q.Level != nil && *q.Level > lite.MaxLevel {
		return fmt.Errorf("level: %d is outside 0 to %d", *q.Level, lite.MaxLevel)
	}
	if d := time.Duration(q.ServiceTime); d < 0 || d > maxSpan {
		return fmt.Errorf("service_time: %v is outside 0 to %v", d, maxSpan)
	}
	for _, f := range []struct {
		key string
		v   int64
	}{
		{"cost", q.Cost},
		{"input_tokens", q.InputTokens},
		{"output_tokens", q.OutputTokens},
		{"max_tokens", q.MaxTokens},
		{"bytes", q.Bytes},
	} {
		if f.v < 0 || f.v > maxCost {
			return fmt.Errorf("%s: %d is outside 0 to %d", f.key, f.v, maxCost)
		}
	}
	return nil
}

// WriteTrace writes JSON lines that ReadTrace reads.
func WriteTrace(w io.Writer, trace []Request) error {
	enc := json.NewEncoder(w)
	for i := range trace {
		if err := enc.Encode(trace[i]); err != nil {
			return fmt.Errorf("write trace: %w", err)
		}
	}
	return nil
}

func (q Request) cost() int64 { return cmp.Or(q.Cost, 1) }
