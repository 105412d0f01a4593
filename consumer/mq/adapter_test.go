package mq_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	v2 "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"

	"github.com/penstockmq/penstock/broker"
	"github.com/penstockmq/penstock/consumer/mq"
)

// both runs a test with each adapter: what a Consumer and a Producer promise, both keep.
func both(t *testing.T, test func(t *testing.T, kind mq.Kind, n *node)) {
	for _, kind := range []mq.Kind{mq.Stubs, mq.Official} {
		t.Run(string(kind), func(t *testing.T) {
			if kind == mq.Official && raceDetector {
				t.Skip("the official client has data races of its own; see TestOfficialWithoutTheRaceDetector")
			}
			t.Parallel()
			test(t, kind, startNode(t))
		})
	}
}

func TestSendReceiveAck(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, kind mq.Kind, n *node) {
		p, c := n.producer(kind), n.consume(kind)
		const buckets, messages = 5, 4
		for i := range messages {
			for b := range buckets {
				r := send(t, p, fmt.Sprint("bucket-", b), fmt.Sprint(i))
				if r.MessageID == "" || r.RecallHandle == "" || r.Offset != int64(i) {
					t.Fatalf("receipt %+v of message %d", r, i)
				}
			}
		}
		next := map[string]int{}
		for range buckets * messages {
			d := c.next()
			if want := fmt.Sprint(next[d.Lite]); string(d.Body) != want {
				t.Fatalf("%s: got message %s, want %s", d.Lite, d.Body, want)
			}
			next[d.Lite]++
			if d.Topic != topic || d.ID == "" || d.Attempt != 1 || d.Tag != "tag" || len(d.Keys) != 1 || d.Properties["p"] != "v" ||
				d.Born.IsZero() || d.Received.IsZero() || d.Offset != int64(next[d.Lite]-1) {
				t.Fatalf("message %+v", d.Message)
			}
			d.answer(mq.Ack())
		}
		c.stop()
		settled(t, n)
	})
}

// settled checks that no message is left in the broker: every ack has reached it.
func settled(t *testing.T, n *node) {
	t.Helper()
	buckets, err := n.broker.Buckets(context.Background(), topic, "", "", 1000)
	must(t, err)
	for _, b := range buckets {
		if b.Queued != 0 {
			t.Errorf("bucket %s has %d messages", b.Name, b.Queued)
		}
	}
}

func TestASuspendHoldsOneBucketAndCostsNoAttempt(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, kind mq.Kind, n *node) {
		p, c := n.producer(kind), n.consume(kind)
		const hold = 700 * time.Millisecond
		send(t, p, "held", "held")
		d := c.expect("held", 1)
		begin := time.Now()
		d.answer(mq.Suspend(hold))
		send(t, p, "free", "free")
		c.expect("free", 1).answer(mq.Ack()) // it comes first
		d = c.expect("held", 1)
		if waited := time.Since(begin); waited < hold {
			t.Errorf("came again after %s, want %s", waited, hold)
		}
		d.answer(mq.Suspend(0))
		c.expect("held", 1).answer(mq.Ack())
		c.stop()
		settled(t, n)
	})
}

func TestARetryIsTheNextAttempt(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, kind mq.Kind, n *node) {
		p, c := n.producer(kind), n.consume(kind)
		send(t, p, "bucket", "x")
		send(t, p, "bucket", "y")
		c.expect("x", 1).answer(mq.Retry(20 * time.Millisecond))
		c.expect("x", 2).answer(mq.Ack())     // and not y: its bucket is in order
		c.expect("y", 1).answer(mq.Verdict{}) // a handler that did not decide has failed
		c.expect("y", 2).answer(mq.Ack())
		c.stop()
		settled(t, n)
	})
}

func TestARejectIsADeadLetter(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, kind mq.Kind, n *node) {
		p, c := n.producer(kind), n.consume(kind)
		send(t, p, "bucket", "bad")
		send(t, p, "bucket", "good")
		c.expect("bad", 1).answer(mq.Reject())
		c.expect("good", 1).answer(mq.Ack())
		c.stop()
		settled(t, n)
		dead, err := n.broker.DeadLetters(context.Background(), group, 0, 10)
		must(t, err)
		if len(dead) != 1 || string(dead[0].Message.Body) != "bad" {
			t.Errorf("dead letters: %+v", dead)
		}
	})
}

func TestAPanicCostsOneAttempt(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, kind mq.Kind, n *node) {
		c, err := mq.NewConsumer(kind, n.options())
		must(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		done := make(chan error, 1)
		go func() {
			done <- c.Run(ctx, func(_ context.Context, m *mq.Message) mq.Verdict {
				if m.Attempt == 1 {
					panic("a handler's fault")
				}
				cancel()
				return mq.Ack()
			})
		}()
		send(t, n.producer(kind), "bucket", "x")
		must(t, <-done)
		if !errors.Is(ctx.Err(), context.Canceled) {
			t.Error("no second attempt")
		}
	})
}

func TestExactSubscription(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, kind mq.Kind, n *node) {
		must(t, n.broker.CreateGroup(t.Context(), broker.GroupConfig{Name: "exact", Topic: topic}))
		p := n.producer(kind)
		c := n.consume(kind, func(o *mq.Options) { o.Group, o.Subscribe = "exact", []string{"mine", "mine-too"} })
		send(t, p, "other", "other")
		send(t, p, "mine", "a")
		c.expect("a", 1).answer(mq.Ack())
		send(t, p, "mine-too", "b")
		c.expect("b", 1).answer(mq.Ack())
	})
}

func TestRecallTakesOutWhatIsQueued(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, kind mq.Kind, n *node) {
		p, c := n.producer(kind), n.consume(kind)
		running := send(t, p, "bucket", "running")
		d := c.expect("running", 1)
		queued := send(t, p, "bucket", "queued")
		last := send(t, p, "bucket", "last")
		must(t, p.Recall(t.Context(), topic, queued.RecallHandle))
		for _, r := range []mq.Receipt{running, queued} {
			if err := p.Recall(t.Context(), topic, r.RecallHandle); !errors.Is(err, mq.ErrNotQueued) {
				t.Errorf("recall of what is not queued: %v", err)
			}
		}
		d.answer(mq.Ack())
		c.expect("last", 1).answer(mq.Ack())
		if last.Offset != 2 {
			t.Errorf("offset %d", last.Offset)
		}
	})
}

func TestWhatNoPatienceWillChangeIsAnError(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, kind mq.Kind, n *node) {
		err := n.consume(kind, func(o *mq.Options) { o.Topic = "unknown" }).wait()
		if !mq.IsCode(err, int32(v2.Code_TOPIC_NOT_FOUND)) {
			t.Errorf("Run of an unknown topic: %v", err)
		}
		_, err = n.producer(kind).Send(t.Context(), mq.Outgoing{Topic: "unknown", Lite: "x", Body: []byte("x")})
		if !mq.IsCode(err, int32(v2.Code_TOPIC_NOT_FOUND)) {
			t.Errorf("Send to an unknown topic: %v", err)
		}
	})
}

// A stop gives back what does not finish, unharmed: another consumer has it at once, as the first attempt.
func TestAStopReturnsWhatRuns(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, kind mq.Kind, n *node) {
		p, first := n.producer(kind), n.consume(kind, func(o *mq.Options) { o.Grace = 100 * time.Millisecond })
		send(t, p, "a", "finishes")
		finishes := first.next()
		send(t, p, "b", "hangs")
		hangs := first.next()
		first.cancel()
		finishes.answer(mq.Ack())
		first.stop()
		if cause := context.Cause(hangs.ctx); !errors.Is(cause, mq.ErrStopping) {
			t.Errorf("cause of the handler that hangs: %v", cause)
		}
		second := n.consume(mq.Stubs)
		second.expect("hangs", 1).answer(mq.Ack())
		second.stop()
		settled(t, n)
	})
}

// StopNow ends the grace of a consumer that stops, and of no other.
func TestStopNowEndsTheGrace(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, kind mq.Kind, n *node) {
		now := make(chan struct{})
		p, first := n.producer(kind), n.consume(kind, func(o *mq.Options) { o.Grace, o.StopNow = time.Hour, now })
		send(t, p, "a", "hangs")
		hangs := first.next()
		first.cancel()
		if hangs.ctx.Err() != nil {
			t.Error("the handler was told to end within the grace")
		}
		close(now)
		first.stop()
		if cause := context.Cause(hangs.ctx); !errors.Is(cause, mq.ErrStopping) {
			t.Errorf("cause of the handler that hangs: %v", cause)
		}
		second := n.consume(mq.Stubs)
		second.expect("hangs", 1).answer(mq.Ack())
		second.stop()
		settled(t, n)
	})
}

// No long poll is waited out by a stop, and none keeps a message that comes after it.
func TestAStopEndsThePolls(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, kind mq.Kind, n *node) {
		p, first := n.producer(kind), n.consume(kind)
		send(t, p, "a", "x")
		first.next().answer(mq.Ack()) // it polls
		begin := time.Now()
		first.stop()
		if d := time.Since(begin); d > 10*time.Second {
			t.Errorf("stop took %s, which is a long poll", d)
		}
		second := n.consume(mq.Stubs)
		send(t, p, "a", "y")
		second.expect("y", 1).answer(mq.Ack())
	})
}

// A broker that restarts is waited for: what runs is settled with its old handle, what comes later is received.
func TestABrokerRestartIsWaitedOut(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, kind mq.Kind, n *node) {
		p, c := n.producer(mq.Stubs), n.consume(kind, func(o *mq.Options) { o.Workers = 2 })
		send(t, p, "a", "runs over the restart")
		d := c.expect("runs over the restart", 1)
		send(t, p, "b", "is held over the restart")
		c.expect("is held over the restart", 1).answer(mq.Suspend(time.Second))
		send(t, p, "c", "next")
		c.expect("next", 1).answer(mq.Ack()) // its worker has settled the suspend
		n.stop()
		d.answer(mq.Ack())
		n.start()
		c.expect("is held over the restart", 1).answer(mq.Ack())
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		for {
			_, err := p.Send(ctx, mq.Outgoing{Topic: topic, Lite: "a", Body: []byte("after")})
			if err == nil {
				break
			}
			must(t, ctx.Err())
		}
		c.expect("after", 1).answer(mq.Ack())
		c.stop()
		settled(t, n)
	})
}
