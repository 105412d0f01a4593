package store

import (
	"bytes"
	"math"
)

// messages returns up to limit messages of a bucket, from an offset on.
func (s *Store) messages(bucket, from uint64, limit int) ([]MessageAt, error) {
	if limit <= 0 {
		return nil, nil
	}
	var out []MessageAt
	err := s.scan(appendMessageKey(nil, bucket, from), appendMessageKey(nil, bucket, math.MaxUint64), func(key, value []byte) (bool, error) {
		off, err := messageOffset(key)
		if err != nil {
			return false, err
		}
		m, err := decodeMessage(bytes.Clone(value))
		if err != nil {
			return false, err
		}
		out = append(out, MessageAt{off, m})
		return len(out) < limit, nil
	})
	return out, err
}
