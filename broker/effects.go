package broker

import (
	"github.com/penstockmq/penstock/broker/dispatch"
	"github.com/penstockmq/penstock/broker/store"
	"github.com/penstockmq/penstock/suspend/quota"
)

// carryOut turns what the machine decided into the turn's batch, and into the
// answers that hang on it.
func (o *owner) carryOut(t *turn, fx dispatch.Effects) {
	o.tellDiscards(fx.Discards) // before they leave the cache
	for i := range fx.Writes {
		o.write(t, &fx.Writes[i])
	}
	for _, d := range fx.Deliveries {
		o.handOver(t, d)
	}
	for _, w := range fx.EmptyPulls {
		p := w.Tag.(*pullCommand)
		p.waiter = nil
		o.metrics.EmptyPolls.Add(1)
		p.result <- pulled{}
	}
	if o.notify != nil {
		for _, n := range fx.Notices {
			if g, ok := o.groups[n.Group]; ok {
				o.notify(n.Client, g.cfg.Name, o.name, n.Name)
			}
		}
	}
	o.count(&fx.Counters)
}

// handOver answers a poll when the leases of its messages are written: if the
// process is killed right after, its successor knows that they are out.
func (o *owner) handOver(t *turn, d dispatch.Delivery) {
	p := d.Waiter.Tag.(*pullCommand)
	p.waiter = nil
	h := handover{pull: p, got: pulled{items: make([]pulledItem, len(d.Items))}}
	name := o.groups[p.request.Group].cfg.Name
	for i, it := range d.Items {
		h.got.items[i] = pulledItem{Item: it, group: name, message: o.cache.get(messageKey{it.Handle.Bucket, it.Handle.Offset})}
	}
	t.after = append(t.after, h)
}

func (o *owner) count(c *dispatch.Counters) {
	m := o.metrics
	m.Redeliveries.Add(int64(c.Redelivered))
	m.LeasesEnded.Add(int64(c.LeasesEnded))
	m.DeadLetters.Add(int64(c.DeadLettered))
	m.Expired.Add(int64(c.Expired))
	m.UserRefused.Add(int64(c.UserRefused))
	m.Created.Add(int64(c.BucketsCreated))
	m.Deleted.Add(int64(c.BucketsGone))
}

func (o *owner) write(t *turn, w *dispatch.Write) {
	b := t.batch
	switch w.Op {
	case dispatch.PutBucket:
		b.PutBucket(bucketRecord(w.State))
	case dispatch.DeleteBucket:
		b.DeleteBucket(o.id, w.Name)
	case dispatch.DeleteMessages:
		b.DeleteMessages(uint64(w.Bucket), uint64(w.Offset), uint64(w.To))
		o.forget(w.Bucket, w.Offset, w.To)
	case dispatch.PutDead:
		b.PutDead(deadRecord(w.Dead))
	case dispatch.DeleteDead:
		b.DeleteDead(uint64(w.Bucket), uint64(w.Offset))
	case dispatch.PutCursor:
		b.PutCursor(cursorRecord(w.Group, w.Cursor))
	case dispatch.DeleteCursor:
		b.DeleteCursor(uint32(w.Group), uint64(w.Bucket))
	case dispatch.PutLease:
		b.PutLease(leaseRecord(w.Lease))
	case dispatch.DeleteLease:
		b.DeleteLease(uint32(w.Group), uint64(w.Bucket), uint64(w.Offset))
		o.ended(t.now, w.Group, w.Bucket, w.Offset, false, quota.Settlement{})
	case dispatch.PutHold:
		b.PutHold(holdRecord(w.Group, w.Hold))
	case dispatch.DeleteHold:
		b.DeleteHold(uint32(w.Group), uint8(w.Hold.Target.Scope), w.Hold.Target.Name)
	case dispatch.DeadLetter:
		o.bury(t, w)
	case dispatch.ReserveBuckets:
		b.PutNextBucket(o.id, w.Sequence)
	case dispatch.PutSubscription:
		b.PutSubscription(subscriptionRecord(w.Subscription, t.now))
	case dispatch.DeleteSubscription:
		b.DeleteSubscription(uint32(w.Subscription.Group), w.Subscription.Client)
	case dispatch.PutAccount:
		b.PutAccount(accountRecord(w.Group, w.Account))
	case dispatch.DeleteAccount:
		b.DeleteAccount(uint32(w.Group), uint8(w.Account.Target.Scope), w.Account.Target.Name)
	case dispatch.PutExpiry:
		b.PutExpiry(&store.Expiry{At: w.At, Bucket: uint64(w.Bucket), Name: w.Name})
	case dispatch.DeleteExpiry:
		b.DeleteExpiry(w.At, uint64(w.Bucket))
	}
}

// forgetMax is the range up to which cached messages are looked up one by one;
// what a larger delete leaves in the cache ages out of it.
const forgetMax = 4096

func (o *owner) forget(id dispatch.BucketID, from, to dispatch.Offset) {
	if to-from > forgetMax {
		return
	}
	for off := from; off < to; off++ {
		o.cache.remove(messageKey{id, off})
	}
}

// bury copies a message to the dead letters in the batch that settles it: a crash
// leaves it in exactly one of the two places. Such a batch waits for the disk.
func (o *owner) bury(t *turn, w *dispatch.Write) {
	g := o.groups[w.Group]
	m := o.cache.get(messageKey{w.Bucket, w.Offset})
	if m == nil {
		m = o.remains(t.now, w)
	}
	t.batch.PutDeadLetter(&store.DeadLetter{
		Group: uint32(w.Group), Seq: g.deadNext, Topic: o.name, Lite: w.Name, Bucket: uint64(w.Bucket),
		Offset: uint64(w.Offset), Attempts: w.Attempt, Reason: w.Reason, At: t.now, Message: m,
	})
	t.durable = true
	o.tellBuried(w, m)
	g.deadNext++
	for g.deadNext-g.deadFirst > uint64(o.maxDead) {
		t.batch.DeleteDeadLetter(uint32(w.Group), g.deadFirst)
		g.deadFirst++
	}
}
