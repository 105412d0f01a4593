package consumer

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/penstockmq/penstock/broker/lite"
	"github.com/penstockmq/penstock/consumer/mq"
	"github.com/penstockmq/penstock/consumer/reply"
)

// Messages whose record can never be stored leave their bucket as dead letters, and requests behind them run. Before, they
// were suspended again and again without an attempt being counted, with their bucket.
func TestAsyncMessagesThatCannotHaveARecordAreDeadLetters(t *testing.T) {
	nc, b := natsServer(t, t.TempDir()), newMemory(2)
	store := openStore(t, nc, reply.StoreOptions{TotalBytes: 16 << 20})
	s := newStub(t, func(w http.ResponseWriter, _ *http.Request, body string) { fmt.Fprint(w, body) })
	_, stop := run(t, Options{Consumer: b, Downstream: upstream(t, s), NATS: nc, Store: store})
	poison := map[string]map[string]string{
		"no id":     {reply.PropertyAsync: "true"},
		"far clock": {reply.PropertyAsync: "true", reply.PropertyRequestID: "far", reply.PropertyAccepted: "9223372036854775807"},
		"spoilt":    {reply.PropertyAsync: "true", reply.PropertyRequestID: "spoilt"},
	}
	spoil(t, nc, "spoilt")
	for body, properties := range poison {
		name, err := lite.Encode(lite.Cell{User: body, Model: "gpt"})
		if err != nil {
			t.Fatal(err)
		}
		b.add(&mq.Message{ID: body, Lite: name, Body: []byte(body), Attempt: 1, Properties: properties, Born: time.Now()})
		b.put(t, lite.Cell{User: body, Model: "gpt"}, reply.Request{ID: "good-" + body[:2], Async: true}, "good "+body)
	}
	b.drained(t)
	stop()
	for body := range poison {
		if got := b.verdicts(body); len(got) != 1 || got[0] != mq.VerdictReject || s.count(body) != 0 {
			t.Errorf("%s: verdicts %v, the model was asked %d times", body, got, s.count(body))
		}
		if n := s.count("good " + body); n != 1 {
			t.Errorf("the request behind %s was run %d times", body, n)
		}
	}
}

// A born timestamp may say anything: it only informs.
func TestAsyncRequestOfAFarBirthIsRun(t *testing.T) {
	nc, b := natsServer(t, t.TempDir()), newMemory(1)
	store := openStore(t, nc, reply.StoreOptions{TotalBytes: 16 << 20})
	s := newStub(t, func(w http.ResponseWriter, _ *http.Request, body string) { fmt.Fprint(w, body) })
	_, stop := run(t, Options{Consumer: b, Downstream: upstream(t, s), NATS: nc, Store: store})
	name, err := lite.Encode(alice)
	if err != nil {
		t.Fatal(err)
	}
	b.add(&mq.Message{
		ID: "far", Lite: name, Body: []byte("far"), Attempt: 1, Born: time.Unix(1<<55, 0),
		Properties: map[string]string{reply.PropertyAsync: "true", reply.PropertyRequestID: "far"},
	})
	b.drained(t)
	stop()
	if r, err := store.Get(t.Context(), "far", alice.User); err != nil || r.State != reply.StateDone {
		t.Errorf("%+v, %v", r, err)
	}
}

// spoil writes bytes that are no record.
func spoil(t *testing.T, nc *nats.Conn, id string) {
	t.Helper()
	if _, err := nc.Request("$KV.penstock_requests."+id, []byte("{"), patience); err != nil {
		t.Fatal(err)
	}
}
