package reply

import (
	"context"
	"encoding/json"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

const (
	noteStream  = "PENSTOCK_RUNNING"
	noteSubject = "penstock.running."

	// notesMax bounds the notes, and with them their memory in the NATS server: about 32 MiB. Each running request has one, and
	// a crashed pool leaves some behind. Beyond the bound the oldest note is dropped.
	notesMax = 1 << 16
	// noteTry bounds one write or read of a note, since a request or a caller waits for it.
	noteTry = time.Second
)

// note records that a worker has a request.
type note struct {
	Attempt int       `json:"attempt"`
	Started time.Time `json:"started"`
}

// notes are kept in the NATS server's memory: they change with each delivery, and are useful only during that
// delivery. All errors are ignored: without its note a running request is shown as queued.
type notes struct {
	js     jetstream.JetStream
	stream jetstream.Stream // nil: NATS gives no memory to streams
}

func openNotes(ctx context.Context, js jetstream.JetStream, ttl time.Duration, replicas int) notes {
	stream, err := js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{
		Name: noteStream, Description: "which asynchronous requests of Penstock are with a worker",
		Subjects: []string{noteSubject + "*"}, Storage: jetstream.MemoryStorage, MaxMsgsPerSubject: 1, MaxMsgs: notesMax,
		Discard: jetstream.DiscardOld, MaxAge: ttl, AllowDirect: true, Replicas: replicas,
	})
	if err != nil {
		return notes{}
	}
	return notes{js: js, stream: stream}
}

func (n notes) put(ctx context.Context, id string, v note) {
	value, err := json.Marshal(v)
	if n.stream == nil || err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, noteTry)
	defer cancel()
	_, _ = n.js.Publish(ctx, noteSubject+id, value, jetstream.WithRetryAttempts(0))
}

func (n notes) drop(ctx context.Context, id string) {
	if n.stream == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, noteTry)
	defer cancel()
	_ = n.stream.Purge(ctx, jetstream.WithPurgeSubject(noteSubject+id))
}

// apply adds the note of r to r. REQUIRES: r has not ended.
func (n notes) apply(ctx context.Context, r Record) Record {
	if n.stream == nil {
		return r
	}
	ctx, cancel := context.WithTimeout(ctx, noteTry)
	defer cancel()
	m, err := n.stream.GetLastMsgForSubject(ctx, noteSubject+r.ID)
	if err != nil {
		return r
	}
	var v note
	if json.Unmarshal(m.Data, &v) == nil && !v.Started.IsZero() {
		r.State, r.Started, r.Attempt = StateRunning, v.Started, v.Attempt
	}
	return r
}
