package sim

import (
	"time"

	"github.com/penstockmq/penstock/broker/lite"
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

// take charges every window that applies to one request of the cell, or none.
func (a *admission) take(now time.Time, c lite.Cell) bool {
	row, _ := a.doc.Row(c.User)
	column, _ := a.doc.Column(c.Model)
	whole, _ := a.doc.Broker()
	asked := []struct {
		target suspend.Target
		limits policy.Limits
	}{
		{suspend.Target{Scope: suspend.Bucket, Name: c.User + "\x00" + c.Model}, a.doc.Resolve(c.User, c.Model)},
		{suspend.Target{Scope: suspend.Row, Name: c.User}, row},
		{suspend.Target{Scope: suspend.Column, Name: c.Model}, column},
		{suspend.Target{Scope: suspend.All}, whole},
	}
	for _, x := range asked {
		if w := admitted(x.limits); w != nil {
			if _, d := w.Peek(a.used[x.target], now, 1); !d.Allowed {
				return false
			}
		}
	}
	for _, x := range asked {
		if w := admitted(x.limits); w != nil {
			a.used[x.target], _ = w.Take(a.used[x.target], now, 1)
		}
	}
	return true
}

// admitted is the window that is asked at admission; nil if there is none.
func admitted(l policy.Limits) *limit.FixedWindow {
	if l.WindowAt != policy.Admission {
		return nil
	}
	return l.Window
}
