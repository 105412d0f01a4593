package gateway

import (
	"strconv"
	"unicode/utf8"

	"github.com/penstockmq/penstock/broker/lite"
)

// bytesPerToken is a rule of thumb for English text. What a request really used comes with the model's answer and corrects the
// accounts; the estimate only has to be near enough that a budget is not overrun by many requests at once.
const bytesPerToken = 4

// tokensOf estimates the tokens of so many bytes of text: at least 1, at most what a message may say.
func tokensOf(text int64) int64 {
	return min(max(1, (text+bytesPerToken-1)/bytesPerToken), lite.MaxTokens)
}

// wholeNumber reads a JSON number, rounded down and at most what a message may say. What is no number or less than 1 is 0:
// the model will say what it thinks of it.
func wholeNumber(raw []byte) int64 {
	f, err := strconv.ParseFloat(string(raw), 64)
	if err != nil || f < 1 {
		return 0
	}
	return int64(min(f, lite.MaxTokens))
}

// textBytes counts the bytes of prompt text in the value of "messages", "prompt" or "input": strings, strings in lists, and
// in objects the members that hold text (see isText), at any depth. Pictures, sound and names do not count. A number in a list
// is a token that the caller has made of its text.
//
// It reads in place: prompts are large, and nothing of them is kept. REQUIRES: raw is one valid JSON value.
func textBytes(raw []byte) int64 {
	s := textScan{data: raw}
	s.value(true)
	return s.bytes
}

// isText says which members of a message hold text that the model reads: its content, the text of a part of it, and what was
// given to a tool and came back.
func isText(key []byte) bool {
	switch string(key) {
	case "content", "text", "arguments", "output":
		return true
	}
	return false
}

// textScan walks one JSON value. Invariant: pos <= len(data); past the end it reads 0, which ends every loop, so that a
// value that is not valid JSON gives a wrong count and no panic.
type textScan struct {
	data  []byte
	pos   int
	bytes int64
}

// next skips blanks and separators and returns the byte after them, which stays where it is; 0 at the end.
func (s *textScan) next() byte {
	for ; s.pos < len(s.data); s.pos++ {
		switch c := s.data[s.pos]; c {
		case ' ', '\t', '\n', '\r', ',', ':':
		default:
			return c
		}
	}
	return 0
}

// value skips one value. counts says whether strings and numbers in it are prompt.
func (s *textScan) value(counts bool) {
	switch s.next() {
	case '"':
		if n := s.text(); counts {
			s.bytes += n
		}
	case '[':
		s.pos++
		for c := s.next(); c != ']' && c != 0; c = s.next() {
			s.value(counts)
		}
		s.pos = min(s.pos+1, len(s.data))
	case '{':
		s.pos++
		for c := s.next(); c != '}' && c != 0; c = s.next() {
			s.value(isText(s.key()))
		}
		s.pos = min(s.pos+1, len(s.data))
	default:
		if s.scalar() && counts {
			s.bytes += bytesPerToken
		}
	}
}

// scalar skips a number or a literal, at least one byte of whatever is there, and reports whether it was a number.
func (s *textScan) scalar() (number bool) {
	if s.pos == len(s.data) {
		return false
	}
	c := s.data[s.pos]
	for s.pos++; s.pos < len(s.data); s.pos++ {
		switch s.data[s.pos] {
		case ' ', '\t', '\n', '\r', ',', ':', ']', '}':
			return c == '-' || '0' <= c && c <= '9'
		}
	}
	return c == '-' || '0' <= c && c <= '9'
}

// key skips a member's name and returns it as it is written.
func (s *textScan) key() []byte {
	if s.data[s.pos] != '"' {
		s.pos++
		return nil
	}
	from := s.pos + 1
	s.text()
	return s.data[from:max(from, s.pos-1)]
}

// text skips a string and returns how many bytes of UTF-8 it stands for.
func (s *textScan) text() (n int64) {
	for s.pos++; s.pos < len(s.data); s.pos++ {
		switch s.data[s.pos] {
		case '"':
			s.pos++
			return n
		case '\\':
			n += s.escape()
		default:
			n++
		}
	}
	return n
}

// escape moves to the last byte of an escape sequence and returns how many bytes it stands for. Each half of a surrogate pair
// counts 2.
func (s *textScan) escape() int64 {
	if s.pos == len(s.data)-1 { // cut off: not valid JSON
		return 0
	}
	s.pos++
	if s.data[s.pos] != 'u' {
		return 1
	}
	end := min(s.pos+4, len(s.data)-1)
	code, err := strconv.ParseUint(string(s.data[s.pos+1:end+1]), 16, 16)
	s.pos = end
	switch {
	case err != nil:
		return 1
	case 0xD800 <= code && code < 0xE000:
		return 2
	}
	return int64(utf8.RuneLen(rune(code)))
}
