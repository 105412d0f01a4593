package consumer

import (
	"context"
	"sync"
	"time"
)

// modelSlots bounds the requests of each model that run at the same time in this pool.
//
// A worker may wait a moment for a slot, since a slot that is handed over is not idle for a round trip to the broker. As many
// may wait as run: enough to keep the model busy, and too few to take all workers from other models.
type modelSlots struct {
	mu     sync.Mutex // guards the following field
	models map[string]*slotQueue
}

// slotQueue is a model with requests running. Both numbers zero: it is not in the map.
type slotQueue struct {
	running int
	waiting []chan struct{} // first come, first served; closed when the slot is theirs
}

func newModelSlots() *modelSlots { return &modelSlots{models: make(map[string]*slotQueue)} }

// acquire takes a slot of model, of which there are limit. It waits at most wait, and not at all if as many wait already.
// release is nil if there was no slot; err is the cause of ctx if that ended.
func (m *modelSlots) acquire(ctx context.Context, model string, limit int, wait time.Duration) (release func(), err error) {
	m.mu.Lock()
	q := m.models[model]
	if q == nil {
		q = new(slotQueue)
		m.models[model] = q
	}
	if q.running < limit && len(q.waiting) == 0 {
		q.running++
		m.mu.Unlock()
		return func() { m.release(model, q) }, nil
	}
	if len(q.waiting) >= limit {
		m.mu.Unlock()
		return nil, nil
	}
	turn := make(chan struct{})
	q.waiting = append(q.waiting, turn)
	m.mu.Unlock()

	// A slot that came in the same moment as the end of the wait is not in the queue any more; it is taken.
	if await(ctx, turn, wait) == nil || !m.leave(model, q, turn) {
		return func() { m.release(model, q) }, nil
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return nil, nil
}

// await waits for c, for wait, or for ctx; nil is c.
func await(ctx context.Context, c <-chan struct{}, wait time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	select {
	case <-c:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// leave takes turn out of the queue; false says that it was not there.
func (m *modelSlots) leave(model string, q *slotQueue, turn chan struct{}) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i, t := range q.waiting {
		if t == turn {
			q.waiting = append(q.waiting[:i], q.waiting[i+1:]...)
			m.dropLocked(model, q)
			return true
		}
	}
	return false
}

// release hands the slot to the next who waits, or gives it back.
func (m *modelSlots) release(model string, q *slotQueue) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(q.waiting) > 0 {
		close(q.waiting[0])
		q.waiting = q.waiting[1:]
		return
	}
	q.running--
	m.dropLocked(model, q)
}

func (m *modelSlots) dropLocked(model string, q *slotQueue) {
	if q.running == 0 && len(q.waiting) == 0 {
		delete(m.models, model)
	}
}
