package reply

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"
	"unicode/utf8"

	"github.com/nats-io/nats.go"
)

// ErrSequence is returned by a Writer that is used out of order: bytes before a Head, or anything after the end.
var ErrSequence = errors.New("reply: frame out of order")

// Bounds of what a frame carries.
const (
	chunkMax   = 512 << 10 // bytes of body in one frame, if the server's limit allows
	messageMax = 4 << 10   // bytes of a failure's text
	frameSpare = metaMax + 4<<10
)

// Writer publishes the answer of one delivery of one request. A Writer of a request without a reply subject accepts
// everything and publishes nothing, so that the pool need not ask whether anybody waits.
//
// Publishing hands bytes to the NATS client's buffer; an error means that the connection is closed or its reconnect buffer
// full, and the answer cannot reach its caller any more.
type Writer struct {
	nc      *nats.Conn
	subject string
	attempt int
	begun   time.Time // in Head and Error, so that the caller's queue time needs no frame of its own
	seq     uint64    // of the next frame
	phase   phase
	size    int // most bytes of body in one frame
	endings *Endings

	// Fields of a stream with credit, see Control.
	window  int64 // bytes that may be sent before the first grant; 0: the reader gives no credit
	sent    int64 // bytes of body
	credits *Credits
	ctx     context.Context
	cancel  context.CancelCauseFunc
	flow    *flow     // nil before Head, and without credit
	asked   time.Time // time of the last frame that was a question
}

type phase uint8

const (
	phaseQuiet phase = iota // no Head yet
	phaseBody               // Head is out
	phaseDone               // End or Error is out
)

// NewWriter returns the Writer for r's delivery number attempt, 1 for the first.
func NewWriter(nc *nats.Conn, r Request, attempt int) *Writer {
	w := &Writer{nc: nc, subject: r.Reply, attempt: attempt, size: chunkMax, window: r.Window}
	if r.Reply == "" {
		return w
	}
	if limit := int(nc.MaxPayload()) - frameSpare; limit < w.size {
		w.size = max(limit, 1<<10)
	}
	return w
}

// Started notes that a worker took the request at the instant at, and with announce tells the reader at once; else the
// instant comes with the Head.
func (w *Writer) Started(at time.Time, announce bool) error {
	w.begun = at
	if !announce || w.phase != phaseQuiet {
		return nil
	}
	return w.publish(0, Frame{Kind: Started, Begun: at})
}

// Begun says whether a Head has gone out: from then on the request must not be sent to a model again.
func (w *Writer) Begun() bool { return w.phase != phaseQuiet }

// Head sends status and headers.
func (w *Writer) Head(status int, header http.Header) error {
	if w.phase != phaseQuiet {
		return fmt.Errorf("%w: second head", ErrSequence)
	}
	w.startFlow()
	f := Frame{Kind: Head, Begun: w.begun, Status: status, Header: header}
	if w.flow != nil {
		f.Credit = w.flow.subject
	}
	if err := w.next(f); err != nil {
		return err
	}
	w.phase = phaseBody
	return nil
}

// Chunk sends bytes of the body, in as many frames as the server's payload limit requires. p is not kept. With Control it
// waits for credit.
func (w *Writer) Chunk(p []byte) error {
	if w.phase != phaseBody {
		return fmt.Errorf("%w: chunk without head", ErrSequence)
	}
	for len(p) > 0 {
		n, err := w.room(min(len(p), w.size))
		if err != nil {
			return err
		}
		if err := w.next(Frame{Kind: Chunk, Data: p[:n]}); err != nil {
			return err
		}
		w.sent += int64(n)
		p = p[n:]
	}
	return nil
}

// Answer sends a whole answer: in one message if payload limit and credit allow, otherwise in pieces, waiting as Chunk does.
func (w *Writer) Answer(status int, header http.Header, body []byte, u Usage) error {
	if w.phase != phaseQuiet {
		return fmt.Errorf("%w: answer after head", ErrSequence)
	}
	if len(body) <= w.size && (w.credits == nil || int64(len(body)) <= w.window) {
		f := Frame{Kind: kindAnswer, Begun: w.begun, Status: status, Header: header, Data: body, Usage: u}
		if err := w.next(f); err != nil {
			return err
		}
		w.phase = phaseDone
		return nil
	}
	if err := w.Head(status, header); err != nil {
		return err
	}
	if err := w.Chunk(body); err != nil {
		return err
	}
	return w.End(u)
}

// End says that the answer is whole. After Answer it does nothing.
func (w *Writer) End(u Usage) error {
	switch w.phase {
	case phaseDone:
		return nil
	case phaseQuiet:
		return fmt.Errorf("%w: end without head", ErrSequence)
	case phaseBody:
	}
	if err := w.next(Frame{Kind: End, Usage: u}); err != nil {
		return err
	}
	w.phase = phaseDone
	return nil
}

// Fail says that no (whole) answer will come. After the end of an answer it does nothing.
func (w *Writer) Fail(f Failure) error {
	if w.phase == phaseDone {
		return nil
	}
	f.Message = clip(f.Message, messageMax)
	f.Code, f.Type = clip(f.Code, 256), clip(f.Type, 256)
	if err := w.next(Frame{Kind: Error, Begun: w.begun, Failure: f}); err != nil {
		return err
	}
	w.phase = phaseDone
	return nil
}

// next publishes f under the next sequence number. A frame that could not be published keeps its number used: what
// follows then shows a gap instead of a silent hole.
func (w *Writer) next(f Frame) error {
	seq := w.seq
	w.seq++
	if f.Kind == End || f.Kind == Error || f.Kind == kindAnswer {
		defer w.ended()
	}
	return w.publish(seq, f)
}

func (w *Writer) publish(seq uint64, f Frame) error {
	if w.subject == "" {
		return nil
	}
	f.Attempt = w.attempt
	m, err := encode(w.subject, seq, f)
	if err != nil {
		return err
	}
	m.Reply = w.question(f.Kind)
	if err := w.nc.PublishMsg(m); err != nil {
		return fmt.Errorf("publish %s: %w", f.Kind, err)
	}
	return nil
}

// clip cuts s to at most n bytes without splitting a character.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}
