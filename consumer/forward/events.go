package forward

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
)

// event is one server-sent event (WHATWG HTML, 9.2).
type event struct {
	raw  []byte // as it came, with its empty line
	name string // the event field, empty for a plain message
	data []byte // the data fields, joined by line feeds
}

// bareJSON is the error of a stream that goes on in JSON without event framing: what a proxy or a crashing server writes
// into a response whose status has gone out (C66).
type bareJSON struct{ text []byte }

func (b *bareJSON) Error() string { return "JSON without event framing in the stream" }

// eventReader reads events from an upstream's stream. It hands on whole events only, so that nothing a caller gets ends in
// the middle of a line. Lines end in LF or CRLF; a lone CR, which the format also allows and no model server sends, does
// not end one.
type eventReader struct {
	r    *bufio.Reader
	max  int    // bytes of one event
	raw  []byte // of the event under way; reused
	data []byte // as above
	name string
	some bool // a data field has been seen
}

func newEventReader(r io.Reader, most int) *eventReader {
	return &eventReader{r: bufio.NewReaderSize(r, 16<<10), max: most}
}

// next returns the next event that has data; comments and events without are dropped, as a browser does: were they handed
// on, a keep-alive of the upstream would count as the first byte and forbid a retry. It is valid until the next call. At a
// clean end it returns io.EOF, at an end within an event io.ErrUnexpectedEOF.
func (e *eventReader) next() (event, error) {
	e.reset()
	for {
		line, err := e.line()
		if err != nil {
			return e.atEnd(err)
		}
		text := bytes.TrimRight(line, "\r\n")
		switch {
		case len(text) == 0:
			if e.some {
				return event{raw: e.raw, name: e.name, data: e.data}, nil
			}
			e.reset()
		case text[0] == '{':
			return event{}, e.bare(text)
		default:
			e.field(text)
		}
	}
}

func (e *eventReader) reset() {
	e.raw, e.data, e.name, e.some = e.raw[:0], e.data[:0], "", false
}

// line appends one line to raw and returns it.
func (e *eventReader) line() ([]byte, error) {
	start := len(e.raw)
	for {
		part, err := e.r.ReadSlice('\n')
		e.raw = append(e.raw, part...)
		if len(e.raw) > e.max {
			return nil, fmt.Errorf("%w: event of more than %d bytes", errTooLarge, e.max)
		}
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		return e.raw[start:], err
	}
}

// atEnd ends the stream after its last complete line. An end mark whose empty line is missing is one all the same, and a
// last line without its end may be a bare error.
func (e *eventReader) atEnd(err error) (event, error) {
	if !errors.Is(err, io.EOF) {
		return event{}, err
	}
	last := e.raw[bytes.LastIndexByte(e.raw, '\n')+1:]
	if len(last) > 0 && last[0] == '{' {
		return event{}, &bareJSON{text: bytes.Clone(last)}
	}
	e.field(last)
	if e.some && isDone(e.data) {
		return event{raw: append(bytes.TrimRight(e.raw, "\r\n"), "\n\n"...), data: e.data}, nil
	}
	if e.some {
		return event{}, io.ErrUnexpectedEOF
	}
	return event{}, io.EOF
}

// field takes in one line of an event.
func (e *eventReader) field(line []byte) {
	name, value, _ := bytes.Cut(line, []byte(":"))
	value = bytes.TrimPrefix(value, []byte(" "))
	switch string(name) {
	case "data":
		if e.some {
			e.data = append(e.data, '\n')
		}
		e.data = append(e.data, value...)
		e.some = true
	case "event":
		e.name = string(value)
	}
}

// bare takes the rest of a stream that has fallen out of its framing.
func (e *eventReader) bare(line []byte) error {
	rest, _ := io.ReadAll(io.LimitReader(e.r, errorBytes)) // cut short or not, it is the end
	return &bareJSON{text: append(append(bytes.Clone(line), '\n'), rest...)}
}

func isDone(data []byte) bool { return string(bytes.TrimSpace(data)) == "[DONE]" }
