package reply

import (
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
)

// lossy is a server on a port of its own that can be killed and started again, and a way to connect to it.
func lossy(t *testing.T) (connect func() *nats.Conn, restart func()) {
	t.Helper()
	s, err := StartServer(ServerOptions{Addr: "127.0.0.1:0"})
	must(t, err)
	url := s.ns.ClientURL()
	_, port, err := net.SplitHostPort(s.Addr().String())
	must(t, err)
	if _, err := strconv.Atoi(port); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	connect = func() *nats.Conn {
		nc, err := nats.Connect(url, nats.ReconnectWait(20*time.Millisecond), nats.MaxReconnects(-1))
		must(t, err)
		t.Cleanup(nc.Close)
		return nc
	}
	return connect, func() {
		s.Close()
		s, err = StartServer(ServerOptions{Addr: "127.0.0.1:" + port})
		must(t, err)
	}
}

// The last frame of an answer dies with its connection: the caller hears of it after the reconnect, and not at its deadline. One
// that has its end hears nothing more.
func TestALostEndIsToldAfterTheReconnect(t *testing.T) {
	connect, restart := lossy(t)
	pool, inbox := connect(), newInbox(t, connect(), InboxOptions{})
	e := NewEndings(pool)
	defer e.Close()
	has, lost := open(t, inbox, "has"), open(t, inbox, "lost")
	w := NewWriter(pool, Request{Reply: inbox.Subject("has")}, 1)
	w.Remember(e)
	must(t, w.Answer(200, nil, []byte("x"), Usage{}))
	if frames, body := readAll(t, has); frames[len(frames)-1].Kind != End || string(body) != "x" {
		t.Fatalf("frames %v", frames)
	}
	// This one went into a connection that was dead: it is published nowhere.
	gone := &Writer{nc: pool, subject: inbox.Subject("lost"), attempt: 1, endings: e, seq: 1}
	gone.ended()
	restart()
	frames, _ := readAll(t, lost)
	if f := frames[0]; len(frames) != 1 || f.Kind != Error || f.Failure.Code != CodeReplyLost || f.Failure.Status != 502 {
		t.Errorf("frames %+v", frames)
	}
	if frames, _ := readAll(t, has); len(frames) != 0 {
		t.Errorf("after its end came %+v", frames)
	}
}

func TestEndingsAreForgotten(t *testing.T) {
	e := &Endings{}
	begin := time.Now()
	for i := range 3 * endingsMax {
		e.note(ending{seq: uint64(i), at: begin})
	}
	if n := len(e.recent); n != endingsMax || e.recent[0].seq != 2*endingsMax {
		t.Errorf("%d endings are kept, the first is %d", n, e.recent[0].seq)
	}
	e.note(ending{seq: 7, at: begin.Add(endingsKept + 1)})
	if n := len(e.recent); n != 1 || len(e.since(begin)) != 1 || len(e.since(begin.Add(time.Hour))) != 0 {
		t.Errorf("%d endings are kept after their time", n)
	}
}
