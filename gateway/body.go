package gateway

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"slices"
	"unicode/utf8"

	"github.com/penstockmq/penstock/broker/lite"
)

const (
	// bodyFirst is the memory reserved for a body before its first byte arrives.
	bodyFirst = 4 << 10
	// bodyStep is the part of a body that must arrive within one body timeout.
	bodyStep = 64 << 10
)

// readBody reads the whole body, up to most bytes. It must be read to its end before the wait begins: net/http sees a
// caller leave only after that. hold is called before memory is taken, which grows with the received bytes; extend gives the next
// step of the body its time.
func readBody(w http.ResponseWriter, r *http.Request, most int64, hold func(int64) error, extend func()) ([]byte, error) {
	if r.ContentLength > most {
		return nil, refuse(errTooLarge, "", "the body has %d bytes, at most %d are taken", r.ContentLength, most)
	}
	limit := most
	if r.ContentLength >= 0 {
		limit = r.ContentLength
	}
	var body []byte
	var held int64
	from := http.MaxBytesReader(w, r.Body, most)
	extend()
	for step := 0; ; {
		if have := int64(len(body)); have >= held && held < limit {
			grown := min(max(2*held, have+bodyFirst), limit)
			if err := hold(grown - held); err != nil {
				return nil, err
			}
			held = grown
		}
		// A few bytes more: a separate read finds the end of the body.
		end := max(int(held), len(body)) + bytes.MinRead
		body = slices.Grow(body, end-len(body))
		n, err := from.Read(body[len(body):end])
		body = body[:len(body)+n]
		if err != nil {
			return body, bodyError(err, most)
		}
		if step += n; step >= bodyStep {
			step = 0
			extend()
		}
	}
}

// bodyError returns the error for the caller when reading a body ended with err; nil if the body is complete.
func bodyError(err error, most int64) error {
	var over *http.MaxBytesError
	switch {
	case errors.Is(err, io.EOF):
		return nil
	case errors.As(err, &over):
		return refuse(errTooLarge, "", "the body has more than the %d bytes that are taken", most)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return errSlowBody
	default:
		return errCallerGone
	}
}

// fields are what the gateway reads of an OpenAI request.
type fields struct {
	model     string
	stream    bool
	textBytes int64 // of the prompt
	maxTokens int64 // the most that the answer may have; 0: not set
}

// parseBody reads "model", "stream", the size of the prompt and the bound of the answer from the top level of a JSON object
// and checks that all of it is JSON.
//
// It does not unmarshal into a struct: encoding/json takes "MODEL" for "model" and the last of two equal keys, where a
// model server may take the first, and then a request would be charged to one model and run on another.
func parseBody(body []byte) (fields, error) {
	if !utf8.Valid(body) {
		return fields{}, refuse(errJSON, "", "the body is not valid UTF-8")
	}
	d := json.NewDecoder(bytes.NewReader(body))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return fields{}, refuse(errJSON, "", "the body is not a JSON object")
	}
	var p fieldParser
	for d.More() {
		if err := p.member(d); err != nil {
			return fields{}, err
		}
	}
	if _, err := d.Token(); err != nil {
		return fields{}, badJSON(d, "", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return fields{}, refuse(errJSON, "", "the body has something after its JSON object")
	}
	if !p.hasModel {
		return fields{}, refuse(errMissing, "model", "the field model is missing")
	}
	return p.fields, nil
}

type fieldParser struct {
	fields
	hasModel, hasStream bool
}

func (p *fieldParser) member(d *json.Decoder) error {
	t, err := d.Token()
	if err != nil {
		return badJSON(d, "", err)
	}
	key, _ := t.(string) // the decoder refuses other keys
	switch key {
	case "model":
		return take(d, key, "a string", &p.model, &p.hasModel)
	case "stream":
		return take(d, key, "true or false", &p.stream, &p.hasStream)
	}
	var skipped json.RawMessage
	if err := d.Decode(&skipped); err != nil {
		return badJSON(d, key, err)
	}
	switch key {
	case "messages", "prompt", "input":
		p.textBytes += textBytes(skipped)
	case "max_tokens", "max_completion_tokens", "max_output_tokens":
		n := wholeNumber(skipped)
		if n > lite.MaxOutputTokens {
			return refuse(errValue, key, "%s is %.32s, at most %d are taken", key, skipped, lite.MaxOutputTokens)
		}
		p.maxTokens = max(p.maxTokens, n)
	}
	return nil
}

// take decodes one value. A null stands for a missing field, as OpenAI has it.
func take[T any](d *json.Decoder, key, want string, value *T, seen *bool) error {
	if *seen {
		return refuse(errValue, key, "the field %s appears twice", key)
	}
	var found *T
	err := d.Decode(&found)
	var mismatch *json.UnmarshalTypeError
	switch {
	case errors.As(err, &mismatch):
		return refuse(errValue, key, "the field %s is not %s", key, want)
	case err != nil:
		return badJSON(d, key, err)
	case found != nil:
		*value, *seen = *found, true
	}
	return nil
}

func badJSON(d *json.Decoder, key string, err error) error {
	text := err.Error()
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		text = "it ends too early"
	}
	if key == "" {
		return refuse(errJSON, "", "the body is not valid JSON, near byte %d: %s", d.InputOffset(), text)
	}
	const keyMax = 64 // a name is quoted back only so far
	if len(key) > keyMax {
		key = key[:keyMax]
	}
	return refuse(errJSON, key, "the field %q is not valid JSON, near byte %d: %s", key, d.InputOffset(), text)
}
