package quota

import (
	"time"

	"github.com/penstockmq/penstock/broker/lite"
	"github.com/penstockmq/penstock/suspend"
	"github.com/penstockmq/penstock/suspend/deadline"
	"github.com/penstockmq/penstock/suspend/limit"
	"github.com/penstockmq/penstock/suspend/policy"
	"github.com/penstockmq/penstock/suspend/signal"
)

const (
	levels = lite.MaxLevel + 1
	scopes = 5
	// books are the scopes whose accounts come and go: cells, rows and columns.
	books = 3
)

// Ledger is the accounts of one consumer group, or of whatever shares limits. Not safe for concurrent use.
type Ledger struct {
	doc *policy.Document
	// gen counts policies; an account whose resolution is of another one is resolved when it is next asked.
	gen       uint32
	interned  map[resolvedKey]*resolved
	recent    [scopes]lastResolved
	unlimited *resolved // nil unless the policy has no limit at all
	board     signal.Board

	books  [books]book
	levels [levels]*account
	all    *account
	// squeezes are the limits of the whole that levels give way to, in the order of importance.
	squeezes []squeeze

	gates, rest deadline.Heap[*account]
	alone       alone
	again       []*account // to come out of Due at once
	dirty       []*account // touched since Dirty was called
	opened      []suspend.Target
	last        time.Time // the latest now; shows when the clock steps back

	held [scopes][kinds]int64
	// would is what the shadow rules of the policy in force would have held, wouldBefore what those of earlier ones would.
	would       map[wouldKey]*int64
	wouldBefore [scopes][kinds]int64
}

// book is the accounts of one scope by name.
type book struct {
	accounts map[string]*account
	peak     int // most accounts since the map was made; maps never shrink on their own
}

// shrinkFloor is the peak from which a map is let go when its last account is.
const shrinkFloor = 1024

// New returns a ledger in which nothing is used. A nil document has no rules.
func New(doc *policy.Document) *Ledger {
	l := &Ledger{interned: map[resolvedKey]*resolved{}, would: map[wouldKey]*int64{}}
	l.adopt(doc)
	l.all = l.newAccount(suspend.Target{Scope: suspend.All})
	for i := range l.levels {
		t, _ := suspend.Place{Level: uint8(i)}.Target(suspend.Level)
		l.levels[i] = l.newAccount(t)
	}
	return l
}

func (l *Ledger) newAccount(t suspend.Target) *account {
	a := &account{name: t.Name, scope: t.Scope}
	a.item.Value = a
	return a
}

// adopt makes doc the policy in force.
func (l *Ledger) adopt(doc *policy.Document) {
	if doc == nil {
		doc = policy.Empty()
	}
	l.doc = doc
	l.gen++
	clear(l.interned)
	l.recent = [scopes]lastResolved{}
	for key, n := range l.would {
		l.wouldBefore[key.scope][key.kind] += *n
	}
	clear(l.would)
	l.unlimited = nil
	if doc.Len() == 0 {
		l.unlimited = &resolved{gen: l.gen, single: singleOf(suspend.Bucket, nil)}
	}
}

// SetPolicy puts another document in force. What is used stays used where a limit of the kind remains; a kind that vanished
// forgets. Accounts follow when they are next asked: the state of each column, level and the whole is to be looked at
// again, and comes out of Due at once; cells and rows are for the caller to review.
func (l *Ledger) SetPolicy(now time.Time, doc *policy.Document) {
	l.observe(now)
	l.adopt(doc)
	for _, name := range sortedKeys(l.books[suspend.Column].accounts) {
		l.lookAgain(l.books[suspend.Column].accounts[name])
	}
	for _, a := range l.levels {
		l.lookAgain(a)
	}
	l.lookAgain(l.all)
}

// SetSignal puts a signal in force. What it changes comes out of Due at once.
func (l *Ledger) SetSignal(now time.Time, s signal.Signal) {
	l.observe(now)
	if !scalable(s.Target) {
		return
	}
	l.board.Put(now, s)
	l.lookAgain(l.open(s.Target))
}

// DropSignal forgets what a source said of a target. The factor then rises step by step.
func (l *Ledger) DropSignal(now time.Time, t suspend.Target, source string) {
	l.observe(now)
	if !scalable(t) {
		return
	}
	l.board.Drop(now, t, source)
	if a := l.find(t); a != nil {
		l.lookAgain(a)
	}
}

// scalable is whether signals may name the target.
func scalable(t suspend.Target) bool {
	return (t.Scope == suspend.Column || t.Scope == suspend.Level) && t.Validate() == nil
}

// Terms are how many messages of a place's bucket may be out at once, def if no rule says, and the share of the bucket
// among those of its column and level.
func (l *Ledger) Terms(p suspend.Place, def int) (inFlight int, weight uint16) {
	limits := l.cellLimits(p)
	if limits.InFlight > 0 {
		def = int(limits.InFlight)
	}
	return def, max(limits.Weight, 1)
}

// cellLimits is what the policy says of a cell, from its account if it has one.
func (l *Ledger) cellLimits(p suspend.Place) *policy.Limits {
	if a := l.find(suspend.Target{Scope: suspend.Bucket, Name: p.Bucket}); a != nil && a.res != nil && a.res.gen == l.gen {
		return &a.res.limits
	}
	return &l.resolve(suspend.Bucket, p).limits
}

// Importance is the level of a cell's message: what its sender stamped on it (-1: nothing), else what the policy says.
func (l *Ledger) Importance(c lite.Cell, stamped int8) uint8 {
	if stamped >= 0 {
		return min(uint8(stamped), levels-1)
	}
	level, _ := l.doc.Importance(c.User, c.Model)
	return min(level, levels-1)
}

// NeedsCost reports whether what a message of a place costs makes a difference: else the caller need not find out. A rate
// counts too, as a message may stand for several requests.
func (l *Ledger) NeedsCost(p suspend.Place) bool {
	if l.doc.CostUnit() != policy.Requests {
		return true
	}
	if l.unlimited != nil {
		return false
	}
	for scope := range suspend.Scope(scopes) {
		if t, ok := p.Target(scope); ok && l.resolutionOf(t, p).counts {
			return true
		}
	}
	return false
}

func (l *Ledger) resolutionOf(t suspend.Target, p suspend.Place) *resolved {
	if a := l.find(t); a != nil && a.res != nil && a.res.gen == l.gen {
		return a.res
	}
	return l.resolve(t.Scope, p)
}

// Expect is how many output tokens the next message of a place is expected to cause, of at most maxOutput (0: no bound)
// and MaxExpected.
func (l *Ledger) Expect(p suspend.Place, maxOutput int64) int64 {
	var e limit.Estimate
	if a := l.find(suspend.Target{Scope: suspend.Bucket, Name: p.Bucket}); a != nil {
		l.refresh(l.last, a, p)
		if a.extra != nil {
			e = a.extra.learned
		}
	}
	return min(e.Expect(maxOutput), MaxExpected)
}
