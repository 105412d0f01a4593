package broker

import (
	"github.com/penstockmq/penstock/broker/dispatch"
	"github.com/penstockmq/penstock/broker/store"
)

// tailCache keeps messages in memory from their append until they are settled, as
// far as its budget goes, so that a message with a waiting consumer is handed over
// and not read back. The oldest leave first: a bucket that is far behind is read
// from the store, one that keeps up never is.
//
// Owned by one owner loop. The messages themselves are immutable and may be read
// by anyone who was given one.
type tailCache struct {
	budget  int64
	bytes   int64
	entries map[messageKey]cached
	// order is the keys as they came. A key whose message has left already is
	// skipped; dead counts those, and a queue that is mostly dead is compacted, so
	// its length stays within twice the messages held.
	order []messageKey
	head  int
}

type messageKey struct {
	bucket dispatch.BucketID
	offset dispatch.Offset
}

// cached is a message in the cache, and the name of its bucket.
type cached struct {
	key     messageKey
	name    string
	message *store.Message
}

// entryOverhead is the approximate memory of a cached message beside its text and body, in
// bytes; textOverhead that of each key and property, of which a message may have thousands.
const (
	entryOverhead = 512
	textOverhead  = 32
)

// sizeOf returns the memory of a cached message, in bytes.
func sizeOf(m *store.Message) int64 {
	n := entryOverhead + len(m.Body) + len(m.ID) + len(m.Tag) + len(m.BornHost) + len(m.TraceContext)
	for _, k := range m.Keys {
		n += textOverhead + len(k)
	}
	for _, p := range m.Properties {
		n += textOverhead + len(p.Key) + len(p.Value)
	}
	return int64(n)
}

func newTailCache(budget int64) *tailCache {
	return &tailCache{budget: budget, entries: make(map[messageKey]cached)}
}

func (c *tailCache) put(k messageKey, name string, m *store.Message) {
	size := sizeOf(m)
	if size > c.budget {
		return
	}
	c.entries[k] = cached{k, name, m}
	c.order = append(c.order, k)
	c.bytes += size
	for c.bytes > c.budget {
		c.remove(c.order[c.head])
		c.head++
	}
	c.compact()
}

func (c *tailCache) get(k messageKey) *store.Message { return c.entries[k].message }

func (c *tailCache) remove(k messageKey) {
	e, ok := c.entries[k]
	if !ok {
		return
	}
	delete(c.entries, k)
	c.bytes -= sizeOf(e.message)
}

// compact drops keys without a message. It runs when at least half of the queue
// is such, so its cost is a constant for each put.
func (c *tailCache) compact() {
	if n := len(c.order) - c.head; len(c.order) >= 1024 && (n > 2*len(c.entries) || c.head > n) {
		live := c.order[:0]
		for _, k := range c.order[c.head:] {
			if _, ok := c.entries[k]; ok {
				live = append(live, k)
			}
		}
		c.order, c.head = live, 0
	}
}

// newest returns what is cached among n of the keys, the newest of which has skip
// younger ones; nil when there are no more keys.
func (c *tailCache) newest(skip, n int) []cached {
	live := c.order[c.head:]
	if skip >= len(live) {
		return nil
	}
	out := make([]cached, 0, n)
	for i := len(live) - 1 - skip; i >= 0 && n > 0; i, n = i-1, n-1 {
		if e, ok := c.entries[live[i]]; ok {
			out = append(out, e)
		}
	}
	return out
}
