package rpc

import (
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	v2 "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"

	"github.com/penstockmq/penstock/broker"
)

func exact(c *config) { c.group.Wildcard = false }

// read is the set of lite topics that a client gets messages of, each acked.
func (c *stub) read() map[string]string {
	got := map[string]string{}
	for {
		a := c.receive(now)
		if len(a.messages) == 0 {
			return got
		}
		for _, m := range a.messages {
			name := m.GetSystemProperties().GetLiteTopic()
			got[name] += idOf(m)
			expectCode(c.f.t, c.ack(handle(m)).GetStatus(), v2.Code_OK)
		}
	}
}

func (c *stub) expectRead(when string, want map[string]string) {
	c.f.t.Helper()
	got := c.read()
	if len(got) != len(want) {
		c.f.t.Errorf("%s: read %v, want %v", when, got, want)
	}
	for name, ids := range want {
		if got[name] != ids {
			c.f.t.Errorf("%s: of %s read %q, want %q", when, name, got[name], ids)
		}
	}
}

func TestSyncActions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, exact)
		c := f.client("c")
		const (
			add       = v2.LiteSubscriptionAction_PARTIAL_ADD
			remove    = v2.LiteSubscriptionAction_PARTIAL_REMOVE
			set       = v2.LiteSubscriptionAction_COMPLETE_ADD
			removeAll = v2.LiteSubscriptionAction_COMPLETE_REMOVE
		)
		sendAll := func(id string) {
			for _, name := range []string{"a", "b", "d"} {
				c.sent(name, id)
			}
		}
		sendAll("0")
		c.expectRead("nothing subscribed", nil)
		expectCode(t, c.sync(add, nil, "a", "not-there-yet"), v2.Code_OK)
		c.expectRead("PARTIAL_ADD a", map[string]string{"a": "0"})
		expectCode(t, c.sync(add, nil, "b"), v2.Code_OK)
		sendAll("1")
		c.expectRead("PARTIAL_ADD b", map[string]string{"a": "1", "b": "01"})
		expectCode(t, c.sync(remove, nil, "a"), v2.Code_OK)
		sendAll("2")
		c.expectRead("PARTIAL_REMOVE a", map[string]string{"b": "2"})
		expectCode(t, c.sync(set, nil, "a", "d"), v2.Code_OK)
		sendAll("3")
		c.expectRead("COMPLETE_ADD a d", map[string]string{"a": "23", "d": "0123"})
		expectCode(t, c.sync(removeAll, nil), v2.Code_OK)
		sendAll("4")
		c.expectRead("COMPLETE_REMOVE", nil)
		expectCode(t, c.sync(set, nil), v2.Code_OK)
		c.expectRead("empty COMPLETE_ADD of a group that is no wildcard group", nil)
		expectCode(t, c.sync(set, nil, "*"), v2.Code_OK)
		c.expectRead("COMPLETE_ADD *", map[string]string{"a": "4", "b": "34", "d": "4"})
		c.sent("born-later", "5")
		c.expectRead("a bucket born later", map[string]string{"born-later": "5"})
		expectCode(t, c.sync(remove, nil, "*"), v2.Code_OK)
		sendAll("6")
		c.expectRead("PARTIAL_REMOVE *", nil)
		expectCode(t, c.sync(add, nil, "*"), v2.Code_OK)
		c.expectRead("PARTIAL_ADD *", map[string]string{"a": "6", "b": "6", "d": "6"})
	})
}

func TestSyncWakesAParkedPoll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, exact)
		c := f.client("c")
		c.sent("a", "id")
		got := make(chan answer, 1)
		go func() {
			a, _ := c.tryReceive(c.ctx)
			got <- a
		}()
		f.parked(1)
		expectCode(t, c.sync(v2.LiteSubscriptionAction_PARTIAL_ADD, nil, "a"), v2.Code_OK)
		if a := <-got; len(a.messages) != 1 {
			t.Errorf("the poll brought %d messages", len(a.messages))
		}
	})
}

func TestSyncRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, exact, func(c *config) { c.group.ClientQuota = 3 })
		c := f.client("c")
		add, set := v2.LiteSubscriptionAction_PARTIAL_ADD, v2.LiteSubscriptionAction_COMPLETE_ADD
		for _, name := range []string{"", "a*", "a/b", " "} {
			expectCode(t, c.sync(add, nil, "ok", name), v2.Code_ILLEGAL_LITE_TOPIC)
			expectCode(t, c.sync(set, nil, "ok", name), v2.Code_ILLEGAL_LITE_TOPIC)
		}
		expectCode(t, c.sync(9, nil, "a"), v2.Code_BAD_REQUEST)
		expectCode(t, c.sync(add, nil, make([]string, maxSyncNames+1)...), v2.Code_BAD_REQUEST)
		for _, o := range []*v2.OffsetOption{
			{OffsetType: &v2.OffsetOption_Policy_{Policy: 7}},
			{OffsetType: &v2.OffsetOption_Offset{Offset: -1}},
			{OffsetType: &v2.OffsetOption_TailN{TailN: -1}},
			{OffsetType: &v2.OffsetOption_Timestamp{Timestamp: -1}},
		} {
			expectCode(t, c.sync(add, o, "a"), v2.Code_ILLEGAL_OFFSET)
		}
		expectCode(t, c.sync(add, nil, "a", "b", "c"), v2.Code_OK)
		expectCode(t, c.sync(add, nil, "a"), v2.Code_OK) // has it already
		expectCode(t, c.sync(add, nil, "d"), v2.Code_LITE_SUBSCRIPTION_QUOTA_EXCEEDED)
		expectCode(t, c.sync(set, nil, "a", "b", "c", "d"), v2.Code_LITE_SUBSCRIPTION_QUOTA_EXCEEDED)
		expectCode(t, c.sync(set, nil, "d", "e", "f"), v2.Code_OK)
	})
}

func TestSyncOffsetOptions(t *testing.T) {
	policy := func(p v2.OffsetOption_Policy) *v2.OffsetOption {
		return &v2.OffsetOption{OffsetType: &v2.OffsetOption_Policy_{Policy: p}}
	}
	for _, x := range []struct {
		name   string
		option func(begin time.Time) *v2.OffsetOption
		want   string
	}{
		{"none", func(time.Time) *v2.OffsetOption { return nil }, "456789"},
		{"last", func(time.Time) *v2.OffsetOption { return policy(v2.OffsetOption_LAST) }, "456789"},
		// Another group has read nothing, so the messages are still there.
		{"min", func(time.Time) *v2.OffsetOption { return policy(v2.OffsetOption_MIN) }, "0123456789"},
		{"max", func(time.Time) *v2.OffsetOption { return policy(v2.OffsetOption_MAX) }, ""},
		{"offset", func(time.Time) *v2.OffsetOption {
			return &v2.OffsetOption{OffsetType: &v2.OffsetOption_Offset{Offset: 2}}
		}, "23456789"},
		{"offset beyond the end", func(time.Time) *v2.OffsetOption {
			return &v2.OffsetOption{OffsetType: &v2.OffsetOption_Offset{Offset: 99}}
		}, ""},
		{"tail", func(time.Time) *v2.OffsetOption {
			return &v2.OffsetOption{OffsetType: &v2.OffsetOption_TailN{TailN: 3}}
		}, "789"},
		{"tail longer than the bucket", func(time.Time) *v2.OffsetOption {
			return &v2.OffsetOption{OffsetType: &v2.OffsetOption_TailN{TailN: 99}}
		}, "0123456789"},
		{"time", func(begin time.Time) *v2.OffsetOption {
			at := begin.Add(5500 * time.Millisecond).UnixMilli()
			return &v2.OffsetOption{OffsetType: &v2.OffsetOption_Timestamp{Timestamp: at}}
		}, "6789"},
	} {
		t.Run(x.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := start(t, exact)
				must(t, f.broker.CreateGroup(t.Context(), broker.GroupConfig{Name: "other", Topic: "requests"}))
				c := f.client("c")
				expectCode(t, c.sync(v2.LiteSubscriptionAction_COMPLETE_ADD, nil, "a"), v2.Code_OK)
				begin := time.Now()
				for i := range 10 { // one each second
					c.sent("a", strconv.Itoa(i))
					time.Sleep(time.Second)
				}
				for range 4 {
					expectCode(t, c.ack(handle(c.receiveOne())).GetStatus(), v2.Code_OK)
				}
				expectCode(t, c.sync(v2.LiteSubscriptionAction_PARTIAL_ADD, x.option(begin), "a"), v2.Code_OK)
				want := map[string]string{}
				if x.want != "" {
					want["a"] = x.want
				}
				c.expectRead(x.name, want)
			})
		})
	}
}

// C01 at this level: buckets that are born while wildcard consumers wait reach
// them, each message once, without a restart or a scan.
func TestC01_BucketsBornWhileConsumersWait(t *testing.T) {
	const buckets, consumers = 1000, 16
	synctest.Test(t, func(t *testing.T) {
		f := start(t)
		got := make(chan string, buckets)
		for i := range consumers {
			c := f.client("consumer-" + strconv.Itoa(i))
			expectCode(t, c.sync(v2.LiteSubscriptionAction_PARTIAL_ADD, nil, "*"), v2.Code_OK)
			go func() {
				for {
					a, err := c.tryReceive(c.ctx)
					if err != nil {
						return // the test is over
					}
					for _, m := range a.messages {
						c.ack(handle(m))
						got <- idOf(m)
					}
				}
			}()
		}
		time.Sleep(2 * time.Second)
		f.parked(consumers)
		producer := f.client("producer")
		for i := range buckets {
			producer.sent("new-"+strconv.Itoa(i), strconv.Itoa(i))
			time.Sleep(5 * time.Millisecond)
		}
		sent := time.Now()
		seen := map[string]bool{}
		for range buckets {
			id := <-got
			if seen[id] {
				t.Errorf("%s came twice", id)
			}
			seen[id] = true
		}
		if d := time.Since(sent); d > time.Second {
			t.Errorf("the last came %v after its send", d)
		}
		f.parked(consumers)
		s := f.stats()
		if s.Buckets != buckets || s.Messages != 0 || len(got) != 0 {
			t.Errorf("%d buckets, %d messages left, %d too many", s.Buckets, s.Messages, len(got))
		}
	})
}
