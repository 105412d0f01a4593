package gateway

import (
	"net/http"
	"strconv"
	"time"

	"github.com/penstockmq/penstock/suspend"
	"github.com/penstockmq/penstock/suspend/limit"
)

// The fields of draft-ietf-httpapi-ratelimit-headers-09. They are lists in the draft; there is one entry here, for the limit
// that binds.
const (
	headerRateLimit       = "Ratelimit"
	headerRateLimitPolicy = "Ratelimit-Policy"
)

// quota is one limit and what is left of it, as the RateLimit fields show it. The zero quota is none.
type quota struct {
	name   string        // cell, row, column, level, all, or queue
	limit  int64         // per window, or at once
	window time.Duration // 0: so many at once, and not per time
	left   int64
	resets time.Time // the window ends; zero: unknown
}

func (q quota) isZero() bool { return q.name == "" }

func windowQuota(scope suspend.Scope, w *limit.FixedWindow, left int64, ends time.Time) quota {
	name := scope.String()
	if scope == suspend.Bucket {
		name = "cell"
	}
	return quota{name: name, limit: w.Limit, window: w.Window, left: left, resets: ends}
}

func depthQuota(depth, queued int64, free time.Time) quota {
	return quota{name: "queue", limit: depth, left: max(depth-queued, 0), resets: free}
}

// write sets the fields. What is left is known for the moment of admission; after a long wait in the queue the window may
// have ended, and then only the policy is still true.
//
//	RateLimit-Policy: "cell";q=100;w=60
//	RateLimit: "cell";r=3;t=42
//
// q is the limit, w its window in seconds, r what is left, t the seconds until it is whole again, both rounded up. A
// queue has a depth and no window: its unit (qu) is requests at once.
func (q quota) write(h http.Header, now time.Time) {
	if q.isZero() {
		return
	}
	policy := `"` + q.name + `";q=` + strconv.FormatInt(q.limit, 10)
	if q.window > 0 {
		policy += ";w=" + strconv.FormatInt(retrySeconds(q.window), 10)
	} else {
		policy += `;qu="concurrent-requests"`
	}
	h.Set(headerRateLimitPolicy, policy)
	if q.window > 0 && !q.resets.After(now) {
		return
	}
	state := `"` + q.name + `";r=` + strconv.FormatInt(q.left, 10)
	if !q.resets.IsZero() {
		state += ";t=" + strconv.FormatInt(retrySeconds(q.resets.Sub(now)), 10)
	}
	h.Set(headerRateLimit, state)
}
