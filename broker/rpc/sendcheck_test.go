package rpc

import (
	"fmt"
	"strings"
	"testing"
	"time"

	v2 "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
)

func liteMessage(change ...func(*v2.Message)) *v2.Message {
	m := &v2.Message{
		Topic: &v2.Resource{Name: "requests"},
		Body:  []byte("body"),
		SystemProperties: &v2.SystemProperties{
			MessageId: "id-1", MessageType: v2.MessageType_LITE, LiteTopic: new("alice"),
		},
	}
	for _, f := range change {
		f(m)
	}
	return m
}

func TestCheckSendCodes(t *testing.T) {
	const maxBody = 100
	system := func(f func(p *v2.SystemProperties)) func(*v2.Message) {
		return func(m *v2.Message) { f(m.SystemProperties) }
	}
	property := func(k, v string) func(*v2.Message) {
		return func(m *v2.Message) { m.UserProperties = map[string]string{k: v} }
	}
	properties := func(n, valueBytes int) func(*v2.Message) {
		return func(m *v2.Message) {
			m.UserProperties = map[string]string{}
			for i := range n {
				m.UserProperties[fmt.Sprintf("k%03d", i)] = strings.Repeat("v", valueBytes)
			}
		}
	}
	body := func(n int) func(*v2.Message) {
		return func(m *v2.Message) { m.Body = make([]byte, n) }
	}
	topic := func(name string) func(*v2.Message) {
		return func(m *v2.Message) { m.Topic = &v2.Resource{Name: name} }
	}
	liteName := func(name string) func(*v2.Message) {
		return system(func(p *v2.SystemProperties) { p.LiteTopic = new(name) })
	}
	at := func(d time.Duration) func(*v2.Message) {
		return system(func(p *v2.SystemProperties) { p.DeliveryTimestamp = timestamppb.New(time.Now().Add(d)) })
	}
	for _, c := range []struct {
		name string
		msgs []*v2.Message
		want v2.Code
	}{
		{"plain", []*v2.Message{liteMessage()}, v2.Code_OK},
		{"batch", []*v2.Message{liteMessage(), liteMessage()}, v2.Code_OK},
		{"no message", nil, v2.Code_MESSAGE_CORRUPTED},
		{"two topics", []*v2.Message{liteMessage(), liteMessage(topic("other"))}, v2.Code_MESSAGE_CORRUPTED},
		{"no topic", []*v2.Message{liteMessage(func(m *v2.Message) { m.Topic = nil })}, v2.Code_ILLEGAL_TOPIC},
		{"topic too long", []*v2.Message{liteMessage(topic(strings.Repeat("t", 128)))}, v2.Code_ILLEGAL_TOPIC},
		{"topic's characters", []*v2.Message{liteMessage(topic("a b"))}, v2.Code_ILLEGAL_TOPIC},
		{"system topic", []*v2.Message{liteMessage(topic("TBW102"))}, v2.Code_ILLEGAL_TOPIC},
		{"empty body", []*v2.Message{liteMessage(body(0))}, v2.Code_MESSAGE_BODY_EMPTY},
		{"largest body", []*v2.Message{liteMessage(body(maxBody))}, v2.Code_OK},
		{"body too large", []*v2.Message{liteMessage(body(maxBody + 1))}, v2.Code_MESSAGE_BODY_TOO_LARGE},
		{"second message is checked", []*v2.Message{liteMessage(), liteMessage(body(0))}, v2.Code_MESSAGE_BODY_EMPTY},
		{"gzip", []*v2.Message{liteMessage(system(func(p *v2.SystemProperties) { p.BodyEncoding = v2.Encoding_GZIP }))}, v2.Code_OK},
		{"unknown encoding", []*v2.Message{liteMessage(system(func(p *v2.SystemProperties) { p.BodyEncoding = 9 }))}, v2.Code_MESSAGE_CORRUPTED},
		{"128 properties", []*v2.Message{liteMessage(properties(128, 1))}, v2.Code_OK},
		{"129 properties", []*v2.Message{liteMessage(properties(129, 1))}, v2.Code_MESSAGE_PROPERTIES_TOO_LARGE},
		{"16 KiB of properties", []*v2.Message{liteMessage(properties(128, 124))}, v2.Code_OK},
		{"more than 16 KiB", []*v2.Message{liteMessage(properties(128, 125))}, v2.Code_MESSAGE_PROPERTIES_TOO_LARGE},
		{"keys count", []*v2.Message{liteMessage(system(func(p *v2.SystemProperties) { p.Keys = []string{strings.Repeat("k", 16385)} }))}, v2.Code_MESSAGE_PROPERTIES_TOO_LARGE},
		{"trace context counts", []*v2.Message{liteMessage(system(func(p *v2.SystemProperties) { p.TraceContext = new(strings.Repeat("k", 16385)) }))}, v2.Code_MESSAGE_PROPERTIES_TOO_LARGE},
		{"blank property", []*v2.Message{liteMessage(property(" ", "v"))}, v2.Code_ILLEGAL_MESSAGE_PROPERTY_KEY},
		{"reserved property", []*v2.Message{liteMessage(property("KEYS", "v"))}, v2.Code_ILLEGAL_MESSAGE_PROPERTY_KEY},
		{"lite topic as property", []*v2.Message{liteMessage(property("__LITE_TOPIC", "v"))}, v2.Code_ILLEGAL_MESSAGE_PROPERTY_KEY},
		{"control in key", []*v2.Message{liteMessage(property("a\nb", "v"))}, v2.Code_ILLEGAL_MESSAGE_PROPERTY_KEY},
		{"control in value", []*v2.Message{liteMessage(property("a", "v\u0085"))}, v2.Code_ILLEGAL_MESSAGE_PROPERTY_KEY},
		{"tag", []*v2.Message{liteMessage(system(func(p *v2.SystemProperties) { p.Tag = new("t") }))}, v2.Code_OK},
		{"blank tag", []*v2.Message{liteMessage(system(func(p *v2.SystemProperties) { p.Tag = new(" ") }))}, v2.Code_ILLEGAL_MESSAGE_TAG},
		{"bar in tag", []*v2.Message{liteMessage(system(func(p *v2.SystemProperties) { p.Tag = new("a|b") }))}, v2.Code_ILLEGAL_MESSAGE_TAG},
		{"control in tag", []*v2.Message{liteMessage(system(func(p *v2.SystemProperties) { p.Tag = new("a\x00") }))}, v2.Code_ILLEGAL_MESSAGE_TAG},
		{"blank key", []*v2.Message{liteMessage(system(func(p *v2.SystemProperties) { p.Keys = []string{"a", ""} }))}, v2.Code_ILLEGAL_MESSAGE_KEY},
		{"control in key", []*v2.Message{liteMessage(system(func(p *v2.SystemProperties) { p.Keys = []string{"a\x7f"} }))}, v2.Code_ILLEGAL_MESSAGE_KEY},
		{"blank id", []*v2.Message{liteMessage(system(func(p *v2.SystemProperties) { p.MessageId = " " }))}, v2.Code_ILLEGAL_MESSAGE_ID},
		{"long id", []*v2.Message{liteMessage(system(func(p *v2.SystemProperties) { p.MessageId = strings.Repeat("i", 256) }))}, v2.Code_ILLEGAL_MESSAGE_ID},
		{"delivery beyond a day", []*v2.Message{liteMessage(at(24*time.Hour + time.Minute))}, v2.Code_ILLEGAL_DELIVERY_TIME},
		{"delivery time", []*v2.Message{liteMessage(at(time.Hour))}, v2.Code_MESSAGE_PROPERTY_CONFLICT_WITH_TYPE},
		{"group too long", []*v2.Message{liteMessage(system(func(p *v2.SystemProperties) { p.MessageGroup = new(strings.Repeat("g", 64)) }))}, v2.Code_ILLEGAL_MESSAGE_GROUP},
		{"group", []*v2.Message{liteMessage(system(func(p *v2.SystemProperties) { p.MessageGroup = new(strings.Repeat("g", 63)) }))}, v2.Code_MESSAGE_PROPERTY_CONFLICT_WITH_TYPE},
		{"priority", []*v2.Message{liteMessage(system(func(p *v2.SystemProperties) { p.Priority = proto.Int32(1) }))}, v2.Code_MESSAGE_PROPERTY_CONFLICT_WITH_TYPE},
		{"normal message", []*v2.Message{liteMessage(system(func(p *v2.SystemProperties) { p.MessageType = v2.MessageType_NORMAL }))}, v2.Code_MESSAGE_PROPERTY_CONFLICT_WITH_TYPE},
		{"type left out", []*v2.Message{liteMessage(system(func(p *v2.SystemProperties) { p.MessageType = 0 }))}, v2.Code_OK},
		{"neither type nor name", []*v2.Message{liteMessage(system(func(p *v2.SystemProperties) { p.MessageType, p.LiteTopic = 0, nil }))}, v2.Code_MESSAGE_PROPERTY_CONFLICT_WITH_TYPE},
		{"no lite topic", []*v2.Message{liteMessage(system(func(p *v2.SystemProperties) { p.LiteTopic = nil }))}, v2.Code_ILLEGAL_LITE_TOPIC},
		{"empty lite topic", []*v2.Message{liteMessage(liteName(""))}, v2.Code_ILLEGAL_LITE_TOPIC},
		{"wildcard", []*v2.Message{liteMessage(liteName("*"))}, v2.Code_ILLEGAL_LITE_TOPIC},
		{"longest name", []*v2.Message{liteMessage(liteName(strings.Repeat("n", 64)))}, v2.Code_OK},
		{"name too long", []*v2.Message{liteMessage(liteName(strings.Repeat("n", 65)))}, v2.Code_ILLEGAL_LITE_TOPIC},
		{"name's characters", []*v2.Message{liteMessage(liteName("a/b"))}, v2.Code_ILLEGAL_LITE_TOPIC},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := codeOf(checkSend(c.msgs, maxBody)); got != c.want {
				t.Errorf("code %v, want %v", got, c.want)
			}
		})
	}
}

// TestCheckSendOrder gives one message every fault and mends them one after the
// other: the code that wins must be the one that RocketMQ checks first.
func TestCheckSendOrder(t *testing.T) {
	m := &v2.Message{
		Topic:          &v2.Resource{Name: "a b"},
		UserProperties: map[string]string{"KEYS": "v"},
		SystemProperties: &v2.SystemProperties{
			Tag:               new("a|b"),
			Keys:              []string{""},
			DeliveryTimestamp: timestamppb.New(time.Now().Add(48 * time.Hour)),
			MessageGroup:      new(strings.Repeat("g", 64)),
			MessageType:       v2.MessageType_NORMAL,
			LiteTopic:         new("a/b"),
		},
	}
	p := m.SystemProperties
	for _, step := range []struct {
		want v2.Code
		mend func()
	}{
		{v2.Code_ILLEGAL_TOPIC, func() { m.Topic.Name = "requests" }},
		{v2.Code_MESSAGE_BODY_EMPTY, func() { m.Body = make([]byte, 11) }},
		{v2.Code_MESSAGE_BODY_TOO_LARGE, func() { m.Body = make([]byte, 10) }},
		{v2.Code_ILLEGAL_MESSAGE_PROPERTY_KEY, func() { m.UserProperties = nil }},
		{v2.Code_ILLEGAL_MESSAGE_TAG, func() { p.Tag = nil }},
		{v2.Code_ILLEGAL_MESSAGE_KEY, func() { p.Keys = []string{strings.Repeat("k", 16385)} }},
		{v2.Code_MESSAGE_PROPERTIES_TOO_LARGE, func() { p.Keys = nil }},
		{v2.Code_ILLEGAL_MESSAGE_ID, func() { p.MessageId = "id" }},
		{v2.Code_ILLEGAL_DELIVERY_TIME, func() { p.DeliveryTimestamp = nil }},
		{v2.Code_ILLEGAL_MESSAGE_GROUP, func() { p.MessageGroup = nil }},
		{v2.Code_MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, func() { p.MessageType = v2.MessageType_LITE }},
		{v2.Code_ILLEGAL_LITE_TOPIC, func() { p.LiteTopic = new("alice") }},
		{v2.Code_OK, func() {}},
	} {
		if got := codeOf(checkSend([]*v2.Message{m}, 10)); got != step.want {
			t.Fatalf("code %v, want %v", got, step.want)
		}
		step.mend()
	}
}

// A message without system properties once ended in a panic, answered as an internal error.
func TestMessageWithoutSystemPropertiesIsRefused(t *testing.T) {
	err := checkSend([]*v2.Message{{Topic: &v2.Resource{Name: "requests"}, Body: []byte("b")}}, 1<<20)
	if got := statusOf(err).GetCode(); got != v2.Code_ILLEGAL_MESSAGE_ID {
		t.Errorf("code %v, %v", got, err)
	}
}
