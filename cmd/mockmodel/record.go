package mockmodel

import (
	"context"
	"maps"
	"sync"
	"time"
)

// State is how far a call has come.
type State string

// States of a call.
const (
	StateOpen     State = "open"
	StateAnswered State = "answered" // whole, with 2xx
	StateRefused  State = "refused"  // with an error status: bad request, full, or FaultStatus
	StateFaulted  State = "faulted"  // another fault struck
	StateAborted  State = "aborted"  // the caller left
)

// Call is the record of one call.
type Call struct {
	Number    int64     `json:"number"` // from 1
	Path      string    `json:"path"`
	Model     string    `json:"model"`
	User      string    `json:"user"`
	RequestID string    `json:"request_id"`
	Stream    bool      `json:"stream"`
	BodyBytes int       `json:"body_bytes"`
	BodyHash  string    `json:"body_sha256"` // hex
	Began     time.Time `json:"began"`
	Ended     time.Time `json:"ended,omitzero"`
	State     State     `json:"state"`
	Status    int       `json:"status,omitempty"`
	Events    int       `json:"events,omitempty"` // of a stream, sent
}

// Stats are counters since the start or the last reset.
type Stats struct {
	Calls    int64            `json:"calls"`
	Open     int64            `json:"open"`
	MaxOpen  int64            `json:"max_open"`
	Answered int64            `json:"answered"`
	Refused  int64            `json:"refused"`
	Full     int64            `json:"full"` // of the refused: over capacity
	Faulted  int64            `json:"faulted"`
	Aborted  int64            `json:"aborted"`
	Models   map[string]int64 `json:"models"` // calls by model, of at most 1,000 models
}

const modelsMax = 1000

// recorder keeps calls and counters. Its memory is bounded: of the calls that have ended only the latest are kept.
type recorder struct {
	history int

	mu      sync.Mutex // guards the following fields
	number  int64
	stats   Stats
	calls   []*Call // in order of number; the oldest are dropped beyond history
	changed chan struct{}
}

func newRecorder(history int) *recorder {
	return &recorder{history: history, stats: Stats{Models: map[string]int64{}}, changed: make(chan struct{})}
}

// begin records c. A call beyond capacity, if that is not 0, is recorded too and reported as full.
func (r *recorder) begin(c *Call, capacity int) (full bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.number++
	c.Number, c.State = r.number, StateOpen
	r.stats.Calls++
	if _, known := r.stats.Models[c.Model]; known || len(r.stats.Models) < modelsMax {
		r.stats.Models[c.Model]++
	}
	if full = capacity > 0 && r.stats.Open >= int64(capacity); full {
		r.stats.Full++
	} else {
		r.stats.Open++
		r.stats.MaxOpen = max(r.stats.MaxOpen, r.stats.Open)
	}
	r.calls = append(r.calls, c)
	if drop := len(r.calls) - r.history; drop > 0 {
		clear(r.calls[:drop])
		r.calls = r.calls[drop:]
	}
	r.signalLocked()
	return full
}

// update changes c under the lock and wakes whoever waits.
func (r *recorder) update(c *Call, change func(*Call)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(c)
	r.signalLocked()
}

func (r *recorder) end(c *Call, s State, full bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c.State, c.Ended = s, time.Now()
	if !full {
		r.stats.Open--
	}
	switch s {
	case StateAnswered:
		r.stats.Answered++
	case StateRefused:
		r.stats.Refused++
	case StateFaulted:
		r.stats.Faulted++
	case StateAborted:
		r.stats.Aborted++
	case StateOpen:
	}
	r.signalLocked()
}

func (r *recorder) signalLocked() {
	close(r.changed)
	r.changed = make(chan struct{})
}

func (r *recorder) snapshot() Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.snapshotLocked()
}

func (r *recorder) snapshotLocked() Stats {
	s := r.stats
	s.Models = make(map[string]int64, len(r.stats.Models))
	maps.Copy(s.Models, r.stats.Models)
	return s
}

func (r *recorder) list(after int64) []Call {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make([]Call, 0, len(r.calls))
	for _, c := range r.calls {
		if c.Number > after {
			out = append(out, *c)
		}
	}
	return out
}

// reset forgets what has ended; open calls stay open and count on.
func (r *recorder) reset() {
	r.mu.Lock()
	defer r.mu.Unlock()
	open := r.stats.Open
	r.stats = Stats{Open: open, MaxOpen: open, Models: map[string]int64{}}
	r.calls = nil
	r.signalLocked()
}

// wait returns when ok holds.
func (r *recorder) wait(ctx context.Context, ok func(Stats) bool) error {
	for {
		r.mu.Lock()
		s, changed := r.snapshotLocked(), r.changed
		r.mu.Unlock()
		if ok(s) {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
