package reply

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"sync"
	"time"
)

const (
	// missedEvery is the pause between two questions to an absent gateway.
	missedEvery = time.Second
	// missedFor bounds these questions for a request without a deadline.
	missedFor = time.Hour
	// missedMax bounds the remembered requests; the oldest are dropped first.
	missedMax = 1 << 15
)

// missed remembers the requests that were dropped because NATS knew no subscription of their gateway. NATS may have lost a
// gateway that runs and has a waiting caller. So the gateway is asked until the request's deadline, and when it is back,
// the waiting caller gets an error: no model was called, and the caller may try again.
type missed struct {
	// wake holds a token when a first request may have been added.
	wake chan struct{}

	mu    sync.Mutex // guards the following field; nothing is asked under it
	drops []drop     // by the time at which they were dropped
}

type drop struct {
	subject string
	attempt int
	until   time.Time
}

// Drop records a request that is not run in this delivery attempt because Ask returned [CallerAbsent]. If its gateway comes
// back before the request's deadline, Run notifies the caller.
func (c *Callers) Drop(r Request, attempt int) {
	until := r.Deadline
	if until.IsZero() {
		until = time.Now().Add(missedFor)
	}
	m := &c.missed
	m.mu.Lock()
	if n := len(m.drops) - missedMax + 1; n > 0 {
		m.drops = m.drops[n:] // given back when append moves the rest
	}
	m.drops = append(m.drops, drop{r.Reply, attempt, until})
	m.mu.Unlock()
	select {
	case m.wake <- struct{}{}:
	default: // a token is there already
	}
}

// Run asks the gateways of dropped requests until ctx ends.
func (c *Callers) Run(ctx context.Context) {
	tick := time.NewTicker(missedEvery)
	defer tick.Stop()
	for {
		if c.tellMissed(ctx) == 0 {
			select {
			case <-c.missed.wake:
			case <-ctx.Done():
				return
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// tellMissed notifies the callers of dropped requests whose gateway is back, and returns the number of remaining requests. A
// request remains until its gateway reports that the caller no longer waits: the notification may be lost as well.
func (c *Callers) tellMissed(ctx context.Context) int {
	m := &c.missed
	m.mu.Lock()
	drops := slices.Clip(m.drops)
	m.mu.Unlock()
	over := make(map[string]bool) // subjects
	away := make(map[string]bool) // gateways
	for _, d := range drops {
		gateway := gatewayOf(d.subject)
		switch {
		case ctx.Err() != nil:
			return len(drops)
		case !time.Now().Before(d.until):
			over[d.subject] = true
			continue
		case away[gateway]:
			continue
		}
		switch state, err := c.once(ctx, d.subject); {
		case err != nil && !errors.Is(err, errFrame):
			away[gateway] = true
		case err == nil && state == CallerWaits:
			c.tell(d)
		default:
			over[d.subject] = true
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	left := make([]drop, 0, len(m.drops))
	for _, d := range m.drops {
		if !over[d.subject] {
			left = append(left, d)
		}
	}
	m.drops = left
	return len(left)
}

// tell ends the wait of a caller. An error means that the connection is gone; the next round repeats it.
func (c *Callers) tell(d drop) {
	m, err := encode(d.subject, 0, Frame{Kind: Error, Attempt: d.attempt, Failure: Failure{
		Status: http.StatusServiceUnavailable, Code: CodeGatewayAway,
		Message: "the gateway was cut off from the workers when the request's turn came; no model was called",
	}})
	if err == nil {
		_ = c.nc.PublishMsg(m)
	}
}
