package consumer

import (
	"sync/atomic"
	"time"
)

// warnEvery is the time between two warnings of one kind.
const warnEvery = 10 * time.Second

// spaced lets one warning through per warnEvery. It is safe for concurrent use.
type spaced struct{ last atomic.Int64 }

func (s *spaced) due(now time.Time) bool {
	last := s.last.Load()
	return (last == 0 || now.UnixNano()-last >= int64(warnEvery)) && s.last.CompareAndSwap(last, now.UnixNano())
}
