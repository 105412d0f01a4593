package broker_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/penstockmq/penstock/broker"
	"github.com/penstockmq/penstock/broker/dispatch"
	"github.com/penstockmq/penstock/suspend"
	"github.com/penstockmq/penstock/suspend/policy"
	"github.com/penstockmq/penstock/suspend/quota"
	"github.com/penstockmq/penstock/suspend/signal"
)

// onDemand are options with which groups and topics are created on demand.
func onDemand(fs vfs.FS) broker.Options {
	o := options(fs)
	o.AutoCreate = true
	o.AutoGroup.Retention = time.Hour
	return o
}

// use is the use of a group; false if there is no such group.
func use(t *testing.T, b *broker.Broker, name string) (broker.GroupUse, bool) {
	t.Helper()
	s, err := b.Stats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, topic := range s.Topics {
		for _, u := range topic.Uses {
			if u.Name == name {
				return u, true
			}
		}
	}
	return broker.GroupUse{}, false
}

// receiveAs polls once in the name of a group.
func receiveAs(t *testing.T, b *broker.Broker, name string) error {
	t.Helper()
	r := request("someone", 1, 0)
	r.Group = name
	_, err := b.Receive(t.Context(), r)
	return err
}

func TestOnlyAReceiveCreatesGroupAndTopic(t *testing.T) {
	t.Parallel()
	b := open(t, onDemand(vfs.NewMem()))
	ctx := t.Context()
	sync := func(action dispatch.SyncAction, names ...string) error {
		return b.SyncSubscription(ctx, broker.SyncRequest{Topic: "other", Group: "typo", Client: "x", Action: action, Names: names})
	}
	for _, q := range []struct {
		name string
		ask  func() error
		want error
	}{
		{"check of the topic", func() error { return b.CheckTopic("other") }, nil},
		{"check of the group", func() error { return b.CheckGroup(ctx, "other", "typo") }, nil},
		{"hold", func() error {
			_, err := b.HoldFor(ctx, topic, "typo", suspend.Target{Scope: suspend.All}, time.Second, "x", "x")
			return err
		}, broker.ErrGroupNotFound},
		{"ack", func() error { _, err := b.Ack(ctx, topic, "typo", []string{"h"}); return err }, broker.ErrGroupNotFound},
		{"settle", func() error {
			return b.SettleWith(ctx, topic, "typo", "h", broker.Settlement{Settlement: quota.Settlement{Outcome: quota.Used}})
		}, broker.ErrGroupNotFound},
		{"seek", func() error { return b.Seek(ctx, topic, "typo", "a", broker.Position{Kind: broker.AtMin}) }, broker.ErrGroupNotFound},
		{"recall", func() error { _, err := b.Recall(ctx, "other", "h"); return err }, broker.ErrTopicNotFound},
		{"an empty complete set", func() error { return sync(dispatch.CompleteAdd) }, nil},
		{"removal of a name", func() error { return sync(dispatch.PartialRemove, "a") }, nil},
		{"removal of all", func() error { return sync(dispatch.CompleteRemove) }, nil},
	} {
		if err := q.ask(); !errors.Is(err, q.want) {
			t.Errorf("%s: error %v, want %v", q.name, err, q.want)
		}
		if n := len(b.Groups()); n != 1 {
			t.Fatalf("%s: %d groups exist, want the configured one", q.name, n)
		}
		if n := len(b.Topics()); n != 1 {
			t.Fatalf("%s: %d topics exist, want the configured one", q.name, n)
		}
	}
	if err := sync(dispatch.PartialAdd, "a"); err != nil { // it is said once, so it must be kept
		t.Fatal(err)
	}
	if err := receiveAs(t, b, "second"); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"typo", "second"} {
		if g, ok := b.Group(name); !ok || !g.Auto || g.Retention != time.Hour {
			t.Errorf("group %s: %+v, %v; want one made on demand", name, g, ok)
		}
	}
	if o, ok := b.Topic("other"); !ok || !o.Auto {
		t.Errorf("topic: %+v, %v; want one made on demand", o, ok)
	}
}

func TestGroupsAndTopicsMadeOnDemandAreBounded(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	o := onDemand(fs)
	o.MaxAutoGroups, o.MaxAutoTopics = 3, 2
	b := open(t, o)
	for i := range 3 {
		if err := receiveAs(t, b, fmt.Sprint("g", i)); err != nil {
			t.Fatal(err)
		}
	}
	check := func(b *broker.Broker) {
		t.Helper()
		for what, err := range map[string]error{"receive": receiveAs(t, b, "g3"), "check": b.CheckGroup(t.Context(), topic, "g3")} {
			if !errors.Is(err, broker.ErrGroupNotFound) || !strings.Contains(err.Error(), "at most 3 (max-auto-groups)") {
				t.Errorf("%s of a fourth group: error %v, want one that names the bound", what, err)
			}
		}
	}
	check(b)
	for i := range 2 {
		if _, err := b.Send(t.Context(), fmt.Sprint("t", i), []broker.Message{{Lite: "a", ID: "1", Body: []byte("x")}}); err != nil {
			t.Fatal(err)
		}
	}
	_, err := b.Send(t.Context(), "t2", []broker.Message{{Lite: "a", ID: "1", Body: []byte("x")}})
	for what, err := range map[string]error{"send": err, "check": b.CheckTopic("t2")} {
		if !errors.Is(err, broker.ErrTopicNotFound) || !strings.Contains(err.Error(), "at most 2 (max-auto-topics)") {
			t.Errorf("%s to a third topic: error %v, want one that names the bound", what, err)
		}
	}
	closeBroker(t, b)
	b = open(t, o)
	check(b) // after a restart the broker still knows which were made on demand
	if err := b.CreateGroup(t.Context(), broker.GroupConfig{Name: "g3", Topic: topic}); err != nil {
		t.Errorf("an operator's group: %v", err)
	}
	if err := b.DeleteGroup(t.Context(), "g0"); err != nil {
		t.Fatal(err)
	}
	if err := receiveAs(t, b, "g4"); err != nil {
		t.Errorf("a group in the place of a deleted one: %v", err)
	}
}

// TestAbandonedGroupLetsGoOfItsMessages: a mistyped group polled once. The messages kept for
// it are reported, and after its retention it is removed; restarts do not restart the time.
// The configured group without a consumer for the same time keeps its messages.
func TestAbandonedGroupLetsGoOfItsMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := vfs.NewMem()
		b := open(t, onDemand(fs))
		if err := receiveAs(t, b, "typo"); err != nil {
			t.Fatal(err)
		}
		for i := range 10 {
			send(t, b, fmt.Sprint(i), "a", "b")
		}
		drain(t, b)
		time.Sleep(5 * time.Minute) // a client counts for three minutes after its last sign of life
		u, ok := use(t, b, "typo")
		if !ok || u.Kept != 20 || u.Clients != 0 || u.Idle < time.Minute || u.Idle > 3*time.Minute {
			t.Errorf("use of the abandoned group: %+v, %v; want 20 messages, no client, idle for about two minutes", u, ok)
		}
		if u, _ := use(t, b, group); u.Kept != 0 {
			t.Errorf("%d messages are kept for the group that has read them all", u.Kept)
		}
		if n := stats(t, b).Messages; n != 20 {
			t.Fatalf("%d messages before the retention is over, want 20", n)
		}
		time.Sleep(30 * time.Minute)
		closeBroker(t, b)
		time.Sleep(10 * time.Hour) // the broker is down: no client could poll
		o := onDemand(fs)
		if b, err := broker.Open(o); err != nil {
			t.Fatal(err)
		} else {
			time.Sleep(10 * time.Minute)
			if _, ok := use(t, b, "typo"); !ok {
				t.Error("the group is removed before its retention is over")
			}
			time.Sleep(25 * time.Minute)
			if u, ok := use(t, b, "typo"); ok {
				t.Errorf("the group is still there after its retention: %+v", u)
			}
			if n := stats(t, b).Messages; n != 0 {
				t.Errorf("%d messages are left, want none", n)
			}
			if n := b.Metrics().RetiredMessages.Load(); n != 20 || b.Metrics().GroupsRetired.Load() != 1 {
				t.Errorf("metrics: %d messages of %d groups, want 20 of 1", n, b.Metrics().GroupsRetired.Load())
			}
			if _, ok := use(t, b, group); !ok {
				t.Error("the configured group is removed; it has no retention")
			}
			if _, err := b.Send(t.Context(), topic, []broker.Message{{Lite: "a", ID: "1", Body: []byte("x")}}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(20 * time.Hour)
			if u, _ := use(t, b, group); u.Kept != 1 || stats(t, b).Messages != 1 {
				t.Errorf("the configured group was away for 20 h: %+v, want its message kept", u)
			}
			closeBroker(t, b)
		}
	})
}

func TestAGroupWithAClientIsNotRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := open(t, onDemand(vfs.NewMem()))
		for range 60 {
			if err := receiveAs(t, b, "live"); err != nil {
				t.Fatal(err)
			}
			time.Sleep(2 * time.Minute)
		}
		if u, ok := use(t, b, "live"); !ok || u.Idle != 0 {
			t.Errorf("a group whose client polls: %+v, %v; want it there and not idle", u, ok)
		}
		closeBroker(t, b)
	})
}

// TestAConfiguredGroupComesBack: the operator set a retention; the group is removed, and a
// consumer finds it again although groups are not created on demand.
func TestAConfiguredGroupComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := options(vfs.NewMem())
		o.Groups[0].Retention = time.Hour
		b := open(t, o)
		time.Sleep(2 * time.Hour)
		if _, ok := use(t, b, group); ok {
			t.Fatal("the group is still there")
		}
		send(t, b, "x", "a")
		if d := one(t, b, 0); string(d.Body) != "x" {
			t.Errorf("got %q", d.Body)
		}
		if g, ok := b.Group(group); !ok || g.Auto || !g.Wildcard {
			t.Errorf("group %+v, %v; want the configured one", g, ok)
		}
		closeBroker(t, b)
	})
}

// stalled is an Observer that holds up the committer, as a disk that does not answer.
type stalled struct{ until chan struct{} }

func (stalled) QueueTime(time.Duration) {}
func (stalled) Turn(time.Duration)      {}
func (s stalled) Commit(time.Duration)  { <-s.until }

// openBusy opens a broker whose loop has all turns outstanding and a full queue, until
// release, which waits for them. It is for a bubble.
func openBusy(t *testing.T) (b *broker.Broker, release func()) {
	t.Helper()
	disk := stalled{make(chan struct{})}
	o := options(vfs.NewMem())
	o.Observer, o.MaxEvents = disk, 1
	opened := make(chan struct{})
	go func() { // while it is opened the disk works
		defer close(opened)
		var err error
		if b, err = broker.Open(o); err != nil {
			t.Error(err)
		}
	}()
	for open := true; open; {
		select {
		case disk.until <- struct{}{}:
		case <-opened:
			open = false
		}
	}
	var wait sync.WaitGroup
	for i := range 70 { // more turns than may be under way, and one more to fill the queue
		wait.Go(func() {
			_, _ = b.Send(t.Context(), topic, []broker.Message{{Lite: "a", ID: fmt.Sprint(i), Body: []byte("x")}})
		})
		synctest.Wait()
	}
	if _, err := b.Send(t.Context(), topic, []broker.Message{{Lite: "a", ID: "x", Body: []byte("x")}}); !errors.Is(err, broker.ErrBusy) {
		t.Fatalf("a send: error %v, want that the loop is busy", err)
	}
	return b, func() { close(disk.until); wait.Wait() }
}

// TestDeleteGroupWhileTheLoopIsBusy: the registry forgot the group, the loop never heard
// of it, and the group kept its messages for ever.
func TestDeleteGroupWhileTheLoopIsBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, release := openBusy(t)
		deleted := make(chan error, 1)
		go func() { deleted <- b.DeleteGroup(t.Context(), group) }()
		synctest.Wait()
		release()
		if err := <-deleted; err != nil {
			t.Errorf("delete: %v", err)
		}
		if _, ok := use(t, b, group); ok {
			t.Error("the loop still has the group")
		}
		if _, ok := b.Group(group); ok {
			t.Error("the registry still has the group")
		}
		closeBroker(t, b)
	})
}

// TestPolicyAndSignalsReachABusyLoop: they waited for room in the queue of the commands,
// and held up every other change and reader of the policy meanwhile.
func TestPolicyAndSignalsReachABusyLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, release := openBusy(t)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		doc := policy.Empty()
		if err := b.SetPolicy(ctx, doc); err != nil {
			t.Errorf("policy: %v", err)
		}
		if b.Policy() != doc {
			t.Error("the policy is not in force")
		}
		now := time.Now()
		if err := b.SetSignal(ctx, signal.Signal{
			Target: suspend.Target{Scope: suspend.Column, Name: "m"}, Source: "s", Kind: signal.Alarm, At: now, Until: now.Add(time.Hour),
		}); err != nil {
			t.Errorf("signal: %v", err)
		}
		release()
		closeBroker(t, b)
	})
}
