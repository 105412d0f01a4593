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
// An account is kept only until its window ends, so memory follows what was let in lately and not how many names were ever
// seen.
//
// It belongs to an admission and its lock.
type accounts struct {
	shared bool // enforced windows pass by lease only; immutable

	open map[accountKey]*account
	drop deadline.Heap[*account] // by the end of the window charged last
}

// accountKey names an account. A shadow rule counts beside an enforced one for the same target.
type accountKey struct {
	suspend.Target
	shadow bool
}

// account is what one window of this gateway has let in. Invariant: it is in accounts.open iff something is used, leased, or
// about to be.
type account struct {
	key     accountKey
	state   limit.WindowState // what this gateway let in
	lease   lease             // what it may let in, if accounts are shared
	pending chan struct{}     // closed when the grant under way is there; nil: none is
	crowd   crowd
	drop    deadline.Item[*account]
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

func newAccounts(shared bool) accounts {
	return accounts{shared: shared, open: make(map[accountKey]*account)}
}

// ask looks whether all of ws would let a request at p pass now. The windows that would not are a bit each in refused; c is
// the one of them that opens last, for only then does the same ask pass. If none would refuse, need is the narrowest window of
// which a grant is needed to know; nil: they pass.
func (as *accounts) ask(now time.Time, p suspend.Place, ws *windows, shadow bool) (c closed, refused scopeSet, need *claim) {
	for i, w := range ws {
		if w == nil {
			continue
		}
		scope := suspend.Scope(i)
		target, _ := p.Target(scope)
		a := as.open[accountKey{Target: target, shadow: shadow}]
		opens, answer := as.askOne(now, a, w, shadow)
		switch answer {
		case leaseUnknown:
			if need == nil {
				need = &claim{target: target, window: w}
			}
		case leaseRefuses:
			refused.add(scope)
			if c.window == nil || opens.After(c.until) {
				c = closed{scope: scope, window: w, account: a, until: opens}
			}
		case leasePasses:
		}
	}
	if refused != 0 {
		need = nil
	}
	return c, refused, need
}

// askOne asks one window, whose account may be nil, and returns when a refused ask passes.
func (as *accounts) askOne(now time.Time, a *account, w *limit.FixedWindow, shadow bool) (opens time.Time, answer leaseAnswer) {
	leased := as.shared && !shadow
	switch {
	case a == nil && leased:
		return time.Time{}, leaseUnknown
	case a == nil: // nothing used, and a limit is at least 1
		return time.Time{}, leasePasses
	}
	state, d := w.Peek(a.state, now, 1)
	a.state = state
	switch {
	case !d.Allowed:
		return d.RetryAt, leaseRefuses
	case !leased:
		return time.Time{}, leasePasses
	}
	return w.End(time.Unix(0, state.At)), a.lease.answer(w, state)
}

// charge charges all of ws for a request at p, and returns the window that is nearest to its limit; none of them may refuse.
// REQUIRES: ask at the same instant refused nothing.
func (as *accounts) charge(now time.Time, p suspend.Place, ws *windows, shadow bool) (list []charge, tight quota) {
	for i, w := range ws {
		if w == nil {
			continue
		}
		target, _ := p.Target(suspend.Scope(i))
		a := as.account(accountKey{Target: target, shadow: shadow})
		state, d := w.Take(a.state, now, 1)
		a.state = state
		ends := w.End(time.Unix(0, state.At))
		as.drop.Set(&a.drop, ends)
		list = append(list, charge{account: a, window: w, at: state.At})
		if left := a.lease.left(w, state, d.Remaining); tight.isZero() || left < tight.left {
			tight = windowQuota(suspend.Scope(i), w, left, ends)
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
		if a.state.Used > 0 && sameWindow(*c.window, c.at, a.state.At) {
			a.state.Used--
		}
		if a.state.Used == 0 && a.lease == (lease{}) {
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

// forget drops an account, unless a grant is under way: its coming sets the timer again.
func (as *accounts) forget(a *account) {
	as.drop.Remove(&a.drop)
	if a.pending != nil {
		return
	}
	if as.open[a.key] == a { // it may have been forgotten before, and there is another by its name
		delete(as.open, a.key)
	}
}

// scopeSet is a set of scopes, a bit each.
type scopeSet uint8

func (s *scopeSet) add(scope suspend.Scope)     { *s |= 1 << scope }
func (s scopeSet) has(scope suspend.Scope) bool { return s&(1<<scope) != 0 }

// sameWindow is whether two instants, UnixNano, are in one window of w.
func sameWindow(w limit.FixedWindow, a, b int64) bool {
	return w.End(time.Unix(0, a)).Equal(w.End(time.Unix(0, b)))
}
