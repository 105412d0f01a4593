package gateway

import (
	"github.com/penstockmq/penstock/broker/lite"
	"github.com/penstockmq/penstock/suspend"
	"github.com/penstockmq/penstock/suspend/limit"
	"github.com/penstockmq/penstock/suspend/policy"
)

// windows are the fixed windows that one request is asked for, by [suspend.Scope]; nil: none.
type windows [suspend.All + 1]*limit.FixedWindow

// set keeps the window of l for scope, unless it is asked at release: then the request waits in its bucket instead.
func (ws *windows) set(scope suspend.Scope, l policy.Limits) { ws[scope] = l.AtAdmission() }

// rules are what a policy says about one request at the gateway.
type rules struct {
	place   suspend.Place
	stamped bool // place.Level comes from the key, and the broker is to be told
	cell    policy.Limits
	windows windows

	// shadow would hold beside; it refuses nothing.
	shadow        policy.Limits
	shadowWindows windows
}

// rulesOf reads what doc says about a request of the cell, whose bucket is called name, sent with the API key of that name.
func rulesOf(doc *policy.Document, cell lite.Cell, name, key string) rules {
	r := rules{
		place:  suspend.Place{Bucket: name, User: cell.User, Model: cell.Model},
		cell:   doc.Resolve(cell.User, cell.Model),
		shadow: doc.Shadow(cell.User, cell.Model),
	}
	if key != "" {
		r.place.Level, r.stamped = doc.KeyLevel(key)
	}
	if !r.stamped {
		r.place.Level, _ = doc.Importance(cell.User, cell.Model)
	}
	r.windows.set(suspend.Bucket, r.cell)
	r.shadowWindows.set(suspend.Bucket, r.shadow)
	both := func(scope suspend.Scope, enforced, shadow policy.Limits) {
		r.windows.set(scope, enforced)
		r.shadowWindows.set(scope, shadow)
	}
	enforced, shadow := doc.Row(cell.User)
	both(suspend.Row, enforced, shadow)
	enforced, shadow = doc.Column(cell.Model)
	both(suspend.Column, enforced, shadow)
	enforced, shadow = doc.LevelOf(r.place.Level)
	both(suspend.Level, enforced, shadow)
	enforced, shadow = doc.Broker()
	both(suspend.All, enforced, shadow)
	return r
}

// whose is a scope as callers read it in errors.
func whose(scope suspend.Scope) string {
	switch scope {
	case suspend.Bucket:
		return "this user and model"
	case suspend.Row:
		return "this user"
	case suspend.Column:
		return "this model"
	case suspend.Level:
		return "requests of this importance"
	case suspend.All:
	}
	return "all requests together"
}
