package broker_test

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/penstockmq/penstock/broker"
	"github.com/penstockmq/penstock/broker/lite"
	"github.com/penstockmq/penstock/suspend"
	"github.com/penstockmq/penstock/suspend/quota"
)

// Any producer may state that its message counts as a million requests. The message becomes a dead letter, and the column
// stays open for the messages of other users.
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
		if got := poll(t, b, 32, time.Second); len(got) != 1 || string(got[0].Body) != "quiet" {
			t.Errorf("%d delivered, want the quiet user's", len(got))
		}
		closeBroker(t, b)
	})
}

// TestCostComesFromTheStamps: a limit of tokens counts the tokens stated by the sender, from
// memory and from the store alike.
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
			// 70 are used, then 140: the excess is carried over.
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
	ack(t, b, d) // no call above has settled it
	none(t, b, 0)
}
