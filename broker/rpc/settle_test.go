package rpc

import (
	"math"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	v2 "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/penstockmq/penstock/broker/rpc/penstockv1"
)

func TestAckEntriesHaveTheirOwnStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t).client("c")
		for i := range 3 {
			c.sent("u"+strconv.Itoa(i), "id")
		}
		var handles []string
		for _, m := range c.receive().messages {
			handles = append(handles, handle(m))
		}
		out := c.ack(handles...)
		expectCode(t, out.GetStatus(), v2.Code_OK)
		for i, e := range out.GetEntries() {
			expectCode(t, e.GetStatus(), v2.Code_OK)
			if e.GetReceiptHandle() != handles[i] || e.GetMessageId() != "of "+handles[i] {
				t.Errorf("entry %d is %v", i, e)
			}
		}
		// Acking again is fine; a made-up handle is not, and is told apart.
		out = c.ack(handles[0], "made-up", handles[1])
		expectCode(t, out.GetStatus(), v2.Code_MULTIPLE_RESULTS)
		for i, want := range []v2.Code{v2.Code_OK, v2.Code_INVALID_RECEIPT_HANDLE, v2.Code_OK} {
			expectCode(t, out.GetEntries()[i].GetStatus(), want)
		}
		expectCode(t, c.ack("made-up", "").GetStatus(), v2.Code_INVALID_RECEIPT_HANDLE)
	})
}

func TestAckRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t)
		c := f.client("c")
		c.sent("alice", "id")
		h := handle(c.receiveOne())
		expectCode(t, c.ack().GetStatus(), v2.Code_BAD_REQUEST)
		expectCode(t, c.ack(make([]string, maxAckEntries+1)...).GetStatus(), v2.Code_BAD_REQUEST)
		for _, x := range []struct {
			topic, group string
			want         v2.Code
		}{
			{"unknown", "pool", v2.Code_TOPIC_NOT_FOUND},
			{"requests", "unknown", v2.Code_CONSUMER_GROUP_NOT_FOUND},
			{"a b", "pool", v2.Code_ILLEGAL_TOPIC},
			{"requests", "", v2.Code_ILLEGAL_CONSUMER_GROUP},
		} {
			other := *c
			other.topic, other.group = x.topic, x.group
			expectCode(t, other.ack(h).GetStatus(), x.want)
			expectCode(t, other.changeInvisible(h, time.Second, false).GetStatus(), x.want)
			expectCode(t, other.changeInvisible(h, time.Second, true).GetStatus(), x.want)
			expectCode(t, other.deadLetter(h), x.want)
			expectCode(t, other.sync(v2.LiteSubscriptionAction_COMPLETE_ADD, nil), x.want)
		}
		expectCode(t, c.ack(h).GetStatus(), v2.Code_OK) // none of it touched the lease
	})
}

func (c *stub) deadLetter(handle string) *v2.Status {
	c.f.t.Helper()
	out, err := c.ForwardMessageToDeadLetterQueue(c.ctx, &v2.ForwardMessageToDeadLetterQueueRequest{
		Topic: resource(c.topic), Group: resource(c.group), ReceiptHandle: handle, DeliveryAttempt: 3, MaxDeliveryAttempts: 3,
	})
	must(c.f.t, err)
	return out.GetStatus()
}

// C20: the handle that a change of the invisible time returns settles the message, and so
// does the one of the delivery: a client that lost the answer has no other.
func TestC20_HandleAfterChangeOfInvisibleTime(t *testing.T) {
	setup := func(t *testing.T) (c *stub, h1, h2 string) {
		t.Helper()
		c = start(t).client("c")
		for i := range 10 {
			c.sent("alice", strconv.Itoa(i))
		}
		for range 4 {
			expectCode(t, c.ack(handle(c.receiveOne())).GetStatus(), v2.Code_OK)
		}
		h1 = handle(c.receiveOne())
		out := c.changeInvisible(h1, 10*time.Second, false)
		expectCode(t, out.GetStatus(), v2.Code_OK)
		return c, h1, out.GetReceiptHandle()
	}
	t.Run("new handle", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c, _, h2 := setup(t)
			expectCode(t, c.ack(h2).GetStatus(), v2.Code_OK)
			time.Sleep(15 * time.Second)
			for i := range 5 {
				m := c.receiveOne()
				if want := strconv.Itoa(5 + i); idOf(m) != want || attempt(m) != 1 {
					t.Errorf("received %s in attempt %d, want %s in its first", idOf(m), attempt(m), want)
				}
				expectCode(t, c.ack(handle(m)).GetStatus(), v2.Code_OK)
			}
			c.receiveNone()
		})
	})
	// The answer to the change was lost: the client has only the handle of the delivery.
	t.Run("handle of the delivery", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c, h1, _ := setup(t)
			expectCode(t, c.changeInvisible(h1, 10*time.Second, false).GetStatus(), v2.Code_OK)
			expectCode(t, c.ack(h1).GetStatus(), v2.Code_OK)
			time.Sleep(15 * time.Second)
			if m := c.receiveOne(); idOf(m) != "5" || attempt(m) != 1 {
				t.Errorf("received %s in attempt %d, want 5 in its first", idOf(m), attempt(m))
			}
		})
	})
}

// A change that extended nothing has to be answered OK, or official clients would repeat it for
// ever. The text of the status tells it from one that did.
func TestChangeInvisibleOfAnEndedLeaseSaysSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t).client("c")
		c.sent("alice", "id")
		h := handle(c.receiveOne())
		out := c.changeInvisible(h, 10*time.Second, false)
		expectCode(t, out.GetStatus(), v2.Code_OK)
		if out.GetStatus().GetMessage() != "ok" || out.GetReceiptHandle() != h {
			t.Errorf("renewed: %v", out)
		}
		time.Sleep(11 * time.Second)
		out = c.changeInvisible(h, 10*time.Second, false)
		expectCode(t, out.GetStatus(), v2.Code_OK)
		if out.GetStatus().GetMessage() != staleRenewal || out.GetReceiptHandle() != h {
			t.Errorf("after the lease's end: %v", out)
		}
	})
}

// Renew answers each entry by itself, and a stale handle is no OK.
func TestRenew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t).client("c")
		c.sent("a", "runs")
		runs := handle(c.receiveOne())
		c.sent("b", "ends")
		ends := handle(c.receiveOne())
		expectCode(t, c.changeInvisible(ends, time.Second, false).GetStatus(), v2.Code_OK)
		time.Sleep(2 * time.Second)
		minute := durationpb.New(time.Minute)
		out, err := c.penstock().Renew(c.ctx, &penstockv1.RenewRequest{Topic: "requests", Group: "pool", Entries: []*penstockv1.RenewEntry{
			{ReceiptHandle: runs, Duration: durationpb.New(3 * time.Minute)},
			{ReceiptHandle: ends, Duration: minute},
			{ReceiptHandle: "none", Duration: minute},
			{ReceiptHandle: runs},
			{ReceiptHandle: runs, Duration: durationpb.New(12*time.Hour + 1)},
			{ReceiptHandle: runs, Duration: durationpb.New(-1)},
		}})
		must(t, err)
		for i, want := range []v2.Code{
			v2.Code_OK, v2.Code_INVALID_RECEIPT_HANDLE, v2.Code_INVALID_RECEIPT_HANDLE,
			v2.Code_ILLEGAL_INVISIBLE_TIME, v2.Code_ILLEGAL_INVISIBLE_TIME, v2.Code_ILLEGAL_INVISIBLE_TIME,
		} {
			r := out.GetResults()[i]
			if v2.Code(r.GetCode()) != want || (r.GetMessage() == "") != (want == v2.Code_OK) {
				t.Errorf("entry %d: %v, want %v", i, r, want)
			}
		}
		m := c.receiveOne()
		if idOf(m) != "ends" {
			t.Errorf("received %s", idOf(m))
		}
		expectCode(t, c.ack(handle(m)).GetStatus(), v2.Code_OK)
		time.Sleep(2*time.Minute + 50*time.Second)
		c.receiveNone()
		expectCode(t, c.ack(runs).GetStatus(), v2.Code_OK)
		_, err = c.penstock().Renew(c.ctx, &penstockv1.RenewRequest{Topic: "requests", Group: "pool"})
		expectFault(t, err, codes.InvalidArgument, v2.Code_BAD_REQUEST, "entries")
		_, err = c.penstock().Renew(c.ctx, &penstockv1.RenewRequest{
			Topic: "requests", Group: "unknown", Entries: []*penstockv1.RenewEntry{{ReceiptHandle: runs, Duration: minute}},
		})
		expectFault(t, err, codes.NotFound, v2.Code_CONSUMER_GROUP_NOT_FOUND, "unknown")
	})
}

func TestSuspendHoldsTheBucketAndCountsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t).client("c")
		c.sent("alice", "a")
		c.sent("bob", "b")
		begin := time.Now()
		for range 3 {
			a := c.receive()
			for _, m := range a.messages {
				if m.GetSystemProperties().GetLiteTopic() != "alice" {
					expectCode(t, c.ack(handle(m)).GetStatus(), v2.Code_OK)
					continue
				}
				if attempt(m) != 1 {
					t.Fatalf("attempt %d after suspends", attempt(m))
				}
				out := c.changeInvisible(handle(m), 30*time.Millisecond, true)
				expectCode(t, out.GetStatus(), v2.Code_OK)
				// Official clients suspend once for each message of a batch.
				expectCode(t, c.changeInvisible(handle(m), 30*time.Millisecond, true).GetStatus(), v2.Code_OK)
				expectCode(t, c.changeInvisible(out.GetReceiptHandle(), time.Hour, true).GetStatus(), v2.Code_OK)
			}
			c.receiveNone()
		}
		m := c.receiveOne()
		if d := time.Since(begin); d < 90*time.Millisecond || d > 120*time.Millisecond {
			t.Errorf("three suspends of 30ms took %v", d)
		}
		if idOf(m) != "a" || attempt(m) != 1 {
			t.Errorf("received %s in attempt %d", idOf(m), attempt(m))
		}
	})
}

func TestChangeInvisibleRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t).client("c")
		c.sent("alice", "id")
		h := handle(c.receiveOne())
		for _, suspend := range []bool{false, true} {
			for _, d := range []time.Duration{-1, math.MinInt64, 30 * 24 * time.Hour, math.MaxInt64} {
				expectCode(t, c.changeInvisible(h, d, suspend).GetStatus(), v2.Code_ILLEGAL_INVISIBLE_TIME)
			}
			expectCode(t, c.changeInvisible("made-up", time.Second, suspend).GetStatus(), v2.Code_INVALID_RECEIPT_HANDLE)
		}
		expectCode(t, c.changeInvisible(h, 12*time.Hour+1, false).GetStatus(), v2.Code_ILLEGAL_INVISIBLE_TIME)
		for _, d := range []*durationpb.Duration{nil, {Seconds: 1, Nanos: -1}, {Seconds: math.MaxInt64}} {
			out, err := c.ChangeInvisibleDuration(c.ctx, &v2.ChangeInvisibleDurationRequest{
				Topic: resource("requests"), Group: resource("pool"), ReceiptHandle: h, InvisibleDuration: d,
			})
			must(t, err)
			expectCode(t, out.GetStatus(), v2.Code_ILLEGAL_INVISIBLE_TIME)
		}
		expectCode(t, c.ack(h).GetStatus(), v2.Code_OK) // none of it touched the lease
		// A stale handle has no effect and is OK.
		for _, suspend := range []bool{false, true} {
			out := c.changeInvisible(h, time.Minute, suspend)
			expectCode(t, out.GetStatus(), v2.Code_OK)
			if out.GetReceiptHandle() == "" {
				t.Error("the answer has no handle")
			}
		}
		c.sent("alice", "next")
		if got := idOf(c.receiveOne(now)); got != "next" {
			t.Errorf("received %q", got)
		}
	})
}

// A lease that is cut to nothing gives the message back, as a failure.
func TestChangeInvisibleToZero(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t).client("c")
		c.sent("alice", "id")
		expectCode(t, c.changeInvisible(handle(c.receiveOne()), 0, false).GetStatus(), v2.Code_OK)
		if m := c.receiveOne(wait(time.Second)); attempt(m) != 2 {
			t.Errorf("attempt %d, want 2", attempt(m))
		}
	})
}

func TestForwardToDeadLetters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t)
		c := f.client("c")
		c.sent("alice", "bad")
		c.sent("alice", "good")
		h := handle(c.receiveOne())
		expectCode(t, c.deadLetter("made-up"), v2.Code_INVALID_RECEIPT_HANDLE)
		expectCode(t, c.deadLetter(h), v2.Code_OK)
		expectCode(t, c.deadLetter(h), v2.Code_OK) // stale: no effect
		if got := idOf(c.receiveOne()); got != "good" {
			t.Errorf("received %q, want what came after the dead letter", got)
		}
		dead, err := f.broker.DeadLetters(t.Context(), "pool", 0, 10)
		must(t, err)
		if len(dead) != 1 || dead[0].Message.ID != "bad" {
			t.Fatalf("dead letters %+v", dead)
		}
	})
}

// A message whose leases end becomes a dead letter after the group's last attempt.
func TestLeasesThatEndLeadToDeadLetters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, func(c *config) { c.group.MaxAttempts = 3 })
		c := f.client("c")
		c.sent("alice", "bad")
		begin := time.Now()
		for i := range 3 {
			if m := c.receiveOne(invisible(time.Second)); int(attempt(m)) != i+1 {
				t.Fatalf("delivery %d has attempt %d", i+1, attempt(m))
			}
		}
		if d := time.Since(begin); d < 2*time.Second || d > 2100*time.Millisecond {
			t.Errorf("two leases of a second took %v", d)
		}
		time.Sleep(2 * time.Second)
		c.receiveNone()
		dead, err := f.broker.DeadLetters(t.Context(), "pool", 0, 10)
		must(t, err)
		if len(dead) != 1 || dead[0].Message.ID != "bad" {
			t.Fatalf("dead letters %+v", dead)
		}
	})
}
