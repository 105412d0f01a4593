package test

import (
	"bytes"
	"net/http"
	"testing"
	"time"

	v2 "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"

	"github.com/penstockmq/penstock/cmd/mockmodel"
	"github.com/penstockmq/penstock/consumer/mq"
)

func (n *brokerNode) send(p mq.Producer, lite string, body []byte) {
	n.t.Helper()
	_, err := p.Send(n.t.Context(), mq.Outgoing{Topic: topic, Lite: lite, Body: body})
	must(n.t, err)
}

// TestC22_BrokenAnswer resets the connection in the middle of an answer: the second
// consumer has the message at once, and it was no attempt.
func TestC22_BrokenAnswer(t *testing.T) {
	t.Parallel()
	n := startBroker(t, program)
	producer := n.producer()
	w := newWire(t, n.grpc, 512<<10)
	first := newPoller(t, w.addr, topic, group)
	second := newPoller(t, n.grpc, topic, group)

	broken := first.begin(t.Context(), 20*time.Second)
	n.waitMetric("penstock_broker_waiters", 1)
	got := second.begin(t.Context(), 20*time.Second)
	n.waitMetric("penstock_broker_waiters", 2)
	n.send(producer, "big", bytes.Repeat([]byte("x"), 3<<20)) // to who waits longest
	await(t, w.cut, "cut")
	cut := time.Now()
	if p := await(t, broken, "poll"); p.err == nil {
		t.Fatalf("the connection was cut and the poll ended cleanly: %v", p.status)
	}
	p := await(t, got, "second consumer")
	if p.err != nil || len(p.messages) != 1 {
		t.Fatalf("second consumer: %v, %d messages, %v", p.status, len(p.messages), p.err)
	}
	if late := p.at.Sub(cut); late > time.Second+slack {
		t.Errorf("the message came %v after the cut, want within 1 s; its lease is a minute", late)
	}
	if attempt := p.messages[0].GetSystemProperties().GetDeliveryAttempt(); attempt != 1 {
		t.Errorf("attempt %d, want 1", attempt)
	}
}

// TestC22_VanishedClient lets a client vanish that has received, without a FIN. Its
// lease of 60 s is one that the broker renews; it learns by keep-alive, after 10 s and
// 3 s more, that there is nobody to renew it for. A client that lives keeps its own.
func TestC22_VanishedClient(t *testing.T) {
	t.Parallel()
	const lease = 60 * time.Second // what a poll with auto_renew gets
	n := startBroker(t, program)
	producer := n.producer()
	w := newWire(t, n.grpc, 0)
	vanishing := newPoller(t, w.addr, topic, group)
	living := newPoller(t, n.grpc, topic, group)
	waiting := newPoller(t, n.grpc, topic, group)

	n.send(producer, "a", []byte("of the one that vanishes"))
	before := time.Now()
	vanishing.one(t, enough)
	after := time.Now()
	w.swallow.Store(true)
	n.send(producer, "b", []byte("of the one that lives"))
	living.one(t, enough)

	m := waiting.one(t, lease+enough)
	at, bucket := time.Now(), m.GetSystemProperties().GetLiteTopic()
	if bucket != "a" || m.GetSystemProperties().GetDeliveryAttempt() != 2 {
		t.Errorf("attempt %d of %q came, want 2 of a", m.GetSystemProperties().GetDeliveryAttempt(), bucket)
	}
	if at.Before(before.Add(lease)) || at.After(after.Add(lease+slack)) {
		t.Errorf("it came after %v, want %v", at.Sub(after), lease)
	}
	if p := waiting.poll(t.Context(), 3*time.Second); p.err != nil || len(p.messages) != 0 {
		t.Errorf("the lease of a client that lives was not renewed: %v, %v", p.messages, p.err)
	}
}

// TestC125_StopDoesNotWaitForPolls stops a system with fifty idle polls and three
// requests that need 2 s more.
func TestC125_StopDoesNotWaitForPolls(t *testing.T) {
	t.Parallel()
	const left = 2 * time.Second
	s := up(t, setup{config: "topics:\n  - {name: other}\ngroups:\n  - {name: idle, topic: other, wildcard: true}"})
	s.stub.on("", func(b *mockmodel.Behaviour) { b.Delay = mockmodel.Duration(left) })
	polls := make(chan polled)
	const idle = 50
	for range idle {
		p := newPoller(t, s.ready["grpc"], "other", "idle")
		go func() { polls <- p.poll(t.Context(), 30*time.Second) }()
	}
	s.waitMetric(`penstock_broker_waiters{group="idle",topic="other"}`, idle)
	var forwards []<-chan answer
	for range 3 {
		forwards = append(forwards, s.begin(t.Context(), "alice", "running"))
	}
	s.stub.wait("forwards", open(3))

	began := time.Now()
	exit := make(chan int, 1)
	go func() { exit <- s.stop() }()
	var last time.Time
	for range idle {
		p := await(t, polls, "poll")
		if p.err != nil || p.status.GetCode() != v2.Code_MESSAGE_NOT_FOUND || len(p.messages) != 0 {
			t.Fatalf("a poll ended with %v, %d messages, %v; want MESSAGE_NOT_FOUND", p.status, len(p.messages), p.err)
		}
		last = p.at
	}
	if st := s.stub.Stats(); st.Open != 3 {
		t.Errorf("the polls ended after the forwards did")
	}
	if took := last.Sub(began); took > 500*time.Millisecond+slack {
		t.Errorf("the polls ended %v after the signal, want 500 ms", took)
	}
	for _, c := range forwards {
		if a := await(t, c, "forward"); a.status != http.StatusOK || a.text == "" {
			t.Errorf("a running request: %+v", a)
		}
	}
	answered := time.Now()
	if code := await(t, exit, "exit"); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
	if took := time.Since(answered); took > time.Second+slack {
		t.Errorf("the process ended %v after its last request, %v after the signal", took, time.Since(began))
	}
}
