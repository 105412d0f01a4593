package broker_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/penstockmq/penstock/broker"
	"github.com/penstockmq/penstock/broker/dispatch"
)

const (
	topic = "requests"
	group = "pool"
)

// options are those of most tests: a memory file system, one topic with one
// wildcard group.
func options(fs vfs.FS) broker.Options {
	return broker.Options{
		Dir: "data", FS: fs,
		Topics: []broker.TopicConfig{{Name: topic}},
		Groups: []broker.GroupConfig{{Name: group, Topic: topic, Wildcard: true}},
	}
}

// open opens a broker and makes the client "c" a reader of all buckets. The broker
// is closed at the end of the test, if the test has not done so.
func open(t *testing.T, o broker.Options) *broker.Broker {
	t.Helper()
	b, err := broker.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() }) // a second Close repeats the first's answer
	subscribe(t, b, "c")
	return b
}

func subscribe(t *testing.T, b *broker.Broker, client string, names ...string) {
	t.Helper()
	r := broker.SyncRequest{Topic: topic, Group: group, Client: client, Action: dispatch.CompleteAdd, Names: names}
	if err := b.SyncSubscription(t.Context(), r); err != nil {
		t.Fatal(err)
	}
}

func closeBroker(t *testing.T, b *broker.Broker) {
	t.Helper()
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
}

// send stores one message in each of the buckets.
func send(t *testing.T, b *broker.Broker, body string, buckets ...string) []broker.Receipt {
	t.Helper()
	msgs := make([]broker.Message, len(buckets))
	for i, name := range buckets {
		msgs[i] = broker.Message{Lite: name, ID: fmt.Sprintf("%s-%s", name, body), Body: []byte(body)}
	}
	receipts, err := b.Send(t.Context(), topic, msgs)
	if err != nil {
		t.Fatal(err)
	}
	return receipts
}

// poll asks once for up to max messages, waiting no longer than wait.
func poll(t *testing.T, b *broker.Broker, maxMessages int, wait time.Duration) []broker.Delivery {
	t.Helper()
	got, err := b.Receive(t.Context(), request("c", maxMessages, wait))
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func request(client string, maxMessages int, wait time.Duration) broker.ReceiveRequest {
	return broker.ReceiveRequest{Topic: topic, Group: group, Client: client, Max: maxMessages, Invisible: time.Minute, Wait: wait}
}

// one polls for exactly one message.
func one(t *testing.T, b *broker.Broker, wait time.Duration) broker.Delivery {
	t.Helper()
	got := poll(t, b, 1, wait)
	if len(got) != 1 {
		t.Fatalf("got %d messages, want 1", len(got))
	}
	return got[0]
}

// none polls and wants nothing.
func none(t *testing.T, b *broker.Broker, wait time.Duration) {
	t.Helper()
	if got := poll(t, b, 32, wait); len(got) != 0 {
		t.Fatalf("got %d messages, the first %q of %s, want none", len(got), got[0].Body, got[0].Lite)
	}
}

func ack(t *testing.T, b *broker.Broker, ds ...broker.Delivery) {
	t.Helper()
	handles := make([]string, len(ds))
	for i, d := range ds {
		handles[i] = d.Handle
	}
	errs, err := b.Ack(t.Context(), topic, group, handles)
	if err != nil {
		t.Fatal(err)
	}
	for i, err := range errs {
		if err != nil {
			t.Fatalf("ack of %q: %v", ds[i].Body, err)
		}
	}
}

// drain receives and acks until a poll comes back empty, and returns the bodies by
// bucket in the order of their delivery.
func drain(t *testing.T, b *broker.Broker) map[string][]string {
	t.Helper()
	out := map[string][]string{}
	for {
		got := poll(t, b, 1024, 0)
		if len(got) == 0 {
			return out
		}
		for _, d := range got {
			out[d.Lite] = append(out[d.Lite], string(d.Body))
		}
		ack(t, b, got...)
	}
}

func bucketNames(n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf("b%06d", i)
	}
	return out
}

// stats returns the gauges of the one topic.
func stats(t *testing.T, b *broker.Broker) dispatch.Stats {
	t.Helper()
	s, err := b.Stats(context.WithoutCancel(t.Context()))
	if err != nil {
		t.Fatal(err)
	}
	return s.Topics[0].Stats
}
