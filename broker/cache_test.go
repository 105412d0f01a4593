package broker

import (
	"strings"
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

// TestTailCacheCountsAllOfAMessage: small bodies with as many properties as a sender may
// have do not hold many times the budget.
func TestTailCacheCountsAllOfAMessage(t *testing.T) {
	t.Parallel()
	const budget = 1 << 20
	c := newTailCache(budget)
	m := &store.Message{Body: []byte("x"), Properties: []store.Property{{Key: "k", Value: strings.Repeat("v", 16<<10)}}}
	for off := range dispatch.Offset(1000) {
		c.put(messageKey{1, off}, "name", m)
	}
	if held := len(c.entries) * (16 << 10); held > budget || held < budget/2 {
		t.Errorf("%d bytes of properties are held with a budget of %d", held, budget)
	}
	for off := range dispatch.Offset(1000) {
		c.remove(messageKey{1, off})
	}
	if c.bytes != 0 {
		t.Errorf("%d bytes are counted in an empty cache", c.bytes)
	}
}
