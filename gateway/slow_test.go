package gateway

import (
	"context"
	"errors"
	"io"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/penstockmq/penstock/consumer/reply"
)

// listen serves the rig's gateway as Serve does, on a port of its own.
func (r *rig) listen() (addr string) {
	r.t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	must(r.t, err)
	ctx, cancel := context.WithCancel(r.t.Context())
	served := make(chan error, 1)
	go func() { served <- r.g.Serve(ctx, ln) }()
	r.t.Cleanup(func() {
		cancel()
		must(r.t, <-served)
	})
	return ln.Addr().String()
}

// post sends the head of a request and part of its body over a connection with a small receive buffer.
func (r *rig) post(addr, secret, body string, length int) net.Conn {
	r.t.Helper()
	conn, err := net.Dial("tcp", addr)
	must(r.t, err)
	r.t.Cleanup(func() { _ = conn.Close() })
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		r.t.Fatalf("a connection is a %T", conn)
	}
	must(r.t, tcp.SetReadBuffer(64<<10))
	_, err = io.WriteString(tcp, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer "+secret+
		"\r\nContent-Length: "+strconv.Itoa(length)+"\r\n\r\n"+body)
	must(r.t, err)
	return tcp
}

// A caller reads nothing: its model is stopped after one window plus the socket buffers, and after the write timeout the
// caller is cut and its call ends.
func TestCallerThatReadsNothingEndsAlone(t *testing.T) {
	r := newRig(t, func(o *Options) { o.WriteTimeout, o.Grace = 300*time.Millisecond, -1 })
	credits, err := reply.NewCredits(r.pool)
	must(t, err)
	t.Cleanup(func() { must(t, credits.Close()) })
	addr := r.listen()
	r.post(addr, r.secret, streamBody, len(streamBody))
	j := r.take()
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	defer r.cancels.Register(j.ID, func() { cancel(reply.ErrCancelled) })()
	j.Control(ctx, credits, cancel)
	must(t, j.Head(200, sseHeader))
	long := []byte("data: " + strings.Repeat("x", 8000) + "\n\n")
	sent := 0
	for err == nil {
		if err = j.Chunk(long); err == nil {
			sent += len(long)
		}
	}
	if !errors.Is(err, reply.ErrCancelled) {
		t.Errorf("the worker was ended by %v", err)
	}
	if sent < 256<<10 || sent > 2<<20 {
		t.Errorf("%d bytes were sent to a caller that reads nothing", sent)
	}
	if n := r.g.metrics.Unread.Load(); n != 1 {
		t.Errorf("%d callers counted as cut", n)
	}
}

// A caller that reads slowly but steadily gets the whole of its answer, however long it takes.
func TestCallerThatReadsSlowlyGetsAll(t *testing.T) {
	r := newRig(t, func(o *Options) { o.WriteTimeout, o.Grace = 2*time.Second, -1 })
	credits, err := reply.NewCredits(r.pool)
	must(t, err)
	t.Cleanup(func() { must(t, credits.Close()) })
	conn := r.post(r.listen(), r.secret, streamBody, len(streamBody))
	j := r.take()
	j.Control(t.Context(), credits, func(cause error) { t.Errorf("cancelled: %v", cause) })
	const (
		size = 3 << 20
		end  = "\r\n0\r\n\r\n" // of a chunked body; the connection stays open
	)
	written := make(chan error, 1)
	go func() {
		written <- errors.Join(j.Head(200, sseHeader), j.Chunk([]byte(strings.Repeat("data: "+strings.Repeat("y", 120)+"\n\n", size/128))), j.End(reply.Usage{}))
	}()
	must(t, conn.SetReadDeadline(time.Now().Add(3*patience)))
	got, last := 0, ""
	buf := make([]byte, 16<<10)
	tick := time.NewTicker(5 * time.Millisecond) // the pace of the reader: 3 MiB/s at most
	defer tick.Stop()
	for range tick.C {
		n, err := conn.Read(buf)
		got += n
		last += string(buf[:n]) // the end may come in pieces
		last = last[max(len(last)-len(end), 0):]
		if err != nil || last == end {
			break
		}
	}
	must(t, receive(t, written, "the writer did not end"))
	if got < size {
		t.Errorf("%d of %d bytes came", got, size)
	}
	if credits.Waits() == 0 {
		t.Error("the writer never waited for its reader")
	}
}

// The bytes held back by all relays are bounded; a large answer is then written as it arrives.
func TestAnswersHeldBackAreBounded(t *testing.T) {
	var r *rig
	t.Cleanup(func() { // the server has been closed, which waits for the handlers
		if n := r.g.heldBack.Load(); n != heldBackMax {
			t.Errorf("%d bytes still counted", n-heldBackMax)
		}
	})
	r = newRig(t, nil)
	part := []byte(strings.Repeat("z", 300<<10))
	for _, full := range []bool{false, true} {
		if full {
			r.g.heldBack.Add(heldBackMax)
		}
		got := r.chat(chatBody)
		j := r.take()
		must(t, errors.Join(j.Head(200, jsonHeader), j.Chunk(part), j.Chunk(part), j.End(reply.Usage{})))
		a := receive(t, got, "no answer")
		must(t, a.err)
		if len(a.body) != 2*len(part) || (a.header.Get("Content-Length") == "") != full {
			t.Errorf("full=%v: %d bytes, %v", full, len(a.body), a.header)
		}
	}
}
