package broker_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/penstockmq/penstock/broker"
)

// Messages purged behind a running message must not count again after a restart: the bucket
// would refuse sends that it has room for.
func TestPurgedMessagesDoNotCountAfterARestart(t *testing.T) {
	o := options(vfs.NewMem())
	o.Topics[0].MaxMessages = 10
	b := open(t, o)
	for i := range 10 {
		send(t, b, fmt.Sprint(i), "alice__m")
	}
	one(t, b, time.Second)
	if n, err := b.Purge(t.Context(), topic, "alice__m"); err != nil || n != 9 {
		t.Fatalf("purged %d, %v, want 9", n, err)
	}
	closeBroker(t, b)
	b = open(t, o)
	info, err := b.Bucket(t.Context(), topic, "alice__m")
	if err != nil || info.Queued != 1 || info.Bytes != 1 {
		t.Fatalf("%d messages of %d bytes, %v, want the one that runs", info.Queued, info.Bytes, err)
	}
	msgs := make([]broker.Message, 9)
	for i := range msgs {
		msgs[i] = broker.Message{Lite: "alice__m", ID: fmt.Sprint("again", i), Body: []byte("x")}
	}
	if _, err := b.Send(t.Context(), topic, msgs); err != nil {
		t.Fatalf("one message lives of at most 10, and nine are refused: %v", err)
	}
}
