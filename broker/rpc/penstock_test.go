package rpc

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v2 "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/penstockmq/penstock/broker/rpc/penstockv1"
	"github.com/penstockmq/penstock/suspend/limit"
	"github.com/penstockmq/penstock/suspend/quota"
)

func (c *stub) penstock() penstockv1.PenstockClient { return penstockv1.NewPenstockClient(c.conn) }

// expectFault wants a gRPC error with this code, RocketMQ's code among its details, and
// a text that names what.
func expectFault(t *testing.T, err error, want codes.Code, fault v2.Code, what string) {
	t.Helper()
	st := status.Convert(err)
	if st.Code() != want || !strings.Contains(st.Message(), what) {
		t.Errorf("got %v %q, want %v about %q", st.Code(), st.Message(), want, what)
	}
	for _, d := range st.Details() {
		if f, ok := d.(*penstockv1.Fault); ok {
			if f.GetRocketmqCode() != int32(fault) || f.GetRocketmqName() != fault.String() {
				t.Errorf("fault %v, want %v", f, fault)
			}
			return
		}
	}
	t.Errorf("no fault among the details of %v", st)
}

func TestDescribe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, func(c *config) { c.rpc.Version = "v1.2.3" })
		c := f.client("c")
		out, err := c.penstock().Describe(c.ctx, &penstockv1.DescribeRequest{Topic: "requests", Group: "pool"})
		must(t, err)
		got := slices.Sorted(slices.Values(out.GetFeatures()))
		if want := []string{"explain", "holds", "limits", "renew", "scopes", "settle"}; out.GetVersion() != "v1.2.3" || !slices.Equal(got, want) {
			t.Errorf("described as %v", out)
		}
		_, err = c.penstock().Describe(c.ctx, &penstockv1.DescribeRequest{Group: "a b"})
		expectFault(t, err, codes.InvalidArgument, v2.Code_ILLEGAL_CONSUMER_GROUP, "group")
	})
}

// A group that the policies do not apply to is not told that its limits are asked.
func TestDescribeOfAnUnlimitedGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, func(c *config) { c.group.Unlimited = true })
		c := f.client("c")
		out, err := c.penstock().Describe(c.ctx, &penstockv1.DescribeRequest{Topic: "requests", Group: "pool"})
		must(t, err)
		if slices.Contains(out.GetFeatures(), "limits") || !slices.Contains(out.GetFeatures(), "settle") {
			t.Errorf("features %q", out.GetFeatures())
		}
	})
}

// Both halves of the port have both services, and the second one asks for no client id.
func TestPenstockOnBothHalvesOfThePort(t *testing.T) {
	f := startLoopback(t)
	for name, option := range map[string]grpc.DialOption{
		"plaintext": grpc.WithTransportCredentials(insecure.NewCredentials()), "TLS": insecureTLS(),
	} {
		c := f.client("c", option)
		if _, err := c.penstock().Describe(context.Background(), &penstockv1.DescribeRequest{}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		expectCode(t, c.send("u-"+name, "id").GetStatus(), v2.Code_OK)
	}
}

func TestAPanicIsAnInternalError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t)
		c := f.client("c")
		f.server.broker = nil
		_, err := c.penstock().Describe(c.ctx, &penstockv1.DescribeRequest{})
		expectFault(t, err, codes.Internal, v2.Code_INTERNAL_SERVER_ERROR, "internal error")
	})
}

func TestHoldOfAColumn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t)
		c := f.client("worker-7")
		begin := time.Now()
		out, err := c.penstock().Hold(c.ctx, &penstockv1.HoldRequest{
			Topic: "requests", Group: "pool", Scope: penstockv1.Scope_SCOPE_COLUMN, Name: "gpt", Duration: durationpb.New(15 * time.Second),
		})
		must(t, err)
		if until := out.GetUntil().AsTime(); until.Sub(begin) != 15*time.Second {
			t.Errorf("held for %v", until.Sub(begin))
		}
		// A shorter one changes nothing.
		out, err = c.penstock().Hold(c.ctx, &penstockv1.HoldRequest{
			Topic: "requests", Group: "pool", Scope: penstockv1.Scope_SCOPE_COLUMN, Name: "gpt", Duration: durationpb.New(time.Second), By: "x",
		})
		must(t, err)
		if until := out.GetUntil().AsTime(); until.Sub(begin) != 15*time.Second {
			t.Errorf("held for %v after a shorter hold", until.Sub(begin))
		}
		c.sent("alice__gpt", "held")
		c.sent("alice__other", "free")
		if m := c.receiveOne(now); idOf(m) != "free" {
			t.Errorf("received %s of a held column", idOf(m))
		}
		c.receiveNone()
		if m := c.receiveOne(); idOf(m) != "held" || time.Since(begin) != 15*time.Second {
			t.Errorf("received %s after %v", idOf(m), time.Since(begin))
		}
		holds, err := f.broker.Holds(t.Context(), "pool", "", 10)
		must(t, err)
		for _, h := range holds {
			if h.By != "worker-7" {
				t.Errorf("held by %q", h.By)
			}
		}
	})
}

func TestHoldRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t).client("c")
		for _, x := range []struct {
			name   string
			change func(*penstockv1.HoldRequest)
			code   codes.Code
			fault  v2.Code
			what   string
		}{
			{"no scope", func(r *penstockv1.HoldRequest) { r.Scope = 0 }, codes.InvalidArgument, v2.Code_BAD_REQUEST, "scope"},
			{"unknown scope", func(r *penstockv1.HoldRequest) { r.Scope = 99 }, codes.InvalidArgument, v2.Code_BAD_REQUEST, "scope"},
			{"level 4", func(r *penstockv1.HoldRequest) { r.Scope, r.Name = penstockv1.Scope_SCOPE_LEVEL, "4" }, codes.InvalidArgument, v2.Code_BAD_REQUEST, `level "4"`},
			{"all with a name", func(r *penstockv1.HoldRequest) { r.Scope = penstockv1.Scope_SCOPE_ALL }, codes.InvalidArgument, v2.Code_BAD_REQUEST, "all"},
			{"no model", func(r *penstockv1.HoldRequest) { r.Name = "" }, codes.InvalidArgument, v2.Code_BAD_REQUEST, "model"},
			{"no duration", func(r *penstockv1.HoldRequest) { r.Duration = nil }, codes.InvalidArgument, v2.Code_ILLEGAL_INVISIBLE_TIME, "duration"},
			{"negative", func(r *penstockv1.HoldRequest) { r.Duration = durationpb.New(-1) }, codes.InvalidArgument, v2.Code_ILLEGAL_INVISIBLE_TIME, "negative"},
			{"no duration at all", func(r *penstockv1.HoldRequest) { r.Duration = &durationpb.Duration{Seconds: 1, Nanos: -1} }, codes.InvalidArgument, v2.Code_ILLEGAL_INVISIBLE_TIME, "duration"},
			{"too long", func(r *penstockv1.HoldRequest) { r.Duration = durationpb.New(24*time.Hour + 1) }, codes.InvalidArgument, v2.Code_ILLEGAL_INVISIBLE_TIME, "24h"},
			{"unknown topic", func(r *penstockv1.HoldRequest) { r.Topic = "unknown" }, codes.NotFound, v2.Code_TOPIC_NOT_FOUND, "unknown"},
			{"unknown group", func(r *penstockv1.HoldRequest) { r.Group = "unknown" }, codes.NotFound, v2.Code_CONSUMER_GROUP_NOT_FOUND, "unknown"},
			{"bad group", func(r *penstockv1.HoldRequest) { r.Group = "" }, codes.InvalidArgument, v2.Code_ILLEGAL_CONSUMER_GROUP, "group"},
		} {
			r := &penstockv1.HoldRequest{
				Topic: "requests", Group: "pool", Scope: penstockv1.Scope_SCOPE_COLUMN, Name: "gpt", Duration: durationpb.New(time.Second),
			}
			x.change(r)
			t.Log(x.name)
			_, err := c.penstock().Hold(c.ctx, r)
			expectFault(t, err, x.code, x.fault, x.what)
		}
		c.sent("alice__gpt", "id")
		c.receiveOne(now) // none of them has held anything
	})
}

func (c *stub) settle(entries ...*penstockv1.SettleEntry) []*penstockv1.SettleResult {
	c.f.t.Helper()
	out, err := c.penstock().Settle(c.ctx, &penstockv1.SettleRequest{Topic: c.topic, Group: c.group, Entries: entries})
	must(c.f.t, err)
	return out.GetResults()
}

func TestSettleDoesWhatItSays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t)
		c := f.client("c")
		handles := map[string]string{}
		for _, name := range []string{"ack", "suspend", "retry", "reject"} {
			c.sent(name, name)
			handles[name] = handle(c.receiveOne(now))
		}
		begin := time.Now()
		results := c.settle(
			&penstockv1.SettleEntry{ReceiptHandle: handles["ack"], Action: penstockv1.Action_ACTION_ACK, Outcome: penstockv1.Outcome_OUTCOME_GOOD},
			&penstockv1.SettleEntry{
				ReceiptHandle: handles["suspend"], Action: penstockv1.Action_ACTION_SUSPEND, Duration: durationpb.New(3 * time.Second),
			},
			&penstockv1.SettleEntry{ReceiptHandle: handles["retry"], Action: penstockv1.Action_ACTION_RETRY, Duration: durationpb.New(2 * time.Second)},
			&penstockv1.SettleEntry{ReceiptHandle: handles["reject"], Action: penstockv1.Action_ACTION_REJECT, Reason: "no good"},
			&penstockv1.SettleEntry{ReceiptHandle: "made-up", Action: penstockv1.Action_ACTION_ACK},
		)
		for i, want := range []v2.Code{v2.Code_OK, v2.Code_OK, v2.Code_OK, v2.Code_OK, v2.Code_INVALID_RECEIPT_HANDLE} {
			if r := results[i]; r.GetCode() != int32(want) || (r.GetMessage() == "") != (want == v2.Code_OK) {
				t.Errorf("entry %d: %v, want %v", i, r, want)
			}
		}
		m := c.receiveOne()
		if idOf(m) != "retry" || attempt(m) != 2 || time.Since(begin) != 2*time.Second {
			t.Errorf("first came %s, attempt %d, after %v", idOf(m), attempt(m), time.Since(begin))
		}
		expectCode(t, c.ack(handle(m)).GetStatus(), v2.Code_OK)
		m = c.receiveOne()
		if idOf(m) != "suspend" || attempt(m) != 1 || time.Since(begin) != 3*time.Second {
			t.Errorf("then came %s, attempt %d, after %v", idOf(m), attempt(m), time.Since(begin))
		}
		if r := c.settle(&penstockv1.SettleEntry{ReceiptHandle: handles["suspend"], Action: penstockv1.Action_ACTION_REJECT}); r[0].GetCode() != int32(v2.Code_INVALID_RECEIPT_HANDLE) {
			t.Errorf("a stale handle: %v", r[0])
		}
		expectCode(t, c.ack(handle(m)).GetStatus(), v2.Code_OK)
		c.receiveNone()
		dead, err := f.broker.DeadLetters(t.Context(), "pool", 0, 10)
		must(t, err)
		if len(dead) != 1 || dead[0].Reason != "no good" {
			t.Errorf("dead letters %+v", dead)
		}
	})
}

func TestSettleRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t).client("c")
		c.sent("alice", "id")
		h := handle(c.receiveOne(now))
		for _, x := range []struct {
			name   string
			change func(*penstockv1.SettleEntry)
			want   v2.Code
			what   string
		}{
			{"no action", func(e *penstockv1.SettleEntry) { e.Action = 0 }, v2.Code_BAD_REQUEST, "action"},
			{"unknown outcome", func(e *penstockv1.SettleEntry) { e.Outcome = 77 }, v2.Code_BAD_REQUEST, "outcome 77"},
			{"negative usage", func(e *penstockv1.SettleEntry) { e.Usage = &penstockv1.Usage{InputTokens: new(int64(-1))} }, v2.Code_BAD_REQUEST, "usage.input_tokens -1"},
			{"vast usage", func(e *penstockv1.SettleEntry) { e.Usage = &penstockv1.Usage{OutputTokens: new(maxUsage + 1)} }, v2.Code_BAD_REQUEST, "usage.output_tokens"},
			{"negative bytes", func(e *penstockv1.SettleEntry) { e.BytesOut = -5 }, v2.Code_BAD_REQUEST, "bytes_out -5"},
			{"negative latency", func(e *penstockv1.SettleEntry) { e.Latency = durationpb.New(-1) }, v2.Code_ILLEGAL_INVISIBLE_TIME, "latency"},
			{"suspend of minus one", func(e *penstockv1.SettleEntry) {
				e.Action, e.Duration = penstockv1.Action_ACTION_SUSPEND, durationpb.New(-1)
			}, v2.Code_ILLEGAL_INVISIBLE_TIME, "duration"},
			{"suspend over a day", func(e *penstockv1.SettleEntry) {
				e.Action, e.Duration = penstockv1.Action_ACTION_SUSPEND, durationpb.New(25*time.Hour)
			}, v2.Code_ILLEGAL_INVISIBLE_TIME, "24h"},
			{"retry over 12 h", func(e *penstockv1.SettleEntry) {
				e.Action, e.Duration = penstockv1.Action_ACTION_RETRY, durationpb.New(13*time.Hour)
			}, v2.Code_ILLEGAL_INVISIBLE_TIME, "12h"},
		} {
			e := &penstockv1.SettleEntry{ReceiptHandle: h, Action: penstockv1.Action_ACTION_ACK}
			x.change(e)
			if r := c.settle(e)[0]; r.GetCode() != int32(x.want) || !strings.Contains(r.GetMessage(), x.what) {
				t.Errorf("%s: %v, want %v about %q", x.name, r, x.want, x.what)
			}
		}
		many := make([]*penstockv1.SettleEntry, maxAckEntries+1)
		for _, entries := range [][]*penstockv1.SettleEntry{nil, many} {
			_, err := c.penstock().Settle(c.ctx, &penstockv1.SettleRequest{Topic: "requests", Group: "pool", Entries: entries})
			expectFault(t, err, codes.InvalidArgument, v2.Code_BAD_REQUEST, "1024")
		}
		entries := []*penstockv1.SettleEntry{{ReceiptHandle: h, Action: penstockv1.Action_ACTION_ACK}}
		_, err := c.penstock().Settle(c.ctx, &penstockv1.SettleRequest{Topic: "requests", Group: "unknown", Entries: entries})
		expectFault(t, err, codes.NotFound, v2.Code_CONSUMER_GROUP_NOT_FOUND, "unknown")
		if r := c.settle(entries...)[0]; r.GetCode() != int32(v2.Code_OK) {
			t.Errorf("the message was settled by something before: %v", r)
		}
	})
}

// What the ledger is told decides what a tenant is charged.
func TestUsedOf(t *testing.T) {
	n := func(v int64) *int64 { return &v }
	for _, x := range []struct {
		name  string
		entry *penstockv1.SettleEntry
		want  quota.Settlement
	}{
		{"nothing", &penstockv1.SettleEntry{}, quota.Settlement{Tokens: -1, OutputTokens: -1}},
		{
			"good", &penstockv1.SettleEntry{
				Outcome: penstockv1.Outcome_OUTCOME_GOOD, Usage: &penstockv1.Usage{InputTokens: n(30), OutputTokens: n(12)}, BytesOut: 99,
				Latency: durationpb.New(time.Second),
			},
			quota.Settlement{Outcome: quota.Used, Tokens: 42, OutputTokens: 12, BytesOut: 99, Feedback: limit.Good, Latency: time.Second},
		},
		{
			"output alone", &penstockv1.SettleEntry{Outcome: penstockv1.Outcome_OUTCOME_FAILED, Usage: &penstockv1.Usage{OutputTokens: n(12)}},
			quota.Settlement{Outcome: quota.Used, Tokens: -1, OutputTokens: 12},
		},
		{
			"none used", &penstockv1.SettleEntry{Outcome: penstockv1.Outcome_OUTCOME_GOOD, Usage: &penstockv1.Usage{InputTokens: n(0), OutputTokens: n(0)}},
			quota.Settlement{Outcome: quota.Used, Feedback: limit.Good},
		},
		{"overload", &penstockv1.SettleEntry{Outcome: penstockv1.Outcome_OUTCOME_OVERLOAD}, quota.Settlement{Outcome: quota.Unused, Tokens: -1, OutputTokens: -1, Feedback: limit.Overload}},
		{
			"overload in mid-answer", &penstockv1.SettleEntry{Outcome: penstockv1.Outcome_OUTCOME_OVERLOAD, BytesOut: 7},
			quota.Settlement{Outcome: quota.Used, Tokens: -1, OutputTokens: -1, BytesOut: 7, Feedback: limit.Overload},
		},
		{"time-out", &penstockv1.SettleEntry{Outcome: penstockv1.Outcome_OUTCOME_TIMEOUT}, quota.Settlement{Outcome: quota.Used, Tokens: -1, OutputTokens: -1, Feedback: limit.Timeout}},
		{"failed", &penstockv1.SettleEntry{Outcome: penstockv1.Outcome_OUTCOME_FAILED}, quota.Settlement{Outcome: quota.Unused, Tokens: -1, OutputTokens: -1}},
		{"not sent", &penstockv1.SettleEntry{Outcome: penstockv1.Outcome_OUTCOME_UNUSED}, quota.Settlement{Outcome: quota.Unsent, Tokens: -1, OutputTokens: -1}},
	} {
		got, err := usedOf(x.entry)
		if err != nil || got != x.want {
			t.Errorf("%s: %+v, %v; want %+v", x.name, got, err, x.want)
		}
	}
}

func TestExplain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t)
		c := f.client("c")
		entry := c.sent("alice__gpt", "first")
		_, err := c.penstock().Hold(c.ctx, &penstockv1.HoldRequest{
			Topic: "requests", Group: "pool", Scope: penstockv1.Scope_SCOPE_ROW, Name: "alice", Duration: durationpb.New(time.Minute), Reason: "lunch",
		})
		must(t, err)
		for name, r := range map[string]*penstockv1.ExplainRequest{
			"bucket":        {Topic: "requests", Group: "pool", Of: &penstockv1.ExplainRequest_Bucket{Bucket: "alice__gpt"}},
			"recall handle": {Topic: "requests", Of: &penstockv1.ExplainRequest_RecallHandle{RecallHandle: entry.GetRecallHandle()}},
		} {
			out, err := c.penstock().Explain(c.ctx, r)
			must(t, err)
			if out.GetState() != penstockv1.State_STATE_HELD || out.GetPosition() != 0 || out.GetBucket() != "alice__gpt" || out.GetUser() != "alice" ||
				out.GetHold().GetScope() != penstockv1.Scope_SCOPE_ROW || out.GetHold().GetReason() != "lunch" || out.GetHold().GetBy() != "c" {
				t.Errorf("%s: %v", name, out)
			}
		}
	})
}

func TestExplainRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t).client("c")
		for _, x := range []struct {
			r     *penstockv1.ExplainRequest
			code  codes.Code
			fault v2.Code
			what  string
		}{
			{&penstockv1.ExplainRequest{Topic: "requests", Group: "pool"}, codes.InvalidArgument, v2.Code_BAD_REQUEST, "request_id"},
			{&penstockv1.ExplainRequest{Topic: "requests", Of: &penstockv1.ExplainRequest_Bucket{Bucket: "a b"}}, codes.InvalidArgument, v2.Code_ILLEGAL_LITE_TOPIC, "a b"},
			{&penstockv1.ExplainRequest{Topic: "requests", Of: &penstockv1.ExplainRequest_Bucket{Bucket: "none"}}, codes.NotFound, v2.Code_MESSAGE_NOT_FOUND, "none"},
			{&penstockv1.ExplainRequest{Topic: "requests", Of: &penstockv1.ExplainRequest_RecallHandle{RecallHandle: "x"}}, codes.InvalidArgument, v2.Code_INVALID_RECEIPT_HANDLE, "recall handle"},
			{&penstockv1.ExplainRequest{Topic: "requests", Of: &penstockv1.ExplainRequest_RequestId{}}, codes.InvalidArgument, v2.Code_BAD_REQUEST, "request_id"},
			{&penstockv1.ExplainRequest{Topic: "requests", Of: &penstockv1.ExplainRequest_RequestId{RequestId: "r1"}}, codes.NotFound, v2.Code_MESSAGE_NOT_FOUND, "r1"},
			{&penstockv1.ExplainRequest{Topic: "unknown", Of: &penstockv1.ExplainRequest_Bucket{Bucket: "b"}}, codes.NotFound, v2.Code_TOPIC_NOT_FOUND, "unknown"},
		} {
			_, err := c.penstock().Explain(c.ctx, x.r)
			expectFault(t, err, x.code, x.fault, x.what)
		}
	})
}
