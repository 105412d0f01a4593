package broker_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/penstockmq/penstock/broker"
	"github.com/penstockmq/penstock/broker/dispatch"
)

func TestMessageComesBackAsItWasSent(t *testing.T) {
	b := open(t, options(vfs.NewMem()))
	born := time.UnixMilli(1_700_000_000_123).UTC()
	in := broker.Message{
		Lite: "alice", ID: "id-1", Tag: "tag", Keys: []string{"k1", "k2"}, Properties: map[string]string{"p": "v"},
		Body: []byte("hello"), Encoding: broker.Gzip, Born: born, BornHost: "host", TraceContext: "trace",
	}
	receipts, err := b.Send(t.Context(), topic, []broker.Message{in})
	if err != nil {
		t.Fatal(err)
	}
	if receipts[0].MessageID != "id-1" || receipts[0].Offset != 0 || receipts[0].RecallHandle == "" {
		t.Errorf("receipt %+v", receipts[0])
	}
	d := one(t, b, time.Second)
	if d.Lite != in.Lite || d.ID != in.ID || d.Tag != in.Tag || !slices.Equal(d.Keys, in.Keys) || d.Properties["p"] != "v" ||
		string(d.Body) != "hello" || d.Encoding != broker.Gzip || !d.Born.Equal(born) || d.BornHost != "host" || d.TraceContext != "trace" {
		t.Errorf("delivery %+v", d)
	}
	if d.Attempt != 1 || d.Offset != 0 || d.Handle == "" || d.Stored.IsZero() {
		t.Errorf("delivery %+v", d)
	}
	ack(t, b, d)
	none(t, b, 0)
}

// TestC01_BucketBornWhileThePoolWaits sends to buckets that nobody has seen while a
// poll waits.
func TestC01_BucketBornWhileThePoolWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := open(t, options(vfs.NewMem()))
		const n = 1000
		seen := make(chan map[string]int)
		go func() {
			got := map[string]int{}
			for total := 0; total < n; {
				batch := poll(t, b, 32, 20*time.Second)
				for _, d := range batch {
					got[d.Lite]++
				}
				total += len(batch)
				ack(t, b, batch...)
			}
			seen <- got
		}()
		time.Sleep(2 * time.Second) // the poll waits
		for _, name := range bucketNames(n) {
			send(t, b, "x", name)
			time.Sleep(5 * time.Millisecond)
		}
		last := time.Now()
		got := <-seen
		if late := time.Since(last); late > time.Second {
			t.Errorf("the last message came %v after its send", late)
		}
		for _, name := range bucketNames(n) {
			if got[name] != 1 {
				t.Fatalf("bucket %s was delivered %d times", name, got[name])
			}
		}
		if s := stats(t, b); s.Buckets != n || s.Messages != 0 {
			t.Errorf("%d buckets and %d messages, want %d and 0", s.Buckets, s.Messages, n)
		}
		closeBroker(t, b)
	})
}

// TestC05_WritesBehindABlockedHead checks that writes which cannot be delivered do
// not make a waiting poll try.
func TestC05_WritesBehindABlockedHead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := open(t, options(vfs.NewMem()))
		send(t, b, "head", "a")
		one(t, b, 0)
		before := stats(t, b).Pulls
		begin := time.Now()
		ended := make(chan time.Duration)
		go func() {
			none(t, b, 20*time.Second)
			ended <- time.Since(begin)
		}()
		for range 5000 {
			send(t, b, "behind", "a")
			time.Sleep(2 * time.Millisecond)
		}
		if d := <-ended; d < 20*time.Second || d > 20300*time.Millisecond {
			t.Errorf("the poll ended after %v", d)
		}
		if tries := stats(t, b).Pulls - before; tries > 50 {
			t.Errorf("the poll was tried %d times, want at most 50", tries)
		}
		closeBroker(t, b)
	})
}

// TestC20_AckAfterChangeOfInvisibleTime acks after a change: the handle stays the same.
func TestC20_AckAfterChangeOfInvisibleTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := open(t, options(vfs.NewMem()))
		send(t, b, "x", "a")
		d := one(t, b, 0)
		if err := b.ChangeInvisible(t.Context(), topic, group, d.Handle, 10*time.Second); err != nil {
			t.Fatal(err)
		}
		ack(t, b, d)
		none(t, b, 15*time.Second)
		closeBroker(t, b)
	})
}

// TestRenewalWhoseAnswerWasLost repeats a renewal with the handle of the delivery, as a
// client does that never saw the answer, and once more after a kill of the broker.
func TestRenewalWhoseAnswerWasLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := vfs.NewCrashableMem()
		b := open(t, options(fs))
		send(t, b, "x", "a")
		d := one(t, b, 0) // for a minute
		renew := func() {
			t.Helper()
			if err := b.ChangeInvisible(t.Context(), topic, group, d.Handle, 30*time.Second); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(50 * time.Second)
		renew() // its answer is lost
		time.Sleep(4 * time.Second)
		renew()
		none(t, b, 29*time.Second)
		copied := fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rand.New(rand.NewPCG(1, 1))})
		closeBroker(t, b)
		b = open(t, options(copied))
		renew()
		none(t, b, 29*time.Second)
		ack(t, b, d)
		none(t, b, time.Minute)
		closeBroker(t, b)
	})
}

// TestC107_OneMessageWakesOnePoll counts wake-ups of 200 waiting polls.
func TestC107_OneMessageWakesOnePoll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := open(t, options(vfs.NewMem()))
		const polls = 200
		ctx, cancel := context.WithCancel(t.Context())
		got := make(chan int, polls)
		for range polls {
			go func() {
				ds, _ := b.Receive(ctx, request("c", 1, 30*time.Second))
				got <- len(ds)
			}()
		}
		synctest.Wait()
		before := stats(t, b)
		send(t, b, "x", "a")
		synctest.Wait()
		after := stats(t, b)
		if len(got) != 1 || after.Wakeups-before.Wakeups > 3 || after.Pulls-before.Pulls > 3 {
			t.Errorf("%d polls ended, %d wake-ups, %d tries; want 1 poll and at most 3 of each", len(got), after.Wakeups-before.Wakeups, after.Pulls-before.Pulls)
		}
		for _, name := range bucketNames(polls - 1) {
			send(t, b, "x", name)
		}
		synctest.Wait()
		if s := stats(t, b); s.Wakeups-after.Wakeups > 600 || s.Waiters != 0 {
			t.Errorf("%d wake-ups, %d still waiting", s.Wakeups-after.Wakeups, s.Waiters)
		}
		cancel()
		total := 0
		for range polls {
			total += <-got
		}
		if total != polls {
			t.Errorf("%d messages were delivered, want %d", total, polls)
		}
		closeBroker(t, b)
	})
}

// TestReleasedMessageIsNotCounted is C22 (a) at this level: a message that did not
// reach its client is another's at once.
func TestC22_ReleasedMessageIsAnothersAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := open(t, options(vfs.NewMem()))
		send(t, b, "x", "a")
		d := one(t, b, 0)
		b.Release(topic, []string{d.Handle})
		again := one(t, b, time.Second)
		if again.Attempt != 1 {
			t.Errorf("attempt %d, want 1", again.Attempt)
		}
		closeBroker(t, b)
	})
}

func TestPollThatIsGivenUpLosesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := open(t, options(vfs.NewMem()))
		for range 50 {
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan int)
			go func() {
				got, _ := b.Receive(ctx, request("c", 1, time.Minute))
				done <- len(got)
			}()
			synctest.Wait()
			go cancel() // races with the message
			send(t, b, "x", "a")
			if n := <-done; n == 0 {
				d := one(t, b, time.Second)
				if d.Attempt != 1 {
					t.Fatalf("attempt %d of a message that was never seen", d.Attempt)
				}
				ack(t, b, d)
				continue
			}
			time.Sleep(time.Minute) // the lease ends
			ack(t, b, one(t, b, time.Second))
		}
		closeBroker(t, b)
	})
}

func TestFailedMessageIsRetriedAndBuried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := options(vfs.NewMem())
		o.Groups[0].MaxAttempts = 3
		b := open(t, o)
		send(t, b, "poison", "a")
		send(t, b, "good", "a")
		for attempt := 1; attempt <= 3; attempt++ {
			d := one(t, b, 2*time.Minute)
			if d.Attempt != attempt || string(d.Body) != "poison" {
				t.Fatalf("attempt %d of %q, want %d of poison", d.Attempt, d.Body, attempt)
			}
		}
		d := one(t, b, 2*time.Minute)
		if string(d.Body) != "good" {
			t.Fatalf("after the poison came %q", d.Body)
		}
		ack(t, b, d)
		dead, err := b.DeadLetters(t.Context(), group, 0, 10)
		if err != nil || len(dead) != 1 {
			t.Fatalf("dead letters %+v, %v", dead, err)
		}
		if l := dead[0]; string(l.Message.Body) != "poison" || l.Attempts != 3 || l.Message.Lite != "a" || l.Reason == "" {
			t.Errorf("dead letter %+v", l)
		}
		n, err := b.Redrive(t.Context(), group, []uint64{dead[0].Seq, dead[0].Seq, 99})
		if err != nil || n != (broker.Redriven{Sent: 1}) {
			t.Fatalf("redrive: %+v, %v", n, err)
		}
		if d := one(t, b, time.Second); string(d.Body) != "poison" || d.Attempt != 1 {
			t.Errorf("after the redrive came %q, attempt %d", d.Body, d.Attempt)
		}
		if dead, _ := b.DeadLetters(t.Context(), group, 0, 10); len(dead) != 0 {
			t.Errorf("%d dead letters are left", len(dead))
		}
		closeBroker(t, b)
	})
}

func TestRecall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := open(t, options(vfs.NewMem()))
		first := send(t, b, "1", "a")[0]
		second := send(t, b, "2", "a")[0]
		d := one(t, b, 0)
		if _, err := b.Recall(t.Context(), topic, first.RecallHandle); !errors.Is(err, broker.ErrNotQueued) {
			t.Errorf("recall of a running message: %v", err)
		}
		id, err := b.Recall(t.Context(), topic, second.RecallHandle)
		if err != nil || id != second.MessageID {
			t.Errorf("recall: %q, %v", id, err)
		}
		if _, err := b.Recall(t.Context(), topic, second.RecallHandle); !errors.Is(err, broker.ErrNotQueued) {
			t.Errorf("second recall: %v", err)
		}
		if _, err := b.Recall(t.Context(), topic, "garbage"); !errors.Is(err, broker.ErrInvalidHandle) {
			t.Errorf("recall of garbage: %v", err)
		}
		ack(t, b, d)
		none(t, b, time.Second)
		closeBroker(t, b)
	})
}

func TestExpiredMessageIsNotDelivered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := vfs.NewMem()
		b := open(t, options(fs))
		deadline := time.Now().Add(time.Second).UnixMilli()
		for _, m := range []broker.Message{
			{Lite: "a", Body: []byte("late"), Properties: map[string]string{"penstock-deadline": strconv.FormatInt(deadline, 10)}},
			{Lite: "a", Body: []byte("good")},
		} {
			if _, err := b.Send(t.Context(), topic, []broker.Message{m}); err != nil {
				t.Fatal(err)
			}
		}
		// After a restart the deadline is only in the message itself.
		closeBroker(t, b)
		time.Sleep(2 * time.Second)
		b = open(t, options(fs))
		if d := one(t, b, time.Second); string(d.Body) != "good" {
			t.Errorf("delivered %q", d.Body)
		}
		if n := b.Metrics().Expired.Load(); n != 1 {
			t.Errorf("%d counted as expired, want 1", n)
		}
		closeBroker(t, b)
	})
}

func TestCapsRefuseWithTheirError(t *testing.T) {
	o := options(vfs.NewMem())
	o.Topics[0].MaxMessages, o.Topics[0].MaxBytes, o.Topics[0].MaxBuckets, o.Topics[0].MaxWaiters = 2, 100, 2, 1
	o.MaxBodyBytes = 80
	b := open(t, o)
	try := func(name string, size int) error {
		_, err := b.Send(t.Context(), topic, []broker.Message{{Lite: name, Body: make([]byte, size)}})
		return err
	}
	for _, c := range []struct {
		name string
		size int
		want error
	}{
		{"a", 81, broker.ErrBodyTooLarge},
		{"a", 80, nil},
		{"a", 21, broker.ErrBucketBytes},
		{"a", 20, nil},
		{"a", 0, broker.ErrBucketFull},
		{"b", 1, nil},
		{"c", 1, broker.ErrTooManyBuckets},
	} {
		if err := try(c.name, c.size); !errors.Is(err, c.want) {
			t.Errorf("send of %d bytes to %s: %v, want %v", c.size, c.name, err, c.want)
		}
	}
	// A send to several buckets is refused as a whole.
	_, err := b.Send(t.Context(), topic, []broker.Message{{Lite: "b", Body: []byte("x")}, {Lite: "a", Body: []byte("x")}})
	if !errors.Is(err, broker.ErrBucketFull) {
		t.Errorf("send to b and a: %v", err)
	}
	if got := drain(t, b); len(got["b"]) != 1 || len(got["a"]) != 2 {
		t.Errorf("stored %v", got)
	}
}

func TestTooManyWaiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := options(vfs.NewMem())
		o.Topics[0].MaxWaiters = 1
		b := open(t, o)
		var wg sync.WaitGroup
		wg.Go(func() { _, _ = b.Receive(t.Context(), request("c", 1, time.Second)) })
		synctest.Wait()
		if _, err := b.Receive(t.Context(), request("c", 1, time.Second)); !errors.Is(err, broker.ErrTooManyWaiters) {
			t.Errorf("second poll: %v", err)
		}
		wg.Wait()
		closeBroker(t, b)
	})
}

func TestBadInputIsRefused(t *testing.T) {
	b := open(t, options(vfs.NewMem()))
	ctx := t.Context()
	d := func() broker.Delivery { send(t, b, "x", "a"); return one(t, b, 0) }()
	for name, got := range map[string]error{
		"unknown topic": second(b.Send(ctx, "nowhere", []broker.Message{{Lite: "a"}})),
		"unknown group": second(b.Ack(ctx, topic, "nobody", []string{d.Handle})),
		"bad property":  second(b.Send(ctx, topic, []broker.Message{{Lite: "a", Properties: map[string]string{"penstock-deadline": "soon"}}})),
		"no messages":   second(b.Send(ctx, topic, nil)),
		"max messages":  second(b.Receive(ctx, request("c", 0, 0))),
		"bad handle":    b.Suspend(ctx, topic, group, d.Handle+"A", 0, "", ""),
		"no bucket":     second(b.Bucket(ctx, topic, "none")),
	} {
		want := map[string]error{
			"unknown topic": broker.ErrTopicNotFound, "unknown group": broker.ErrGroupNotFound, "bad property": broker.ErrInvalidArgument,
			"no messages": broker.ErrInvalidArgument, "max messages": broker.ErrInvalidArgument, "bad handle": broker.ErrInvalidHandle,
			"no bucket": broker.ErrBucketNotFound,
		}[name]
		if !errors.Is(got, want) {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
}

func second[T any](_ T, err error) error { return err }

func TestGroupsHaveTheirOwnPositions(t *testing.T) {
	b := open(t, options(vfs.NewMem()))
	send(t, b, "1", "a")
	if err := b.CreateGroup(t.Context(), broker.GroupConfig{Name: "late", Topic: topic, Wildcard: true}); err != nil {
		t.Fatal(err)
	}
	ack(t, b, one(t, b, 0))
	r := request("d", 1, 0)
	r.Group = "late"
	if err := b.SyncSubscription(t.Context(), broker.SyncRequest{Topic: topic, Group: "late", Client: "d", Action: dispatch.CompleteAdd}); err != nil {
		t.Fatal(err)
	}
	got, err := b.Receive(t.Context(), r)
	if err != nil || len(got) != 1 || string(got[0].Body) != "1" {
		t.Fatalf("the second group got %v, %v", got, err)
	}
	if err := b.DeleteTopic(t.Context(), topic); !errors.Is(err, broker.ErrInUse) {
		t.Errorf("delete of a topic that is read: %v", err)
	}
	for _, g := range []string{"late", group} {
		if err := b.DeleteGroup(t.Context(), g); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.DeleteTopic(t.Context(), topic); err != nil {
		t.Fatal(err)
	}
	if len(b.Topics()) != 0 || len(b.Groups()) != 0 {
		t.Errorf("left: %v, %v", b.Topics(), b.Groups())
	}
}
