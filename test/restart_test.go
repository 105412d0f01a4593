package test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	v2 "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"

	"github.com/penstockmq/penstock/consumer/mq"
)

// What a broker that was killed knows when it is back.

// sendEach sends the bodies of numbers 0 to count-1 round the buckets, many at a
// time, and returns when the last one is confirmed.
func sendEach(t *testing.T, p mq.Producer, count, buckets int, body func(i int) []byte) {
	t.Helper()
	const senders = 256
	var next atomic.Int64
	g, ctx := errgroup.WithContext(t.Context())
	for range senders {
		g.Go(func() error {
			for {
				i := int(next.Add(1)) - 1
				if i >= count {
					return nil
				}
				if _, err := p.Send(ctx, mq.Outgoing{Topic: topic, Lite: bucketName(i % buckets), Body: body(i)}); err != nil {
					return err
				}
			}
		})
	}
	must(t, g.Wait())
}

func bucketName(i int) string { return fmt.Sprintf("b%04d", i) }

// The process is killed within a millisecond of the last OK. It has no race
// detector, which would slow it down until little is under way at the kill. As many
// of the case's 20 rounds are done as go into the time there is.
func TestC121_ConfirmedIsOnDisk(t *testing.T) {
	const (
		sends, buckets   = 10_000, 500
		rounds, minimum  = 20, 3
		budget           = 20 * time.Second
		bodyBytes        = 1024
		workers, clients = 256, 2
	)
	program, err := quickProgram()
	must(t, err)
	n := startBroker(t, program)
	p := n.producer()
	began := time.Now()
	round := 0
	for ; round < rounds && (round < minimum || time.Since(began) < budget); round++ {
		body := func(i int) []byte { return bodyOf(strconv.Itoa(round)+"/"+strconv.Itoa(i), bodyBytes) }
		sendEach(t, p, sends, buckets, body)
		n.kill()
		n.restart()
		if got := n.queued(); got != sends {
			t.Fatalf("round %d: %d messages are there, want %d", round, got, sends)
		}
		seen := newTally(sends)
		stop := n.consume(clients, mq.Options{Workers: workers}, func(_ context.Context, m *mq.Message) mq.Verdict {
			if i, ok := seen.number(m.Body, strconv.Itoa(round)+"/"); ok && bytes.Equal(m.Body, body(i)) {
				seen.add(i)
			} else {
				seen.fail(fmt.Sprintf("body of %s/%d is not one that was sent: %.40q", m.Lite, m.Offset, m.Body))
			}
			return mq.Ack()
		})
		seen.wait(t)
		stop()
		p = n.producer() // the old one may still pause between its attempts to connect
	}
	t.Logf("%d rounds in %v", round, time.Since(began).Round(time.Millisecond))
}

// bodyOf is a body that begins with its name and can be told from every other one.
func bodyOf(name string, size int) []byte {
	b := append(make([]byte, 0, size+sha256.Size), name+" "...)
	for sum := sha256.Sum256(b); len(b) < size; sum = sha256.Sum256(sum[:]) {
		b = append(b, sum[:]...)
	}
	return b[:size]
}

// tally counts what has to come once each.
type tally struct {
	count int
	mu    sync.Mutex
	seen  map[int]bool  // guarded by mu
	wrong string        // the first fault; guarded by mu
	done  chan struct{} // closed when all came, or one was wrong
}

func newTally(count int) *tally {
	return &tally{count: count, seen: map[int]bool{}, done: make(chan struct{})}
}

// number reads the one that follows prefix, up to a blank.
func (c *tally) number(body []byte, prefix string) (int, bool) {
	rest, ok := bytes.CutPrefix(body, []byte(prefix))
	text, _, found := bytes.Cut(rest, []byte(" "))
	i, err := strconv.Atoi(string(text))
	return i, ok && found && err == nil && i >= 0 && i < c.count
}

func (c *tally) add(i int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.seen[i] {
		c.failLocked(fmt.Sprintf("message %d came twice", i))
		return
	}
	c.seen[i] = true
	if len(c.seen) == c.count && c.wrong == "" {
		close(c.done)
	}
}

func (c *tally) fail(why string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failLocked(why)
}

func (c *tally) failLocked(why string) {
	if c.wrong == "" {
		c.wrong = why
		if len(c.seen) < c.count {
			close(c.done)
		}
	}
}

func (c *tally) wait(t *testing.T) {
	t.Helper()
	select {
	case <-c.done:
	case <-time.After(4 * enough):
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.wrong != "" || len(c.seen) != c.count {
		t.Fatalf("%d of %d came; %s", len(c.seen), c.count, c.wrong)
	}
}

// The case's times are a tenth: suspended for 6 s in the place of 60.
func TestC122_SuspendsOutliveAKill(t *testing.T) {
	const buckets, hold = 100, 6 * time.Second
	for _, c := range []struct {
		name string
		down time.Duration // since the suspends
	}{
		{"up again before the suspends end", hold / 20},
		{"up again after the suspends ended", hold + hold/2},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			n := startBroker(t, program)
			sendEach(t, n.producer(), buckets, buckets, func(i int) []byte { return []byte(strconv.Itoa(i)) })
			worker := n.raw()
			held := map[string]time.Time{} // earliest instant
			for _, m := range worker.receiveAll(buckets, time.Minute) {
				held[m.GetSystemProperties().GetLiteTopic()] = time.Now().Add(hold)
				worker.suspend(m, hold)
			}
			last := time.Now().Add(hold)
			n.kill()
			until(t, last.Add(c.down-hold))
			n.restart()
			started := time.Now()
			latest := started.Add(soon)
			if last.After(started) {
				latest = last.Add(soon)
			}
			worker = n.raw()
			for len(held) > 0 {
				got := worker.receive(time.Minute, enough)
				now := time.Now()
				if len(got) == 0 || now.After(latest) {
					t.Fatalf("%d buckets did not come until %v after their suspends, %v after the start", len(held), now.Sub(last), now.Sub(started))
				}
				for _, m := range got {
					p := m.GetSystemProperties()
					earliest, ok := held[p.GetLiteTopic()]
					if !ok || now.Before(earliest) || p.GetDeliveryAttempt() != 1 {
						t.Errorf("%s came (first time: %v) %v before the end of its suspend, in attempt %d, want 1",
							p.GetLiteTopic(), ok, earliest.Sub(now), p.GetDeliveryAttempt())
					}
					delete(held, p.GetLiteTopic())
				}
				worker.ack(got...)
			}
		})
	}
}

// Acked messages do not come back: after a clean stop, and after a kill within a
// millisecond of the last ack's OK.
func TestC124_PositionsOutliveAKill(t *testing.T) {
	const buckets, each = 1000, 10
	program, err := quickProgram()
	must(t, err)
	n := startBroker(t, program)
	for _, stop := range []func(){
		func() {
			if code := n.stop(); code != 0 {
				t.Fatalf("the broker stopped with status %d", code)
			}
		},
		n.killNow,
	} {
		sendEach(t, n.producer(), buckets*each, buckets, func(i int) []byte { return []byte(strconv.Itoa(i)) })
		c := n.raw()
		for acked := 0; acked < buckets*each; {
			got := c.receive(time.Minute, enough)
			if len(got) == 0 {
				t.Fatalf("%d of %d came", acked, buckets*each)
			}
			c.ack(got...)
			acked += len(got)
		}
		stop()
		n.restart()
		if got := n.raw().receive(time.Minute, time.Second); len(got) > 0 {
			t.Fatalf("%d messages were delivered after all had been acked, the first of %s", len(got), got[0].GetSystemProperties().GetLiteTopic())
		}
		if queued := n.queued(); queued != 0 {
			t.Fatalf("%d messages are left", queued)
		}
	}
}

func (n *brokerNode) killNow() { n.kill() }

// Messages that are out when the broker is killed come back when their leases end,
// not before, and none is forgotten.
func TestC27_InFlightOutlivesAKill(t *testing.T) {
	t.Parallel()
	const messages, invisible = 20, 4 * time.Second
	n := startBroker(t, program)
	sendEach(t, n.producer(), messages, messages, func(i int) []byte { return []byte(strconv.Itoa(i)) })
	worker := n.raw()
	out := map[string]time.Time{} // no lease began before this instant
	for len(out) < messages {
		asked := time.Now()
		got := worker.receive(invisible, enough)
		if len(got) == 0 {
			t.Fatalf("%d of %d came", len(out), messages)
		}
		for _, m := range got {
			out[m.GetSystemProperties().GetMessageId()] = asked
		}
	}
	n.kill()
	n.restart()
	started := time.Now()
	worker = n.raw()
	var got []*v2.Message
	for len(got) < messages {
		more := worker.receive(time.Minute, enough)
		now := time.Now()
		if len(more) == 0 || now.After(started.Add(invisible+soon)) {
			t.Fatalf("%d of %d are back %v after the start", len(got)+len(more), messages, now.Sub(started))
		}
		for _, m := range more {
			p := m.GetSystemProperties()
			asked, ok := out[p.GetMessageId()]
			if !ok || now.Sub(asked) < invisible || p.GetDeliveryAttempt() != 2 {
				t.Errorf("%s is back (out before: %v) %v after it was asked for, in attempt %d; its lease is %v",
					p.GetLiteTopic(), ok, now.Sub(asked), p.GetDeliveryAttempt(), invisible)
			}
			delete(out, p.GetMessageId())
		}
		got = append(got, more...)
	}
	worker.ack(got...)
	for _, b := range n.buckets() {
		for _, g := range b.Groups {
			if b.Queued != 0 || g.Leased != 0 || g.Returned != 0 {
				t.Errorf("%s has %d messages, %d out, %d to go again", b.Name, b.Queued, g.Leased, g.Returned)
			}
		}
	}
}
