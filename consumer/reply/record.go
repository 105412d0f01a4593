package reply

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// State is where an asynchronous request is in its life.
//
//	queued ──▶ running ──▶ done | failed
//	  ▲           │
//	  └───────────┘ attempt failed, or suspended
//	queued, running ──▶ cancelled | expired
//
// The last four are final: whoever writes one first wins.
type State string

// States of a request.
const (
	StateQueued    State = "queued"
	StateRunning   State = "running"
	StateDone      State = "done"
	StateFailed    State = "failed"
	StateCancelled State = "cancelled"
	StateExpired   State = "expired"
)

// Final says whether the state can change no more.
func (s State) Final() bool {
	switch s {
	case StateDone, StateFailed, StateCancelled, StateExpired:
		return true
	case StateQueued, StateRunning:
	}
	return false
}

func (s State) known() bool {
	return s.Final() || s == StateQueued || s == StateRunning
}

// Errors of a [Store].
var (
	ErrNotFound = errors.New("reply: no such request")                      // also for a request of another user
	ErrExists   = errors.New("reply: request exists")                       // Create
	ErrFinal    = errors.New("reply: request has ended")                    // a change came too late
	ErrTooLarge = errors.New("reply: answer is too large")                  // Finish
	ErrRecord   = errors.New("reply: malformed record")                     // the stored bytes are not a record
	ErrContend  = errors.New("reply: record keeps changing")                // compare-and-set lost too often
	ErrFull     = errors.New("reply: the request store is full")            // Admit, Running, Finish
	ErrUserFull = errors.New("reply: the user's part of the store is used") // Admit
)

// Record is what is known about one asynchronous request.
type Record struct {
	ID           string      `json:"id"`
	User         string      `json:"user"`
	Model        string      `json:"model"`
	State        State       `json:"state"`
	RecallHandle string      `json:"recall_handle,omitempty"` // takes the message out of its bucket
	Attempt      int         `json:"attempt,omitempty"`       // the latest delivery, 1 for the first
	Created      time.Time   `json:"created"`
	Started      time.Time   `json:"started,omitzero"`  // of the latest attempt
	Finished     time.Time   `json:"finished,omitzero"` // of the final state
	Deadline     time.Time   `json:"deadline,omitzero"`
	Status       int         `json:"status,omitempty"` // of the answer; done and failed
	Header       http.Header `json:"header,omitempty"`
	Body         []byte      `json:"body,omitempty"`   // of a small answer
	Object       string      `json:"object,omitempty"` // name of a large one in the object store
	Size         int         `json:"size,omitempty"`   // bytes of the answer
	Usage        Usage       `json:"usage,omitzero"`
	Failure      *Failure    `json:"failure,omitempty"` // failed only
	Pad          string      `json:"pad,omitempty"`     // set by encodeRecord
}

// recordPad is the number of bytes by which the record of an unfinished request is enlarged. JetStream accepts a new version
// of a key that is not larger than the old one even in a full bucket, so the pad guarantees space for the end of each
// request: a final state, its instant and a failure with a short message, see [Store.update].
const recordPad = 384

// A record is JSON in the value of the key-value entry named after the request. If you change this: entries of the older
// version live for their TTL, so only add keys; a State that is not known here is ErrRecord.
func encodeRecord(r Record) ([]byte, error) {
	r.Pad = ""
	// Created can be the clock of any sender. JSON has no form for other years, and a record that cannot be stored would
	// stop the request for ever.
	if y := r.Created.Year(); y < 0 || y > 9999 {
		r.Created = time.Time{}
	}
	if !r.State.Final() {
		r.Pad = strings.Repeat("x", recordPad)
	}
	value, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("encode record: %w", err)
	}
	return value, nil
}

func decodeRecord(value []byte) (Record, error) {
	var r Record
	if err := json.Unmarshal(value, &r); err != nil {
		return Record{}, fmt.Errorf("%w: %w", ErrRecord, err)
	}
	if !r.State.known() || r.ID == "" {
		return Record{}, fmt.Errorf("%w: state %q", ErrRecord, r.State)
	}
	r.Pad = ""
	return r, nil
}

// Result is the answer of an asynchronous request.
type Result struct {
	Status int
	Header http.Header
	Body   []byte
	Usage  Usage
}

// The changes below are pure: record and instant in, record out or ErrFinal.

func (r Record) ended(now time.Time, s State) (Record, error) {
	if r.State.Final() {
		return r, ErrFinal
	}
	r.State, r.Finished, r.RecallHandle = s, now, ""
	return r, nil
}

func (r Record) finished(now time.Time, res Result) (Record, error) {
	r, err := r.ended(now, StateDone)
	if err != nil {
		return r, err
	}
	r.Status, r.Header, r.Usage, r.Size = res.Status, res.Header, res.Usage, len(res.Body)
	return r, nil
}

func (r Record) failed(now time.Time, f Failure) (Record, error) {
	r, err := r.ended(now, StateFailed)
	if err != nil {
		return r, err
	}
	f.Message = clip(f.Message, messageMax)
	r.Status, r.Failure = f.Status, &f
	return r, nil
}
