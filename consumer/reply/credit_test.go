package reply

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats.go"
)

// controlled returns a writer on nc for s with the credit of its inbox; the returned context is the job's.
func controlled(t *testing.T, nc *nats.Conn, s *Stream) (*Writer, context.Context) {
	t.Helper()
	c, err := NewCredits(nc)
	must(t, err)
	t.Cleanup(func() { must(t, c.Close()) })
	must(t, nc.Flush()) // the subscription is at the server before a reader on another connection grants
	ctx, cancel := context.WithCancelCause(t.Context())
	t.Cleanup(func() { cancel(nil) })
	w := NewWriter(nc, Request{Reply: s.inbox.Subject(s.id), Window: s.Window()}, 1)
	w.Control(ctx, c, cancel)
	return w, ctx
}

// A caller that does not read holds one window of its answer, and the writer stops. Without credit the answer is read from the
// model to its end: 20 callers took the process from 53 to 809 MiB.
func TestWriterStopsWhenItsCreditIsUsedUp(t *testing.T) {
	const window = 100_000
	srv, nc := newNATS(t, ServerOptions{})
	for _, way := range []string{"stream", "whole"} {
		t.Run(way, func(t *testing.T) {
			b := newInbox(t, nc, InboxOptions{Window: window})
			pool := connect(t, srv)
			w, ctx := controlled(t, pool, open(t, b, "r"))
			stop := errors.New("the job ends")
			w.cancel(stop) // a writer that would wait returns at once
			var err error
			if way == "stream" {
				must(t, w.Head(200, nil))
				for err == nil {
					err = w.Chunk(make([]byte, 1000))
				}
			} else {
				err = w.Answer(200, nil, make([]byte, 4<<20), Usage{})
			}
			if !errors.Is(err, stop) || ctx.Err() == nil {
				t.Errorf("error %v", err)
			}
			if w.sent != window || w.credits.Waits() != 1 {
				t.Errorf("%d bytes were sent into a window of %d, %d waits", w.sent, window, w.credits.Waits())
			}
			must(t, pool.Flush())
			settle(t, nc)
			if n := b.held.Load(); n < window || n > window+200*frameCost {
				t.Errorf("%d bytes wait for the caller", n)
			}
		})
	}
}

// An answer that is read continues, whatever its size, and the frames that wait for the reader stay within the window.
func TestCreditFollowsTheReader(t *testing.T) {
	const window, size = 50_000, 8 << 20
	srv, nc := newNATS(t, ServerOptions{})
	b := newInbox(t, nc, InboxOptions{Window: window})
	s := open(t, b, "r")
	w, _ := controlled(t, connect(t, srv), s)
	want := bytes.Repeat([]byte("0123456789abcdef"), size/16)
	written := make(chan error, 1)
	go func() { // ends with the answer
		written <- errors.Join(w.Head(200, nil), w.Chunk(want[:size/2]), w.Chunk(want[size/2:]), w.End(Usage{}))
	}()
	var body []byte
	for {
		f, err := s.Next(t.Context())
		must(t, err)
		body = append(body, f.Data...)
		if n := b.held.Load(); n > window+frameCost*(window/1000) {
			t.Fatalf("%d bytes wait for the reader", n)
		}
		if f.Kind == End || f.Kind == Error {
			break
		}
	}
	must(t, <-written)
	if !bytes.Equal(body, want) {
		t.Errorf("%d bytes came", len(body))
	}
	s.Close()
	if n, flowing := b.held.Load(), b.flowing.Load(); n != 0 || flowing != 0 {
		t.Errorf("%d bytes and %d streams still counted", n, flowing)
	}
}

// Most answers are small: they cost no message of credit.
func TestSmallAnswerNeedsNoGrant(t *testing.T) {
	srv, nc := newNATS(t, ServerOptions{})
	b := newInbox(t, nc, InboxOptions{Window: 10_000})
	watch := connect(t, srv)
	var grants atomic.Int64
	_, err := watch.Subscribe(creditPrefix+".>", func(*nats.Msg) { grants.Add(1) })
	must(t, err, watch.Flush())
	for size, want := range map[int]bool{100: false, 4900: false, 40_000: true} {
		grants.Store(0)
		s := open(t, b, "r")
		w, _ := controlled(t, connect(t, srv), s)
		written := make(chan error, 1)
		go func() { written <- errors.Join(w.Head(200, nil), w.Chunk(make([]byte, size)), w.End(Usage{})) }()
		if _, body := readAll(t, s); len(body) != size {
			t.Errorf("%d of %d bytes came", len(body), size)
		}
		must(t, <-written, nc.Flush())
		settle(t, watch)
		if got := grants.Load() > 0; got != want {
			t.Errorf("%d bytes: %d grants", size, grants.Load())
		}
		s.Close()
	}
}

// A writer asks for a grant that was lost with a connection: no stream waits forever.
func TestLostGrantIsAskedFor(t *testing.T) {
	srv, nc := newNATS(t, ServerOptions{})
	b := newInbox(t, nc, InboxOptions{Window: 1000})
	s := open(t, b, "r")
	w, _ := controlled(t, connect(t, srv), s)
	must(t, w.Head(200, nil), w.Chunk(make([]byte, 1000)))
	f, err := s.Next(t.Context())
	must(t, err)
	s.mu.Lock()
	s.credit = "" // grants go nowhere
	s.mu.Unlock()
	written := make(chan error, 1)
	go func() { written <- errors.Join(w.Chunk(make([]byte, 500)), w.End(Usage{})) }()
	_, body := readAll(t, s)
	must(t, <-written)
	if f.Kind != Head || len(body) != 1500 {
		t.Errorf("first %s, %d bytes", f.Kind, len(body))
	}
}

// A writer whose reader has gone hears so when it asks, also when no gateway is left to answer it: NATS says so then.
func TestWriterHearsThatItsReaderHasGone(t *testing.T) {
	for name, leave := range map[string]func(*Inbox, *Stream) error{
		"stream closed":  func(_ *Inbox, s *Stream) error { s.Close(); return nil },
		"gateway closed": func(b *Inbox, _ *Stream) error { return errors.Join(b.Close(), b.nc.Flush()) },
	} {
		t.Run(name, func(t *testing.T) {
			srv, nc := newNATS(t, ServerOptions{})
			b := newInbox(t, nc, InboxOptions{Window: 1000})
			s := open(t, b, "r")
			w, ctx := controlled(t, connect(t, srv), s)
			must(t, w.Head(200, nil), w.Chunk(make([]byte, 1000)))
			must(t, leave(b, s))
			if err := w.Chunk(make([]byte, 1)); !errors.Is(err, ErrCancelled) {
				t.Errorf("error %v", err)
			}
			if cause := context.Cause(ctx); !errors.Is(cause, ErrCancelled) {
				t.Errorf("the job was ended by %v", cause)
			}
		})
	}
}

// Neighbouring versions run side by side: a gateway that grants nothing gets all at once, and a pool that takes no credit is
// granted none.
func TestNeighboursWithoutCredit(t *testing.T) {
	srv, nc := newNATS(t, ServerOptions{})
	b := newInbox(t, nc, InboxOptions{Window: 1000})
	old := open(t, b, "old")
	pool := connect(t, srv)
	c, err := NewCredits(pool)
	must(t, err)
	t.Cleanup(func() { must(t, c.Close()) })
	w := NewWriter(pool, Request{Reply: b.Subject("old")}, 1) // the gateway stamped no window
	w.Control(t.Context(), c, func(error) { t.Error("cancelled") })
	plain := open(t, b, "plain")
	v := NewWriter(pool, Request{Reply: b.Subject("plain"), Window: plain.Window()}, 1) // the pool knows no Control
	for _, w := range []*Writer{w, v} {
		must(t, w.Head(200, nil), w.Chunk(make([]byte, 100_000)), w.End(Usage{}))
	}
	for _, s := range []*Stream{old, plain} {
		if frames, body := readAll(t, s); len(body) != 100_000 || frames[0].Credit != "" {
			t.Errorf("%s: %d bytes, credit on %q", s.id, len(body), frames[0].Credit)
		}
	}
	if n := c.Waits(); n != 0 {
		t.Errorf("%d waits", n)
	}
}

// A subject from outside is only published to if it is one of credit.
func TestCreditSubjectOfAStranger(t *testing.T) {
	_, nc := newNATS(t, ServerOptions{})
	b := newInbox(t, nc, InboxOptions{})
	var got atomic.Int64
	_, err := nc.Subscribe("penstock.cancel.*", func(*nats.Msg) { got.Add(1) })
	must(t, err)
	s := open(t, b, "r")
	m, err := encode(b.Subject("r"), 0, Frame{Kind: Head, Status: 200, Credit: "penstock.cancel.x"})
	must(t, err, nc.PublishMsg(m))
	for _, id := range []string{"r", "unknown"} {
		probe, err := encode(b.Subject(id), 0, Frame{Kind: kindProbe})
		must(t, err)
		probe.Reply = "penstock.cancel.x"
		must(t, nc.PublishMsg(probe))
	}
	settle(t, nc)
	settle(t, nc)
	if s.credit != "" || got.Load() != 0 {
		t.Errorf("credit subject %q, %d messages", s.credit, got.Load())
	}
}

// Callers that do not read must not cost others their answers: the fullest stream fails, not the one whose frame came last.
func TestFullestStreamFails(t *testing.T) {
	_, nc := newNATS(t, ServerOptions{})
	b := newInbox(t, nc, InboxOptions{TotalBytes: 100_000, StreamBytes: 90_000})
	unread, half, healthy := open(t, b, "unread"), open(t, b, "half"), open(t, b, "healthy")
	write := func(s *Stream) *Writer {
		w := NewWriter(nc, Request{Reply: b.Subject(s.id)}, 1)
		must(t, w.Head(200, http.Header{}))
		return w
	}
	to := map[*Stream]*Writer{unread: write(unread), half: write(half), healthy: write(healthy)}
	for range 60 {
		must(t, to[unread].Chunk(make([]byte, 1000)))
	}
	for range 30 {
		must(t, to[half].Chunk(make([]byte, 1000)))
	}
	for range 50 {
		must(t, to[healthy].Chunk(make([]byte, 1000)))
	}
	must(t, to[half].End(Usage{}), to[healthy].End(Usage{}))
	settle(t, nc)
	if n := b.held.Load(); n > 100_000+frameCost {
		t.Errorf("%d bytes wait", n)
	}
	if frames, _ := readAll(t, unread); frames[len(frames)-1].Failure.Code != CodeReplySlow {
		t.Errorf("the caller that does not read got %+v", frames[len(frames)-1])
	}
	for _, s := range []*Stream{half, healthy} {
		if frames, body := readAll(t, s); frames[len(frames)-1].Kind != End || len(body) < 30_000 {
			t.Errorf("%s: %d bytes, last %+v", s.id, len(body), frames[len(frames)-1])
		}
	}
	if b.Slow() != 1 {
		t.Errorf("%d streams failed", b.Slow())
	}
}
