package forward

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

func readEvents(r io.Reader) string {
	events := newEventReader(r, 1000)
	var out strings.Builder
	for {
		e, err := events.next()
		var bare *bareJSON
		switch {
		case errors.As(err, &bare):
			fmt.Fprintf(&out, "bare %q", bare.text)
			return out.String()
		case err != nil:
			return out.String() + err.Error()
		}
		fmt.Fprintf(&out, "%s[%s] ", e.name, e.data)
	}
}

func TestEvents(t *testing.T) {
	for _, tt := range [][2]string{
		{"data: a\n\ndata: b\n\n", "[a] [b] EOF"},
		{"data:a\r\n\r\ndata:  b\r\n\r\n", "[a] [ b] EOF"},
		{"event: x\nid: 1\ndata: a\ndata: b\n\n", "x[a\nb] EOF"},
		{": comment\n\nevent: ping\n\ndata\n\n", "[] EOF"},
		{"\n\n\n", "EOF"},
		{"", "EOF"},
		{"data: a", "unexpected EOF"},
		{"data: a\n", "unexpected EOF"},
		{"data: [DONE]\n", "[[DONE]] EOF"},
		{"data: [DONE]", "[[DONE]] EOF"},
		{": half a comment", "EOF"},
		{"data: a\n\n{\"error\":1}", `[a] bare "{\"error\":1}"`},
		{"data: a\n\n{\"error\":\n1}", `[a] bare "{\"error\":\n1}"`},
		{"data: a\n{\"error\":1}\n", `bare "{\"error\":1}\n"`},
		{"data: " + strings.Repeat("x", 1000) + "\n\n", "answer over the limit: event of more than 1000 bytes"},
	} {
		if got := readEvents(strings.NewReader(tt[0])); got != tt[1] {
			t.Errorf("%q: got %q, want %q", tt[0], got, tt[1])
		}
		if got := readEvents(iotest.OneByteReader(strings.NewReader(tt[0]))); got != tt[1] {
			t.Errorf("%q, byte by byte: got %q, want %q", tt[0], got, tt[1])
		}
	}
}

// FuzzEvents: what is handed on is made of whole events of the input, in order, however the input is cut.
func FuzzEvents(f *testing.F) {
	f.Add("data: a\n\n: c\n\ndata: [DONE]")
	f.Add("event: x\r\ndata: {}\r\n\r\n{\"error\":{}}")
	f.Fuzz(func(t *testing.T, text string) {
		if a, b := readEvents(strings.NewReader(text)), readEvents(iotest.OneByteReader(strings.NewReader(text))); a != b {
			t.Fatalf("whole: %q, byte by byte: %q", a, b)
		}
		events := newEventReader(strings.NewReader(text), 1000)
		rest := text
		for {
			e, err := events.next()
			if err != nil {
				return
			}
			raw := strings.TrimRight(string(e.raw), "\r\n")
			i := strings.Index(rest, raw)
			if i < 0 {
				t.Fatalf("event %q is not in %q", raw, rest)
			}
			rest = rest[i+len(raw):]
		}
	})
}
