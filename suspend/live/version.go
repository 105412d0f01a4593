package live

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/penstockmq/penstock/suspend/policy"
)

const (
	maxAuthor  = 128
	maxComment = 1024
	// envelopeBytes is what a version needs besides its text, in a message of NATS.
	envelopeBytes = 16 << 10
)

// Version is a policy that was in force, with who put it there.
type Version struct {
	Revision uint64 // grows with each change; 0: nothing was ever applied, and Document is the empty one
	At       time.Time
	Author   string
	Comment  string
	From     uint64 // the revision that a rollback put in force again; 0: it was no rollback
	Text     []byte // as it was applied
	Document *policy.Document
}

// Change is a policy to be put in force.
type Change struct {
	Text    []byte
	Author  string // 1 to 128 bytes
	Comment string // at most 1024 bytes
	Expect  uint64 // the revision that it replaces; 0: any
}

func (c Change) check(payload int64) error {
	for _, f := range []struct {
		name, text string
		limit      int
	}{{"author", c.Author, maxAuthor}, {"comment", c.Comment, maxComment}} {
		switch {
		case len(f.text) > f.limit:
			return fmt.Errorf("%w: %s: has %d bytes, the limit is %d", ErrField, f.name, len(f.text), f.limit)
		case !utf8.ValidString(f.text):
			return fmt.Errorf("%w: %s: is not UTF-8", ErrField, f.name)
		case slices.ContainsFunc([]rune(f.text), unicode.IsControl):
			return fmt.Errorf("%w: %s: has a control character", ErrField, f.name)
		}
	}
	if c.Author == "" {
		return fmt.Errorf("%w: author: is empty, want 1 to %d bytes", ErrField, maxAuthor)
	}
	if !utf8.Valid(c.Text) {
		return fmt.Errorf("%w: document: is not UTF-8", policy.ErrInvalid)
	}
	// JSON doubles line breaks and quotes; what is really sent is looked at, without a limit of our own.
	quoted, err := json.Marshal(string(c.Text))
	if err != nil {
		return fmt.Errorf("apply policy: %w", err)
	}
	if limit := payload - envelopeBytes; int64(len(quoted)) > limit {
		return fmt.Errorf("%w: document: has %d bytes, NATS takes %d (its max_payload)", policy.ErrInvalid, len(quoted), limit)
	}
	return nil
}

// record is the value of the key. A field may be added; text stays what policy.Parse reads.
type record struct {
	Text    string    `json:"text"`
	Author  string    `json:"author"`
	Comment string    `json:"comment,omitempty"`
	At      time.Time `json:"at"`
	From    uint64    `json:"from,omitempty"`
}

func encodeVersion(v Version) ([]byte, error) {
	return json.Marshal(record{Text: string(v.Text), Author: v.Author, Comment: v.Comment, At: v.At, From: v.From})
}

// decodeRecord does not parse the text.
func decodeRecord(e jetstream.KeyValueEntry) (Version, error) {
	var r record
	if err := json.Unmarshal(e.Value(), &r); err != nil {
		return Version{}, fmt.Errorf("policy version %d: %w", e.Revision(), err)
	}
	return Version{Revision: e.Revision(), At: r.At, Author: r.Author, Comment: r.Comment, From: r.From, Text: []byte(r.Text)}, nil
}

// parse makes the Document of the Text.
func (v *Version) parse() error {
	doc, err := policy.Parse(v.Text)
	if err != nil {
		return fmt.Errorf("policy version %d: %w", v.Revision, err)
	}
	v.Document = doc
	return nil
}

// decodeVersion also parses the text. If only that fails, the rest is returned with the error.
func decodeVersion(e jetstream.KeyValueEntry) (Version, error) {
	v, err := decodeRecord(e)
	if err == nil {
		err = v.parse()
	}
	return v, err
}
