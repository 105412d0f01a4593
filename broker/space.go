package broker

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/penstockmq/penstock/broker/datadir"
)

// space refuses messages while the free space on the volume is below the reserve. Acks,
// purges, cancels and operations continue: they free space, and the reserve is theirs.
// Without it the log would fill the disk, and then nothing could be written, not even a
// purge.
//
// Safe for concurrent use; a nil *space refuses nothing.
type space struct {
	// Immutable after newSpace.
	measure func() (datadir.Space, error)
	reserve int64 // as configured
	log     interface {
		Warn(msg string, args ...any)
		Info(msg string, args ...any)
	}

	last     atomic.Pointer[SpaceState]
	admitted atomic.Int64 // bytes admitted since last
}

// SpaceState is the space on the volume of the store, in bytes.
type SpaceState struct {
	Free    int64
	Reserve int64
	// Refusing: new messages are refused for want of space.
	Refusing bool
}

const (
	// spaceInterval is the time between two measurements.
	spaceInterval = 250 * time.Millisecond
	// spaceFactor is the number of times that a message is written before its first copy can
	// be deleted: to the log, and to a table.
	spaceFactor = 2
	// spaceAgain is the part of the reserve, one in this many, that must be free in addition
	// to the reserve before messages are accepted again.
	spaceAgain = 8
)

func newSpace(o Options) *space {
	if o.DiskReserve <= 0 || o.FreeSpace == nil {
		return nil
	}
	s := &space{measure: o.FreeSpace, reserve: o.DiskReserve, log: o.Logger}
	s.look()
	return s
}

// run measures until ctx is done.
func (s *space) run(ctx context.Context) error {
	if s == nil {
		return nil
	}
	ticker := time.NewTicker(spaceInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			s.look()
		}
	}
}

// look measures. If the measurement fails, the last result stays.
func (s *space) look() {
	v, err := s.measure()
	if err != nil {
		s.log.Warn("free space unknown", "error", err)
		if s.last.Load() == nil {
			s.last.Store(&SpaceState{})
		}
		return
	}
	s.admitted.Store(0)
	now := &SpaceState{Free: v.Free, Reserve: v.Reserve(s.reserve)}
	before := s.last.Load()
	was := before != nil && before.Refusing
	now.Refusing = v.Free < now.Reserve
	if was {
		now.Refusing = v.Free < now.Reserve+now.Reserve/spaceAgain
	}
	s.last.Store(now)
	switch {
	case now.Refusing && !was:
		s.log.Warn("disk nearly full: new messages are refused", "free_bytes", now.Free, "reserve_bytes", now.Reserve)
	case was && !now.Refusing:
		s.log.Info("disk has room again: new messages are taken", "free_bytes", now.Free, "reserve_bytes", now.Reserve)
	}
}

// admit admits a message of the given size, or returns ErrDiskFull.
func (s *space) admit(bytes int64) error {
	if s == nil {
		return nil
	}
	v := s.last.Load()
	if v.Reserve == 0 { // unknown
		return nil
	}
	left := v.Free - spaceFactor*s.admitted.Add(bytes)
	if v.Refusing || left < v.Reserve {
		s.admitted.Add(-bytes)
		return fmt.Errorf("%w: %d bytes are free on the volume of the data folder, %d are kept in reserve", ErrDiskFull, max(0, left), v.Reserve)
	}
	return nil
}

// Space returns the space on the volume of the store; zero when it is not measured.
func (b *Broker) Space() SpaceState {
	if b.space == nil {
		return SpaceState{}
	}
	return *b.space.last.Load()
}

// admit refuses messages for which the disk has no room.
func (b *Broker) admit(msgs []Message) error {
	var bytes int64
	for i := range msgs {
		bytes += int64(len(msgs[i].Body)) + entryOverhead
	}
	err := b.space.admit(bytes)
	if err != nil {
		b.metrics.SendRefused.Add(int64(len(msgs)))
	}
	return err
}
