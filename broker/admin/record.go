package admin

import (
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstockmq/penstock/broker"
	"github.com/penstockmq/penstock/suspend/quota"
)

const (
	// recordMax bounds the length of one recording.
	recordMax = 24 * time.Hour
	// recordBuffer is how many lines may wait for a reader that is slow; what comes then is left out and counted.
	recordBuffer = 16384
	// maxRecordings bounds the readers at the same time.
	maxRecordings = 8
)

// Recorded is one request of a trace: a line of the answer, as policy simulate reads it.
type Recorded struct {
	Time  time.Time `json:"time"`
	User  string    `json:"user"`
	Model string    `json:"model"`
	Cost  int64     `json:"cost,omitempty"`
	// InputTokens and OutputTokens are what the model counted, or else the gateway's estimate of the input alone.
	// MaxTokens is what the caller allowed.
	InputTokens  int64    `json:"input_tokens,omitempty"`
	OutputTokens int64    `json:"output_tokens,omitempty"`
	MaxTokens    int64    `json:"max_tokens,omitempty"`
	Bytes        int64    `json:"bytes,omitempty"`
	Level        *uint8   `json:"level,omitempty"`
	ServiceTime  Duration `json:"service_time"`
}

// Recorder hands the releases of a broker to those who record them. The zero Recorder is ready; its method Released is
// the broker's OnRelease.
type Recorder struct {
	active atomic.Int32 // readers; looked at without mu on the broker's path

	mu      sync.Mutex
	readers map[*reader]struct{} // guarded by mu
}

type reader struct {
	topic string
	lines chan Recorded
	lost  atomic.Int64
}

// Released takes note of a request that is done. It never blocks.
func (r *Recorder) Released(x broker.Released) {
	if r.active.Load() == 0 || x.Ended.IsZero() || !x.Settled || x.Cell.Model == "" {
		return
	}
	line := Recorded{
		Time: x.Stored.UTC(), User: x.Cell.User, Model: x.Cell.Model, Cost: max(1, x.Cost.Requests),
		InputTokens: x.Cost.Tokens - x.Cost.Output, MaxTokens: x.Cost.Output, Bytes: x.Cost.BytesIn,
		ServiceTime: Duration(x.Service()),
	}
	if u := x.Used; u.Outcome == quota.Used {
		line.OutputTokens = max(u.OutputTokens, 0)
		if u.Tokens >= line.OutputTokens && u.OutputTokens >= 0 {
			line.InputTokens = u.Tokens - u.OutputTokens
		}
	}
	if x.Level >= 0 {
		level := uint8(x.Level)
		line.Level = &level
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for to := range r.readers {
		if to.topic != x.Topic {
			continue
		}
		select {
		case to.lines <- line:
		default:
			to.lost.Add(1)
		}
	}
}

func (r *Recorder) join(topic string) (*reader, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.readers) >= maxRecordings {
		return nil, fmt.Errorf("%w: %d recordings are under way", broker.ErrBusy, maxRecordings)
	}
	if r.readers == nil {
		r.readers = map[*reader]struct{}{}
	}
	to := &reader{topic: topic, lines: make(chan Recorded, recordBuffer)}
	r.readers[to] = struct{}{}
	r.active.Add(1)
	return to, nil
}

func (r *Recorder) leave(to *reader) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.readers, to)
	r.active.Add(-1)
}

// record streams what is done under ?topic= for ?for=, one JSON line each, as it happens. Lines that a slow reader missed
// are counted in the trailer Penstock-Lost.
func (s *Server) record(w http.ResponseWriter, r *http.Request) {
	topic, length, err := s.recording(r)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	to, err := s.recorder.join(topic)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	defer s.recorder.leave(to)
	out := http.NewResponseController(w)
	// It lasts as long as was asked, not as long as an ordinary answer may take.
	if err := out.SetWriteDeadline(time.Now().Add(length + time.Minute)); err != nil {
		s.log.Debug("recording keeps the server's write deadline", "error", err)
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Trailer", "Penstock-Lost")
	w.WriteHeader(http.StatusOK)
	if err := out.Flush(); err != nil {
		return // nobody reads
	}
	s.stream(r, w, out, to, length)
	w.Header().Set("Penstock-Lost", fmt.Sprint(to.lost.Load()))
}

func (s *Server) recording(r *http.Request) (topic string, length time.Duration, err error) {
	if s.broker == nil || s.recorder == nil {
		return "", 0, errNoBroker
	}
	q, err := parameters(r, "topic", "for")
	if err != nil {
		return "", 0, err
	}
	length, err = time.ParseDuration(q.Get("for"))
	if err != nil || length <= 0 || length > recordMax {
		return "", 0, inField("for", fmt.Errorf("%w: %q: want a duration such as 60s, at most %v", errParameter, q.Get("for"), recordMax))
	}
	t, err := s.topic(q.Get("topic"))
	return t.Name, length, err
}

// stream writes lines until the time is over or the reader is gone.
func (s *Server) stream(r *http.Request, w http.ResponseWriter, out *http.ResponseController, to *reader, length time.Duration) {
	over := time.NewTimer(length)
	defer over.Stop()
	enc := json.NewEncoder(w)
	for {
		select {
		case <-r.Context().Done():
			return
		case <-over.C:
			return
		case line := <-to.lines:
			if enc.Encode(line) != nil {
				return
			}
			if len(to.lines) > 0 {
				continue
			}
			if out.Flush() != nil {
				return
			}
		}
	}
}
