package mq_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstockmq/penstock/consumer/mq"
)

// bubble runs test on a fake clock with a broker in memory.
func bubble(t *testing.T, test func(t *testing.T, n *node)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		test(t, startBubble(t))
	})
}

func TestALongRequestKeepsItsLease(t *testing.T) {
	bubble(t, func(t *testing.T, n *node) {
		p := n.producer(mq.Stubs)
		c := n.consume(mq.Stubs, func(o *mq.Options) { o.Invisible = 10 * time.Second })
		send(t, p, "long", "x")
		send(t, p, "long", "y")
		d := c.expect("x", 1)
		time.Sleep(5 * time.Minute)
		if err := d.ctx.Err(); err != nil {
			t.Fatalf("lease: %v", context.Cause(d.ctx))
		}
		if len(c.deliveries) != 0 {
			t.Fatal("somebody else has the message")
		}
		d.answer(mq.Ack())
		c.expect("y", 1).answer(mq.Ack())
		c.stop()
		settled(t, n)
	})
}

// A worker that cannot tell its broker that it still runs hears that its lease is lost: not before it is, and not before the
// broker had time to come back from a pause or restart.
func TestALostLeaseEndsTheHandlersContext(t *testing.T) {
	bubble(t, func(t *testing.T, n *node) {
		p := n.producer(mq.Stubs)
		c := n.consume(mq.Stubs, func(o *mq.Options) { o.Invisible = 10 * time.Second })
		send(t, p, "a", "x")
		begin := time.Now()
		d := c.expect("x", 1)
		n.stop()
		<-d.ctx.Done()
		if cause := context.Cause(d.ctx); !errors.Is(cause, mq.ErrLeaseLost) {
			t.Fatalf("cause %v", cause)
		}
		if held := time.Since(begin); held < 2*time.Minute+10*time.Second || held > 2*time.Minute+14*time.Second {
			t.Errorf("given up after %s, the lease is 10s, the patience with the broker 2m", held)
		}
		n.start()
		c.expect("x", 2).answer(mq.Ack())
		c.stop()
		settled(t, n)
	})
}

func TestAnOutageShorterThanTheLeaseLosesNothing(t *testing.T) {
	bubble(t, func(t *testing.T, n *node) {
		p := n.producer(mq.Stubs)
		c := n.consume(mq.Stubs, func(o *mq.Options) { o.Invisible = 30 * time.Second })
		var running []*delivery
		for i := range 4 {
			send(t, p, fmt.Sprint("bucket-", i), "x")
			running = append(running, c.expect("x", 1))
		}
		n.stop()
		time.Sleep(9 * time.Second)
		running[0].answer(mq.Ack())
		running[1].answer(mq.Suspend(time.Second))
		running[2].answer(mq.Reject())
		time.Sleep(9 * time.Second) // renewals fail meanwhile
		n.start()
		again := c.expect("x", 1)
		if again.Lite != running[1].Lite {
			t.Fatalf("%s came again", again.Lite)
		}
		again.answer(mq.Ack())
		time.Sleep(time.Minute)
		running[3].answer(mq.Ack())
		time.Sleep(time.Minute)
		if len(c.deliveries) != 0 {
			t.Error("a message came twice")
		}
		c.stop()
		settled(t, n)
		dead, err := n.broker.DeadLetters(t.Context(), group, 0, 10)
		must(t, err)
		if len(dead) != 1 {
			t.Errorf("%d dead letters", len(dead))
		}
	})
}

func TestSuspendsAreExactToTheMillisecond(t *testing.T) {
	bubble(t, func(t *testing.T, n *node) {
		p, c := n.producer(mq.Stubs), n.consume(mq.Stubs)
		for i, d := range []time.Duration{time.Microsecond, time.Millisecond, 5 * time.Millisecond, 1234 * time.Millisecond} {
			send(t, p, fmt.Sprint("bucket-", i), "x")
			first := c.expect("x", 1)
			begin := time.Now()
			first.answer(mq.Suspend(d))
			again := c.expect("x", 1)
			late := time.Since(begin) - max(d, time.Millisecond)
			if late < 0 || late > 5*time.Millisecond {
				t.Errorf("suspend of %s: late by %s", d, late)
			}
			again.answer(mq.Ack())
		}
		c.stop()
		settled(t, n)
	})
}

func TestWorkersBoundWhatRuns(t *testing.T) {
	bubble(t, func(t *testing.T, n *node) {
		p := n.producer(mq.Stubs)
		c := n.consume(mq.Stubs, func(o *mq.Options) { o.Workers = 3 })
		for i := range 10 {
			send(t, p, fmt.Sprint("bucket-", i), "x")
		}
		time.Sleep(time.Second)
		for left := 10; left > 0; left-- {
			if running := len(c.deliveries); running != min(left, 3) {
				t.Fatalf("%d run, want %d", running, min(left, 3))
			}
			c.next().answer(mq.Ack())
			time.Sleep(time.Second)
		}
	})
}

// After the broker is back, the subscription is too: within a reconnect, not within its 30 s period.
func TestTheSubscriptionIsRenewedAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T, n *node) {
		p, c := n.producer(mq.Stubs), n.consume(mq.Stubs)
		send(t, p, "a", "x")
		c.expect("x", 1).answer(mq.Ack())
		time.Sleep(time.Second)
		n.stop()
		time.Sleep(time.Minute)
		n.start()
		begin := time.Now()
		for {
			if _, err := p.Send(t.Context(), mq.Outgoing{Topic: topic, Lite: "a", Body: []byte("y")}); err == nil {
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
		c.expect("y", 1).answer(mq.Ack())
		if d := time.Since(begin); d > 5*time.Second {
			t.Errorf("after %s", d)
		}
	})
}

// Sends share calls, and a bucket that refuses does not take the others' messages with it.
func TestOneRefusalIsOneMessages(t *testing.T) {
	bubble(t, func(t *testing.T, n *node) {
		p := n.producer(mq.Stubs)
		send(t, p, "a", "x") // it knows the broker now
		type result struct {
			i   int
			err error
		}
		results := make(chan result)
		const sends = 300
		for i := range sends {
			m := mq.Outgoing{Topic: topic, Lite: fmt.Sprint("bucket-", i), Body: []byte("x")}
			if i%100 == 50 {
				m.Properties = map[string]string{"penstock-user": "somebody", "penstock-model": "else"}
			}
			go func() {
				_, err := p.Send(t.Context(), m)
				results <- result{i, err}
			}()
		}
		for range sends {
			if r := <-results; (r.err != nil) != (r.i%100 == 50) {
				t.Errorf("message %d: %v", r.i, r.err)
			}
		}
	})
}

func TestOptionsNameWhatIsWrong(t *testing.T) {
	for _, c := range []struct {
		key string
		o   mq.Options
	}{
		{"endpoint", mq.Options{Endpoint: "nowhere", Topic: topic, Group: group}},
		{"topic", mq.Options{Endpoint: "h:1", Group: group}},
		{"group", mq.Options{Endpoint: "h:1", Topic: topic}},
		{"workers", mq.Options{Endpoint: "h:1", Topic: topic, Group: group, Workers: -1}},
		{"invisible", mq.Options{Endpoint: "h:1", Topic: topic, Group: group, Invisible: time.Millisecond}},
		{"subscribe", mq.Options{Endpoint: "h:1", Topic: topic, Group: group, Subscribe: []string{"a b"}}},
		{"access_key", mq.Options{Endpoint: "h:1", Topic: topic, Group: group, Secret: "s"}},
	} {
		if _, err := mq.NewConsumer(mq.Stubs, c.o); err == nil || !strings.Contains(err.Error(), c.key) {
			t.Errorf("error %v does not name %s", err, c.key)
		}
	}
	if _, err := mq.NewConsumer("other", mq.Options{Endpoint: "h:1", Topic: topic, Group: group}); err == nil {
		t.Error("an unknown kind is accepted")
	}
	if text := fmt.Sprintf("%v %+v %#v", mq.Secret("hush"), mq.Options{Secret: "hush"}, mq.Options{Secret: "hush"}); strings.Contains(text, "hush") {
		t.Errorf("the secret shows: %s", text)
	}
}
