package reply

import (
	"context"
	"io"
	"sync"
)

// frameCost is what a frame counts beside its bytes, so that many empty frames are bounded as well.
const frameCost = 128

// Stream is the reader's side of one request's reply.
type Stream struct {
	inbox *Inbox
	id    string
	first int64         // credit that the request carries; immutable after Open
	wake  chan struct{} // holds a token when there may be something new

	mu     sync.Mutex // guards the following fields
	order  order
	queue  []Frame
	bytes  int64 // of queue and taken
	ended  bool  // the last frame has been taken by Next
	closed bool

	// The frame that Next returned last counts until the reader asks for the next frame: until then it is in use, and
	// no credit is given for it.
	taken     int64 // cost of that frame
	takenBody int64 // bytes of body of that frame

	read   int64  // bytes of body that the reader has finished
	limit  int64  // bytes of body that the writer may send
	mark   int64  // value of read at which the next grant is due
	credit string // subject of the writer's credit; empty: the writer takes no credit
	flows  bool   // counted in Inbox.flowing
}

// Window returns the credit that the request must carry, see [Request.Window].
func (s *Stream) Window() int64 { return s.first }

// Next returns the next frame, waiting for it until ctx is done. After an End or Error frame, and after Close, it
// returns [io.EOF]. A call also finishes the previous frame, and the writer gets credit for it.
func (s *Stream) Next(ctx context.Context) (Frame, error) {
	if to, limit := s.dealtWith(); to != "" {
		s.inbox.grant(to, limit)
	}
	for {
		f, ok, err := s.take()
		if ok || err != nil {
			return f, err
		}
		select {
		case <-s.wake:
		case <-ctx.Done():
			return Frame{}, context.Cause(ctx)
		}
	}
}

// dealtWith counts the frame that Next returned last as read, and returns the grant that is due, if any. A grant is due when
// half of the previous one has been read, so that the writer need not stop; a shorter answer needs no grant.
func (s *Stream) dealtWith() (to string, limit int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.release(s.taken)
	s.read += s.takenBody
	s.taken, s.takenBody = 0, 0
	window := s.inbox.window()
	if s.credit == "" || s.closed || s.order.done || s.read < s.mark || s.read+window <= s.limit {
		return "", 0
	}
	s.grantLocked(s.read+window, window)
	return s.credit, s.limit
}

func (s *Stream) grantLocked(limit, window int64) {
	s.limit, s.mark = limit, limit-window/2
}

// asked returns the limit for a writer that asks for credit: all the credit that can be given now.
func (s *Stream) asked() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if window := s.inbox.window(); s.read+window > s.limit {
		s.grantLocked(s.read+window, window)
	}
	return s.limit
}

func (s *Stream) take() (Frame, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.ended {
		return Frame{}, false, io.EOF
	}
	if len(s.queue) == 0 {
		return Frame{}, false, nil
	}
	f := s.queue[0]
	s.queue[0] = Frame{}
	s.queue = s.queue[1:]
	s.taken = cost(f)
	if f.Kind == Chunk {
		s.takenBody = int64(len(f.Data))
	}
	s.ended = f.Kind == End || f.Kind == Error
	return f, true, nil
}

// Close forgets the stream; frames that still come are dropped. It may be called twice and from any goroutine.
func (s *Stream) Close() {
	s.mu.Lock()
	s.closed = true
	s.queue = nil
	s.release(s.bytes)
	s.taken, s.takenBody = 0, 0
	s.flowLocked()
	s.mu.Unlock()
	s.signal()
	s.inbox.forget(s)
}

func (s *Stream) accept(f Frame, seq uint64) {
	s.mu.Lock()
	if !s.closed {
		for _, seen := range s.order.admit(f, seq) {
			if seen.Kind == Head && isCreditSubject(seen.Credit) {
				s.credit = seen.Credit
			}
			if !s.pushLocked(seen) {
				break
			}
		}
		s.flowLocked()
	}
	s.mu.Unlock()
	s.signal()
}

// flowLocked updates whether the stream is counted in Inbox.flowing.
func (s *Stream) flowLocked() {
	if flows := s.credit != "" && !s.order.done && !s.closed; flows != s.flows {
		s.flows = flows
		if flows {
			s.inbox.flowing.Add(1)
		} else {
			s.inbox.flowing.Add(-1)
		}
	}
}

// pushLocked queues f. If the reader is too far behind, it gets an error in f's place, and nothing after it.
func (s *Stream) pushLocked(f Frame) bool {
	n := cost(f)
	if f.Kind == Chunk && s.bytes+n > s.inbox.opts.StreamBytes { // other frames are few and small
		s.inbox.slow.Add(1)
		s.queue = append(s.queue, s.order.fail(CodeReplySlow, "the answer came faster than it was read")...)
		s.reserve(frameCost)
		return false
	}
	s.queue = append(s.queue, f)
	s.reserve(n)
	return true
}

// queued returns the number of bytes that overflow would free.
func (s *Stream) queued() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.bytes - s.taken
}

// overflow drops the frames that wait for the reader and ends the stream.
func (s *Stream) overflow() {
	s.mu.Lock()
	if !s.closed && !s.ended {
		s.inbox.slow.Add(1)
		s.queue = s.order.fail(CodeReplySlow, "the answer was read too slowly, and the gateway holds as many bytes of answers as it may")
		s.release(s.bytes - s.taken)
		s.reserve(frameCost)
		s.flowLocked()
	}
	s.mu.Unlock()
	s.signal()
}

// lose ends the stream with an error unless it has ended.
func (s *Stream) lose(message string) {
	s.mu.Lock()
	if !s.closed && !s.order.done {
		s.queue = append(s.queue, s.order.fail(CodeReplyLost, message)...)
		s.reserve(frameCost)
		s.flowLocked()
	}
	s.mu.Unlock()
	s.signal()
}

// underWay says whether bytes have come and more must come.
func (s *Stream) underWay() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.order.begun && !s.order.done
}

func (s *Stream) signal() {
	select {
	case s.wake <- struct{}{}:
	default: // a token is there already
	}
}

func cost(f Frame) int64 {
	if f.Kind == Error {
		return frameCost
	}
	return int64(len(f.Data)) + frameCost
}

func (s *Stream) reserve(n int64) {
	s.bytes += n
	s.inbox.held.Add(n)
}

func (s *Stream) release(n int64) {
	s.bytes -= n
	s.inbox.held.Add(-n)
}
