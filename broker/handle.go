package broker

import (
	"encoding/base64"
	"encoding/binary"
	"fmt"

	"github.com/penstockmq/penstock/broker/dispatch"
	"github.com/penstockmq/penstock/broker/store"
)

// A receipt handle is self-contained, so that a broker that has just started
// understands the handles of its predecessor. Layout, big-endian, base64url
// without padding:
//
//	byte 0       'r', the version
//	bytes 1–4    group id
//	bytes 5–12   bucket id (its top 16 bits are the topic id)
//	bytes 13–20  offset
//	bytes 21–28  lease token
//
// A recall handle is the same idea for a sender: 'c', bucket id, offset, and
// the lite topic's name, which finds the bucket when it is not in memory.
//
// Neither is a secret: ids, offsets and tokens are consecutive numbers. The machine refuses a
// token that was never issued, and for a leased message every token but the lease's own. A
// client that can reach the port can still settle or recall any queued message, so the port
// is for a trusted network.
//
// If a layout changes, give it a new version byte and keep decoding the old one:
// handles outlive restarts by as long as a lease may last (12 h).
const (
	receiptVersion = 'r'
	receiptBytes   = 29
	recallVersion  = 'c'
	recallMinBytes = 18
	recallMaxBytes = recallMinBytes + 64
)

var handleEncoding = base64.RawURLEncoding

func encodeReceipt(h dispatch.Handle) string {
	var b [receiptBytes]byte
	b[0] = receiptVersion
	binary.BigEndian.PutUint32(b[1:], uint32(h.Group))
	binary.BigEndian.PutUint64(b[5:], uint64(h.Bucket))
	binary.BigEndian.PutUint64(b[13:], uint64(h.Offset))
	binary.BigEndian.PutUint64(b[21:], uint64(h.Token))
	return handleEncoding.EncodeToString(b[:])
}

func decodeReceipt(s string) (dispatch.Handle, error) {
	if handleEncoding.DecodedLen(len(s)) != receiptBytes {
		return dispatch.Handle{}, fmt.Errorf("%w: receipt handle of %d characters, want %d", ErrInvalidHandle, len(s), handleEncoding.EncodedLen(receiptBytes))
	}
	b, err := handleEncoding.DecodeString(s)
	if err != nil || b[0] != receiptVersion {
		return dispatch.Handle{}, fmt.Errorf("%w: receipt handle is not one of this broker", ErrInvalidHandle)
	}
	return dispatch.Handle{
		Group:  dispatch.GroupID(binary.BigEndian.Uint32(b[1:])),
		Bucket: dispatch.BucketID(binary.BigEndian.Uint64(b[5:])),
		Offset: dispatch.Offset(binary.BigEndian.Uint64(b[13:])),
		Token:  dispatch.Token(binary.BigEndian.Uint64(b[21:])),
	}, nil
}

// recall names one queued message for its sender.
type recall struct {
	bucket dispatch.BucketID
	offset dispatch.Offset
	name   string
}

func encodeRecall(r recall) string {
	b := make([]byte, 17, recallMaxBytes)
	b[0] = recallVersion
	binary.BigEndian.PutUint64(b[1:], uint64(r.bucket))
	binary.BigEndian.PutUint64(b[9:], uint64(r.offset))
	return handleEncoding.EncodeToString(append(b, r.name...))
}

func decodeRecall(s string) (recall, error) {
	if n := handleEncoding.DecodedLen(len(s)); n < recallMinBytes || n > recallMaxBytes {
		return recall{}, fmt.Errorf("%w: recall handle of %d characters", ErrInvalidHandle, len(s))
	}
	b, err := handleEncoding.DecodeString(s)
	if err != nil || b[0] != recallVersion {
		return recall{}, fmt.Errorf("%w: recall handle is not one of this broker", ErrInvalidHandle)
	}
	return recall{
		bucket: dispatch.BucketID(binary.BigEndian.Uint64(b[1:])),
		offset: dispatch.Offset(binary.BigEndian.Uint64(b[9:])),
		name:   string(b[17:]),
	}, nil
}

// topicOf returns the id of the parent topic that a bucket belongs to.
func topicOf(id dispatch.BucketID) uint16 { return store.TopicOf(uint64(id)) }
