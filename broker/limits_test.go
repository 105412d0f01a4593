package broker_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/penstockmq/penstock/broker"
	"github.com/penstockmq/penstock/broker/lite"
	"github.com/penstockmq/penstock/suspend"
	"github.com/penstockmq/penstock/suspend/policy"
	"github.com/penstockmq/penstock/suspend/signal"
)

// document parses a policy given as the lines below its version.
func document(t *testing.T, lines ...string) *policy.Document {
	t.Helper()
	doc, err := policy.Parse([]byte("version: 1\n" + strings.Join(lines, "\n")))
	if err != nil {
		t.Fatal(err)
	}
	return doc
}

// cell is the name of the bucket of a user and a model.
func cell(t *testing.T, user, model string) string {
	t.Helper()
	name, err := lite.Encode(lite.Cell{User: user, Model: model})
	if err != nil {
		t.Fatal(err)
	}
	return name
}

// cells are buckets of one user, each of another model.
func cells(t *testing.T, user string, n int) []string {
	t.Helper()
	out := make([]string, n)
	for i := range out {
		out[i] = cell(t, user, fmt.Sprintf("m%02d", i))
	}
	return out
}

// killed is the disk as a process leaves it that is killed now: all that was written is
// there, synced or not.
func killed(fs *vfs.MemFS) *vfs.MemFS {
	return fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rand.New(rand.NewPCG(1, 1))})
}

// take polls and acks until nothing comes and returns how many came.
func take(t *testing.T, b *broker.Broker) int {
	t.Helper()
	n := 0
	for _, bodies := range drain(t, b) {
		n += len(bodies)
	}
	return n
}

// TestLimitSurvivesKill: a user with 100 requests a minute who has used them before the
// broker is killed gets none in the same minute after it.
func TestLimitSurvivesKill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := vfs.NewCrashableMem()
		o := options(fs)
		o.Policy = document(t, `rows: [{user: alice, window: 100/1m}]`)
		b := open(t, o)
		begin := time.Now()
		for i := range 15 {
			send(t, b, fmt.Sprint(i), cells(t, "alice", 10)...)
		}
		if n := take(t, b); n != 100 {
			t.Fatalf("%d delivered at first, want 100", n)
		}
		time.Sleep(10 * time.Second)
		o.FS = killed(fs)
		closeBroker(t, b)
		b = open(t, o)
		for time.Since(begin) < 59*time.Second {
			if n := take(t, b); n != 0 {
				t.Fatalf("%d more delivered %v after the first, want none in that minute", n, time.Since(begin))
			}
			time.Sleep(time.Second)
		}
		time.Sleep(2 * time.Second)
		if n := take(t, b); n != 50 {
			t.Errorf("%d delivered in the next minute, want the 50 that are left", n)
		}
		closeBroker(t, b)
	})
}

// TestInFlightEqualsLeasesAfterKill: what is out counts for its row after a kill, no
// more and no less, and frees it as before.
func TestInFlightEqualsLeasesAfterKill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := vfs.NewCrashableMem()
		o := options(fs)
		o.Policy = document(t, `rows: [{user: alice, in_flight: 3}]`)
		b := open(t, o)
		send(t, b, "x", cells(t, "alice", 10)...)
		send(t, b, "y", cell(t, "bob", "m"))
		first := poll(t, b, 32, 0)
		if len(first) != 4 {
			t.Fatalf("%d delivered, want 3 of alice and 1 of bob", len(first))
		}
		o.FS = killed(fs)
		closeBroker(t, b)
		b = open(t, o)
		none(t, b, 10*time.Second)
		s := stats(t, b).Groups[0]
		if s.Leases != 4 || s.Quota.InFlight != int64(s.Leases) {
			t.Fatalf("%d leases, %d in flight, want 4 of both", s.Leases, s.Quota.InFlight)
		}
		for i := range first {
			ack(t, b, first[i])
		}
		if got := poll(t, b, 32, 0); len(got) != 3 {
			t.Errorf("%d delivered after the acks, want 3", len(got))
		}
		time.Sleep(2 * time.Minute) // their leases end, and the slots are free for whoever has waited longest
		if got := poll(t, b, 32, 0); len(got) != 3 {
			t.Errorf("%d delivered after the leases, want 3 again", len(got))
		}
		if s := stats(t, b).Groups[0]; s.Quota.InFlight != int64(s.Leases) {
			t.Errorf("%d leases, %d in flight", s.Leases, s.Quota.InFlight)
		}
		closeBroker(t, b)
	})
}

// TestC122_HoldsOfAllScopesOutliveAKill holds a row, a column, a level and everything
// for a minute, kills the broker one second later and has it back at three.
func TestC122_HoldsOfAllScopesOutliveAKill(t *testing.T) {
	for _, target := range []suspend.Target{
		{Scope: suspend.Bucket, Name: "alice__m00"},
		{Scope: suspend.Row, Name: "alice"},
		{Scope: suspend.Column, Name: "m00"},
		{Scope: suspend.Level, Name: "1"},
		{Scope: suspend.All},
	} {
		t.Run(target.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				fs := vfs.NewCrashableMem()
				o := options(fs)
				b := open(t, o)
				begin := time.Now()
				hold, err := b.HoldFor(t.Context(), topic, group, target, time.Minute, "worker", "test")
				if err != nil || !hold.Until.Equal(begin.Add(time.Minute)) {
					t.Fatalf("hold %+v, %v", hold, err)
				}
				if shorter, err := b.HoldFor(t.Context(), topic, group, target, time.Second, "worker", ""); err != nil || shorter != hold {
					t.Errorf("a shorter hold made it %+v, %v", shorter, err)
				}
				for i := range 3 {
					send(t, b, fmt.Sprint(i), "alice__m00")
				}
				time.Sleep(time.Second)
				o.FS = killed(fs)
				closeBroker(t, b)
				time.Sleep(2 * time.Second)
				b = open(t, o)
				got := poll(t, b, 32, 2*time.Minute)
				if at := time.Since(begin); len(got) != 1 || at < time.Minute || at > 61*time.Second {
					t.Errorf("%d delivered %v after the hold began, want 1 at 60 s", len(got), at)
				}
				closeBroker(t, b)
			})
		})
	}
}

// TestC18_SameConfigurationKeepsSuspends suspends 100 messages for an hour and applies
// the topic, the group and the policy again, then a policy with another rate.
func TestC18_SameConfigurationKeepsSuspends(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := vfs.NewMem()
		o := options(fs)
		rules := `limits: [{user: "*", rate: 1000/s}]`
		o.Policy = document(t, rules)
		b := open(t, o)
		send(t, b, "x", bucketNames(100)...)
		for range 100 {
			d := one(t, b, time.Second)
			if err := b.Suspend(t.Context(), topic, group, d.Handle, time.Hour, "test", ""); err != nil {
				t.Fatal(err)
			}
		}
		before := holds(t, b)
		check := func(what string) {
			t.Helper()
			if s := stats(t, b); s.Messages != 100 || s.Groups[0].Ready != 0 {
				t.Fatalf("%s: %d messages, %d ready, want 100 that are not", what, s.Messages, s.Groups[0].Ready)
			}
			after := holds(t, b)
			for target, until := range before {
				if !after[target].Equal(until) {
					t.Fatalf("%s: %v is held until %v, want %v", what, target, after[target], until)
				}
			}
			none(t, b, time.Second)
		}
		for i := range 10 {
			if err := b.CreateTopic(t.Context(), o.Topics[0]); !errors.Is(err, broker.ErrExists) {
				t.Fatal(err)
			}
			if err := b.CreateGroup(t.Context(), o.Groups[0]); !errors.Is(err, broker.ErrExists) {
				t.Fatal(err)
			}
			if err := b.SetPolicy(t.Context(), document(t, rules)); err != nil {
				t.Fatal(err)
			}
			check(fmt.Sprintf("the same again, time %d", i+1))
		}
		if err := b.SetPolicy(t.Context(), document(t, `limits: [{user: "*", rate: 7/s}]`)); err != nil {
			t.Fatal(err)
		}
		check("another rate")
		closeBroker(t, b)
		b = open(t, o)
		check("after a restart")
		time.Sleep(time.Hour)
		if n := take(t, b); n == 0 {
			t.Error("nothing was delivered after the suspends")
		}
		closeBroker(t, b)
	})
}

func holds(t *testing.T, b *broker.Broker) map[suspend.Target]time.Time {
	t.Helper()
	list, err := b.Holds(t.Context(), group, "", 1000)
	if err != nil || len(list) != 100 {
		t.Fatalf("%d holds, %v, want 100", len(list), err)
	}
	out := map[suspend.Target]time.Time{}
	for _, h := range list {
		out[h.Target] = h.Until
	}
	return out
}

// TestPolicyAndSignalsReachNewTopics sets both, then creates a topic and a group on it.
func TestPolicyAndSignalsReachNewTopics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{Dir: "data", FS: vfs.NewMem(), AutoCreate: true, AutoGroup: broker.GroupConfig{Wildcard: true}})
		doc := document(t, `columns: [{model: m00, in_flight: 1}, {model: m01, in_flight: 10}]`)
		if err := b.SetPolicy(t.Context(), doc); err != nil {
			t.Fatal(err)
		}
		if b.Policy() != doc {
			t.Error("the policy in force is another")
		}
		alarm := signal.Signal{
			Target: suspend.Target{Scope: suspend.Column, Name: "m01"}, Source: "alarm", Kind: signal.Alarm,
			At: time.Now(), Until: time.Now().Add(time.Hour), Permille: 0, Reason: "test",
		}
		if err := b.SetSignal(t.Context(), alarm); err != nil {
			t.Fatal(err)
		}
		late := broker.TopicConfig{Name: "late"}
		if err := b.CreateTopic(t.Context(), late); err != nil {
			t.Fatal(err)
		}
		for _, g := range []broker.GroupConfig{
			{Name: "limited", Topic: late.Name, Wildcard: true},
			{Name: "free", Topic: late.Name, Wildcard: true, Unlimited: true},
		} {
			if err := b.CreateGroup(t.Context(), g); err != nil {
				t.Fatal(err)
			}
		}
		var msgs []broker.Message
		for _, user := range []string{"a", "b", "c"} {
			for _, model := range []string{"m00", "m01"} {
				msgs = append(msgs, broker.Message{Lite: cell(t, user, model), Body: []byte("x")})
			}
		}
		if _, err := b.Send(t.Context(), late.Name, msgs); err != nil {
			t.Fatal(err)
		}
		receive := func(group string) int {
			got, err := b.Receive(t.Context(), broker.ReceiveRequest{Topic: late.Name, Group: group, Client: "c", Max: 32, Invisible: time.Hour})
			if err != nil {
				t.Fatal(err)
			}
			return len(got)
		}
		if n := receive("limited"); n != 1 {
			t.Errorf("%d delivered, want 1 of m00 and none of m01", n)
		}
		if n := receive("free"); n != 6 {
			t.Errorf("%d delivered to the group without limits, want 6", n)
		}
		if err := b.DropSignal(t.Context(), alarm.Target, alarm.Source); err != nil {
			t.Fatal(err)
		}
		time.Sleep(15 * time.Second) // it comes back gradually
		if n := receive("limited"); n != 3 {
			t.Errorf("%d delivered after the alarm, want the 3 of m01", n)
		}
		closeBroker(t, b)
		if err := b.SetPolicy(t.Context(), doc); !errors.Is(err, broker.ErrClosed) {
			t.Errorf("policy for a closed broker: %v", err)
		}
	})
}
