package gateway

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/iotest"

	"pgregory.net/rapid"

	"github.com/penstockmq/penstock/consumer/reply"
)

// Whatever users take and give back, the totals stay correct, and a user without requests gets a request and a body as long as
// at most two other users are greedy.
func TestSharesLeaveRoomForOthers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := newShares(Options{MaxActive: 30, MaxBufferBytes: 3000, MaxBodyBytes: 100})
		own := map[string]*holding{"a": {}, "b": {}}
		var sum holding
		for range rapid.IntRange(1, 300).Draw(t, "steps") {
			user := rapid.SampledFrom([]string{"a", "b"}).Draw(t, "user")
			n := holding{requests: rapid.Int64Range(0, 1).Draw(t, "requests"), bytes: rapid.Int64Range(0, 100).Draw(t, "bytes")}
			if u := own[user]; rapid.IntRange(0, 3).Draw(t, "give") == 0 {
				n.requests, n.bytes = min(n.requests, u.requests), min(n.bytes, u.bytes)
				s.give(user, n)
				*u = u.plus(holding{-n.requests, -n.bytes})
				sum = sum.plus(holding{-n.requests, -n.bytes})
			} else if s.take(user, n) == nil {
				*u, sum = u.plus(n), sum.plus(n)
			}
			if s.held() != sum || sum.requests > 30 || sum.bytes > 3000 {
				t.Fatalf("holds %+v, counted %+v", sum, s.held())
			}
		}
		if err := s.take("late", holding{requests: 1, bytes: 100}); err != nil {
			t.Fatalf("a user that comes late: %v; %+v", err, own)
		}
		s.give("late", holding{requests: 1, bytes: 100})
		for user, u := range own {
			s.give(user, *u)
		}
		if len(s.users) != 0 || s.held() != (holding{}) {
			t.Fatalf("left: %+v", s.held())
		}
	})
}

// 130 slow bodies of one key took all of the gateway's memory for bodies before a byte of them had come, and every other
// user got 503 for 30 s.
//
// https://github.com/lance-format/lance-context/issues/247
func TestSlowBodiesDoNotShutTheGateway(t *testing.T) {
	r := newRig(t, func(o *Options) { o.MaxBufferBytes, o.Grace = 8<<20, -1 })
	addr := r.listen()
	for range 130 {
		r.post(addr, r.other, "{", 4<<20)
	}
	for range 130 { // until the gateway has begun to read all of them
		got := r.chat(chatBody)
		j := r.take()
		must(t, j.Answer(200, jsonHeader, []byte("{}"), reply.Usage{}))
		receive(t, got, "no answer").check(t, 200, "")
		if r.g.metrics.Active.Load() >= 130 {
			break
		}
	}
	if n := r.g.Callers().BodyBytes; n > 130*bodyFirst {
		t.Errorf("%d bytes count for 130 bodies of one byte", n)
	}
}

// A body is counted as it comes, and each step of it has its time.
func TestBodyIsCountedAsItComes(t *testing.T) {
	for _, size := range []int{0, 1, bodyFirst, bodyFirst + 1, bodyStep, 5*bodyStep + 3} {
		for _, length := range []int64{int64(size), -1} {
			body := bytes.Repeat([]byte("b"), size)
			in := bytes.NewReader(body)
			req := httptest.NewRequest(http.MethodPost, "/", iotest.HalfReader(in))
			req.ContentLength = length
			var held int64
			steps := 0
			got, err := readBody(httptest.NewRecorder(), req, 1<<20, func(n int64) error {
				held += n
				if came := int64(size - in.Len()); held > max(2*came, came+bodyFirst) {
					t.Errorf("%d bytes held when %d of %d have come", held, came, size)
				}
				return nil
			}, func() { steps++ })
			if err != nil || !bytes.Equal(got, body) || held < int64(size) {
				t.Errorf("size %d: %d bytes, %d held, error %v", size, len(got), held, err)
			}
			if most := 1 + size/bodyStep; steps > most || steps < 1 || size > 3*bodyStep && steps < 3 {
				t.Errorf("size %d: %d times", size, steps)
			}
		}
	}
	refused := errors.New("full")
	req := httptest.NewRequest(http.MethodPost, "/", strings.NewReader("x"))
	if _, err := readBody(httptest.NewRecorder(), req, 10, func(int64) error { return refused }, func() {}); !errors.Is(err, refused) {
		t.Errorf("error %v", err)
	}
}

// One user may not take all requests that the gateway holds.
func TestOneUserLeavesRoomForOthers(t *testing.T) {
	r := newRig(t, func(o *Options) { o.MaxActive = 4 })
	var waiting []<-chan answer
	var jobs []job
	for range 2 {
		waiting = append(waiting, r.chat(chatBody))
		jobs = append(jobs, r.take())
	}
	a := receive(t, r.chat(chatBody), "no answer")
	a.check(t, 429, "user_share_exceeded")
	if a.header.Get("Retry-After") != "1" || r.g.metrics.Shared.Load() != 1 {
		t.Errorf("%v, %d counted", a.header, r.g.metrics.Shared.Load())
	}
	r.secret, r.other = r.other, r.secret
	got := r.chat(chatBody)
	jobs, waiting = append(jobs, r.take()), append(waiting, got)
	for i, j := range jobs {
		must(t, j.Answer(200, jsonHeader, []byte("{}"), reply.Usage{}))
		receive(t, waiting[i], "no answer").check(t, 200, "")
	}
}

// A caller without a key holds nothing, however slowly its body comes: its request ends, and others are served meanwhile.
func TestCallerWithoutAKeyHoldsNothing(t *testing.T) {
	r := newRig(t, func(o *Options) { o.MaxActive, o.Grace = 2, -1 })
	addr := r.listen()
	var conns []net.Conn
	for range 4 {
		conns = append(conns, r.post(addr, "sk-unknown", "{", 1000))
	}
	for range 3 {
		got := r.chat(chatBody)
		j := r.take()
		must(t, j.Answer(200, jsonHeader, []byte("{}"), reply.Usage{}))
		receive(t, got, "no answer").check(t, 200, "")
	}
	for _, c := range conns { // answered although the body never comes
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		must(t, err)
		_ = resp.Body.Close()
		if resp.StatusCode != 401 {
			t.Errorf("status %d", resp.StatusCode)
		}
	}
}

// Connections that never show a key are bounded; the oldest makes room, and one that showed a key stays.
func TestStrangersAreBounded(t *testing.T) {
	r := newRig(t, func(o *Options) { o.MaxStrangers, o.Grace = 2, -1 })
	addr := r.listen()
	ask := func(c net.Conn) int {
		_, err := io.WriteString(c, "GET /v1/models HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer "+r.secret+"\r\n\r\n")
		must(t, err)
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		must(t, err)
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
		return resp.StatusCode
	}
	dial := func() net.Conn {
		c, err := net.Dial("tcp", addr)
		must(t, err)
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	known := dial()
	if status := ask(known); status != 200 {
		t.Fatalf("status %d", status)
	}
	oldest := dial()
	for range 2 {
		dial()
	}
	if _, err := oldest.Read(make([]byte, 1)); err == nil {
		t.Error("the oldest connection without a key got a byte")
	}
	if status := ask(known); status != 200 {
		t.Errorf("status %d", status)
	}
	if c := r.g.Callers(); c.Strangers > 2 || c.Dropped != 1 {
		t.Errorf("%+v", c)
	}
}
