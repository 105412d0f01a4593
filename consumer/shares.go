package consumer

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/penstockmq/penstock/broker/lite"
)

// shares bounds the part of the pool that one column (model) and one row (user) may hold, so that a model that hangs, or a
// user with few but slow requests, leaves room for others. A running request cannot be taken back, so the room has to be
// left before it is needed.
//
// The bound is a dynamic threshold (Choudhury, Hahne: Dynamic queue length thresholds for shared-memory packet switches,
// IEEE/ACM ToN 6(2), 1998): one more request of a column may run while the column holds fewer slots than are free, times
// a factor. A fixed part of the pool for each column would be used up by a few columns that hang; here each further column
// gets less than the previous one, and some slots always stay free: with the factor 1 one column holds half of the
// pool, two hold a third each, n hold 1/(n+1) each.
//
// A message over its share returns to the broker, and its bucket is held until a slot of the share may be free. With
// Penstock's broker, in_flight limits of columns and rows in the policy do the same without repeated deliveries.
type shares struct {
	slots   int   // immutable; 0: no bound
	percent int   // part of the slots that one column or row alone may hold, 1 to 100; immutable; 100: no bound
	bytes   int64 // of all bodies; immutable; 0: no bound

	mu      sync.Mutex // guards the following fields
	all     share
	held    int64 // bytes of the bodies of running requests
	columns map[string]*share
	rows    map[string]*share
}

// share is the use of the pool by one column, one row, or all requests. A column or row without slots and without waiting
// cells has no share.
type share struct {
	running int
	left    time.Time     // last release of a slot; before that, the first enter
	took    time.Duration // mean time for which a slot was held
	waiting waiting       // cells whose message was returned to the broker
}

func newShares(slots, percent int, bytes int64) *shares {
	return &shares{slots: slots, percent: percent, bytes: bytes, columns: make(map[string]*share), rows: make(map[string]*share)}
}

const (
	// shareHold and shareHoldMax bound the hold of a bucket over its share. With very many buckets the hold may be longer:
	// all buckets that wait for one share cost at most two deliveries per shareEach while no request of the share ends.
	shareHold    = 50 * time.Millisecond
	shareHoldMax = 5 * time.Second
	shareEach    = 10 * time.Millisecond
)

// enter takes a slot for a request of c with a body of the given bytes. leave gives the slot back; it is nil if the request's
// shares have no room, and then hold is the time until the next try.
func (s *shares) enter(now time.Time, c lite.Cell, body int64) (leave func(), hold time.Duration) {
	if s.slots == 0 {
		return func() {}, 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	column, row := shareOf(s.columns, c.Model, now), shareOf(s.rows, c.User, now)
	if full := s.full(column, row, body); full != nil {
		return nil, full.sendAway(c, now)
	}
	for _, of := range []*share{&s.all, column, row} {
		of.waiting.forget(c)
		of.waiting.drop(now, 2)
		of.running++
	}
	s.keep(c, column, row)
	s.held += body
	return func() { s.leave(time.Now(), now, c, body) }, 0
}

// full returns a share without room for another request, nil if both have room. Messages without a user or model are bounded
// by the slots alone.
func (s *shares) full(column, row *share, body int64) *share {
	free := s.slots - s.all.running
	for _, of := range []*share{column, row} {
		if s.percent < 100 && of.running*(100-s.percent) >= s.percent*free {
			return of
		}
	}
	if s.all.running > 0 && s.bytes > 0 && s.held+body > s.bytes {
		return &s.all
	}
	return nil
}

// sendAway notes that c waits for a slot of the share and returns the hold of its bucket. The slots of a share become
// free at the rate of running/took (Little's law), or slower if none was released for longer than that. The waiting cells
// return at times drawn evenly, at twice that rate: fast enough that few slots are idle.
func (s *share) sendAway(c lite.Cell, now time.Time) time.Duration {
	s.waiting.note(c, now)
	many := time.Duration(s.waiting.len())
	each := min(max(s.took, now.Sub(s.left)), time.Hour) / time.Duration(max(s.running, 1))
	return shareHold + rand.N(min(many*each/2, max(shareHoldMax, many*shareEach))+1)
}

func (s *shares) leave(now, entered time.Time, c lite.Cell, body int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held -= body
	column, row := shareOf(s.columns, c.Model, now), shareOf(s.rows, c.User, now)
	for _, of := range []*share{&s.all, column, row} {
		of.running--
		of.took += (now.Sub(entered) - of.took) / 8
		of.left = now
	}
	s.keep(c, column, row)
}

// sweep drops the cells that do not return, once a period until ctx ends.
func (s *shares) sweep(ctx context.Context) {
	ticker := time.NewTicker(sweepPeriod)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			s.sweepOnce(time.Now())
		}
	}
}

func (s *shares) sweepOnce(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all.waiting.drop(now, sweepChunk)
	for _, of := range []map[string]*share{s.columns, s.rows} {
		for name, share := range of {
			share.waiting.drop(now, sweepChunk)
			if share.running == 0 && share.waiting.len() == 0 {
				delete(of, name)
			}
		}
	}
}

// shareOf returns the share of a name, or a new one.
func shareOf(of map[string]*share, name string, now time.Time) *share {
	if s := of[name]; s != nil && name != "" {
		return s
	}
	return &share{left: now}
}

// keep stores the shares of c that are in use.
func (s *shares) keep(c lite.Cell, column, row *share) {
	put := func(to map[string]*share, name string, of *share) {
		switch {
		case name == "":
		case of.running > 0 || of.waiting.len() > 0:
			to[name] = of
		default:
			delete(to, name)
		}
	}
	put(s.columns, c.Model, column)
	put(s.rows, c.User, row)
}
