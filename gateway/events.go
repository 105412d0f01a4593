package gateway

import "bytes"

// splitter cuts a stream of server-sent events behind whole events, so that an answer that breaks off never leaves half
// an event for the error event to be glued to. The zero value is ready; it belongs to one goroutine.
//
// Invariant: rest holds no complete event.
type splitter struct {
	rest []byte
	scan int // bytes of rest known to hold no end of an event
}

// eventMax bounds one event, and so the memory of an endless line.
const eventMax = 4 << 20

// add takes the next bytes and returns all events that are whole now; the slice is valid until the next call. False: an
// event is longer than eventMax.
func (s *splitter) add(p []byte) ([]byte, bool) {
	if len(s.rest) == 0 { // the common case: whole events in, nothing kept
		cut := lastEventEnd(p, 0)
		s.keep(p[cut:])
		return p[:cut], len(s.rest) <= eventMax
	}
	s.rest = append(s.rest, p...)
	cut := lastEventEnd(s.rest, s.scan)
	if cut == 0 {
		s.scan = max(0, len(s.rest)-2) // the last two bytes may begin an end of three
		return nil, len(s.rest) <= eventMax
	}
	whole := s.rest[:cut:cut]
	rest := s.rest[cut:]
	s.rest, s.scan = nil, 0
	s.keep(rest)
	return whole, len(s.rest) <= eventMax
}

func (s *splitter) keep(p []byte) {
	if len(p) == 0 {
		s.rest, s.scan = nil, 0
		return
	}
	s.rest = append([]byte(nil), p...)
	s.scan = max(0, len(p)-2)
}

// tail is what is left at the end of a whole answer: an event whose sender ended without the last blank line.
func (s *splitter) tail() []byte { return s.rest }

// lastEventEnd returns the index behind the last blank line of p whose end is behind from; 0 if there is none. Lines end
// with LF or CRLF; the bare CR that the specification also allows is sent by nobody.
func lastEventEnd(p []byte, from int) int {
	cut := 0
	for _, end := range [...]string{"\n\n", "\n\r\n"} {
		if i := bytes.LastIndex(p[from:], []byte(end)); i >= 0 {
			cut = max(cut, from+i+len(end))
		}
	}
	return cut
}
