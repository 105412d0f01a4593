package gateway

import (
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// However a stream is cut into chunks: what comes out are its bytes in order, always up to the end of an event, and no whole
// event stays behind.
func TestSplitter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		piece := rapid.SampledFrom([]string{"\n", "\r\n", "\n\n", "\n\r\n", "data: x", ": c", "\r"})
		text := strings.Join(rapid.SliceOfN(piece, 0, 20).Draw(t, "pieces"), "")
		var s splitter
		var out strings.Builder
		for rest := text; rest != ""; {
			n := rapid.IntRange(1, len(rest)).Draw(t, "n")
			whole, ok := s.add([]byte(rest[:n]))
			if !ok {
				t.Fatal("too long")
			}
			out.Write(whole)
			rest = rest[n:]
			sofar := out.String()
			if lastEventEnd([]byte(sofar), 0) != len(sofar) {
				t.Fatalf("%q is not the end of an event", sofar)
			}
			if sofar+string(s.tail()) != text[:len(text)-len(rest)] || lastEventEnd(s.tail(), 0) != 0 {
				t.Fatalf("out %q, kept %q", sofar, s.tail())
			}
		}
		if got := out.String() + string(s.tail()); got != text {
			t.Fatalf("%q became %q", text, got)
		}
	})
}

func TestSplitterBoundsAnEvent(t *testing.T) { // C99
	var s splitter
	chunk := []byte(strings.Repeat("x", 64<<10))
	for range eventMax / len(chunk) {
		if whole, ok := s.add(chunk); len(whole) != 0 || !ok {
			t.Fatalf("%d bytes out, ok %v", len(whole), ok)
		}
	}
	if _, ok := s.add(chunk); ok {
		t.Fatal("an endless line is kept")
	}
}
