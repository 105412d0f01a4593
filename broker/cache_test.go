package broker

import (
	"testing"

	"github.com/penstockmq/penstock/broker/dispatch"
	"github.com/penstockmq/penstock/broker/store"
)

// TestTailCacheStaysWithinItsBudget settles every second message, so that the queue of keys has dead ones in it.
func TestTailCacheStaysWithinItsBudget(t *testing.T) {
	t.Parallel()
	const budget, body, count = 1 << 20, 1000, 100_000
	c := newTailCache(budget)
	key := func(i int) messageKey { return messageKey{bucket: 1, offset: dispatch.Offset(i)} }
	for i := range count {
		c.put(key(i), "b", &store.Message{Body: make([]byte, body)})
		if i%2 == 0 {
			c.remove(key(i))
		}
		if c.bytes > budget || len(c.order) > max(1024, 4*len(c.entries)+4) {
			t.Fatalf("after %d messages: %d bytes in %d entries, %d keys; the budget is %d bytes", i+1, c.bytes, len(c.entries), len(c.order), budget)
		}
	}
	if c.get(key(count-1)) == nil || c.get(key(1)) != nil {
		t.Error("the newest message is gone, or the oldest is still there")
	}
	c.put(key(count), "b", &store.Message{Body: make([]byte, 2*budget)})
	if c.get(key(count)) != nil {
		t.Error("a message above the budget is kept")
	}
}
