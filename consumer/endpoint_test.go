package consumer

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/penstockmq/penstock/broker/lite"
	"github.com/penstockmq/penstock/consumer/mq"
	"github.com/penstockmq/penstock/consumer/reply"
)

// A message that names another endpoint than its model allows costs no call and no part of a limit, and its caller and the
// dead letters know about it.
func TestEndpointThatIsNotAllowedIsADeadLetter(t *testing.T) {
	nc, b := natsServer(t, ""), newMemory(4)
	s := newStub(t, func(w http.ResponseWriter, _ *http.Request, _ string) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{}`)
	})
	_, stop := run(t, Options{Consumer: b, Downstream: upstream(t, s), NATS: nc, Attempts: 3})
	c := newCaller(t, nc, b)
	answer, err := c.inbox.Open("r1")
	if err != nil {
		t.Fatal(err)
	}
	b.put(t, lite.Cell{User: "alice", Model: "m"}, reply.Request{
		ID: "r1", Method: http.MethodDelete, Path: "/v1/files/file-1", Reply: c.inbox.Subject("r1"),
	}, "delete")
	if status, whole := result(t, answer); status != http.StatusForbidden || whole {
		t.Errorf("the caller has status %d, whole %v", status, whole)
	}
	b.drained(t)
	stop()
	if len(b.turns) != 1 || len(b.dead) != 1 {
		t.Fatalf("%d deliveries, %d dead letters", len(b.turns), len(b.dead))
	}
	if got := b.turns[0].verdict.Settlement; got == nil || got.Outcome != mq.OutcomeUnused {
		t.Errorf("settlement %+v", got)
	}
	if n := len(s.calls); n != 0 {
		t.Errorf("%d calls", n)
	}
}
