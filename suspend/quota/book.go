package quota

import (
	"maps"
	"slices"
	"time"

	"github.com/penstockmq/penstock/suspend"
)

// path is the accounts of a place by scope; nil where it has none.
type path [scopes]*account

// level is the level of a place, within bounds.
func level(p suspend.Place) uint8 { return min(p.Level, levels-1) }

// find is the account of a target; nil if it has none.
func (l *Ledger) find(t suspend.Target) *account {
	switch {
	case t.Scope < books:
		return l.books[t.Scope].accounts[t.Name]
	case t.Scope == suspend.All:
		return l.all
	case len(t.Name) == 1 && t.Name[0]-'0' < levels:
		return l.levels[t.Name[0]-'0']
	}
	return nil
}

// open is find, with a new account if there is none. REQUIRES: the target is a valid one.
func (l *Ledger) open(t suspend.Target) *account {
	if a := l.find(t); a != nil {
		return a
	}
	a := l.newAccount(t)
	b := &l.books[t.Scope]
	if b.accounts == nil {
		b.accounts = make(map[string]*account)
	}
	b.accounts[t.Name] = a
	b.peak = max(b.peak, len(b.accounts))
	return a
}

// path finds the accounts of a place, from its narrowest scope or, with wide, from its column up, and makes them follow the
// policy and the signals in force. Those that are missing are opened if create says so.
func (l *Ledger) path(now time.Time, p suspend.Place, wide, create bool) path {
	var found path
	scope := suspend.Bucket
	if wide {
		scope = suspend.Column
	}
	for ; scope < scopes; scope++ {
		t, ok := p.Target(scope)
		if !ok {
			continue
		}
		a := l.find(t)
		if a == nil && create {
			a = l.open(t)
		}
		if a != nil {
			l.refresh(now, a, p)
			found[scope] = a
		}
	}
	return found
}

// refresh makes an account follow the policy and the signals in force.
func (l *Ledger) refresh(now time.Time, a *account, p suspend.Place) {
	if a.res == nil || a.res.gen != l.gen {
		res := l.resolve(a.scope, p)
		a.follow(now, res)
		if len(a.meters) > 0 || a.stored {
			l.touch(a) // what is owed was converted, or forgotten
		}
		if a == l.all {
			l.squeezes = squeezesOf(a)
		}
	}
	if a.scope != suspend.Column && a.scope != suspend.Level {
		return
	}
	permille, next := l.board.Factor(now, a.target())
	if permille == full && next.IsZero() && a.extra == nil {
		return
	}
	x := a.more()
	x.next = next
	if was := x.factor; permille != was {
		a.scale(now, permille)
		l.touch(a)
		if permille > was {
			l.rejoin(now, a, l.lookAgain)
		}
	}
}

// wide makes an account above rows follow what is in force, without a place: its name is all it takes.
func (l *Ledger) wide(now time.Time, a *account) {
	p := suspend.Place{}
	switch a.scope {
	case suspend.Column:
		p.Model = a.name
	case suspend.Level:
		p.Level = a.level()
	case suspend.Bucket, suspend.Row, suspend.All:
	}
	l.refresh(now, a, p)
}

// retire arms the timer that drops the account once it is worth nothing, unless a gate's timer is armed or something of
// it is in flight: what ends these calls it again.
func (l *Ledger) retire(now time.Time, a *account) {
	if a.scope >= books || a.gated || a.parked || a.running > 0 || a.item.Armed() || a.dead {
		return
	}
	at := a.rests(now).Add(restStep)
	l.rest.Set(&a.item, at.Truncate(restStep).Add(restStep))
}

// sweep drops accounts that are worth nothing.
func (l *Ledger) sweep(now time.Time) {
	for range sweepMost {
		it := l.rest.PopDue(now)
		if it == nil {
			return
		}
		a := it.Value
		if a.running > 0 || a.parked || a.shut {
			continue
		}
		if a.scope == suspend.Column && a.extra != nil {
			l.wide(now, a)
		}
		if a.rests(now).After(now) {
			l.retire(now, a)
			continue
		}
		l.drop(a)
	}
}

func (l *Ledger) drop(a *account) {
	a.dead = true
	b := &l.books[a.scope]
	delete(b.accounts, a.name)
	if len(b.accounts) == 0 && b.peak > shrinkFloor {
		*b = book{}
	}
	if a.stored {
		l.touch(a)
	}
}

// accounts is how many there are.
func (l *Ledger) accounts() int {
	n := 1 + levels
	for i := range l.books {
		n += len(l.books[i].accounts)
	}
	return n
}

// touch notes that an account's record is to be written.
func (l *Ledger) touch(a *account) {
	if !a.dirty {
		a.dirty = true
		l.dirty = append(l.dirty, a)
	}
}

// lookAgain lets a column, a level or the whole come out of Due.
func (l *Ledger) lookAgain(a *account) {
	if !a.again {
		a.again = true
		l.again = append(l.again, a)
	}
}

func sortedKeys(m map[string]*account) []string { return slices.Sorted(maps.Keys(m)) }
