package broker

import (
	"context"
	"slices"
	"time"

	"github.com/penstockmq/penstock/broker/dispatch"
	"github.com/penstockmq/penstock/broker/store"
)

// sweepBatch bounds the entries of the expiry index that are looked at in one go.
const sweepBatch = 1000

// sweepChunk bounds the buckets that one turn of an owner loop checks: each check reads the
// store.
const sweepChunk = 100

// wholeSweep is the time between two sweeps from the start of the expiry index. The sweeps
// in between begin after the last entry of the previous sweep, to skip the tombstones of
// deleted entries, up to millions. Entries still appear before that place when the clock is
// set back or a bucket cannot be read.
const wholeSweep = 10 * time.Minute

// sweepPlace is the place in the index where the next sweep begins. Owned by Broker.sweep.
type sweepPlace struct {
	next  store.ExpiryPlace
	whole time.Time // start of the last sweep from the start of the index
	last  time.Time // start of the last sweep
}

// begin returns the place where a sweep begins.
func (p *sweepPlace) begin(now time.Time) {
	if now.Before(p.last) || now.Sub(p.whole) >= wholeSweep {
		p.next, p.whole = store.ExpiryPlace{}, now
	}
	p.last = now
}

// sweep looks, once in each interval, at the buckets whose time may have come. Its
// cost follows the entries that are due, not the buckets there are.
func (b *Broker) sweep(ctx context.Context) error {
	ticker := time.NewTicker(b.opts.SweepInterval)
	defer ticker.Stop()
	var place sweepPlace
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		place.begin(b.opts.Clock().Wall)
		for more := true; more; {
			var err error
			if more, err = b.sweepDue(ctx, &place); err != nil {
				if ctx.Err() == nil {
					b.opts.Logger.Error("sweep failed", "error", err)
				}
				break
			}
		}
	}
}

// sweepDue hands one batch of due entries to their owners and says whether there
// may be more.
func (b *Broker) sweepDue(ctx context.Context, place *sweepPlace) (bool, error) {
	due, next, err := b.store.DueExpiry(place.next, b.opts.Clock().Wall, sweepBatch)
	if err != nil {
		return false, err
	}
	if len(due) == 0 {
		place.next = next
		return false, nil
	}
	byTopic := map[uint16][]store.Expiry{}
	for _, e := range due {
		id := topicOf(dispatch.BucketID(e.Bucket))
		byTopic[id] = append(byTopic[id], e)
	}
	for id, entries := range byTopic {
		o := b.ownerOf(id)
		if o == nil { // its topic was deleted
			if err := b.dropExpiry(entries); err != nil {
				return false, err
			}
			continue
		}
		for chunk := range slices.Chunk(entries, sweepChunk) {
			if err := o.call(ctx, &sweepCommand{reply: newReply(), entries: chunk}); err != nil {
				return false, err
			}
		}
	}
	place.next = next // entries that failed above are tried again
	return len(due) == sweepBatch, nil
}

// dropExpiry removes entries that no topic answers for.
func (b *Broker) dropExpiry(entries []store.Expiry) error {
	batch := b.store.NewBatch()
	for _, e := range entries {
		batch.DeleteExpiry(e.At, e.Bucket)
	}
	return commit(b.store, batch)
}

func (b *Broker) ownerOf(id uint16) *owner {
	b.mu.RLock()
	defer b.mu.RUnlock()
	for _, o := range b.topics {
		if o.id == id {
			return o
		}
	}
	return nil
}

type sweepCommand struct {
	reply
	entries []store.Expiry
}

func (c *sweepCommand) apply(o *owner, t *turn) {
	for _, e := range c.entries {
		rec, ok, err := o.store.Bucket(o.id, e.Name)
		if err != nil {
			o.log.Error("bucket unreadable", "topic", o.name, "bucket", e.Name, "error", err)
			continue
		}
		o.m.Sweep(t.now, dispatch.ExpiryEntry{At: e.At, Bucket: dispatch.BucketID(e.Bucket), Name: e.Name}, bucketState(rec), ok)
	}
	t.after = append(t.after, c)
}
