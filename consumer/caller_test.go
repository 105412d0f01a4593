package consumer

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/penstockmq/penstock/broker/lite"
	"github.com/penstockmq/penstock/consumer/mq"
	"github.com/penstockmq/penstock/consumer/reply"
)

// A killed pool loses the knowledge whether the caller has bytes of the answer. The next pool that gets the message asks the
// gateway, and calls the model only for a caller that waits and has no bytes.
func TestNoSecondCallForACallerThatHasBytes(t *testing.T) {
	head := func(w *reply.Writer) error { return w.Head(200, http.Header{"Content-Type": {"text/event-stream"}}) }
	for _, tt := range []struct {
		name    string
		attempt int
		before  func(w *reply.Writer, s *reply.Stream) error // by the killed pool, or by the caller
		calls   int
		verdict mq.VerdictKind
		code    string // that the caller gets
	}{
		{"killed before the first byte", 2, func(w *reply.Writer, _ *reply.Stream) error { return w.Started(time.Now(), true) }, 1, mq.VerdictAck, ""},
		{"killed after the head", 2, func(w *reply.Writer, _ *reply.Stream) error { return head(w) }, 0, mq.VerdictReject, "worker_lost"},
		{"killed in the middle of the answer", 2, func(w *reply.Writer, _ *reply.Stream) error {
			if err := head(w); err != nil {
				return err
			}
			return w.Chunk([]byte("data: 1\n\n"))
		}, 0, mq.VerdictReject, "worker_lost"},
		{"killed between a whole answer and its ack", 2, func(w *reply.Writer, _ *reply.Stream) error {
			return w.Answer(200, nil, []byte("{}"), reply.Usage{})
		}, 0, mq.VerdictAck, ""},
		{"the caller left while nobody ran the request", 1, func(_ *reply.Writer, s *reply.Stream) error { s.Close(); return nil }, 0, mq.VerdictAck, ""},
		{"the caller waits in the queue", 1, func(*reply.Writer, *reply.Stream) error { return nil }, 1, mq.VerdictAck, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			nc, b := natsServer(t, ""), newMemory(4)
			s := newStub(t, func(w http.ResponseWriter, _ *http.Request, _ string) {
				w.Header().Set("Content-Type", "application/json")
				fmt.Fprint(w, `{"choices": []}`)
			})
			c := newCaller(t, nc, b)
			answer, err := c.inbox.Open("r1")
			if err != nil {
				t.Fatal(err)
			}
			defer answer.Close()
			req := reply.Request{
				ID: "r1", Path: reply.PathChatCompletions, Reply: c.inbox.Subject("r1"), Accepted: time.Now().Add(-time.Minute),
			}
			if err := tt.before(reply.NewWriter(nc, req, 1), answer); err != nil {
				t.Fatal(err)
			}
			m := b.put(t, lite.Cell{User: "alice", Model: "m"}, req, "hello")
			m.Attempt = tt.attempt
			_, stop := run(t, Options{Consumer: b, Downstream: upstream(t, s), NATS: nc, Attempts: 3})
			b.drained(t)
			stop()
			if n := s.count("hello"); n != tt.calls {
				t.Errorf("%d calls of the model, want %d", n, tt.calls)
			}
			last := b.turns[len(b.turns)-1].verdict
			if last.Kind != tt.verdict || tt.calls == 0 && last.Settlement.Outcome != mq.OutcomeUnused {
				t.Errorf("verdict %s with %+v, want %s", last.Kind, last.Settlement, tt.verdict)
			}
			if tt.code == "" {
				return
			}
			for {
				f, err := answer.Next(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				if f.Kind == reply.Error {
					if f.Failure.Code != tt.code {
						t.Errorf("the caller gets %+v", f.Failure)
					}
					return
				}
			}
		})
	}
}

// NATS loses the gateway for longer than the pool waits for it, and the gateway lives on: its caller is told to try again.
func TestACallerHearsOfItsRequestThatWasDroppedWithoutItsGateway(t *testing.T) {
	nc, b := natsServer(t, ""), newMemory(4)
	s := newStub(t, func(w http.ResponseWriter, _ *http.Request, _ string) { fmt.Fprint(w, `{"choices": []}`) })
	pool, err := New(Options{Consumer: b, Downstream: upstream(t, s), NATS: nc})
	if err != nil {
		t.Fatal(err)
	}
	req := reply.Request{ID: "r1", Path: reply.PathChatCompletions, Reply: "penstock.reply.away.r1", Deadline: time.Now().Add(time.Hour)}
	b.put(t, lite.Cell{User: "alice", Model: "m"}, req, "hello")
	ended := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { ended <- pool.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}()
	b.drained(t)
	away, err := reply.NewInbox(nc, reply.InboxOptions{Gateway: "away"})
	if err != nil {
		t.Fatal(err)
	}
	defer away.Close()
	answer, err := away.Open("r1")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Close()
	f, err := answer.Next(t.Context())
	if err != nil || f.Kind != reply.Error || f.Failure.Code != reply.CodeGatewayAway {
		t.Errorf("the caller gets %+v, %v", f, err)
	}
	if n := s.count("hello"); n != 0 {
		t.Errorf("%d calls of the model", n)
	}
}
