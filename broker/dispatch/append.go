package dispatch

import (
	"fmt"
	"math"
	"time"
)

// Append takes messages into a bucket, all or none, and creates it if need be. They
// are not deliverable before Durable. An idle bucket that exists must have been
// Loaded: the machine takes one that is not resident for new.
// Errors: ErrBucketFull, ErrBucketBytes, ErrTooLarge, ErrTooManyBuckets,
// ErrTooManyUserBuckets.
func (m *Machine) Append(now time.Time, r AppendRequest) (Appended, error) {
	defer m.check(now)
	if len(r.Messages) == 0 {
		return Appended{}, nil
	}
	if err := m.admit(now, m.byName[r.Name], r, nil); err != nil {
		return Appended{}, err
	}
	return m.appendAdmitted(now, r), nil
}

// appendAdmitted appends what admit has let in.
func (m *Machine) appendAdmitted(now time.Time, r AppendRequest) Appended {
	if len(r.Messages) == 0 {
		return Appended{}
	}
	b := m.byName[r.Name]
	created := b == nil
	if created {
		b = m.create(now, r)
	}
	first := b.tail
	m.stamp(b, r.Level)
	for _, msg := range r.Messages {
		m.append(b, msg)
	}
	b.active = max(b.active, instant(now))
	m.changed(b)
	return Appended{Bucket: b.id, First: first, Created: created}
}

// AppendAll is Append for several buckets, each named once: all or none. The
// results are appended to out, in the order of the requests.
func (m *Machine) AppendAll(now time.Time, out []Appended, rs ...AppendRequest) ([]Appended, error) {
	defer m.check(now)
	var fresh newBuckets // buckets created by earlier requests of this append
	for _, r := range rs {
		b := m.byName[r.Name]
		if err := m.admit(now, b, r, fresh); err != nil {
			return out, err
		}
		if b == nil && len(rs) > 1 {
			fresh = fresh.with(r.Cell.User)
		}
	}
	for _, r := range rs {
		out = append(out, m.appendAdmitted(now, r))
	}
	return out, nil
}

// newBuckets counts the buckets that an AppendAll will create, per user and in total under
// "". No user's name is empty.
type newBuckets map[string]int

func (n newBuckets) with(user string) newBuckets {
	if n == nil {
		n = newBuckets{}
	}
	n[user]++
	n[""]++
	return n
}

// admit checks the caps. b is nil for a bucket to be created after the fresh ones.
func (m *Machine) admit(now time.Time, b *bucket, r AppendRequest, fresh newBuckets) error {
	if b == nil {
		if m.cfg.MaxBuckets > 0 && m.buckets+fresh[""] >= m.cfg.MaxBuckets {
			return fmt.Errorf("%w: %d under %q", ErrTooManyBuckets, m.buckets, m.cfg.Name)
		}
		if most := m.cfg.MaxUserBuckets; most > 0 {
			if n := m.users.count(r.Cell.User) + fresh[r.Cell.User]; n >= most {
				m.out.Counters.UserRefused++
				return fmt.Errorf("%w: user %q has %d under %q, at most %d", ErrTooManyUserBuckets, r.Cell.User, n, m.cfg.Name, most)
			}
		}
		return m.fits(&bucket{}, r)
	}
	err := m.fits(b, r)
	if err != nil {
		m.sweepDeadlines(now, b, len(r.Messages), func() bool { err = m.fits(b, r); return err == nil })
	}
	return err
}

func (m *Machine) fits(b *bucket, r AppendRequest) error {
	if most := m.cfg.MaxMessages; most > 0 && int(b.live)+len(r.Messages) > most {
		return fmt.Errorf("%w: %q has %d messages of at most %d", ErrBucketFull, r.Name, b.live, most)
	}
	if uint64(b.retained)+uint64(len(r.Messages)) > math.MaxUint32 { // dead ones above a head that is out count here
		return fmt.Errorf("%w: %q spans %d offsets", ErrBucketFull, r.Name, b.retained)
	}
	if err := m.fitsPolicy(b, r); err != nil || m.cfg.MaxBytes == 0 {
		return err
	}
	bytes := b.bytes
	for _, msg := range r.Messages {
		bytes += int64(msg.Size)
	}
	if bytes > m.cfg.MaxBytes {
		return fmt.Errorf("%w: %q would have %d bytes of at most %d", ErrBucketBytes, r.Name, bytes, m.cfg.MaxBytes)
	}
	return nil
}

func (m *Machine) create(now time.Time, r AppendRequest) *bucket {
	m.CountBucket(r.Cell.User)
	m.out.Counters.BucketsCreated++
	return m.adopt(BucketState{
		ID: m.newBucketID(), Name: r.Name, Cell: r.Cell, Level: uint8(max(0, r.Level)), Stamped: r.Level >= 0, Created: now, LastActive: now,
	})
}

func (m *Machine) append(b *bucket, msg MessageMeta) {
	deadline := instant(msg.Deadline)
	if b.runs.push(b.tail, run{
		deadline: deadline, size: in32(int64(msg.Size)),
		requests: in32(msg.Cost.Requests), input: in32(msg.Cost.Input), output: in32(msg.Cost.MaxOutput),
	}) {
		b.noteDue(deadline, b.tail)
	}
	b.tail++
	b.retained++
	b.pending++
	b.live++
	b.bytes += int64(msg.Size)
	m.messages++
	m.bytes += int64(msg.Size)
}

// in32 returns v limited to 32 bits. Every stamp fits.
func in32(v int64) uint32 { return uint32(min(max(0, v), math.MaxUint32)) }

// Durable says that the bucket's messages below tail are on disk: now they may go.
func (m *Machine) Durable(now time.Time, id BucketID, tail Offset) {
	b := m.byID[id]
	if b == nil || tail <= b.durable() || tail > b.tail {
		return // deleted meanwhile, or said before
	}
	b.pending = uint32(b.tail - tail)
	m.arrangeAll(now, b)
	m.check(now)
}
