package mockmodel

import (
	"encoding/json"
	"io"
	"net/http"
)

// streamShape is what the events of an endpoint hold.
type streamShape struct {
	first object // before the first token, nil if there is none
	token func(text string) object
	last  object // with the finish reason
}

// streamed answers with server-sent events, one per token.
func (x *exchange) streamed(tokens int, shape streamShape) State {
	x.w.Header().Set("Content-Type", "text/event-stream")
	x.w.Header().Set("Cache-Control", "no-cache")
	x.status(http.StatusOK)
	s := eventWriter{exchange: x}
	if !s.flush() || !x.pass(x.how.FirstToken) {
		return StateAborted
	}
	if shape.first != nil && !s.event(shape.first) {
		return s.state()
	}
	for n := range tokens {
		if n > 0 && x.how.Interval > 0 && !x.pass(x.how.Interval) {
			return StateAborted
		}
		if !s.event(shape.token(x.token(n))) {
			return s.state()
		}
	}
	if !s.event(shape.last) {
		return s.state()
	}
	if x.ask.StreamOptions.IncludeUsage {
		shape.last["choices"] = []object{}
		shape.last["usage"] = x.usage(tokens)
		if !s.event(shape.last) {
			return s.state()
		}
	}
	if x.how.Fault != FaultNone { // the answer was shorter than FaultAfter
		s.fault()
		return s.state()
	}
	// A caller may leave as soon as it has read the mark: then it has the whole answer.
	if s.text("data: [DONE]\n\n"); s.failed {
		return s.state()
	}
	return StateAnswered
}

// eventWriter writes the events of one stream and lets its fault strike.
type eventWriter struct {
	*exchange
	events int
	struck bool
	failed bool // a write or a flush was not taken
}

// event writes one event; false if the stream is over, see state.
func (s *eventWriter) event(v object) bool {
	if s.how.Fault != FaultNone && s.events >= s.how.FaultAfter {
		s.fault()
		return false
	}
	data, err := json.Marshal(v)
	if err != nil {
		return false
	}
	if !s.text("data: " + string(data) + "\n\n") {
		return false
	}
	s.events++
	s.s.recorder.update(s.call, func(c *Call) { c.Events++ })
	return true
}

func (s *eventWriter) fault() {
	s.struck = true
	const failure = `{"error":{"message":"the engine died","type":"server_error","param":null,"code":"engine_dead"}}`
	switch s.how.Fault {
	case FaultReset:
		s.reset()
	case FaultBroken:
		s.text("data: {\"id\": \"broken\", \"choices\": [\n\n")
	case FaultBareError:
		s.text(failure)
	case FaultErrorEvent:
		s.text("data: " + failure + "\n\ndata: [DONE]\n\n")
	case FaultNoEnd, FaultNone, FaultStatus, FaultRefuse, FaultHang:
	}
}

func (s *eventWriter) text(t string) bool {
	if _, err := io.WriteString(s.w, t); err != nil {
		s.failed = true
	}
	return s.flush()
}

// flush puts what was written on the wire; false if the caller has left.
func (s *eventWriter) flush() bool {
	if err := http.NewResponseController(s.w).Flush(); err != nil {
		s.failed = true
	}
	return !s.failed && s.r.Context().Err() == nil
}

func (s *eventWriter) state() State {
	if s.struck {
		return StateFaulted
	}
	return StateAborted
}
