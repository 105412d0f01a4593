package store

import "github.com/cockroachdb/pebble/v2"

// Snapshot is the store as it was at an instant: all batches applied before it and
// none after. It is for who has to look at messages that are about to be deleted and
// has no time to do so now. While it is open the engine keeps what it shows, and Close
// of the store waits for it. One goroutine at a time.
type Snapshot struct {
	store *Store
	view  *pebble.Snapshot
}

// Snapshot costs no read. It must be closed.
func (s *Store) Snapshot() (*Snapshot, error) {
	if !s.users.enter() {
		return nil, ErrClosed
	}
	return &Snapshot{store: s, view: s.db.NewSnapshot()}, nil
}

// Headers returns up to limit messages of a bucket, without their bodies, from one
// offset to before another. REQUIRES: as Store.FindProperty.
func (v *Snapshot) Headers(bucket, from, to uint64, limit int) ([]MessageAt, error) {
	if limit <= 0 || from >= to {
		return nil, nil
	}
	var out []MessageAt
	err := scan(v.view, appendMessageKey(nil, bucket, from), appendMessageKey(nil, bucket, to), func(key, value []byte) (bool, error) {
		off, err := messageOffset(key)
		if err != nil {
			return false, err
		}
		m, err := decodeMessage(value)
		if err != nil {
			v.store.badRecord(key, err)
			return true, nil
		}
		m.Body = nil // it is the engine's
		out = append(out, MessageAt{off, m})
		return len(out) < limit, nil
	})
	return out, v.store.countDamage(err)
}

// Close lets the engine forget what only the snapshot shows. It may be called twice.
func (v *Snapshot) Close() {
	if v.view == nil {
		return
	}
	_ = v.view.Close() // it fails only when it was closed before
	v.view = nil
	v.store.users.leave()
}
