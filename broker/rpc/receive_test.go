package rpc

import (
	"context"
	"errors"
	"math"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v2 "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/penstockmq/penstock/broker"
)

func TestReceiveStreamOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t).client("c")
		a := c.receive(now)
		expectCode(t, a.status, v2.Code_MESSAGE_NOT_FOUND)
		if a.order != "st" {
			t.Errorf("empty answer has the frames %q, want status and time", a.order)
		}
		c.sent("alice", "1")
		c.sent("bob", "2")
		a = c.receive()
		expectCode(t, a.status, v2.Code_OK)
		if a.order != "smmt" || a.delivered.IsZero() {
			t.Errorf("answer has the frames %q, want status, two messages, time", a.order)
		}
	})
}

func TestReceiveTakesOneMessageOfABucket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t, func(c *config) { c.group.InFlight = 10 }).client("c")
		for i := range 3 {
			c.sent("alice", strconv.Itoa(i))
		}
		for i := range 3 {
			if got := idOf(c.receiveOne()); got != strconv.Itoa(i) {
				t.Fatalf("poll %d brought %q", i, got)
			}
		}
	})
}

func TestReceiveBatchIsCapped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t, func(c *config) { c.rpc.ReceiveBatch = 4 }).client("c")
		for i := range 10 {
			c.sent("u"+strconv.Itoa(i), "id")
		}
		many := func(r *v2.ReceiveMessageRequest) { r.BatchSize = math.MaxInt32 }
		two := func(r *v2.ReceiveMessageRequest) { r.BatchSize = 2 }
		if n := len(c.receive(many).messages); n != 4 {
			t.Errorf("received %d, the server's cap is 4", n)
		}
		if n := len(c.receive(two).messages); n != 2 {
			t.Errorf("received %d, asked for 2", n)
		}
	})
}

func TestReceiveRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t)
		c := f.client("c")
		must(t, f.broker.CreateTopic(t.Context(), broker.TopicConfig{Name: "other"}))
		for _, x := range []struct {
			name   string
			change func(*v2.ReceiveMessageRequest)
			want   v2.Code
		}{
			{"no topic", func(r *v2.ReceiveMessageRequest) { r.MessageQueue = nil }, v2.Code_ILLEGAL_TOPIC},
			{"no group", func(r *v2.ReceiveMessageRequest) { r.Group = nil }, v2.Code_ILLEGAL_CONSUMER_GROUP},
			{"unknown topic", func(r *v2.ReceiveMessageRequest) { r.MessageQueue.Topic.Name = "unknown" }, v2.Code_TOPIC_NOT_FOUND},
			{"unknown group", func(r *v2.ReceiveMessageRequest) { r.Group.Name = "unknown" }, v2.Code_CONSUMER_GROUP_NOT_FOUND},
			{"group of another topic", func(r *v2.ReceiveMessageRequest) { r.MessageQueue.Topic.Name = "other" }, v2.Code_BAD_REQUEST},
			{"no batch", func(r *v2.ReceiveMessageRequest) { r.BatchSize = 0 }, v2.Code_BAD_REQUEST},
			{"negative batch", func(r *v2.ReceiveMessageRequest) { r.BatchSize = -1 }, v2.Code_BAD_REQUEST},
			{"too short a lease", invisible(time.Microsecond), v2.Code_ILLEGAL_INVISIBLE_TIME},
			{"too long a lease", invisible(12*time.Hour + 1), v2.Code_ILLEGAL_INVISIBLE_TIME},
			{"lease that is no duration", func(r *v2.ReceiveMessageRequest) {
				r.InvisibleDuration = &durationpb.Duration{Seconds: 5, Nanos: -1}
			}, v2.Code_ILLEGAL_INVISIBLE_TIME},
			{"negative poll", wait(-1), v2.Code_ILLEGAL_POLLING_TIME},
			{"tag filter", func(r *v2.ReceiveMessageRequest) {
				r.FilterExpression = &v2.FilterExpression{Type: v2.FilterType_TAG, Expression: "a||b"}
			}, v2.Code_ILLEGAL_FILTER_EXPRESSION},
			{"SQL filter", func(r *v2.ReceiveMessageRequest) {
				r.FilterExpression = &v2.FilterExpression{Type: v2.FilterType_SQL, Expression: "*"}
			}, v2.Code_ILLEGAL_FILTER_EXPRESSION},
		} {
			if a := c.receive(x.change); a.status.GetCode() != x.want || a.order != "s" {
				t.Errorf("%s: status %v in frames %q, want %v alone", x.name, a.status, a.order, x.want)
			}
		}
	})
}

func TestPollTime(t *testing.T) {
	s := &Server{opts: Options{}.withDefaults()}
	at := time.Unix(1_700_000_000, 0)
	for _, c := range []struct {
		name     string
		asked    *durationpb.Duration
		deadline time.Duration // 0: none
		want     time.Duration
	}{
		{"as asked", durationpb.New(7 * time.Second), 0, 7 * time.Second},
		{"shorter than RocketMQ has it", durationpb.New(3 * time.Millisecond), 0, 3 * time.Millisecond},
		{"at once", durationpb.New(0), 0, 0},
		{"capped", durationpb.New(time.Hour), 0, 20 * time.Second},
		{"not said", nil, 0, 20 * time.Second},
		{"not said, with deadline", nil, 8 * time.Second, 7900 * time.Millisecond},
		{"within the deadline", durationpb.New(20 * time.Second), 23 * time.Second, 20 * time.Second},
		{"before the deadline", durationpb.New(20 * time.Second), 20 * time.Second, 19900 * time.Millisecond},
		{"deadline is near", durationpb.New(20 * time.Second), 50 * time.Millisecond, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx := context.Background()
			if c.deadline != 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithDeadline(ctx, at.Add(c.deadline))
				defer cancel()
			}
			got, err := s.pollTime(ctx, c.asked, at)
			if err != nil || got != c.want {
				t.Errorf("waits %v, %v; want %v", got, err, c.want)
			}
		})
	}
}

func TestInvisibleDuration(t *testing.T) {
	s := &Server{opts: Options{}.withDefaults()}
	for _, c := range []struct {
		name  string
		renew bool
		asked *durationpb.Duration
		want  time.Duration
		code  v2.Code
	}{
		{"as asked", false, durationpb.New(90 * time.Second), 90 * time.Second, v2.Code_OK},
		{"shortest", false, durationpb.New(time.Second), time.Second, v2.Code_OK},
		{"too short", false, durationpb.New(time.Second - 1), 0, v2.Code_ILLEGAL_INVISIBLE_TIME},
		{"longest", false, durationpb.New(12 * time.Hour), 12 * time.Hour, v2.Code_OK},
		{"too long", false, durationpb.New(12*time.Hour + 1), 0, v2.Code_ILLEGAL_INVISIBLE_TIME},
		{"not said", false, nil, time.Minute, v2.Code_OK},
		{"renewed", true, nil, time.Minute, v2.Code_OK},
		{"renewed, said", true, durationpb.New(1), time.Minute, v2.Code_OK},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := s.invisible(&v2.ReceiveMessageRequest{AutoRenew: c.renew, InvisibleDuration: c.asked})
			if got != c.want || codeOf(err) != c.code {
				t.Errorf("lease %v, %v; want %v, %v", got, err, c.want, c.code)
			}
		})
	}
}

// A poll that is parked answers when a message comes, and before its deadline when
// none does.
func TestReceiveWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t)
		c := f.client("c")
		var g errgroup.Group
		g.Go(func() error {
			a, err := c.tryReceive(c.ctx)
			if err == nil && len(a.messages) != 1 {
				err = errors.New("parked poll came back empty")
			}
			return err
		})
		f.parked(1)
		c.sent("alice", "id")
		must(t, g.Wait())

		ctx, cancel := context.WithTimeout(c.ctx, time.Second)
		defer cancel()
		a, err := c.tryReceive(ctx)
		must(t, err) // not DEADLINE_EXCEEDED
		expectCode(t, a.status, v2.Code_MESSAGE_NOT_FOUND)
	})
}

// A caller that gives up takes its poll with it: what comes later is for others.
func TestCancelledPollTakesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t)
		impatient, c := f.client("impatient"), f.client("c")
		ctx, cancel := context.WithCancel(impatient.ctx)
		ended := make(chan error, 1)
		go func() {
			_, err := impatient.tryReceive(ctx)
			ended <- err
		}()
		f.parked(1)
		cancel()
		if err := <-ended; status.Code(err) != codes.Canceled {
			t.Errorf("the poll ended with %v", err)
		}
		f.parked(0)
		c.sent("alice", "id")
		if m := c.receiveOne(now); attempt(m) != 1 {
			t.Errorf("attempt %d", attempt(m))
		}
	})
}

func TestReceiveAttemptIDReplaysTheSameBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t).client("c")
		c.sent("alice", "1")
		c.sent("bob", "2")
		id := func(v string) func(*v2.ReceiveMessageRequest) {
			return func(r *v2.ReceiveMessageRequest) { r.AttemptId = new(v) }
		}
		first := c.receive(id("a"))
		again := c.receive(id("a"))
		if len(first.messages) != 2 || len(again.messages) != 2 {
			t.Fatalf("received %d, then %d messages; want the same two", len(first.messages), len(again.messages))
		}
		for _, m := range again.messages {
			if attempt(m) != 1 {
				t.Errorf("%s has attempt %d, a replay does not count", idOf(m), attempt(m))
			}
			expectCode(t, c.ack(handle(m)).GetStatus(), v2.Code_OK)
		}
		if a := c.receive(id("b"), now); len(a.messages) != 0 {
			t.Errorf("another attempt got %d messages", len(a.messages))
		}
	})
}

// C22 (a): an answer that cannot be written gives its messages back at once. The
// broken client takes in 64 KiB and no more, so that the server is in the middle of
// the answer when the connection breaks.
func TestC22_BrokenAnswerIsReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t)
		broken := f.client("broken", grpc.WithStaticStreamWindowSize(64<<10), grpc.WithStaticConnWindowSize(64<<10))
		const messages, bodyBytes = 8, 256 << 10
		for i := range messages {
			out := broken.send("u"+strconv.Itoa(i), "id-"+strconv.Itoa(i), func(m *v2.Message) { m.Body = make([]byte, bodyBytes) })
			expectCode(t, out.GetStatus(), v2.Code_OK)
		}
		stream, err := broken.ReceiveMessage(broken.ctx, broken.poll())
		must(t, err)
		first, err := stream.Recv() // the answer is under way
		must(t, err)
		expectCode(t, first.GetStatus(), v2.Code_OK)

		second := f.client("second")
		second.receiveNone() // all are out
		begin := time.Now()
		must(t, broken.conn.Close())
		got := map[string]bool{}
		for len(got) < messages {
			for _, m := range second.receive().messages {
				if attempt(m) != 1 {
					t.Errorf("%s has attempt %d: a delivery that was not written counted", idOf(m), attempt(m))
				}
				got[idOf(m)] = true
			}
		}
		// In the bubble's time: without waiting for the lease, or for anything.
		if d := time.Since(begin); d > time.Second {
			t.Errorf("released after %v", d)
		}
	})
}

// C22 (b): a client that received and vanished. Its lease is renewed while it is
// connected and not afterwards, so the message is out again when the lease ends,
// and not before.
func TestC22_LeaseOfAVanishedClientIsNotRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t)
		lost, second := f.client("lost"), f.client("second")
		second.sent("alice", "id")
		begin := time.Now()
		m := lost.receiveOne(func(r *v2.ReceiveMessageRequest) { r.AutoRenew = true })
		must(t, lost.conn.Close())
		var again *v2.Message
		for again == nil { // a poll takes 20 s at most
			if a := second.receive(); len(a.messages) > 0 {
				again = a.messages[0]
			}
		}
		if idOf(again) != idOf(m) {
			t.Fatalf("received %q", idOf(again))
		}
		if d := time.Since(begin); d < time.Minute || d > time.Minute+100*time.Millisecond {
			t.Errorf("out again after %v, the lease was a minute", d)
		}
		if attempt(again) != 2 {
			t.Errorf("attempt %d, want 2: the first delivery had arrived", attempt(again))
		}
	})
}

// A client that gives signs of life keeps its message for as long as it works, and
// loses it at most one lease after it has left.
func TestAutoRenewWhileTheClientLives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t)
		busy, second := f.client("busy"), f.client("second")
		second.sent("alice", "id")
		busy.receiveOne(func(r *v2.ReceiveMessageRequest) { r.AutoRenew = true })
		for range 30 { // five minutes
			time.Sleep(10 * time.Second)
			_, err := busy.Heartbeat(busy.ctx, &v2.HeartbeatRequest{})
			must(t, err)
			second.receiveNone()
		}
		left := time.Now()
		must(t, busy.conn.Close())
		for len(second.receive().messages) == 0 {
			if d := time.Since(left); d > 61*time.Second {
				t.Fatalf("still out %v after its client left", d)
			}
		}
	})
}

// C107: a message wakes the one poll that takes it.
func TestC107_OneMessageWakesOnePoll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const polls = 200
		f := start(t)
		c := f.client("c")
		answered := make(chan answer, polls)
		var g errgroup.Group
		for range polls {
			g.Go(func() error {
				a, err := c.tryReceive(c.ctx, func(r *v2.ReceiveMessageRequest) { r.BatchSize = 1 })
				answered <- a
				return err
			})
		}
		f.parked(polls)
		before := f.stats().Wakeups
		c.sent("alice", "first")
		if a := <-answered; len(a.messages) != 1 || idOf(a.messages[0]) != "first" {
			t.Fatalf("the first answer has %d messages", len(a.messages))
		}
		f.parked(polls - 1)
		if n := f.stats().Wakeups - before; n > 3 {
			t.Errorf("one message woke %d polls", n)
		}
		before = f.stats().Wakeups
		for i := range polls - 1 {
			c.sent("u"+strconv.Itoa(i), "id")
		}
		for range polls - 1 {
			if a := <-answered; len(a.messages) != 1 {
				t.Fatalf("a poll came back with %d messages", len(a.messages))
			}
		}
		must(t, g.Wait())
		if n := f.stats().Wakeups - before; n > 3*polls {
			t.Errorf("%d messages woke %d polls", polls-1, n)
		}
	})
}

func TestAnAttemptIDIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t).client("c")
		for bytes, want := range map[int]v2.Code{maxAttemptIDBytes: v2.Code_MESSAGE_NOT_FOUND, maxAttemptIDBytes + 1: v2.Code_BAD_REQUEST} {
			got := c.receive(func(r *v2.ReceiveMessageRequest) { r.AttemptId = new(strings.Repeat("x", bytes)) })
			expectCode(t, got.status, want)
		}
	})
}
