package gateway

import (
	"time"

	"github.com/penstockmq/penstock/suspend"
	"github.com/penstockmq/penstock/suspend/deadline"
	"github.com/penstockmq/penstock/suspend/limit"
)

// accounts are what the fixed windows of a policy have let in. Those that hold for one request are asked as one: all of
// them are charged, or none is. So a request that its user's window refuses takes nothing from its model's.
//
// An account is kept only while something of its window is used, so memory follows what was let in lately and not how many
// names were ever seen.
//
// It belongs to an admission and its lock.
type accounts struct {
	open map[accountKey]*account
	drop deadline.Heap[*account] // by the end of the window charged last
}

// accountKey names an account. A shadow rule counts beside an enforced one for the same target.
type accountKey struct {
	suspend.Target
	shadow bool
}

// account is what one window has let in. Invariant: it is in accounts.open iff state.Used > 0.
type account struct {
	key   accountKey
	state limit.WindowState
	crowd crowd
	drop  deadline.Item[*account]
}

// charge is one request's share of a window, for a refund.
type charge struct {
	account *account
	window  *limit.FixedWindow
	at      int64 // UnixNano
}

// closed is the window that binds, and when the same ask passes.
type closed struct {
	scope   suspend.Scope
	window  *limit.FixedWindow
	account *account
	until   time.Time
}

func newAccounts() accounts { return accounts{open: make(map[accountKey]*account)} }

// ask looks whether all of ws would let a request at p pass now. The windows that would not are a bit each in refused; c is
// the one of them that opens last, for only then does the same ask pass.
func (as *accounts) ask(now time.Time, p suspend.Place, ws *windows, shadow bool) (c closed, refused scopeSet) {
	for i, w := range ws {
		if w == nil {
			continue
		}
		scope := suspend.Scope(i)
		a := as.open[accountKey{Target: targetOf(scope, p), shadow: shadow}]
		if a == nil {
			continue // nothing used, and a limit is at least 1
		}
		state, d := w.Peek(a.state, now, 1)
		a.state = state
		if d.Allowed {
			continue
		}
		refused.add(scope)
		if c.window == nil || d.RetryAt.After(c.until) {
			c = closed{scope: scope, window: w, account: a, until: d.RetryAt}
		}
	}
	return c, refused
}

// charge charges all of ws for a request at p, and returns the window that is nearest to its limit; none of them may refuse.
// REQUIRES: ask at the same instant refused nothing.
func (as *accounts) charge(now time.Time, p suspend.Place, ws *windows, shadow bool) (list []charge, tight quota) {
	for i, w := range ws {
		if w == nil {
			continue
		}
		a := as.account(accountKey{Target: targetOf(suspend.Scope(i), p), shadow: shadow})
		state, d := w.Take(a.state, now, 1)
		a.state = state
		ends := windowEnd(*w, time.Unix(0, state.At))
		as.drop.Set(&a.drop, ends)
		list = append(list, charge{account: a, window: w, at: state.At})
		if tight.isZero() || d.Remaining < tight.left {
			tight = windowQuota(suspend.Scope(i), w, d.Remaining, ends)
		}
	}
	return list, tight
}

func (as *accounts) account(key accountKey) *account {
	a := as.open[key]
	if a == nil {
		a = &account{key: key}
		a.drop.Value = a
		as.open[key] = a
	}
	return a
}

// refund gives back what list charged, unless the window has ended since.
func (as *accounts) refund(list []charge) {
	for _, c := range list {
		a := c.account
		if a.state.Used > 0 && windowIndex(*c.window, c.at) == windowIndex(*c.window, a.state.At) {
			a.state.Used--
		}
		if a.state.Used == 0 {
			as.forget(a)
		}
	}
}

// dropDue forgets the accounts whose window has ended.
func (as *accounts) dropDue(now time.Time) {
	for it := as.drop.PopDue(now); it != nil; it = as.drop.PopDue(now) {
		as.forget(it.Value)
	}
}

func (as *accounts) forget(a *account) {
	as.drop.Remove(&a.drop)
	if as.open[a.key] == a { // it may have been forgotten before, and there is another by its name
		delete(as.open, a.key)
	}
}

// scopeSet is a set of scopes, a bit each.
type scopeSet uint8

func (s *scopeSet) add(scope suspend.Scope)     { *s |= 1 << scope }
func (s scopeSet) has(scope suspend.Scope) bool { return s&(1<<scope) != 0 }

// windowEnd is the first instant after the window that now lies in; windows are aligned to the Unix epoch.
func windowEnd(w limit.FixedWindow, now time.Time) time.Time {
	return time.Unix(0, (windowIndex(w, now.UnixNano())+1)*int64(w.Window))
}

func windowIndex(w limit.FixedWindow, at int64) int64 { return at / int64(w.Window) }
