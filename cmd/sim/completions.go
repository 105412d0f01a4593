package sim

import (
	"container/heap"
	"time"

	"github.com/penstockmq/penstock/broker/dispatch"
)

// completion is a request that will be done.
type completion struct {
	at      time.Time
	handle  dispatch.Handle
	request int
}

// completions keeps them by their instant, those of one instant in the order of the trace.
type completions struct{ h completionHeap }

func (c *completions) push(x completion) { heap.Push(&c.h, x) }

func (c *completions) next() (time.Time, bool) {
	if len(c.h) == 0 {
		return time.Time{}, false
	}
	return c.h[0].at, true
}

func (c *completions) popDue(now time.Time) (completion, bool) {
	if len(c.h) == 0 || c.h[0].at.After(now) {
		return completion{}, false
	}
	x, ok := heap.Pop(&c.h).(completion)
	return x, ok
}

type completionHeap []completion

func (h completionHeap) Len() int { return len(h) }

func (h completionHeap) Less(i, j int) bool {
	if !h[i].at.Equal(h[j].at) {
		return h[i].at.Before(h[j].at)
	}
	return h[i].request < h[j].request
}

func (h completionHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }

func (h *completionHeap) Push(x any) {
	if c, ok := x.(completion); ok {
		*h = append(*h, c)
	}
}

func (h *completionHeap) Pop() any {
	old := *h
	x := old[len(old)-1]
	*h = old[:len(old)-1]
	return x
}
