package sim

import (
	"cmp"
	"slices"
	"time"

	"github.com/penstockmq/penstock/broker/dispatch"
	"github.com/penstockmq/penstock/suspend/deadline"
)

// completion is a request that will be done.
type completion struct {
	at      time.Time
	handle  dispatch.Handle
	request int
}

// completions keeps them by their instant.
type completions struct{ due deadline.Heap[completion] }

func (c *completions) push(x completion) {
	c.due.Set(&deadline.Item[completion]{Value: x}, x.at)
}

func (c *completions) next() (time.Time, bool) { return c.due.Next() }

// popDue takes those whose instant has come, the earliest first; those of one instant are in the order of the trace.
func (c *completions) popDue(now time.Time) []completion {
	var done []completion
	for it := c.due.PopDue(now); it != nil; it = c.due.PopDue(now) {
		done = append(done, it.Value)
	}
	slices.SortFunc(done, func(a, b completion) int { return cmp.Or(a.at.Compare(b.at), cmp.Compare(a.request, b.request)) })
	return done
}
