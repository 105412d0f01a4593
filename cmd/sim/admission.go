package sim

import (
	"time"

	"github.com/penstockmq/penstock/suspend"
	"github.com/penstockmq/penstock/suspend/limit"
	"github.com/penstockmq/penstock/suspend/policy"
)

// admission is the gateway's part: the fixed windows that refuse, asked as one.
type admission struct {
	doc  *policy.Document
	used map[suspend.Target]limit.WindowState
}

func newAdmission(doc *policy.Document) *admission {
	return &admission{doc: doc, used: map[suspend.Target]limit.WindowState{}}
}

// take charges every window that applies to one request of the place, or none.
func (a *admission) take(now time.Time, p suspend.Place) bool {
	row, _ := a.doc.Row(p.User)
	column, _ := a.doc.Column(p.Model)
	level, _ := a.doc.LevelOf(p.Level)
	whole, _ := a.doc.Broker()
	windows := [...]*limit.FixedWindow{
		suspend.Bucket: a.doc.Resolve(p.User, p.Model).AtAdmission(), suspend.Row: row.AtAdmission(),
		suspend.Column: column.AtAdmission(), suspend.Level: level.AtAdmission(), suspend.All: whole.AtAdmission(),
	}
	for scope, w := range windows {
		if w == nil {
			continue
		}
		t, _ := p.Target(suspend.Scope(scope))
		if _, d := w.Peek(a.used[t], now, 1); !d.Allowed {
			return false
		}
	}
	for scope, w := range windows {
		if t, _ := p.Target(suspend.Scope(scope)); w != nil {
			a.used[t], _ = w.Take(a.used[t], now, 1)
		}
	}
	return true
}
