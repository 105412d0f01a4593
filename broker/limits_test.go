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
	"github.com/penstockmq/penstock/suspend/quota"
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

// Any producer may say that its message counts for a million requests. It becomes a dead letter, and the column is open for
// the messages of others.
func TestOneMessageDoesNotCloseAColumn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := options(vfs.NewMem())
		o.Policy = document(t, `columns: [{model: m, rate: 5/s}]`)
		b := open(t, o)
		for user, cost := range map[string]string{"flood": "1000000", "quiet": "1"} {
			m := broker.Message{Lite: cell(t, user, "m"), Body: []byte(user), Properties: map[string]string{lite.PropertyCost: cost}}
			if _, err := b.Send(t.Context(), topic, []broker.Message{m}); err != nil {
				t.Fatal(err)
			}
		}
		if got := poll(t, b, 32, time.Second); len(got) != 1 || string(got[0].Message.Body) != "quiet" {
			t.Errorf("%d delivered, want the quiet user's", len(got))
		}
		closeBroker(t, b)
	})
}

// TestCostComesFromTheStamps: a limit of tokens counts what the sender says, from memory
// and from the store alike.
func TestCostComesFromTheStamps(t *testing.T) {
	for _, cache := range []int64{0, 1} { // 0 is the default, 1 holds nothing
		synctest.Test(t, func(t *testing.T) {
			o := options(vfs.NewMem())
			o.TailCacheBytes = cache
			o.Policy = document(t, `columns: [{model: m, tokens: 100/1m}]`)
			b := open(t, o)
			for _, user := range []string{"a", "b", "c"} {
				m := broker.Message{Lite: cell(t, user, "m"), Body: []byte("x"), Properties: map[string]string{
					lite.PropertyInputTokens: "60", lite.PropertyMaxTokens: "10",
				}}
				if _, err := b.Send(t.Context(), topic, []broker.Message{m}); err != nil {
					t.Fatal(err)
				}
			}
			// 70 are used, then 140: what exceeds the limit is carried over.
			if got := poll(t, b, 32, 0); len(got) != 2 {
				t.Errorf("cache of %d bytes: %d delivered, want 2", cache, len(got))
			}
			closeBroker(t, b)
		})
	}
}

func TestBadStampsAreRefused(t *testing.T) {
	b := open(t, options(vfs.NewMem()))
	for _, c := range []struct{ key, value, want string }{
		{lite.PropertyLevel, "4", `property penstock-level "4" is not a whole number from 0 to 3`},
		{lite.PropertyLevel, "-1", `"-1"`},
		{lite.PropertyLevel, "", `property penstock-level ""`},
		{lite.PropertyInputTokens, "1.5", "penstock-input-tokens"},
		{lite.PropertyInputTokens, "1000000001", "from 0 to 1000000000"},
		{lite.PropertyMaxTokens, "1048577", "from 0 to 1048576"},
		{lite.PropertyMaxTokens, "many", "penstock-max-tokens"},
		{lite.PropertyMaxTokens, strings.Repeat("9", 1000), "penstock-max-tokens"},
		{lite.PropertyCost, "0", "from 1 to 1000000"},
		{lite.PropertyCost, "1000001", "from 1 to 1000000"},
	} {
		m := broker.Message{Lite: "a", Body: []byte("x"), Properties: map[string]string{c.key: c.value}}
		_, err := b.Send(t.Context(), topic, []broker.Message{m})
		if !errors.Is(err, broker.ErrInvalidArgument) || !strings.Contains(err.Error(), c.want) || len(err.Error()) > 300 {
			t.Errorf("%s %.20q: %v, want one that says %s", c.key, c.value, err, c.want)
		}
	}
	good := map[string]string{
		lite.PropertyLevel: "0", lite.PropertyInputTokens: "0", lite.PropertyMaxTokens: "1048576", lite.PropertyCost: "1000000",
	}
	if _, err := b.Send(t.Context(), topic, []broker.Message{{Lite: "a", Body: []byte("x"), Properties: good}}); err != nil {
		t.Errorf("stamps at their limits: %v", err)
	}
}

// TestStampedLevel: the most important message of a Send decides for an empty bucket.
func TestStampedLevel(t *testing.T) {
	b := open(t, options(vfs.NewMem()))
	level := func(v string) broker.Message {
		m := broker.Message{Lite: "a", Body: []byte("x")}
		if v != "" {
			m.Properties = map[string]string{lite.PropertyLevel: v}
		}
		return m
	}
	for _, c := range []struct {
		send []broker.Message
		want uint8
	}{
		{[]broker.Message{level("")}, 1},
		{[]broker.Message{level("3")}, 3},
		{[]broker.Message{level(""), level("3"), level("2")}, 2},
		{[]broker.Message{level("0")}, 0},
		{[]broker.Message{level("")}, 1},
	} {
		if _, err := b.Send(t.Context(), topic, c.send); err != nil {
			t.Fatal(err)
		}
		if info, err := b.Bucket(t.Context(), topic, "a"); err != nil || info.Level != c.want {
			t.Errorf("%d messages: level %d, %v, want %d", len(c.send), info.Level, err, c.want)
		}
		drain(t, b)
	}
}

// TestSettleWith gives the tokens back that a call did not use.
func TestSettleWith(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := options(vfs.NewMem())
		o.Policy = document(t, `columns: [{model: m, tokens: 100/1m}]`)
		b := open(t, o)
		for _, user := range []string{"a", "b", "c", "d"} {
			m := broker.Message{Lite: cell(t, user, "m"), Body: []byte("x"), Properties: map[string]string{lite.PropertyInputTokens: "100"}}
			if _, err := b.Send(t.Context(), topic, []broker.Message{m}); err != nil {
				t.Fatal(err)
			}
		}
		used := func(tokens int64) quota.Settlement {
			return quota.Settlement{Outcome: quota.Used, Tokens: tokens, OutputTokens: -1}
		}
		d := one(t, b, 0)
		none(t, b, 0)
		settle(t, b, d, broker.Settlement{Settlement: used(30)})
		d = one(t, b, 0) // 70 are left
		none(t, b, 0)
		settle(t, b, d, broker.Settlement{Settlement: quota.Settlement{Outcome: quota.Unused}, Then: broker.ThenSuspend, For: time.Hour, By: "c"})
		d = one(t, b, 0)
		settle(t, b, d, broker.Settlement{Settlement: quota.Settlement{Outcome: quota.Unused}, Then: broker.ThenReject, Reason: "bad"})
		letters, err := b.DeadLetters(t.Context(), group, 0, 10)
		if err != nil || len(letters) != 1 || letters[0].Reason != "bad" {
			t.Errorf("dead letters %+v, %v", letters, err)
		}
		d = one(t, b, 0)
		settle(t, b, d, broker.Settlement{Settlement: quota.Settlement{Outcome: quota.Unused}, Then: broker.ThenRetry, For: 5 * time.Second})
		if again := one(t, b, time.Minute); again.Lite != d.Lite || again.Attempt != 2 {
			t.Errorf("after the retry: attempt %d of %s, want the second of %s", again.Attempt, again.Lite, d.Lite)
		}
		closeBroker(t, b)
	})
}

func settle(t *testing.T, b *broker.Broker, d broker.Delivery, s broker.Settlement) {
	t.Helper()
	if err := b.SettleWith(t.Context(), topic, group, d.Handle, s); err != nil {
		t.Fatalf("settle %q: %v", d.Body, err)
	}
}

func TestSettleWithRefuses(t *testing.T) {
	b := open(t, options(vfs.NewMem()))
	send(t, b, "x", "a")
	d := one(t, b, 0)
	for _, c := range []struct {
		s    broker.Settlement
		want error
	}{
		{broker.Settlement{Then: 9}, broker.ErrInvalidArgument},
		{broker.Settlement{Settlement: quota.Settlement{Outcome: 9}}, broker.ErrInvalidArgument},
		{broker.Settlement{Settlement: quota.Settlement{Tokens: -2}}, broker.ErrInvalidArgument},
		{broker.Settlement{Settlement: quota.Settlement{OutputTokens: 1 << 41}}, broker.ErrInvalidArgument},
		{broker.Settlement{Settlement: quota.Settlement{BytesOut: -1}}, broker.ErrInvalidArgument},
		{broker.Settlement{Settlement: quota.Settlement{Latency: -1}}, broker.ErrInvalidArgument},
		{broker.Settlement{Then: broker.ThenRetry, For: -1}, broker.ErrInvalidArgument},
		{broker.Settlement{Then: broker.ThenSuspend, For: -1}, suspend.ErrNegative},
		{broker.Settlement{Then: broker.ThenSuspend, For: 1000 * time.Hour}, suspend.ErrTooLong},
	} {
		if err := b.SettleWith(t.Context(), topic, group, d.Handle, c.s); !errors.Is(err, c.want) {
			t.Errorf("%+v: %v, want %v", c.s, err, c.want)
		}
	}
	if err := b.SettleWith(t.Context(), topic, group, "no handle", broker.Settlement{}); !errors.Is(err, broker.ErrInvalidHandle) {
		t.Errorf("no handle: %v", err)
	}
	for _, c := range []struct {
		target suspend.Target
		d      time.Duration
		want   error
	}{
		{suspend.Target{Scope: suspend.Level, Name: "7"}, time.Second, suspend.ErrTarget},
		{suspend.Target{Scope: 9}, time.Second, suspend.ErrScope},
		{suspend.Target{Scope: suspend.Row, Name: "a"}, -1, suspend.ErrNegative},
		{suspend.Target{Scope: suspend.Row, Name: "a"}, 25 * time.Hour, suspend.ErrTooLong},
	} {
		if _, err := b.HoldFor(t.Context(), topic, group, c.target, c.d, "", ""); !errors.Is(err, c.want) {
			t.Errorf("hold %v for %v: %v, want %v", c.target, c.d, err, c.want)
		}
	}
	ack(t, b, d) // nothing of this has settled it
	none(t, b, 0)
}
