package broker

import (
	"errors"
	"time"

	"github.com/penstockmq/penstock/broker/dispatch"
	"github.com/penstockmq/penstock/broker/store"
)

// ReasonUnreadable is the reason of dead letters whose message is damaged on disk.
const ReasonUnreadable = "unreadable"

// propertyUnreadable of a dead letter describes the damage of its message.
const propertyUnreadable = "penstock-unreadable"

// unreadableCommand makes a message that is damaged on disk a dead letter at once. Each
// further delivery would read the same bytes, and meanwhile the message would block its
// bucket, its row and its column.
type unreadableCommand struct{ handle dispatch.Handle }

func (c unreadableCommand) apply(o *owner, t *turn) {
	o.metrics.Unreadable.Add(1)
	// A stale handle is no error here: another delivery has found the same damage.
	_ = o.m.DeadLetter(t.now, c.handle, ReasonUnreadable)
}

// remains returns the message of a dead letter that is not in the cache. If the message
// cannot be read, it returns the bytes of its record as the body, and the damage as a
// property.
func (o *owner) remains(now time.Time, w *dispatch.Write) *store.Message {
	m, err := o.store.Message(uint64(w.Bucket), uint64(w.Offset))
	if err == nil {
		return m
	}
	if errors.Is(err, store.ErrNotFound) {
		return &store.Message{Stored: now} // the dead letter names the lost message and the reason
	}
	o.log.Error("message unreadable", "topic", o.name, "bucket", w.Name, "offset", uint64(w.Offset), "error", err)
	m = &store.Message{Stored: now, Properties: []store.Property{{Key: propertyUnreadable, Value: err.Error()}}}
	if raw, err := o.store.RawMessage(uint64(w.Bucket), uint64(w.Offset)); err == nil {
		m.Body = raw
	}
	return m
}
