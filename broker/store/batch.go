package store

import (
	"errors"
	"fmt"
	"time"

	"github.com/cockroachdb/pebble/v2"
)

// Durability is what Batch.Wait waits for.
type Durability uint8

const (
	// Written batches survive the death of the process: the operating system has
	// them. A power cut may lose them, and then all that came after them.
	Written Durability = iota
	// Durable batches survive a power cut too: the disk has them, and all that was
	// applied before them.
	Durable
)

// maxSingleDeletes is up to how many messages are deleted one by one.
//
// A message key is written once and deleted once, so SingleDelete applies: the
// tombstone vanishes with its key at the first compaction that sees both. A range
// tombstone lives on to the bottom of the tree and slows reads of its
// neighbourhood, so it has to pay for itself by being one instead of many.
const maxSingleDeletes = 64

// Batch is a set of changes that a crash keeps or loses as a whole. Its life is:
// NewBatch, Put and Delete methods, Apply, Wait, Close. One goroutine at a time.
type Batch struct {
	store   *Store
	b       *pebble.Batch
	key     []byte // scratch
	value   []byte // scratch
	err     error  // first failure of a Put or Delete; Apply reports it
	applied bool
	raised  bool // counted in store.gate.durable
	waited  bool
	waitErr error
}

// NewBatch returns an empty batch. It must be closed.
func (s *Store) NewBatch() *Batch {
	b := s.batches.Get().(*Batch)
	b.store, b.b = s, s.db.NewBatch()
	return b
}

// Empty reports whether nothing was put into the batch.
func (b *Batch) Empty() bool { return b.b.Empty() }

// Bytes is the size of the batch in the log.
func (b *Batch) Bytes() int { return b.b.Len() }

// Apply makes the batch visible and hands it to the log; it does not wait for the
// disk. Exactly one call of b.Wait has to follow when it returns nil. Batches
// become durable in the order of their Apply.
func (s *Store) Apply(b *Batch, d Durability) error {
	return s.apply(b, d == Durable && !s.async)
}

func (s *Store) apply(b *Batch, durable bool) error {
	switch {
	case b.err != nil:
		return fmt.Errorf("apply batch: %w", b.err)
	case b.applied:
		return errors.New("apply batch: it was applied before")
	}
	if err := s.failure.Load(); err != nil {
		return *err
	}
	if !s.users.enter() {
		return ErrClosed
	}
	defer s.users.leave()
	if durable {
		s.gate.durable.Add(1) // before the commit; see walfs.go
	}
	if err := s.db.ApplyNoSyncWait(b.b, pebble.Sync); err != nil {
		if durable {
			s.gate.durable.Add(-1)
		}
		return fmt.Errorf("apply batch: %w", err)
	}
	b.applied, b.raised = true, durable
	return nil
}

// Wait returns when the batch is as safe as Apply was asked for, or with an error
// that wraps ErrFailed when it cannot be made so. Further calls repeat the answer.
func (b *Batch) Wait() error {
	if !b.applied || b.waited {
		return b.waitErr
	}
	b.waited = true
	err := b.b.SyncWait()
	if b.raised {
		b.store.gate.durable.Add(-1) // after the sync; see walfs.go
	}
	if err != nil {
		b.waitErr = b.store.fail(fmt.Errorf("write log: %w", err))
	}
	return b.waitErr
}

// Close gives the batch back; it must not be used any more. A batch that was applied
// is waited for first, because Pebble still writes into it. The error is only of
// interest to who skipped Wait.
func (b *Batch) Close() error {
	err := b.Wait()
	// Pebble refuses to reuse a batch that failed, and says so here; it has nothing
	// else to report.
	_ = b.b.Close()
	s := b.store
	*b = Batch{key: b.key[:0], value: b.value[:0]}
	s.batches.Put(b)
	return err
}

func (b *Batch) set(key, value []byte) {
	b.key, b.value = key, value // keep what they grew to
	b.note(b.b.Set(key, value, nil))
}

// delete is for keys that may have been written more than once.
func (b *Batch) delete(key []byte) {
	b.key = key
	b.note(b.b.Delete(key, nil))
}

func (b *Batch) deletePrefix(prefix []byte) {
	b.note(b.b.DeleteRange(prefix, after(append([]byte(nil), prefix...)), nil))
}

func (b *Batch) note(err error) {
	if b.err == nil {
		b.err = err
	}
}

// PutTopic creates a topic or changes its settings.
func (b *Batch) PutTopic(t *Topic) {
	b.set(appendTopicKey(b.key[:0], t.Name), t.appendValue(b.value[:0]))
}

// DeleteTopic removes a topic with all its buckets and messages. What its groups
// hold goes with DeleteGroup; entries of the expiry table are dropped when due.
func (b *Batch) DeleteTopic(t *Topic) {
	b.delete(appendTopicKey(b.key[:0], t.Name))
	b.delete(appendCounterKey(b.key[:0], counterBucket, uint32(t.ID)))
	b.deletePrefix(appendBucketKey(b.key[:0], t.ID, ""))
	first := uint64(t.ID) << topicShift
	for _, key := range [][]byte{appendMessageKey(nil, first, 0), appendDeadKey(nil, first, 0)} {
		b.deletePrefix(key[:1+2]) // the table and the topic's id
	}
}

// PutGroup creates a group or changes its settings.
func (b *Batch) PutGroup(g *Group) {
	b.set(appendGroupKey(b.key[:0], g.Name), g.appendValue(b.value[:0]))
}

// DeleteGroup removes a group with its cursors, leases, holds, accounts,
// subscriptions and dead letters. Messages stay.
func (b *Batch) DeleteGroup(g *Group) {
	b.delete(appendGroupKey(b.key[:0], g.Name))
	b.delete(appendCounterKey(b.key[:0], counterDeadLetter, g.ID))
	for _, table := range []byte{tableCursor, tableLease, tableHold, tableAccount, tableSubscription, tableDeadLetter} {
		b.deletePrefix(appendGroupID(b.key[:0], table, g.ID))
	}
}

// PutBucket creates or replaces the record of a bucket.
func (b *Batch) PutBucket(r *Bucket) {
	b.set(appendBucketKey(b.key[:0], r.Topic(), r.Name), r.appendValue(b.value[:0]))
}

// DeleteBucket removes the record of a bucket. Its messages are deleted by
// DeleteMessages, its cursors by DeleteCursor.
func (b *Batch) DeleteBucket(topic uint16, name string) {
	b.delete(appendBucketKey(b.key[:0], topic, name))
}

// PutMessage stores a message.
//
// REQUIRES: nothing was ever stored at this bucket and offset; the record of the
// bucket, with a Tail above offset, is in the same batch. Then a crash cannot lead
// to a second message under one key, which SingleDelete depends on.
func (b *Batch) PutMessage(bucket, offset uint64, m *Message) {
	b.key = appendMessageKey(b.key[:0], bucket, offset)
	b.value = m.appendHeader(b.value[:0])
	b.setParts(b.value, m.Body)
}

// setParts writes a value from two parts under b.key straight into the batch, so
// that a large body is copied once.
func (b *Batch) setParts(head, body []byte) {
	op := b.b.SetDeferred(len(b.key), len(head)+len(body))
	copy(op.Key, b.key)
	copy(op.Value[copy(op.Value, head):], body)
	b.note(op.Finish())
}

// DeleteMessages removes the messages of a bucket from one offset to before another.
func (b *Batch) DeleteMessages(bucket, from, to uint64) {
	if from >= to {
		return
	}
	if to-from > maxSingleDeletes {
		end := appendMessageKey(nil, bucket, to)
		b.key = appendMessageKey(b.key[:0], bucket, from)
		b.note(b.b.DeleteRange(b.key, end, nil))
		return
	}
	for off := from; off < to; off++ {
		b.key = appendMessageKey(b.key[:0], bucket, off)
		b.note(b.b.SingleDelete(b.key, nil))
	}
}

// PutDead creates or replaces the record of a page of dead messages.
func (b *Batch) PutDead(r *Dead) {
	b.set(appendDeadKey(b.key[:0], r.Bucket, r.Start), r.appendValue(b.value[:0]))
}

// DeleteDead deletes the record of a page of dead messages.
func (b *Batch) DeleteDead(bucket, start uint64) {
	b.delete(appendDeadKey(b.key[:0], bucket, start))
}

// PutCursor creates or replaces a group's position in a bucket.
func (b *Batch) PutCursor(c *Cursor) {
	b.set(appendCursorKey(b.key[:0], c.Group, c.Bucket), c.appendValue(b.value[:0]))
}

// DeleteCursor removes a group's position in a bucket: it is at the bucket's head.
func (b *Batch) DeleteCursor(group uint32, bucket uint64) {
	b.delete(appendCursorKey(b.key[:0], group, bucket))
}

// PutLease creates or replaces the lease of a message.
func (b *Batch) PutLease(l *Lease) {
	b.set(appendLeaseKey(b.key[:0], l.Group, l.Bucket, l.Offset), l.appendValue(b.value[:0]))
}

// DeleteLease removes the lease of a message.
func (b *Batch) DeleteLease(group uint32, bucket, offset uint64) {
	b.delete(appendLeaseKey(b.key[:0], group, bucket, offset))
}

// PutHold creates or replaces a hold.
func (b *Batch) PutHold(h *Hold) {
	b.set(appendHoldKey(b.key[:0], h.Group, h.Scope, h.Name), h.appendValue(b.value[:0]))
}

// DeleteHold removes a hold.
func (b *Batch) DeleteHold(group uint32, scope uint8, name string) {
	b.delete(appendHoldKey(b.key[:0], group, scope, name))
}

// PutAccount creates or replaces an account.
func (b *Batch) PutAccount(a *Account) {
	b.set(appendAccountKey(b.key[:0], a.Group, a.Scope, a.Name), a.appendValue(b.value[:0]))
}

// DeleteAccount removes an account: nothing is used.
func (b *Batch) DeleteAccount(group uint32, scope uint8, name string) {
	b.delete(appendAccountKey(b.key[:0], group, scope, name))
}

// PutExpiry notes that a bucket is to be looked at.
func (b *Batch) PutExpiry(e *Expiry) {
	b.set(appendExpiryKey(b.key[:0], e.At, e.Bucket), e.appendValue(b.value[:0]))
}

// DeleteExpiry removes such a note. at may be the time that was put or the one that
// DueExpiry returned.
func (b *Batch) DeleteExpiry(at time.Time, bucket uint64) {
	b.delete(appendExpiryKey(b.key[:0], at, bucket))
}

// PutDeadLetter stores a dead letter and, with it, that its number is taken.
func (b *Batch) PutDeadLetter(l *DeadLetter) {
	b.set(appendDeadLetterKey(b.key[:0], l.Group, l.Seq), l.appendValue(b.value[:0]))
	b.putCounter(counterDeadLetter, l.Group, l.Seq+1)
}

// DeleteDeadLetter removes a dead letter.
func (b *Batch) DeleteDeadLetter(group uint32, seq uint64) {
	b.delete(appendDeadLetterKey(b.key[:0], group, seq))
}

// PutSubscription creates or replaces what a client reads.
func (b *Batch) PutSubscription(r *Subscription) {
	b.set(appendSubscriptionKey(b.key[:0], r.Group, r.Client), r.appendValue(b.value[:0]))
}

// DeleteSubscription removes what a client reads.
func (b *Batch) DeleteSubscription(group uint32, client string) {
	b.delete(appendSubscriptionKey(b.key[:0], group, client))
}
