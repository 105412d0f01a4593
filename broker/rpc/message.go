package rpc

import (
	"crypto/md5" //nolint:gosec // a checksum that clients know, not a protection
	"encoding/hex"
	"strings"
	"time"

	v2 "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/penstockmq/penstock/broker"
)

// toWire is a delivery as clients get it. It shares memory with d.
func toWire(d *broker.Delivery, topic *v2.Resource, storeHost string, now time.Time) *v2.Message {
	p := &v2.SystemProperties{
		Tag:       optional(d.Tag),
		Keys:      d.Keys,
		MessageId: d.ID,
		// Node and C# cannot read a message without a digest, and no two clients agree
		// on how CRC32 is written: MD5 in upper-case hex is what all of them take.
		BodyDigest:        &v2.Digest{Type: v2.DigestType_MD5, Checksum: digest(d.Body)},
		BodyEncoding:      v2.Encoding_IDENTITY,
		MessageType:       v2.MessageType_LITE,
		BornTimestamp:     timestamppb.New(d.Born),
		BornHost:          d.BornHost,
		StoreTimestamp:    timestamppb.New(d.Stored),
		StoreHost:         storeHost,
		ReceiptHandle:     new(d.Handle),
		QueueOffset:       new(int64(d.Offset)),
		InvisibleDuration: durationpb.New(max(0, d.InvisibleUntil.Sub(now))),
		DeliveryAttempt:   new(int32(d.Attempt)),
		TraceContext:      optional(d.TraceContext),
		LiteTopic:         new(d.Lite),
	}
	if d.Encoding == broker.Gzip {
		p.BodyEncoding = v2.Encoding_GZIP
	}
	return &v2.Message{Topic: topic, UserProperties: d.Properties, SystemProperties: p, Body: d.Body}
}

func digest(body []byte) string {
	sum := md5.Sum(body) //nolint:gosec // see the import
	return strings.ToUpper(hex.EncodeToString(sum[:]))
}
