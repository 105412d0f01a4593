package store

import (
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"time"
)

const messageVersion = 1

// Message is what a sender handed in, as it is kept. Its bucket and offset are in
// the key. Whoever gets one from the store may keep it; nobody may change one that
// was put into a batch.
type Message struct {
	ID         string // the sender's message id
	Tag        string
	Keys       []string
	Properties []Property
	// BodyEncoding is the number the protocol gives it; the store does not look.
	BodyEncoding uint8
	BornHost     string
	TraceContext string
	Born         time.Time // by the sender's clock
	Stored       time.Time // by the broker's clock
	// Deadline is when the message expires if it is still queued; zero is never.
	Deadline time.Time
	Body     []byte
}

// Property is one user property of a message.
type Property struct {
	Key, Value string
}

// PropertyList turns properties into what a record holds, in the order of their
// keys, so that equal messages have equal bytes.
func PropertyList(m map[string]string) []Property {
	if len(m) == 0 {
		return nil
	}
	out := make([]Property, 0, len(m))
	for _, k := range slices.Sorted(maps.Keys(m)) {
		out = append(out, Property{k, m[k]})
	}
	return out
}

// PropertyMap is the inverse of PropertyList; it is nil when there are none.
func (m *Message) PropertyMap() map[string]string {
	if len(m.Properties) == 0 {
		return nil
	}
	out := make(map[string]string, len(m.Properties))
	for _, p := range m.Properties {
		out[p.Key] = p.Value
	}
	return out
}

// Property returns the value of one property, and whether it is there.
func (m *Message) Property(key string) (string, bool) {
	for _, p := range m.Properties {
		if p.Key == key {
			return p.Value, true
		}
	}
	return "", false
}

// appendHeader writes all of the value but its body, which is the rest:
//
//	version  header length (uvarint)  header  body
//
// The body is last and has no length of its own, so a batch can copy it straight to
// its place, and a reader can take it as a slice of the value.
func (m *Message) appendHeader(dst []byte) []byte {
	// The header is written behind room for its length, then moved up to it.
	const room = 1 + binary.MaxVarintLen32
	begin := len(dst)
	dst = append(dst, make([]byte, room)...)
	dst = m.appendFields(dst)
	n := len(dst) - begin - room

	dst[begin] = messageVersion
	k := 1 + binary.PutUvarint(dst[begin+1:], uint64(n))
	copy(dst[begin+k:], dst[begin+room:])
	return dst[:begin+k+n]
}

func (m *Message) appendFields(dst []byte) []byte {
	dst = append(dst, m.BodyEncoding)
	dst = appendTime(dst, m.Born)
	dst = appendTime(dst, m.Stored)
	dst = appendUntil(dst, m.Deadline)
	dst = appendString(dst, m.ID)
	dst = appendString(dst, m.Tag)
	dst = appendString(dst, m.BornHost)
	dst = appendString(dst, m.TraceContext)
	dst = binary.AppendUvarint(dst, uint64(len(m.Keys)))
	for _, k := range m.Keys {
		dst = appendString(dst, k)
	}
	dst = binary.AppendUvarint(dst, uint64(len(m.Properties)))
	for _, p := range m.Properties {
		dst = appendString(dst, p.Key)
		dst = appendString(dst, p.Value)
	}
	return dst
}

func (m *Message) appendValue(dst []byte) []byte {
	return append(m.appendHeader(dst), m.Body...)
}

// splitMessage takes a value apart without copying it.
func splitMessage(value []byte) (header, body []byte, err error) {
	if len(value) == 0 || value[0] != messageVersion {
		return nil, nil, fmt.Errorf("%w: message: unknown record version", ErrCorrupt)
	}
	n, k := binary.Uvarint(value[1:])
	if k <= 0 || n > uint64(len(value)-1-k) {
		return nil, nil, fmt.Errorf("%w: message: header length exceeds the value", ErrCorrupt)
	}
	return value[1+k : 1+k+int(n)], value[1+k+int(n):], nil
}

// decodeMessage takes ownership of value: Body is a part of it.
func decodeMessage(value []byte) (*Message, error) {
	header, body, err := splitMessage(value)
	if err != nil {
		return nil, err
	}
	d := &decoder{rest: string(header)}
	m := &Message{
		BodyEncoding: d.byte(),
		Born:         d.time(),
		Stored:       d.time(),
		Deadline:     d.time(),
		ID:           d.string(),
		Tag:          d.string(),
		BornHost:     d.string(),
		TraceContext: d.string(),
		Keys:         d.strings(),
		Properties:   d.properties(),
		Body:         slices.Clip(body),
	}
	if err := d.err("message"); err != nil {
		return nil, err
	}
	return m, nil
}

func (d *decoder) properties() []Property {
	n := d.count()
	if n == 0 {
		return nil
	}
	out := make([]Property, 0, n)
	for range n {
		out = append(out, Property{d.string(), d.string()})
	}
	return out
}
