package broker

import (
	"context"
	"fmt"
	"time"

	"github.com/penstockmq/penstock/broker/lite"
	"github.com/penstockmq/penstock/broker/store"
)

const (
	// findMax bounds the messages that one FindRequest looks at in the store.
	findMax = 1_000_000
	// findPage bounds those it looks at between two looks at its context, and those of
	// the cache that the loop hands out in one go.
	findPage = 1024
)

// FindRequest looks for the message of a request among what a topic keeps, by its
// property penstock-request-id: first among the newest in memory, then bucket by bucket
// in the store. It is for people who have an id and no bucket. ctx ends it.
//
// Errors: ErrTopicNotFound; ErrInvalidArgument for an id of no or more than 256 bytes;
// ErrScanLimit when there is more than it may look at.
func (b *Broker) FindRequest(ctx context.Context, topic, requestID string) (name string, offset int64, ok bool, err error) {
	if n := len(requestID); n < 1 || n > 256 {
		return "", 0, false, fmt.Errorf("%w: request id of %d bytes, want 1 to 256", ErrInvalidArgument, n)
	}
	o, ok := b.lookup(topic)
	if !ok {
		return "", 0, false, fmt.Errorf("%w: %q", ErrTopicNotFound, topic)
	}
	want := store.Property{Key: lite.PropertyRequestID, Value: requestID}
	if name, offset, ok, err = o.findCached(ctx, want); ok || err != nil {
		return name, offset, ok, err
	}
	return o.findStored(ctx, want)
}

// findCached looks at what the tail cache holds, newest first. The loop hands it out
// page by page. A message that moves in the cache meanwhile may be missed here; the
// store has it too.
func (o *owner) findCached(ctx context.Context, want store.Property) (string, int64, bool, error) {
	for skip := 0; ; skip += findPage {
		var page []cached
		if err := o.query(ctx, func(time.Time) { page = o.cache.newest(skip, findPage) }); err != nil {
			return "", 0, false, err
		}
		if page == nil {
			return "", 0, false, nil
		}
		for _, c := range page {
			if v, ok := c.message.Property(want.Key); ok && v == want.Value {
				return c.name, int64(c.key.offset), true, nil
			}
		}
	}
}

// findStored looks at all buckets that keep messages, from each one's head on.
func (o *owner) findStored(ctx context.Context, want store.Property) (string, int64, bool, error) {
	left := findMax
	for after := ""; ; {
		buckets, err := o.store.BucketsByPrefix(o.id, "", after, findPage)
		if err != nil || len(buckets) == 0 {
			return "", 0, false, err
		}
		for _, r := range buckets {
			after = r.Name
			off, found, err := o.findIn(ctx, r, want, &left)
			if found || err != nil {
				return r.Name, off, found, err
			}
		}
	}
}

func (o *owner) findIn(ctx context.Context, r store.Bucket, want store.Property, left *int) (int64, bool, error) {
	for off := r.Head; off < r.Tail; {
		if err := ctx.Err(); err != nil {
			return 0, false, err
		}
		if *left <= 0 {
			return 0, false, fmt.Errorf("%w: %d messages under %q were looked at", ErrScanLimit, findMax, o.name)
		}
		at, found, seen, err := o.store.FindProperty(r.ID, off, want, findPage)
		if found || err != nil || seen < findPage {
			*left -= seen
			return int64(at), found, err
		}
		*left -= seen
		off = at
	}
	return 0, false, ctx.Err()
}
