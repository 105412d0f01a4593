package rpc

import (
	"strings"
	"time"
	"unicode"

	v2 "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"

	"github.com/penstockmq/penstock/broker/lite"
)

// checkSend refuses what RocketMQ's proxy refuses, with its codes and in its order:
// clients and their tests know which fault wins when there are several. (The
// proxy's SendMessageActivity; limits of its ProxyConfig.)
func checkSend(msgs []*v2.Message, maxBody int) error {
	if len(msgs) == 0 {
		return refuse(v2.Code_MESSAGE_CORRUPTED, "no message to send")
	}
	topic := msgs[0].GetTopic().GetName()
	for _, m := range msgs {
		if m.GetTopic().GetName() != topic {
			return refuse(v2.Code_MESSAGE_CORRUPTED, "messages of one send name the topics %q and %q", topic, m.GetTopic().GetName())
		}
	}
	if err := lite.CheckTopic(topic); err != nil {
		return err
	}
	now := time.Now()
	for _, m := range msgs {
		if err := checkMessage(m, maxBody, now); err != nil {
			return err
		}
	}
	return nil
}

func checkMessage(m *v2.Message, maxBody int, now time.Time) error {
	p := m.GetSystemProperties()
	if p == nil { // then the message id is blank
		return checkMessageID("")
	}
	if err := checkBody(m, maxBody); err != nil {
		return err
	}
	if err := checkProperties(m); err != nil {
		return err
	}
	if err := checkMessageID(p.GetMessageId()); err != nil {
		return err
	}
	if err := checkDelivery(p, now); err != nil {
		return err
	}
	if err := checkType(p); err != nil {
		return err
	}
	return lite.CheckName(p.GetLiteTopic())
}

func checkBody(m *v2.Message, maxBody int) error {
	switch n := len(m.GetBody()); {
	case n == 0:
		return refuse(v2.Code_MESSAGE_BODY_EMPTY, "message body is empty")
	case n > maxBody:
		return refuse(v2.Code_MESSAGE_BODY_TOO_LARGE, "message body has %d bytes, at most %d", n, maxBody)
	}
	switch e := m.GetSystemProperties().GetBodyEncoding(); e {
	case v2.Encoding_ENCODING_UNSPECIFIED, v2.Encoding_IDENTITY, v2.Encoding_GZIP:
		return nil
	default:
		return refuse(v2.Code_MESSAGE_CORRUPTED, "body encoding %v is unknown", e)
	}
}

// checkProperties checks what is stored beside the body: user properties, tag, keys
// and their size in total. Born host and trace context count too, which are free
// in RocketMQ: nothing may be stored without a bound.
func checkProperties(m *v2.Message) error {
	p := m.GetSystemProperties()
	if n := len(m.GetUserProperties()); n > maxUserProperties {
		return refuse(v2.Code_MESSAGE_PROPERTIES_TOO_LARGE, "message has %d user properties, at most %d", n, maxUserProperties)
	}
	size := len(p.GetTag()) + len(p.GetBornHost()) + len(p.GetTraceContext())
	for k, v := range m.GetUserProperties() {
		if err := checkProperty(k, v); err != nil {
			return err
		}
		size += len(k) + len(v)
	}
	if p.Tag != nil {
		if err := checkTag(p.GetTag()); err != nil {
			return err
		}
	}
	for _, k := range p.GetKeys() {
		if blank(k) || hasControl(k) {
			return refuse(v2.Code_ILLEGAL_MESSAGE_KEY, "message key %q is blank or has control characters", k)
		}
		size += len(k)
	}
	if size > maxPropertiesBytes {
		return refuse(v2.Code_MESSAGE_PROPERTIES_TOO_LARGE, "properties, tag and keys have %d bytes, at most %d", size, maxPropertiesBytes)
	}
	return nil
}

func checkProperty(k, v string) error {
	switch {
	case blank(k):
		return refuse(v2.Code_ILLEGAL_MESSAGE_PROPERTY_KEY, "property key is blank")
	case reserved(k):
		return refuse(v2.Code_ILLEGAL_MESSAGE_PROPERTY_KEY, "property key %q is reserved", k)
	case hasControl(k) || hasControl(v):
		return refuse(v2.Code_ILLEGAL_MESSAGE_PROPERTY_KEY, "property %q has control characters", k)
	}
	return nil
}

func checkTag(tag string) error {
	switch {
	case blank(tag):
		return refuse(v2.Code_ILLEGAL_MESSAGE_TAG, "message tag is blank")
	case strings.Contains(tag, "|"):
		return refuse(v2.Code_ILLEGAL_MESSAGE_TAG, "message tag %q contains '|'", tag)
	case hasControl(tag):
		return refuse(v2.Code_ILLEGAL_MESSAGE_TAG, "message tag %q has control characters", tag)
	}
	return nil
}

func checkMessageID(id string) error {
	if blank(id) || len(id) > maxMessageIDBytes {
		return refuse(v2.Code_ILLEGAL_MESSAGE_ID, "message id %.40q is blank or longer than %d bytes", id, maxMessageIDBytes)
	}
	return nil
}

func checkDelivery(p *v2.SystemProperties, now time.Time) error {
	if at := p.GetDeliveryTimestamp(); at != nil {
		if d := at.AsTime().Sub(now); d > maxDelay {
			return refuse(v2.Code_ILLEGAL_DELIVERY_TIME, "delivery time is %v ahead, at most %v", d.Round(time.Second), maxDelay)
		}
	}
	if g := p.GetMessageGroup(); p.MessageGroup != nil && (blank(g) || len(g) > maxMessageGroup || hasControl(g)) {
		return refuse(v2.Code_ILLEGAL_MESSAGE_GROUP, "message group %.80q is blank, has control characters or more than %d bytes", g, maxMessageGroup)
	}
	return nil
}

// checkType lets lite messages pass: every parent topic is of type LITE. A client
// that names no type is believed to mean the one that its properties say.
func checkType(p *v2.SystemProperties) error {
	kind := p.GetMessageType()
	if kind == v2.MessageType_MESSAGE_TYPE_UNSPECIFIED && p.LiteTopic != nil {
		kind = v2.MessageType_LITE
	}
	switch {
	case kind != v2.MessageType_LITE:
		return refuse(v2.Code_MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, "message type is %v, the topic takes LITE", kind)
	case p.MessageGroup != nil:
		return refuse(v2.Code_MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, "a lite message has a message group")
	case p.DeliveryTimestamp != nil:
		return refuse(v2.Code_MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, "a lite message has a delivery time")
	case p.Priority != nil:
		return refuse(v2.Code_MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, "a lite message has a priority")
	}
	return nil
}

func blank(s string) bool { return strings.TrimSpace(s) == "" }

// hasControl finds Unicode's Cc, which is what Java calls ISO control.
func hasControl(s string) bool { return strings.ContainsFunc(s, unicode.IsControl) }

// reserved is whether RocketMQ itself stores something under this property key
// (its MessageConst.STRING_HASH_SET, and the two of lite topics).
func reserved(key string) bool {
	switch key {
	case "TRACE_ON", "MSG_REGION", "KEYS", "TAGS", "WAIT", "DELAY", "RETRY_TOPIC", "REAL_TOPIC", "REAL_QID",
		"TRAN_MSG", "PGROUP", "MIN_OFFSET", "MAX_OFFSET", "BUYER_ID", "ORIGIN_MESSAGE_ID", "TRANSFER_FLAG",
		"CORRECTION_FLAG", "MQ2_FLAG", "RECONSUME_TIME", "UNIQ_KEY", "MAX_RECONSUME_TIMES", "CONSUME_START_TIME",
		"POP_CK", "POP_CK_OFFSET", "1ST_POP_TIME", "TRAN_PREPARED_QUEUE_OFFSET", "DUP_INFO", "EXTEND_UNIQ_INFO",
		"INSTANCE_ID", "CORRELATION_ID", "REPLY_TO_CLIENT", "TTL", "ARRIVE_TIME", "PUSH_REPLY_TIME", "CLUSTER",
		"MSG_TYPE", "INNER_MULTI_DISPATCH", "INNER_MULTI_QUEUE_OFFSET", "TIMER_DELAY_SEC", "TIMER_DELIVER_MS",
		"TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS", "TIMER_ROLL_TIMES", "TIMER_OUT_MS", "TIMER_DEL_UNIQKEY",
		"TIMER_DELAY_LEVEL", "__BORNHOST", "BORN_TIMESTAMP", "__LITE_TOPIC":
		return true
	default:
		return false
	}
}
