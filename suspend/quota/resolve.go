package quota

import (
	"github.com/penstockmq/penstock/suspend"
	"github.com/penstockmq/penstock/suspend/limit"
	"github.com/penstockmq/penstock/suspend/policy"
)

// full is the factor that scales nothing, in thousandths.
const full = 1000

// internFloor is how many resolutions are kept before they are compared with the number of accounts.
const internFloor = 1024

// spec is one limit as the policy says it.
type spec struct {
	kind kind
	law  any // *limit.LeakyBucket and so on; never changed
	from policy.Source
	// would counts what a shadow rule would have held; nil of an enforced one.
	would *int64
}

// resolved is what holds for an account under one generation of the policy. Accounts with the same limits share one, so a
// million cells under one default rule cost a pointer each. Immutable.
type resolved struct {
	gen              uint32
	limits           policy.Limits
	enforced, shadow []spec
	paced            bool // enforced has a rate
	counts, tokens   bool // enforced or shadow count costs; tokens
	single           single
}

type resolvedKey struct {
	scope            suspend.Scope
	enforced, shadow policy.Limits
}

// lastResolved is what a scope was resolved to last.
type lastResolved struct {
	key resolvedKey
	of  *resolved
}

// wouldKey names a shadow rule's limit.
type wouldKey struct {
	scope suspend.Scope
	kind  kind
	from  policy.Source
}

// resolve is what the policy says of a place's account of the given scope.
func (l *Ledger) resolve(scope suspend.Scope, p suspend.Place) *resolved {
	if l.unlimited != nil {
		return l.unlimited
	}
	k := resolvedKey{scope: scope}
	switch scope {
	case suspend.Bucket:
		k.enforced, k.shadow = l.doc.Resolve(p.User, p.Model), l.doc.Shadow(p.User, p.Model)
	case suspend.Row:
		k.enforced, k.shadow = l.doc.Row(p.User)
	case suspend.Column:
		k.enforced, k.shadow = l.doc.Column(p.Model)
	case suspend.Level:
		k.enforced, k.shadow = l.doc.LevelOf(level(p))
	case suspend.All:
		k.enforced, k.shadow = l.doc.Broker()
	}
	// Under one default rule a million cells in a row have the same key, and to compare two is cheaper than to hash one.
	last := &l.recent[scope]
	if last.of != nil && last.key == k {
		return last.of
	}
	if r := l.interned[k]; r != nil {
		*last = lastResolved{k, r}
		return r
	}
	// Rules for names that were in use long ago must not pile up: what is still in use has its own pointer.
	if len(l.interned) > internFloor+2*l.accounts() {
		clear(l.interned)
	}
	r := l.compile(k)
	l.interned[k] = r
	*last = lastResolved{k, r}
	return r
}

func (l *Ledger) compile(k resolvedKey) *resolved {
	r := &resolved{gen: l.gen, limits: k.enforced}
	r.enforced = specs(k.scope, k.enforced)
	r.shadow = specs(k.scope, k.shadow)
	r.single = singleOf(k.scope, r.enforced)
	for _, s := range r.enforced {
		r.paced = r.paced || s.kind == kindRate
		r.count(s.kind)
	}
	for i := range r.shadow {
		s := &r.shadow[i]
		r.count(s.kind)
		key := wouldKey{k.scope, s.kind, s.from}
		if l.would[key] == nil {
			l.would[key] = new(int64)
		}
		s.would = l.would[key]
	}
	return r
}

func (r *resolved) count(k kind) {
	r.counts = r.counts || k.countsCost()
	r.tokens = r.tokens || k == kindTokens
}

// specs lists the limits that an account asks. A window may be asked by the gateway instead.
func specs(scope suspend.Scope, l policy.Limits) []spec {
	var list []spec
	add := func(k kind, law any, from policy.Source) { list = append(list, spec{kind: k, law: law, from: from}) }
	bucket := func(k kind, law *limit.TokenBucket, from policy.Source) {
		if law != nil && law.Rate != (limit.Rate{}) {
			add(k, law, from)
		}
	}
	if l.Leaky != nil {
		add(kindRate, l.Leaky, l.From.Leaky)
	}
	if l.Window != nil && l.WindowAt == policy.Release {
		add(kindWindow, l.Window, l.From.Window)
	}
	bucket(kindQuota, l.Quota, l.From.Quota)
	if l.Observed != nil {
		add(kindObserved, l.Observed, l.From.Observed)
	}
	if l.InFlight > 0 {
		add(kindInFlight, &limit.Concurrency{Max: l.InFlight}, l.From.InFlight)
	}
	if l.Tokens != nil {
		add(kindTokens, l.Tokens, l.From.Tokens)
	}
	bucket(kindBytesIn, l.BytesIn, l.From.BytesIn)
	bucket(kindBytesOut, l.BytesOut, l.From.BytesOut)
	if l.Adaptive != nil && scope == suspend.Column {
		add(kindAdaptive, l.Adaptive, l.From.Adaptive)
	}
	return list
}
