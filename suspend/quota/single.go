package quota

import (
	"math"
	"time"

	"github.com/penstockmq/penstock/suspend"
	"github.com/penstockmq/penstock/suspend/limit"
)

// One message must not close a scope shared with other users for long. Its sender states its cost: its number of requests is
// charged at delivery and never corrected, and its tokens are reserved until it has ended. So a column, a level and the
// broker let one message cost at most their burst plus their yield in singleSpan (or in their own period, if that is
// longer). A message with more requests can never be delivered; more tokens are not reserved, and become debt if they are used.
//
// A cell and a row have no such bound: they belong to the sender, and a large message is paid for afterwards there.
const singleSpan = time.Minute

// single is the maximum cost of one message in an account; math.MaxInt64 is no bound.
type single struct {
	requests int64
	kind     kind // kind of the limit that bounds requests
	tokens   int64
}

func singleOf(scope suspend.Scope, list []spec) single {
	most := single{requests: math.MaxInt64, tokens: math.MaxInt64}
	if scope <= suspend.Row {
		return most
	}
	for _, s := range list {
		n := int64(math.MaxInt64)
		switch law := s.law.(type) {
		case *limit.LeakyBucket:
			n = within(law.Rate, singleSpan) + within(law.Rate, law.Burst)
		case *limit.TokenBucket:
			n = within(law.Rate, singleSpan) + law.Capacity
		case *limit.TokenWindow:
			n = max(law.Limit, within(limit.Rate{Events: law.Limit, Per: law.Window}, singleSpan))
		}
		if (s.kind == kindRate || s.kind == kindQuota) && n < most.requests {
			most.requests, most.kind = n, s.kind
		}
		if s.kind == kindTokens {
			most.tokens = min(most.tokens, n)
		}
	}
	return most
}

// within returns the yield of a rate in d, or in its own period if d is singleSpan and the period is longer; at least 1.
func within(r limit.Rate, d time.Duration) int64 {
	if d == singleSpan && r.Per > d {
		d = r.Per
	}
	n := math.Ceil(float64(r.Events) * (float64(d) / float64(r.Per))) // a rounding error does not matter
	return int64(min(max(n, 1), math.MaxInt64/4))
}

// tooLarge returns a column, level or the broker scope if a message of this cost can never pass it.
func (l *Ledger) tooLarge(p suspend.Place, c Cost) (Gate, bool) {
	if c.Requests <= 1 || l.unlimited != nil {
		return Gate{}, false
	}
	for scope := suspend.Column; scope < suspend.Scope(scopes); scope++ {
		t, ok := p.Target(scope)
		if !ok {
			continue
		}
		if most := l.resolutionOf(t, p).single; c.Requests > most.requests {
			l.held[scope][most.kind]++
			return Gate{Target: t, Of: t, Limit: most.kind.String(), Never: true}, true
		}
	}
	return Gate{}, false
}

// reserved returns the part of c that is charged: no more tokens than any of the accounts lets one message reserve.
func (c Cost) reserved(accounts *path) Cost {
	for _, a := range accounts {
		if a != nil {
			c.Tokens = min(c.Tokens, a.res.single.tokens)
		}
	}
	c.Output = min(c.Output, c.Tokens)
	return c
}
