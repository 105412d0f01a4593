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
	wake  chan struct{} // holds a token when there may be something new

	mu     sync.Mutex // guards the following fields
	order  order
	queue  []Frame
	bytes  int64
	ended  bool // the last frame has been taken by Next
	closed bool
}

// Next returns the next frame, waiting for it until ctx is done. After an End or Error frame, and after Close, it
// returns [io.EOF].
func (s *Stream) Next(ctx context.Context) (Frame, error) {
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
	s.release(cost(f))
	s.ended = f.Kind == End || f.Kind == Error
	return f, true, nil
}

// Close forgets the stream; frames that still come are dropped. It may be called twice and from any goroutine.
func (s *Stream) Close() {
	s.mu.Lock()
	s.closed = true
	s.queue = nil
	s.release(s.bytes)
	s.mu.Unlock()
	s.signal()
	s.inbox.forget(s)
}

func (s *Stream) accept(f Frame, seq uint64) {
	s.mu.Lock()
	if !s.closed {
		for _, seen := range s.order.admit(f, seq) {
			if !s.pushLocked(seen) {
				break
			}
		}
	}
	s.mu.Unlock()
	s.signal()
}

// pushLocked queues f. If the reader is too far behind, it gets an error in f's place, and nothing after it.
func (s *Stream) pushLocked(f Frame) bool {
	n := cost(f)
	over := s.bytes+n > s.inbox.opts.StreamBytes || s.inbox.held.Load()+n > s.inbox.opts.TotalBytes
	if f.Kind == Chunk && over { // other frames are few and small
		s.queue = append(s.queue, s.order.fail(CodeReplySlow, "the answer came faster than it was read")...)
		s.reserve(frameCost)
		return false
	}
	s.queue = append(s.queue, f)
	s.reserve(n)
	return true
}

// lose ends the stream with an error unless it has ended.
func (s *Stream) lose(message string) {
	s.mu.Lock()
	if !s.closed && !s.order.done {
		s.queue = append(s.queue, s.order.fail(CodeReplyLost, message)...)
		s.reserve(frameCost)
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
