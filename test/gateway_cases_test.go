package test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/openai/openai-go/v3/option"

	"github.com/penstockmq/penstock/broker/admin"
	"github.com/penstockmq/penstock/cmd/mockmodel"
)

// failing is a behaviour that answers with an error status.
func failing(status int) func(*mockmodel.Behaviour) {
	return func(b *mockmodel.Behaviour) { b.Fault, b.Status = mockmodel.FaultStatus, status }
}

func faulty(f mockmodel.Fault) func(*mockmodel.Behaviour) {
	return func(b *mockmodel.Behaviour) { b.Fault, b.FaultAfter = f, 3 }
}

// callsOf are the calls that one request of the gateway made at the model.
func (s *system) callsOf(a answer) (calls []mockmodel.Call) {
	id := a.header.Get("X-Request-Id")
	for _, c := range s.stub.Calls(0) {
		if c.RequestID == id {
			calls = append(calls, c)
		}
	}
	return calls
}

// TestC29_BadMessagesDoNotBlockTheirBucket fills a bucket while it is held and opens
// it: three messages that cannot be answered in front of ten that can.
func TestC29_BadMessagesDoNotBlockTheirBucket(t *testing.T) {
	t.Parallel()
	s := up(t, setup{config: "attempts: 3\nbackoff-min: 100ms", args: []string{"--in-flight", "1"}})
	s.stub.on("refused", failing(http.StatusBadRequest))
	s.stub.on("broken", faulty(mockmodel.FaultBroken))
	s.stub.on("down", failing(http.StatusServiceUnavailable))
	lift := s.hold("alice")
	texts := []string{"refused", "broken", "down"}
	for i := range 10 {
		texts = append(texts, fmt.Sprintf("good %d", i))
	}
	var pending []<-chan answer
	for i, text := range texts {
		pending = append(pending, s.begin(t.Context(), "alice", text))
		s.waitMetric("penstock_gateway_accepted_total", float64(i+1)) // their order
	}
	lift()
	var answers []answer
	for i, c := range pending {
		answers = append(answers, await(t, c, texts[i]))
	}

	for i, want := range []struct{ status, calls int }{
		{http.StatusBadRequest, 1}, {http.StatusBadGateway, 1}, {http.StatusServiceUnavailable, 3},
	} {
		if calls := s.callsOf(answers[i]); answers[i].status != want.status || len(calls) != want.calls {
			t.Errorf("%s: %d calls, answer %+v; want %d calls and status %d", texts[i], len(calls), answers[i], want.calls, want.status)
		}
	}
	for i, a := range answers[3:] {
		if calls := s.callsOf(a); a.err != nil || len(calls) != 1 {
			t.Errorf("%s: %d calls, %v", texts[3+i], len(calls), a.err)
		}
	}
	all := s.stub.Calls(0)
	if took := all[len(all)-1].Ended.Sub(all[0].Began); took > 3*time.Second+slack {
		t.Errorf("all took %v, want less than 3 s", took)
	}
	for i := 1; i < len(all); i++ {
		if all[i].Began.Before(all[i-1].Ended) {
			t.Errorf("call %d began before the one in front of it had ended", all[i].Number)
		}
	}
	s.waitMetric("penstock_broker_messages", 0)
	var dead admin.DeadLetters
	s.get("groups/pool/dead-letters", &dead)
	if n := len(dead.DeadLetters); n == 0 || dead.DeadLetters[n-1].Attempts != 3 {
		t.Errorf("dead letters %+v, want the last one after 3 attempts", dead.DeadLetters)
	}
}

// TestC64_CallerLeavesBeforeTheFirstToken: the case's second before the caller goes is
// until the model has the request. The one worker is free again afterwards.
func TestC64_CallerLeavesBeforeTheFirstToken(t *testing.T) {
	t.Parallel()
	s := up(t, setup{args: []string{"--workers", "1"}})
	s.stub.on("slow", func(b *mockmodel.Behaviour) { b.FirstToken = mockmodel.Duration(20 * time.Second) })
	for i, call := range []func(context.Context) error{
		func(ctx context.Context) error { return s.complete(ctx, "alice", "slow").err },
		func(ctx context.Context) error {
			stream := s.ask("alice").Chat.Completions.NewStreaming(ctx, chat("slow stream"))
			defer stream.Close()
			stream.Next()
			return stream.Err()
		},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- call(ctx) }()
		s.stub.wait("call", open(1))
		cancel()
		s.stub.waitFor(time.Second+slack, "connection closed", func(st mockmodel.Stats) bool {
			return st.Open == 0 && st.Aborted == int64(i+1)
		})
		s.waitMetricFor(time.Second+slack, "penstock_pool_handling", 0)
		if err := await(t, done, "call that was left"); err == nil {
			t.Error("a call that was left succeeded")
		}
	}
	s.waitMetric("penstock_broker_messages", 0)
	s.succeeds("alice", "next")
	s.metrics(map[string]float64{
		"penstock_pool_cancelled_total": 2, "penstock_pool_dead_total": 0, "penstock_pool_retried_total": 0,
		"penstock_broker_deliveries_total": 3, "penstock_broker_redeliveries_total": 0, "penstock_broker_dead_letters_total": 0,
		"penstock_gateway_cancelled_total": 2,
	})
}

// streamed is what a caller reads of an event stream, byte by byte.
type streamed struct {
	status   int
	kind     string // content type
	events   []string
	comments int
	body     string
}

// stream asks for one without the SDK, which would hide how it ends.
func (s *system) stream(user, text string) streamed {
	s.t.Helper()
	body, err := json.Marshal(map[string]any{
		"model": model, "stream": true, "messages": []map[string]string{{"role": "user", "content": text}},
	})
	must(s.t, err)
	r, err := http.NewRequestWithContext(s.t.Context(), http.MethodPost, "http://"+s.ready["http"]+"/v1/chat/completions", bytes.NewReader(body))
	must(s.t, err)
	r.Header.Set("Authorization", "Bearer "+s.keys[user])
	resp, err := http.DefaultClient.Do(r)
	must(s.t, err)
	defer resp.Body.Close()
	all, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatalf("stream %q ended with %v after %q", text, err, all)
	}
	out := streamed{status: resp.StatusCode, kind: resp.Header.Get("Content-Type"), body: string(all)}
	if out.kind != "text/event-stream" {
		return out
	}
	if !bytes.HasSuffix(all, []byte("\n\n")) {
		s.t.Errorf("the stream ends within an event: %q", all)
	}
	for lines := bufio.NewScanner(bytes.NewReader(all)); lines.Scan(); {
		switch line := lines.Text(); {
		case strings.HasPrefix(line, "data: "):
			out.events = append(out.events, line[len("data: "):])
		case strings.HasPrefix(line, ":"):
			out.comments++
		case line != "":
			s.t.Errorf("line %q in the stream", line)
		}
	}
	return out
}

// errorIn reads an error in OpenAI's shape; nil if text is none.
func errorIn(text string) *struct{ Code, Message, Type string } {
	var doc struct {
		Error *struct{ Code, Message, Type string }
	}
	if json.Unmarshal([]byte(text), &doc) != nil {
		return nil
	}
	return doc.Error
}

// TestC66_UpstreamDiesInMidStream reads three chunks and then, by all means, an error.
func TestC66_UpstreamDiesInMidStream(t *testing.T) {
	t.Parallel()
	s := up(t, setup{})
	for i, c := range []struct {
		fault mockmodel.Fault
		code  string
		text  string // in the message
	}{
		{mockmodel.FaultReset, "upstream_broken", ""},
		{mockmodel.FaultNoEnd, "upstream_broken", ""},
		{mockmodel.FaultBareError, "engine_dead", "the engine died"},
	} {
		name := string(c.fault)
		s.stub.on(name, faulty(c.fault))
		got := s.stream("alice", name)
		if got.status != http.StatusOK || len(got.events) != 4 {
			t.Fatalf("%s: status %d, events %q, want 3 chunks and an error", name, got.status, got.events)
		}
		for _, chunk := range got.events[:3] {
			if errorIn(chunk) != nil || strings.Contains(chunk, `"stop"`) {
				t.Errorf("%s: chunk %s", name, chunk)
			}
		}
		if e := errorIn(got.events[3]); e == nil || e.Code != c.code || e.Message == "" || !strings.Contains(e.Message, c.text) {
			t.Errorf("%s: the stream ends with %s, want code %s", name, got.events[3], c.code)
		}
		s.waitMetric("penstock_pool_dead_total", float64(2*i+1))

		// And as the SDK reads it.
		stream := s.ask("alice").Chat.Completions.NewStreaming(t.Context(), chat(name))
		read := 0
		for stream.Next() {
			read++
		}
		if err := stream.Err(); read != 3 || err == nil || !strings.Contains(err.Error(), c.code) {
			t.Errorf("%s: the SDK reads %d chunks and %v", name, read, err)
		}
		s.waitMetric("penstock_pool_dead_total", float64(2*i+2))
		if calls := s.stub.Stats().Calls; calls != int64(2*i+2) {
			t.Errorf("%s: %d calls by now, want %d: it was sent again", name, calls, 2*i+2)
		}
	}
	s.metrics(map[string]float64{"penstock_pool_answered_total": 0, "penstock_pool_retried_total": 0})
}

// TestC68_FailureBeforeTheFirstChunk wants the model's refusal as an HTTP status, and
// as an event only where a keep-alive has taken the status away.
func TestC68_FailureBeforeTheFirstChunk(t *testing.T) {
	t.Parallel()
	s := up(t, setup{config: "backoff-min: 10ms", args: []string{"--keep-alive", "300ms"}})
	for _, status := range []int{http.StatusServiceUnavailable, http.StatusBadRequest} {
		at := fmt.Sprintf("at once %d", status)
		s.stub.on(at, failing(status))
		got := s.stream("alice", at)
		if e := errorIn(got.body); got.status != status || got.kind != "application/json" || e == nil || e.Code != "mock_fault" {
			t.Errorf("%s: %+v", at, got)
		}
		later := fmt.Sprintf("later %d", status)
		s.stub.on(later, func(b *mockmodel.Behaviour) {
			failing(status)(b)
			b.Delay = mockmodel.Duration(500 * time.Millisecond)
		})
		got = s.stream("alice", later)
		if got.status != http.StatusOK || got.comments == 0 || len(got.events) != 1 {
			t.Fatalf("%s: %+v, want keep-alives and an error event", later, got)
		}
		if e := errorIn(got.events[0]); e == nil || e.Code != "mock_fault" {
			t.Errorf("%s: %s", later, got.events[0])
		}
	}
}

// TestC72_FailuresGiveTheirSlotsBack has thirty requests fail in three ways where ten
// may run at once, by the bucket's limit and by the model's.
func TestC72_FailuresGiveTheirSlotsBack(t *testing.T) {
	t.Parallel()
	const most = 10
	s := up(t, setup{
		config: "attempts: 1", args: []string{"--in-flight", fmt.Sprint(most)},
		model: fmt.Sprintf("concurrency: %d, first-byte-timeout: 500ms", most),
	})
	s.stub.on("hang", faulty(mockmodel.FaultHang))
	s.stub.on("reset", faulty(mockmodel.FaultReset))
	s.stub.on("bad", failing(http.StatusBadGateway))
	s.stub.on("work", func(b *mockmodel.Behaviour) { b.Delay = mockmodel.Duration(200 * time.Millisecond) })
	fail := func(text string, status int) error {
		if a := s.complete(t.Context(), "alice", text); a.status != status {
			return fmt.Errorf("%s: %+v, want status %d", text, a, status)
		}
		return nil
	}
	ways := []func() error{
		func() error { return fail("hang", http.StatusGatewayTimeout) },
		func() error { return fail("bad", http.StatusBadGateway) },
		func() error {
			stream := s.ask("alice").Chat.Completions.NewStreaming(t.Context(), chat("reset"))
			defer stream.Close()
			read := 0
			for stream.Next() {
				read++
			}
			if stream.Err() == nil || read != 3 {
				return fmt.Errorf("reset: %d chunks, then %w", read, stream.Err())
			}
			return nil
		},
	}
	done := make(chan error)
	for i := range 3 * most {
		go func() { done <- ways[i%len(ways)]() }()
	}
	for range 3 * most {
		if err := await(t, done, "failure"); err != nil {
			t.Error(err)
		}
	}
	s.waitMetricFor(time.Second+slack, "penstock_pool_in_flight", 0)
	s.waitMetricFor(time.Second+slack, "penstock_pool_handling", 0)
	s.waitMetricFor(time.Second+slack, "penstock_broker_leases", 0)
	if st := s.stub.Stats(); st.Calls != 3*most || st.MaxOpen > most || st.MaxOpen < 2 {
		t.Errorf("%d calls, at most %d at once; want %d and %d", st.Calls, st.MaxOpen, 3*most, most)
	}

	a := s.succeeds("alice", "next")
	if call := s.callsOf(a)[0]; a.took > slack {
		t.Errorf("the next request took %v, its call began at %v", a.took, call.Began)
	}
	var again []<-chan answer
	for range most {
		again = append(again, s.begin(t.Context(), "alice", "work"))
	}
	s.stub.wait("as many as ever at once", open(most))
	for _, c := range again {
		if a := await(t, c, "work"); a.err != nil {
			t.Error(a.err)
		}
	}
}

// TestC73_DeadlineWhileWaitingForASlot has a deadline pass behind requests that hold
// every slot: those of the model, and those of the workers; it waits in its bucket. The deadline is 1 s instead of 2, and the slots are taken until the
// test says otherwise.
func TestC73_DeadlineWhileWaitingForASlot(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		setup setup
	}{
		{"model", setup{live: "columns: [{model: " + model + ", in_flight: 2}]\n"}},
		{"workers", setup{args: []string{"--workers", "2", "--share", "100"}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := up(t, c.setup)
			s.stub.on("busy", faulty(mockmodel.FaultHang))
			ctx, cancel := context.WithCancel(t.Context())
			var busy []<-chan answer
			for range 2 {
				busy = append(busy, s.begin(ctx, "alice", "busy"))
			}
			s.stub.wait("busy", open(2))

			const deadline = time.Second
			a := s.complete(t.Context(), "bob", "too late", option.WithHeader("X-Request-Timeout", "1s"))
			if a.status != http.StatusGatewayTimeout || a.took < deadline || a.took > deadline+slack {
				t.Errorf("%+v, want 504 after %v", a, deadline)
			}
			s.waitMetric("penstock_broker_messages", 2)
			if n := s.metric("penstock_pool_received_total"); n != 2 {
				t.Errorf("the pool has received %v messages, want those that run", n)
			}
			cancel()
			for _, b := range busy {
				await(t, b, "busy")
			}
			s.succeeds("bob", "in time")
			if calls := s.stub.Stats().Calls; calls != 3 {
				t.Errorf("%d calls, want those before and after it", calls)
			}
			s.metrics(map[string]float64{"penstock_pool_retried_total": 0, "penstock_broker_dead_letters_total": 0})
		})
	}
}
