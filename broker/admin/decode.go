package admin

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/penstockmq/penstock/suspend"
)

// maxBodyBytes bounds a request of the API; the largest is a list of dead letters.
const maxBodyBytes = 1 << 20

// Duration is a time.Duration that is text in JSON: "30s".
type Duration time.Duration

// MarshalText implements [encoding.TextMarshaler].
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	if err != nil {
		return fmt.Errorf("%w: duration %q: want a number and a unit, such as 500ms, 30s, 5m, 24h", errBody, text)
	}
	*d = Duration(v)
	return nil
}

// decode reads the body into v. Unknown fields and trailing data are refused.
func decode(r *http.Request, v any) error { return decodeUpTo(r, v, maxBodyBytes) }

// decodeUpTo is decode for a body of up to most bytes.
func decodeUpTo(r *http.Request, v any, most int64) error {
	if media, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || media != "application/json" {
		return errMediaType
	}
	body := &io.LimitedReader{R: r.Body, N: most + 1}
	d := json.NewDecoder(body)
	d.DisallowUnknownFields()
	err := d.Decode(v)
	if err == nil {
		if _, err := d.Token(); !errors.Is(err, io.EOF) {
			return fmt.Errorf("%w: something follows the object", errBody)
		}
	}
	switch {
	case body.N <= 0: // cut off: what the decoder says of it is beside the point
		return fmt.Errorf("%w: more than %d bytes", errTooLarge, most)
	case err != nil:
		return bodyError(err)
	}
	return nil
}

// bodyError names the field where the decoder knows it.
func bodyError(err error) error {
	if t, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return inField(t.Field, fmt.Errorf("%w: %s does not fit", errBody, t.Value))
	}
	// The package has no type for this one.
	if name, ok := strings.CutPrefix(err.Error(), "json: unknown field "); ok {
		return inField(strings.Trim(name, `"`), fmt.Errorf("%w: unknown field", errBody))
	}
	if errors.Is(err, errBody) {
		return err
	}
	return fmt.Errorf("%w: %w", errBody, err)
}

// parameters are those of the query, refused when one is unknown or there twice.
func parameters(r *http.Request, known ...string) (url.Values, error) {
	q, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errParameter, err)
	}
	for key, values := range q {
		switch {
		case !slices.Contains(known, key):
			return nil, inField(key, fmt.Errorf("%w: unknown, want one of %q", errParameter, known))
		case len(values) > 1:
			return nil, inField(key, fmt.Errorf("%w: it is there %d times", errParameter, len(values)))
		}
	}
	return q, nil
}

// scopeFilter is the parameter scope of a list: empty when it is absent, and all are listed.
func scopeFilter(q url.Values) (string, error) {
	text := q.Get("scope")
	if text == "" {
		return "", nil
	}
	if _, err := suspend.ParseScope(text); err != nil {
		return "", inField("scope", err)
	}
	return text, nil
}

// targetOf checks a scope and a name, each by its field.
func targetOf(scope, name string) (suspend.Target, error) {
	s, err := suspend.ParseScope(scope)
	if err != nil {
		return suspend.Target{}, inField("scope", err)
	}
	t := suspend.Target{Scope: s, Name: name}
	if err := t.Validate(); err != nil {
		return suspend.Target{}, inField("name", err)
	}
	return t, nil
}

// checkNote refuses a note that is too long to be stored, or that contains control characters.
func checkNote(field, text string) error {
	switch {
	case len(text) > suspend.MaxNoteBytes:
		return inField(field, fmt.Errorf("%w: it has %d bytes, want at most %d", errBody, len(text), suspend.MaxNoteBytes))
	case strings.ContainsFunc(text, unicode.IsControl):
		return inField(field, fmt.Errorf("%w: %q has a control character", errBody, text))
	}
	return nil
}

// pageSize is the parameter limit: 1 to maxPage, defaultPage when absent.
func pageSize(q url.Values) (int, error) {
	text := q.Get("limit")
	if text == "" {
		return defaultPage, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > maxPage {
		return 0, inField("limit", fmt.Errorf("%w: %q: want 1 to %d", errParameter, text, maxPage))
	}
	return n, nil
}

const (
	defaultPage = 100
	maxPage     = 1000
)
