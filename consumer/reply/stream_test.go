package reply

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
)

func newInbox(t *testing.T, nc *nats.Conn, opts InboxOptions) *Inbox {
	t.Helper()
	opts.Gateway = "gw"
	b, err := NewInbox(nc, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	// The subscription is at the server before a writer on another connection publishes.
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	return b
}

func open(t *testing.T, b *Inbox, id string) *Stream {
	t.Helper()
	s, err := b.Open(id)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// readAll reads to the end.
func readAll(t *testing.T, s *Stream) (frames []Frame, body []byte) {
	t.Helper()
	for {
		f, err := s.Next(t.Context())
		if errors.Is(err, io.EOF) {
			return frames, body
		}
		if err != nil {
			t.Fatal(err)
		}
		frames = append(frames, f)
		body = append(body, f.Data...)
	}
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

func TestAnswerComesWhole(t *testing.T) {
	srv, nc := newNATS(t, ServerOptions{})
	b := newInbox(t, nc, InboxOptions{})
	begun := time.UnixMicro(1_700_000_000_000_001)
	header := http.Header{"Content-Type": {"application/json"}}
	for _, size := range []int{0, 5, chunkMax, chunkMax + 1, 3*chunkMax + 7} {
		s := open(t, b, "r")
		w := NewWriter(connect(t, srv), Request{Reply: b.Subject("r")}, 1)
		want := bytes.Repeat([]byte("0123456789"), size/10+1)[:size]
		must(t, w.Started(begun, false), w.Answer(200, header, want, Usage{Input: 3, Output: 4}), w.End(Usage{}))

		frames, body := readAll(t, s)
		if !bytes.Equal(body, want) {
			t.Errorf("%d bytes: %d came", size, len(body))
		}
		head, end := frames[0], frames[len(frames)-1]
		if head.Kind != Head || head.Status != 200 || !head.Begun.Equal(begun) || head.Header.Get("Content-Type") != "application/json" {
			t.Errorf("%d bytes: head %+v", size, head)
		}
		if end.Kind != End || end.Usage != (Usage{3, 4}) {
			t.Errorf("%d bytes: end %+v", size, end)
		}
		s.Close()
	}
	if n := b.Streams(); n != 0 {
		t.Errorf("%d streams left", n)
	}
	if n := b.held.Load(); n != 0 {
		t.Errorf("%d bytes still counted", n)
	}
}

func TestChunksFitTheServersLimit(t *testing.T) {
	srv, nc := newNATS(t, ServerOptions{MaxPayload: 64 << 10})
	b := newInbox(t, nc, InboxOptions{})
	s := open(t, b, "r")
	w := NewWriter(connect(t, srv), Request{Reply: b.Subject("r")}, 1)
	want := bytes.Repeat([]byte("x"), 200<<10)
	must(t, w.Head(200, nil), w.Chunk(want), w.End(Usage{}))
	if _, body := readAll(t, s); !bytes.Equal(body, want) {
		t.Errorf("%d bytes came", len(body))
	}
}

func TestFailureReachesTheReader(t *testing.T) {
	srv, nc := newNATS(t, ServerOptions{})
	b := newInbox(t, nc, InboxOptions{})
	s := open(t, b, "r")
	w := NewWriter(connect(t, srv), Request{Reply: b.Subject("r")}, 2)
	want := Failure{Status: 503, Code: "busy", Type: "t", Message: "full"}
	must(t, w.Started(time.Unix(1, 0), true), w.Fail(want), w.Fail(Failure{Code: "second"}))
	frames, _ := readAll(t, s)
	if len(frames) != 2 || frames[0].Kind != Started || frames[1].Failure != want || frames[1].Attempt != 2 {
		t.Errorf("got %+v", frames)
	}
}

func TestLostFrameIsReported(t *testing.T) {
	srv, nc := newNATS(t, ServerOptions{})
	b := newInbox(t, nc, InboxOptions{})
	s := open(t, b, "r")
	w := NewWriter(connect(t, srv), Request{Reply: b.Subject("r")}, 1)
	must(t, w.Head(200, nil), w.Chunk([]byte("a")))
	w.seq++ // as if a chunk had been published and lost
	must(t, w.Chunk([]byte("c")), w.End(Usage{}))
	frames, body := readAll(t, s)
	last := frames[len(frames)-1]
	if string(body) != "a" || last.Kind != Error || last.Failure.Code != CodeReplyLost {
		t.Errorf("body %q, last frame %+v", body, last)
	}
}

func TestSlowReaderIsBounded(t *testing.T) {
	for name, opts := range map[string]InboxOptions{
		"stream": {StreamBytes: 10_000},
		"total":  {TotalBytes: 10_000},
	} {
		t.Run(name, func(t *testing.T) {
			_, nc := newNATS(t, ServerOptions{})
			b := newInbox(t, nc, opts)
			s := open(t, b, "r")
			w := NewWriter(nc, Request{Reply: b.Subject("r")}, 1)
			must(t, w.Head(200, nil))
			for range 100 {
				must(t, w.Chunk(make([]byte, 1000)))
			}
			must(t, w.End(Usage{}))
			settle(t, nc)
			if n := b.held.Load(); n > 10_000+frameCost {
				t.Errorf("%d bytes wait", n)
			}
			frames, _ := readAll(t, s)
			if last := frames[len(frames)-1]; last.Failure.Code != CodeReplySlow || len(frames) > 12 {
				t.Errorf("%d frames, last %+v", len(frames), last)
			}
		})
	}
}

// settle returns when all that nc published has been handled by the subscriptions on nc.
func settle(t *testing.T, nc *nats.Conn) {
	t.Helper()
	handled := make(chan struct{})
	must(t, nc.Flush(), nc.Barrier(func() { close(handled) }))
	<-handled
}

func TestNextGivesUpWithItsContext(t *testing.T) {
	_, nc := newNATS(t, ServerOptions{})
	s := open(t, newInbox(t, nc, InboxOptions{}), "r")
	cause := errors.New("left")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	if _, err := s.Next(ctx); !errors.Is(err, cause) {
		t.Errorf("got %v", err)
	}
}

func TestOpenRefuses(t *testing.T) {
	_, nc := newNATS(t, ServerOptions{})
	b := newInbox(t, nc, InboxOptions{})
	s := open(t, b, "r")
	if _, err := b.Open("r"); !errors.Is(err, ErrOpen) {
		t.Errorf("second stream: %v", err)
	}
	if _, err := b.Open("a.b"); !errors.Is(err, ErrRequest) {
		t.Errorf("bad id: %v", err)
	}
	must(t, b.Close())
	if f, err := s.Next(t.Context()); err != nil || f.Failure.Code != CodeReplyLost {
		t.Errorf("after Close: %+v, %v", f, err)
	}
	if _, err := b.Open("q"); !errors.Is(err, ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
	if _, err := NewInbox(nc, InboxOptions{Gateway: "a.*"}); err == nil {
		t.Error("a wildcard is a gateway's name")
	}
}

// TestLostConnectionEndsAnswersUnderWay: the last frame may be lost with the connection, and nothing would show the gap.
func TestLostConnectionEndsAnswersUnderWay(t *testing.T) {
	srv, err := StartServer(ServerOptions{Addr: "127.0.0.1:0"})
	must(t, err)
	nc, err := nats.Connect(srv.ns.ClientURL(), nats.MaxReconnects(-1))
	must(t, err)
	defer nc.Close()
	b := newInbox(t, nc, InboxOptions{})
	underWay, waiting := open(t, b, "a"), open(t, b, "b")
	w := NewWriter(nc, Request{Reply: b.Subject("a")}, 1)
	must(t, w.Head(200, nil), w.Chunk([]byte("x")))
	for range 2 {
		if _, err := underWay.Next(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	srv.Close()
	f, err := underWay.Next(t.Context())
	if err != nil || f.Failure.Code != CodeReplyLost {
		t.Errorf("under way: %+v, %v", f, err)
	}
	waiting.mu.Lock()
	defer waiting.mu.Unlock()
	if waiting.order.done {
		t.Error("a request that has not begun was given up: its answer may still come whole")
	}
}

func TestWriterKeepsOrder(t *testing.T) {
	w := NewWriter(nil, Request{}, 1) // nobody waits: nothing is published
	if err := w.Chunk([]byte("x")); !errors.Is(err, ErrSequence) {
		t.Errorf("chunk first: %v", err)
	}
	if err := w.End(Usage{}); !errors.Is(err, ErrSequence) {
		t.Errorf("end first: %v", err)
	}
	if w.Begun() {
		t.Error("begun without a head")
	}
	must(t, w.Head(200, nil))
	if err := w.Head(200, nil); !errors.Is(err, ErrSequence) {
		t.Errorf("second head: %v", err)
	}
	if err := w.Answer(200, nil, nil, Usage{}); !errors.Is(err, ErrSequence) {
		t.Errorf("answer after head: %v", err)
	}
	must(t, w.Chunk([]byte("x")), w.End(Usage{}), w.End(Usage{}), w.Fail(Failure{}))
	if !w.Begun() {
		t.Error("not begun after a head")
	}
}
