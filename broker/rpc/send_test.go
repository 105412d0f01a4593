package rpc

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v2 "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/penstockmq/penstock/broker"
	"github.com/penstockmq/penstock/broker/lite"
)

func TestSendStoresWhatWasSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t).client("c")
		born := time.UnixMilli(1_700_000_000_123).UTC()
		out := c.send("alice", "id-7", func(m *v2.Message) {
			m.Body = []byte("some body")
			m.UserProperties = map[string]string{"a": "1", "b": ""}
			p := m.SystemProperties
			p.Tag, p.Keys = new("tag"), []string{"k1", "k2"}
			p.BodyEncoding = v2.Encoding_GZIP
			p.BornTimestamp, p.BornHost = timestamppb.New(born), "host-1"
			p.TraceContext = new("trace")
		})
		expectCode(t, out.GetStatus(), v2.Code_OK)
		e := out.GetEntries()[0]
		expectCode(t, e.GetStatus(), v2.Code_OK)
		if e.GetMessageId() != "id-7" || e.GetOffset() != 0 || e.GetRecallHandle() == "" {
			t.Fatalf("entry %v", e)
		}
		m := c.receiveOne()
		p := m.GetSystemProperties()
		got := &v2.Message{Topic: m.GetTopic(), Body: m.GetBody(), UserProperties: m.GetUserProperties(), SystemProperties: &v2.SystemProperties{
			MessageId: p.GetMessageId(), Tag: p.Tag, Keys: p.GetKeys(), BodyEncoding: p.GetBodyEncoding(), BodyDigest: p.GetBodyDigest(),
			MessageType: p.GetMessageType(), BornTimestamp: p.GetBornTimestamp(), BornHost: p.GetBornHost(), TraceContext: p.TraceContext,
			LiteTopic: p.LiteTopic, DeliveryAttempt: p.DeliveryAttempt, QueueId: p.GetQueueId(), QueueOffset: p.QueueOffset, StoreHost: p.GetStoreHost(),
		}}
		want := &v2.Message{Topic: resource("requests"), Body: []byte("some body"), UserProperties: map[string]string{"a": "1", "b": ""}, SystemProperties: &v2.SystemProperties{
			MessageId: "id-7", Tag: new("tag"), Keys: []string{"k1", "k2"}, BodyEncoding: v2.Encoding_GZIP,
			BodyDigest:  &v2.Digest{Type: v2.DigestType_MD5, Checksum: "328C30FAE61CD119CD177C061D1AC11F"},
			MessageType: v2.MessageType_LITE, BornTimestamp: timestamppb.New(born), BornHost: "host-1", TraceContext: new("trace"),
			LiteTopic: new("alice"), DeliveryAttempt: proto.Int32(1), QueueOffset: proto.Int64(0), StoreHost: "penstock",
		}}
		if !proto.Equal(got, want) {
			t.Errorf("received\n%v\nwant\n%v", got, want)
		}
		if d := time.Since(p.GetStoreTimestamp().AsTime()); d < -time.Second || d > patience {
			t.Errorf("stored %v ago", d)
		}
		if d := p.GetInvisibleDuration().AsDuration(); d <= 0 || d > time.Minute {
			t.Errorf("invisible for %v, want what is left of a minute", d)
		}
	})
}

func TestSendFillsInWhatIsMissing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t).client("c")
		c.sent("alice", "id")
		p := c.receiveOne().GetSystemProperties()
		if p.GetBornHost() != "bufconn" {
			t.Errorf("born host %q, want where the connection came from", p.GetBornHost())
		}
		if d := time.Since(p.GetBornTimestamp().AsTime()); d < -time.Second || d > patience {
			t.Errorf("born %v ago", d)
		}
		if p.GetBodyEncoding() != v2.Encoding_IDENTITY || p.Tag != nil || p.TraceContext != nil {
			t.Errorf("properties %v", p)
		}
	})
}

func TestSendIsAllOrNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t, func(c *config) { c.topic.MaxMessages = 3 }).client("c")
		batch := func(lites ...string) *v2.SendMessageResponse {
			r := &v2.SendMessageRequest{}
			for _, l := range lites {
				r.Messages = append(r.Messages, liteMessage(func(m *v2.Message) { m.SystemProperties.LiteTopic = new(l) }))
			}
			out, err := c.SendMessage(c.ctx, r)
			must(t, err)
			return out
		}
		out := batch("alice", "alice")
		expectCode(t, out.GetStatus(), v2.Code_OK)
		if n := len(out.GetEntries()); n != 2 || out.GetEntries()[1].GetOffset() != 1 {
			t.Fatalf("entries %v", out.GetEntries())
		}
		expectCode(t, batch("alice", "alice").GetStatus(), v2.Code_TOO_MANY_REQUESTS)
		expectCode(t, batch("bob", "alice", "alice").GetStatus(), v2.Code_TOO_MANY_REQUESTS)
		// The refused batches took no room and left nothing.
		out = batch("bob", "alice")
		expectCode(t, out.GetStatus(), v2.Code_OK)
		for i, want := range []int64{0, 2} {
			if got := out.GetEntries()[i].GetOffset(); got != want {
				t.Errorf("entry %d has offset %d, want %d", i, got, want)
			}
		}
	})
}

func TestSendRefusalsOfTheBroker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, func(c *config) { c.topic.MaxMessages, c.topic.MaxBytes, c.topic.MaxBuckets = 1, 10, 2 })
		c := f.client("c")
		sized := func(n int) func(*v2.Message) { return func(m *v2.Message) { m.Body = make([]byte, n) } }
		expectCode(t, c.send("alice", "1").GetStatus(), v2.Code_OK)
		expectCode(t, c.send("alice", "2").GetStatus(), v2.Code_TOO_MANY_REQUESTS)
		expectCode(t, c.send("bob", "3", sized(11)).GetStatus(), v2.Code_TOO_MANY_REQUESTS)
		expectCode(t, c.send("bob", "4").GetStatus(), v2.Code_OK)
		expectCode(t, c.send("carol", "5").GetStatus(), v2.Code_LITE_TOPIC_QUOTA_EXCEEDED)
		with := func(k, v string) func(*v2.Message) {
			return func(m *v2.Message) { m.UserProperties = map[string]string{k: v} }
		}
		expectCode(t, c.send("x", "6", with(lite.PropertyDeadline, "soon")).GetStatus(), v2.Code_BAD_REQUEST)
		expectCode(t, c.send("x", "7", with(lite.PropertyUser, "*")).GetStatus(), v2.Code_ILLEGAL_MESSAGE_PROPERTY_KEY)
		c.topic = "unknown"
		expectCode(t, c.send("alice", "8").GetStatus(), v2.Code_TOPIC_NOT_FOUND)
	})
}

func TestUnknownTopicsAndGroupsOnDemand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, func(c *config) {
			c.topic.Name = ""
			c.broker.AutoCreate = true
			c.broker.AutoGroup = broker.GroupConfig{Wildcard: true}
		})
		c := f.client("c")
		c.sent("alice", "id")
		if got := idOf(c.receiveOne()); got != "id" {
			t.Fatalf("received %q", got)
		}
	})
}

// C93 at this level: what cannot name a bucket is refused, and '*' can never be
// sent to, also by a client of whose group it is the subscription.
func TestC93_WildcardAndForeignNamesCannotBeSentTo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t)
		c := f.client("c")
		expectCode(t, c.sync(v2.LiteSubscriptionAction_PARTIAL_ADD, nil, "*"), v2.Code_OK)
		for _, name := range []string{
			"*", "", "..", "a/b", "a:b", "a%b", "a|b", "a+b", "a.b", "a\x00b", "a\nb", "a ", " a", "ä", "a*",
			strings.Repeat("x", 65), strings.Repeat("x", 10<<10),
		} {
			expectCode(t, c.send(name, "id").GetStatus(), v2.Code_ILLEGAL_LITE_TOPIC)
		}
		c.receiveNone()
		cells := []lite.Cell{{User: "a", Model: "b-c"}, {User: "a-b", Model: "c"}, {User: "A", Model: "b-c"}, {User: "a", Model: "b_c"}, {User: "a_b", Model: "c"}, {User: "a/b", Model: "c"}, {User: "a", Model: "b/c"}, {User: "a", Model: "é"}, {User: "a", Model: "e\u0301"}}
		want := map[string]lite.Cell{}
		for _, cell := range cells {
			name, err := lite.Encode(cell)
			must(t, err)
			out := c.send(name, name, func(m *v2.Message) {
				m.UserProperties = map[string]string{lite.PropertyUser: cell.User, lite.PropertyModel: cell.Model}
			})
			expectCode(t, out.GetStatus(), v2.Code_OK)
			want[name] = cell
		}
		if len(want) != len(cells) {
			t.Fatalf("%d cells have %d names", len(cells), len(want))
		}
		for range cells {
			m := c.receiveOne(func(r *v2.ReceiveMessageRequest) { r.BatchSize = 1 })
			name := m.GetSystemProperties().GetLiteTopic()
			got := lite.Cell{User: m.GetUserProperties()[lite.PropertyUser], Model: m.GetUserProperties()[lite.PropertyModel]}
			if got != want[name] {
				t.Errorf("bucket %q brought %v, want %v", name, got, want[name])
			}
			delete(want, name)
		}
		// A name with the properties of another cell is refused.
		out := c.send("plain", "id", func(m *v2.Message) {
			m.UserProperties = map[string]string{lite.PropertyUser: "a", lite.PropertyModel: "b-c"}
		})
		expectCode(t, out.GetStatus(), v2.Code_ILLEGAL_LITE_TOPIC)
	})
}

func TestRecall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t)
		c := f.client("c")
		recall := func(topic, handle string) *v2.RecallMessageResponse {
			out, err := c.RecallMessage(c.ctx, &v2.RecallMessageRequest{Topic: resource(topic), RecallHandle: handle})
			must(t, err)
			return out
		}
		first, second := c.sent("alice", "first"), c.sent("alice", "second")
		out := recall("requests", first.GetRecallHandle())
		expectCode(t, out.GetStatus(), v2.Code_OK)
		if out.GetMessageId() != "first" {
			t.Fatalf("recalled %q", out.GetMessageId())
		}
		expectCode(t, recall("requests", first.GetRecallHandle()).GetStatus(), v2.Code_MESSAGE_NOT_FOUND)
		if got := idOf(c.receiveOne()); got != "second" {
			t.Fatalf("received %q, want the message that was not recalled", got)
		}
		expectCode(t, recall("requests", second.GetRecallHandle()).GetStatus(), v2.Code_MESSAGE_NOT_FOUND)
		expectCode(t, recall("requests", "no handle").GetStatus(), v2.Code_INVALID_RECEIPT_HANDLE)
		expectCode(t, recall("unknown", second.GetRecallHandle()).GetStatus(), v2.Code_TOPIC_NOT_FOUND)
		expectCode(t, recall("a b", second.GetRecallHandle()).GetStatus(), v2.Code_ILLEGAL_TOPIC)
	})
}
