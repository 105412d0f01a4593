package test

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/penstockmq/penstock/cmd/mockmodel"
)

// slowly streams for longer than a test lasts.
func slowly(b *mockmodel.Behaviour) {
	b.Tokens, b.Interval, b.FirstToken = 10_000, mockmodel.Duration(50*time.Millisecond), 0
}

// reading is a stream of which the caller has the first line.
type reading struct {
	t    *testing.T
	body *bufio.Reader
	rest chan string // the text after the first line, sent when the stream has ended
}

// read opens a stream and returns when the caller has its first line.
func (s *system) read(user, text string) *reading {
	s.t.Helper()
	body := fmt.Sprintf(`{"model":%q,"stream":true,"messages":[{"role":"user","content":%q}]}`, model, text)
	r, err := http.NewRequestWithContext(s.t.Context(), http.MethodPost, "http://"+s.ready["http"]+"/v1/chat/completions", strings.NewReader(body))
	must(s.t, err)
	r.Header.Set("Authorization", "Bearer "+s.keys[user])
	resp, err := http.DefaultClient.Do(r)
	must(s.t, err)
	s.t.Cleanup(func() { _ = resp.Body.Close() })
	out := &reading{t: s.t, body: bufio.NewReader(resp.Body), rest: make(chan string, 1)}
	line, err := out.body.ReadString('\n')
	if err != nil || !strings.HasPrefix(line, "data: ") {
		s.t.Fatalf("the stream begins with %q, %v", line, err)
	}
	go func() {
		rest, err := io.ReadAll(out.body)
		if err != nil {
			rest = append(rest, err.Error()...)
		}
		out.rest <- string(rest)
	}()
	return out
}

// endsWith wants the stream to end with an error event of this code.
func (r *reading) endsWith(code string) {
	r.t.Helper()
	rest := await(r.t, r.rest, "the end of the stream")
	last := strings.TrimSpace(rest[strings.LastIndex(rest, "data: ")+len("data: "):])
	if failure := errorIn(last); failure == nil || failure.Code != code || strings.Contains(rest, "[DONE]") {
		r.t.Errorf("the stream ends with %q, want the error %s", last, code)
	}
}

// The second SIGTERM ends the grace, and each stream with an error that says why.
func TestSecondSignalEndsStreamsWithAnError(t *testing.T) {
	t.Parallel()
	s := up(t, setup{args: []string{"--grace", "1h"}})
	s.stub.on("long", slowly)
	stream := s.read("alice", "long")
	must(t, s.cmd.Process.Signal(syscall.SIGTERM))
	watch(t, enough, func() bool { // the first signal only refuses new requests
		return s.complete(t.Context(), "bob", "new").status != http.StatusOK
	}, func() string { return "it does not stop" })
	calls := s.stub.Stats().Calls
	must(t, s.cmd.Process.Signal(syscall.SIGTERM))
	stream.endsWith("worker_stopped")
	await(t, s.exited, "the process")
	if code := s.cmd.ProcessState.ExitCode(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if n := s.stub.Stats().Calls; n != calls {
		t.Errorf("%d calls after the first signal", n-calls)
	}
}

// A request whose caller has bytes of the answer of a killed pool is not sent to the model by the next one.
func TestKilledPoolThatHadBegun(t *testing.T) {
	t.Parallel()
	f := startFleet(t, "")
	f.stub.on("long", slowly)
	s := f.gateway()
	pool := f.pools(1, "--invisible", "2s", "--attempts", "5")[0]
	stream := s.read("alice", "long")
	pool.kill()
	f.pools(1, "--invisible", "2s", "--attempts", "5")
	stream.endsWith("worker_lost")
	if n := f.stub.Stats().Calls; n != 1 {
		t.Errorf("%d calls", n)
	}
}

// Requests whose gateway was killed while they waited cost no call of the model, and those of another gateway go on.
func TestKilledGatewayCostsNoCalls(t *testing.T) {
	t.Parallel()
	const callers = 20
	f := startFleet(t, "")
	f.pools(1)
	killed, other := f.gateway(), f.gateway()
	hold := "/api/v1/groups/pool/suspends"
	if code, text := f.request(http.MethodPut, hold, `{"scope":"column","name":"`+model+`","duration":"1h"}`); code != http.StatusOK {
		t.Fatalf("hold: %d %s", code, text)
	}
	for i := range callers {
		go killed.complete(t.Context(), users[i%len(users)], fmt.Sprint("orphan ", i))
	}
	killed.waitMetric("penstock_gateway_accepted_total", callers)
	survivor := other.begin(t.Context(), "alice", "survivor")
	other.waitMetric("penstock_gateway_accepted_total", 1)
	killed.kill()
	if code, text := f.request(http.MethodDelete, hold+"?scope=column&name="+model, ""); code >= 300 {
		t.Fatalf("lift: %d %s", code, text)
	}
	if a := await(t, survivor, "the other gateway's caller"); a.status != 200 {
		t.Errorf("the other gateway's caller got %d, %v", a.status, a.err)
	}
	watch(t, enough, func() bool { return f.queuedIn("") == 0 }, func() string { return fmt.Sprint(f.queuedIn(""), " messages are left") })
	if n := f.stub.Stats().Calls; n != 1 {
		t.Errorf("%d calls of the model, want the survivor's alone", n)
	}
}
