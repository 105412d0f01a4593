package gateway

import (
	"context"
	"errors"
	"time"

	"github.com/penstockmq/penstock/suspend"
	"github.com/penstockmq/penstock/suspend/limit"
)

// lease is what this gateway may let in of one window by itself: the sum of what it was granted, see sharedWindows. The zero lease
// is for no window.
type lease struct {
	at      int64             // an instant in the window that it is for, UnixNano
	window  limit.FixedWindow // as the policy had it then
	granted int64             // in that window, what is used already counts
	rest    int64             // what was left for others at the latest grant
	full    bool              // there is nothing left for anybody
}

// leaseAnswer is what a lease says about one more ask.
type leaseAnswer uint8

const (
	leaseUnknown leaseAnswer = iota // ask for a grant
	leasePasses
	leaseRefuses
)

// isFor reports whether the lease is for the window that an ask of state lies in. After a change of the policy it is not.
func (l *lease) isFor(w *limit.FixedWindow, state limit.WindowState) bool {
	return l.window == *w && sameWindow(*w, l.at, state.At)
}

// REQUIRES: state has been moved to the instant of the ask.
func (l *lease) answer(w *limit.FixedWindow, state limit.WindowState) leaseAnswer {
	switch {
	case !l.isFor(w, state):
		return leaseUnknown
	case state.Used < l.granted:
		return leasePasses
	case l.full:
		return leaseRefuses
	}
	return leaseUnknown
}

// left is what is left of the window for this gateway, as far as it knows, given what it would be without others.
func (l *lease) left(w *limit.FixedWindow, state limit.WindowState, alone int64) int64 {
	if !l.isFor(w, state) {
		return alone
	}
	return max(min(alone, l.granted-state.Used+l.rest), 0)
}

// add takes a grant into the lease of the window w. state is what this gateway used. A grant for a window that has ended by
// state is worth nothing.
func (l *lease) add(w *limit.FixedWindow, state limit.WindowState, g grant) {
	if !sameWindow(*w, g.at, state.At) {
		return
	}
	if !l.isFor(w, state) {
		*l = lease{at: g.at, window: *w, granted: state.Used}
	}
	l.granted += g.n
	l.rest = g.rest
	l.full = g.n == 0
}

// claim says that a grant is needed before it can be said whether a request may enter. It is an error only inside of the
// gateway.
type claim struct {
	target suspend.Target
	window *limit.FixedWindow
}

func (c *claim) Error() string { return "a grant of the window of " + c.target.String() + " is needed" }

// fetch gets the grant that c asks for, or waits until another request has got it. There is no error: when the shared account
// cannot be reached, this gateway counts the rest of the window alone, so that its callers are served.
func (a *admission) fetch(ctx context.Context, c *claim) {
	a.mu.Lock()
	acc := a.accounts.account(accountKey{Target: c.target})
	if pending := acc.pending; pending != nil {
		a.mu.Unlock()
		select {
		case <-pending:
		case <-ctx.Done():
		}
		return
	}
	pending := make(chan struct{})
	acc.pending = pending
	a.mu.Unlock()

	// The grant is for whoever comes next, and others wait for it: a caller that leaves does not end it.
	now := time.Now().Round(0)
	g, err := a.shared.take(context.WithoutCancel(ctx), now, c.target, *c.window)

	a.mu.Lock()
	defer a.mu.Unlock()
	defer close(pending)
	acc.pending = nil
	if err != nil {
		g = a.alone(c, now, err)
	}
	// Another gateway's clock may be in the next window already: so is the account then, and this gateway with it.
	acc.state, _ = c.window.Peek(acc.state, time.Unix(0, g.at), 1)
	acc.lease.add(c.window, acc.state, g)
	a.accounts.drop.Set(&acc.drop, c.window.End(time.Unix(0, acc.state.At)))
}

// alone is the grant of a window whose shared account cannot be reached: all of it.
func (a *admission) alone(c *claim, now time.Time, err error) grant {
	a.metrics.Alone.Add(1)
	if !errors.Is(err, errLately) {
		a.log.Warn("fixed windows are counted by this gateway alone", "scope", c.target.Scope.String(), "error", err)
	}
	return grant{at: now.UnixNano(), n: c.window.Limit}
}
