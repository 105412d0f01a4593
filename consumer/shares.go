package consumer

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/penstockmq/penstock/broker/lite"
)

// shares bounds how much of the pool one column (model) and one row (user) may hold, so that a model that hangs, or a user
// with few but slow requests, leaves room for the others. Work that has begun cannot be taken back, so the room has to be
// left before it is needed.
//
// The bound is a dynamic threshold (Choudhury, Hahne: Dynamic queue length thresholds for shared-memory packet switches,
// IEEE/ACM ToN 6(2), 1998): one more request of a column may run as long as the column holds fewer slots than are free,
// times a factor. A fixed part of the pool for each column would be used up by a few that hang; here each that comes gets
// less than the one before, and some slots stay free whatever their number: with the factor 1 one column holds half of the
// pool, two hold a third each, n hold 1/(n+1) each.
//
// What is over its share goes back to the broker, its bucket held until a slot of the share may be free. At Penstock's
// broker an in_flight of columns and rows in the policy does the same without deliveries that come back.
type shares struct {
	slots   int   // immutable; 0: no bound
	percent int   // of the slots that one column or row alone may hold, 1 to 100; immutable; 100: no bound
	bytes   int64 // of all bodies; immutable; 0: no bound

	mu      sync.Mutex // guards the following fields
	all     share
	held    int64 // bytes of the bodies of what runs
	columns map[string]*share
	rows    map[string]*share
}

// share is what one column, one row, or all of the pool holds. A column or row that holds nothing, and for which no cell
// waits, has none.
type share struct {
	running int
	left    time.Time     // the last time that a slot was given back; at first, when the first one was taken
	took    time.Duration // mean time for which a slot was held
	waiting waiting       // cells that were sent away
}

func newShares(slots, percent int, bytes int64) *shares {
	return &shares{slots: slots, percent: percent, bytes: bytes, columns: make(map[string]*share), rows: make(map[string]*share)}
}

const (
	// shareHold and shareHoldMax bound how long a bucket over its share is held. With very many of them it may be longer:
	// all that wait for a share together cost two deliveries in shareEach when nothing of it ends.
	shareHold    = 50 * time.Millisecond
	shareHoldMax = 5 * time.Second
	shareEach    = 10 * time.Millisecond
)

// enter takes a slot for a request of c with a body of so many bytes. leave gives it back; it is nil if there is no room in
// the request's shares, and then hold says when to ask again.
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

// full returns a share in which there is no room for another request, nil if there is none. Messages without a user or model
// are bounded by the slots alone.
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

// sendAway notes that c waits for a slot of the share and says for how long its bucket is to be held. The slots of a share
// become free at the rate of running/took (Little's law), or slower if none has for longer than that. Those that wait come
// back at times drawn evenly, at twice that rate: fast enough that few slots are idle.
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

// sweep forgets the cells that do not come back, once a period until ctx ends.
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

// shareOf is the share of a name, a new one if it holds nothing.
func shareOf(of map[string]*share, name string, now time.Time) *share {
	if s := of[name]; s != nil && name != "" {
		return s
	}
	return &share{left: now}
}

// keep keeps the shares of c that hold something.
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
