package broker

import (
	"github.com/penstockmq/penstock/broker/dispatch"
	"github.com/penstockmq/penstock/broker/store"
)

// maxSnapshots bounds the views of the store that wait for OnDiscard: each keeps the
// engine from giving back what was deleted since.
const maxSnapshots = 64

// discardedMessage is a message that was in memory. It is copied without its body, so
// that the queue keeps none, and taken apart when it is told and not in the loop.
type discardedMessage struct {
	topic, lite, group string
	offset             uint64
	head               store.Message
	reason             string
}

func newDiscarded(topic, name string, offset uint64, m *store.Message, reason string) *discardedMessage {
	x := &discardedMessage{topic: topic, lite: name, offset: offset, head: *m, reason: reason}
	x.head.Body = nil
	return x
}

func (x *discardedMessage) tell(n *notices) {
	n.discard(Discarded{
		Topic: x.topic, Lite: x.lite, Group: x.group, Offset: x.offset,
		Message: fromStored(&x.head, x.lite), Reason: x.reason,
	})
}

func (x *discardedMessage) count() int64 { return 1 }

// discardedRanges are discarded messages that are not in memory. They are read from
// the store as it was before they were deleted, when it is their turn.
type discardedRanges struct {
	topic    string
	ranges   []dispatch.Discard
	snapshot *store.Snapshot
	log      func(bucket string, err error)
}

// discardPage bounds the messages that are read at once.
const discardPage = 256

func (r *discardedRanges) tell(n *notices) {
	defer r.close(n)
	for _, d := range r.ranges {
		for from := uint64(d.Offset); from < uint64(d.To); {
			page, err := r.snapshot.Headers(uint64(d.Bucket), from, uint64(d.To), discardPage)
			if err != nil {
				r.log(d.Name, err)
				break
			}
			for _, m := range page {
				newDiscarded(r.topic, d.Name, m.Offset, m.Message, discardReason(d.Reason)).tell(n)
			}
			if len(page) < discardPage {
				break
			}
			from = page[len(page)-1].Offset + 1
		}
	}
}

func (r *discardedRanges) count() (sum int64) {
	for _, d := range r.ranges {
		sum += int64(d.To - d.Offset)
	}
	return sum
}

func (r *discardedRanges) close(n *notices) {
	r.snapshot.Close()
	n.snapshots.Add(-1)
}

func discardReason(r dispatch.DiscardReason) string {
	switch r {
	case dispatch.DiscardPurged:
		return DiscardPurged
	case dispatch.DiscardBacklog:
		return DiscardExpired
	case dispatch.DiscardExpired:
	}
	return DiscardDeadline
}

// tellDiscards tells of messages that the machine settled and nobody was given. Those
// in the cache are told as they are; for the others the store is kept as it is now.
// It comes before the turn's batch is applied.
func (o *owner) tellDiscards(discards []dispatch.Discard) {
	var rest []dispatch.Discard
	for _, d := range discards {
		o.metrics.Discarded.Add(int64(d.To - d.Offset))
		if !o.notices.wantsDiscards() {
			continue
		}
		rest = append(rest, o.tellCached(d)...)
	}
	if len(rest) == 0 {
		return
	}
	o.tellStored(&discardedRanges{topic: o.name, ranges: rest, log: func(bucket string, err error) {
		o.log.Error("discarded messages unreadable", "topic", o.name, "bucket", bucket, "error", err)
	}})
}

// tellStored queues messages that are to be read, with the store as it is now.
func (o *owner) tellStored(r *discardedRanges) {
	n := o.notices
	if n.snapshots.Add(1) > maxSnapshots {
		n.snapshots.Add(-1)
		n.dropped.Add(r.count())
		return
	}
	var err error
	if r.snapshot, err = o.store.Snapshot(); err != nil { // the store is closing
		n.snapshots.Add(-1)
		n.dropped.Add(r.count())
		return
	}
	if !n.put(r) {
		r.close(n)
	}
}

// tellCached tells of the messages of a range that are in the cache and returns what
// is left of it.
func (o *owner) tellCached(d dispatch.Discard) []dispatch.Discard {
	if d.To-d.Offset > forgetMax {
		return []dispatch.Discard{d}
	}
	var rest []dispatch.Discard
	for off := d.Offset; off < d.To; off++ {
		if m := o.cache.get(messageKey{d.Bucket, off}); m != nil {
			o.notices.put(newDiscarded(o.name, d.Name, uint64(off), m, discardReason(d.Reason)))
			continue
		}
		if k := len(rest) - 1; k >= 0 && rest[k].To == off {
			rest[k].To++
			continue
		}
		left := d
		left.Offset, left.To = off, off+1
		rest = append(rest, left)
	}
	return rest
}

// reject notes that a worker makes a message a dead letter in this turn: it knows, and
// need not be told.
func (o *owner) reject(h dispatch.Handle) {
	o.rejected[place{h.Group, h.Bucket, h.Offset}] = struct{}{}
}

// tellBuried tells of a dead letter that no worker asked for.
func (o *owner) tellBuried(w *dispatch.Write, m *store.Message) {
	if _, asked := o.rejected[place{w.Group, w.Bucket, w.Offset}]; asked {
		return
	}
	d := newDiscarded(o.name, w.Name, uint64(w.Offset), m, w.Reason)
	d.group = o.groups[w.Group].cfg.Name
	o.tellDiscarded(d)
}

func (o *owner) tellDiscarded(d *discardedMessage) {
	o.metrics.Discarded.Add(1)
	if o.notices.wantsDiscards() {
		o.notices.put(d)
	}
}
