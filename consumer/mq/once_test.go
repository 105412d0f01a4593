package mq_test

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v2 "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"

	"github.com/penstockmq/penstock/consumer/mq"
)

// A second delivery of a message that runs ends the first, whose lease is over by that, and begins after it.
func TestDeliveriesOfOneMessageDoNotRunAtTheSameTime(t *testing.T) {
	f := &fake{}
	withFake(t, f, mq.Options{Invisible: 30 * time.Second}, func(t *testing.T, c *consumer) {
		same := func(p *v2.SystemProperties) { p.MessageId = "id" }
		f.batches <- []*v2.Message{message("h1", "first", same), message("other", "other")}
		first, other := c.next(), c.next()
		if string(first.Body) != "first" {
			first, other = other, first
		}
		f.batches <- []*v2.Message{message("h2", "second", same)}
		second := c.expect("second", 1)
		if cause := context.Cause(first.ctx); !errors.Is(cause, mq.ErrLeaseLost) {
			t.Errorf("the first delivery runs beside the second; its context: %v", cause)
		}
		if other.ctx.Err() != nil || second.ctx.Err() != nil {
			t.Errorf("ended: other message %v, second delivery %v", other.ctx.Err(), second.ctx.Err())
		}
		other.answer(mq.Ack())
		second.answer(mq.Ack())
		f.batches <- []*v2.Message{message("h3", "third", same)} // nothing is left of those before
		c.expect("third", 1).answer(mq.Ack())
		time.Sleep(time.Second)
		f.mu.Lock()
		defer f.mu.Unlock()
		slices.Sort(f.acked)
		if !slices.Equal(f.acked, []string{"h2", "h3", "other"}) {
			t.Errorf("acked %q", f.acked)
		}
	})
}

// A delivery that may be older than a third of its lease begins with a renewal, and its lease counts from then on.
func TestAnOldDeliveryIsRenewedBeforeItRuns(t *testing.T) {
	stale := int32(v2.Code_INVALID_RECEIPT_HANDLE)
	f, s := &fake{}, &second{features: all, results: map[string]int32{"ended": stale}}
	withSecond(t, f, s, func(t *testing.T, c *consumer) {
		renewed := func() []string {
			s.mu.Lock()
			defer s.mu.Unlock()
			return slices.Sorted(slices.Values(s.renewed))
		}
		f.batches <- []*v2.Message{message("fresh", "fresh")}
		c.expect("fresh", 1).answer(mq.Ack())
		if got := renewed(); len(got) != 0 {
			t.Errorf("renewed %q", got)
		}
		time.Sleep(7 * time.Second) // the lease is 20 s; all polls were begun before
		f.batches <- []*v2.Message{message("ended", "ended"), message("good", "good")}
		d := c.expect("good", 1)
		synctest.Wait()
		if got := renewed(); !slices.Equal(got, []string{"ended", "good"}) {
			t.Errorf("renewed %q", got)
		}
		time.Sleep(6 * time.Second)
		if got := renewed(); len(got) != 2 {
			t.Errorf("renewed %q, want the next renewal a third of the lease after the first", got)
		}
		d.answer(mq.Ack())
		time.Sleep(time.Minute)
		f.mu.Lock()
		defer f.mu.Unlock()
		slices.Sort(f.acked)
		if len(c.deliveries) != 0 || !slices.Equal(f.acked, []string{"fresh", "good"}) || len(f.settled) != 0 {
			t.Errorf("%d deliveries run, acked %q, settled %q", len(c.deliveries), f.acked, f.settled)
		}
	})
}

// stalled is a connection whose reader pauses from time to time, as in a process that gets SIGSTOP: deliveries wait.
type stalled struct {
	net.Conn

	gate *gate
}

func (s stalled) Read(p []byte) (int, error) {
	n, err := s.Conn.Read(p)
	s.gate.wait()
	return n, err
}

type gate struct {
	mu   sync.Mutex
	open chan struct{} // nil: it is open
}

func (g *gate) wait() {
	g.mu.Lock()
	open := g.open
	g.mu.Unlock()
	if open != nil {
		<-open
	}
}

func (g *gate) close() { g.mu.Lock(); g.open = make(chan struct{}); g.mu.Unlock() }

func (g *gate) reopen() { g.mu.Lock(); close(g.open); g.open = nil; g.mu.Unlock() }

// Deliveries wait in the socket of a consumer until their leases have ended and the broker has delivered their messages again,
// to the same socket. Each message runs once when the consumer goes on.
func TestDeliveriesThatWaitedBeyondTheirLeaseDoNotRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, g := startBubble(t), &gate{}
		p := n.producer(mq.Stubs)
		dial := n.dialer
		n.dialer = func(ctx context.Context, address string) (net.Conn, error) {
			c, err := dial(ctx, address)
			return stalled{c, g}, err
		}
		c := n.consume(mq.Stubs, func(o *mq.Options) { o.Invisible, o.Polls = 4*time.Second, 4 })
		send(t, p, "before", "before")
		c.expect("before", 1).answer(mq.Ack())
		time.Sleep(time.Second)
		g.close()
		for _, lite := range []string{"a", "b"} {
			send(t, p, lite, lite)
		}
		time.Sleep(6500 * time.Millisecond)
		g.reopen()
		time.Sleep(time.Second)
		var running []*delivery
		for len(c.deliveries) > 0 {
			running = append(running, c.next())
		}
		seen := make(map[string]bool)
		for _, d := range running {
			if seen[string(d.Body)] || d.Attempt != 2 || d.ctx.Err() != nil {
				t.Errorf("%s runs, attempt %d, seen %v, %v", d.Body, d.Attempt, seen[string(d.Body)], d.ctx.Err())
			}
			seen[string(d.Body)] = true
			d.answer(mq.Ack())
		}
		if len(seen) != 2 {
			t.Errorf("run %v, want a and b", seen)
		}
		time.Sleep(10 * time.Second)
		if len(c.deliveries) != 0 {
			t.Errorf("%d more deliveries", len(c.deliveries))
		}
	})
}
