package reply

import "net/http"

// order decides what a reader makes of the frames of one request: which to hand on, and when to give up. It is pure, so
// that every interleaving of attempts, losses and late frames can be tested.
//
// Invariant: the output is a prefix of one attempt's frames, with at most one End or Error, which is last. The Error may
// belong to a later attempt, or be the reader's own.
type order struct {
	attempt int
	next    uint64 // sequence number expected in attempt; 0 until begun
	begun   bool   // a Head has been let through
	done    bool   // an End or Error has been let through
}

// admit returns what the reader is to see because of a frame with number seq. The slice is valid until the next call.
func (o *order) admit(f Frame, seq uint64) []Frame {
	if o.done || f.Attempt < o.attempt {
		return nil // late: of a consumer that was given up
	}
	if f.Attempt > o.attempt {
		if o.begun && f.Kind == Error { // the previous worker was lost, and this one called no model
			o.done = true
			return []Frame{f}
		}
		if o.begun {
			return o.fail(CodeReplyRestart, "the request was started again after part of its answer had been sent")
		}
		o.attempt = f.Attempt
	}
	if f.Kind == Started {
		return []Frame{f}
	}
	if seq < o.next {
		return nil
	}
	if seq > o.next && f.Kind != Error { // an Error ends the stream whatever is missing before it
		return o.fail(CodeReplyLost, "part of the answer was lost between the worker and the gateway")
	}
	o.next = seq + 1
	switch f.Kind {
	case kindAnswer:
		return o.unpack(f)
	case Head:
		o.begun = true
	case End, Error:
		o.done = true
	case Started, Chunk, kindProbe: // the inbox answers probes
	}
	return []Frame{f}
}

// fail ends the stream with a frame of the reader's own.
func (o *order) fail(code, message string) []Frame {
	o.done = true
	return []Frame{{Kind: Error, Attempt: o.attempt, Failure: Failure{
		Status: http.StatusBadGateway, Code: code, Message: message,
	}}}
}

func (o *order) unpack(f Frame) []Frame {
	o.begun, o.done = true, true
	head := Frame{Kind: Head, Attempt: f.Attempt, Begun: f.Begun, Status: f.Status, Header: f.Header}
	end := Frame{Kind: End, Attempt: f.Attempt, Usage: f.Usage}
	if len(f.Data) == 0 {
		return []Frame{head, end}
	}
	return []Frame{head, {Kind: Chunk, Attempt: f.Attempt, Data: f.Data}, end}
}
