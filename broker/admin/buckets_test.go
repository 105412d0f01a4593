package admin

import (
	"testing"
	"time"

	"github.com/penstockmq/penstock/broker"
	"github.com/penstockmq/penstock/suspend"
)

func TestC37_EveryStatusCanBeShown(t *testing.T) {
	t.Parallel()
	const ttl = 100 * time.Second
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, c := range []struct {
		idle time.Duration
		ttl  time.Duration
		want BucketStatus
	}{
		{79 * time.Second, ttl, BucketActive},
		{80*time.Second - 1, ttl, BucketActive},
		{80 * time.Second, ttl, BucketExpiringSoon},
		{81 * time.Second, ttl, BucketExpiringSoon},
		{99 * time.Second, ttl, BucketExpiringSoon},
		{ttl, ttl, BucketExpired}, // as the sweeper has it
		{101 * time.Second, ttl, BucketExpired},
		{-time.Second, ttl, BucketActive}, // the clock went back
		{1000 * time.Hour, 0, BucketActive},
		{1, 1, BucketExpired},
	} {
		if got := lifeOf(now.Add(-c.idle), c.ttl, now); got != c.want {
			t.Errorf("idle %v of %v: %s, want %s", c.idle, c.ttl, got, c.want)
		}
	}
}

func TestC37_BucketsInUseAreActive(t *testing.T) {
	t.Parallel()
	const ttl = 100 * time.Second
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	held := func(scope suspend.Scope, until time.Time) []broker.BucketGroupInfo {
		return []broker.BucketGroupInfo{{Hold: suspend.Hold{Target: suspend.Target{Scope: scope, Name: "b"}, Until: until}}}
	}
	for name, c := range map[string]struct {
		bucket  broker.BucketInfo
		backlog bool // may expire
		want    BucketStatus
	}{
		"idle":                        {broker.BucketInfo{}, false, BucketExpired},
		"queued":                      {broker.BucketInfo{Queued: 1}, false, BucketActive},
		"queued, but backlog expires": {broker.BucketInfo{Queued: 1}, true, BucketExpired},
		"out":                         {broker.BucketInfo{Groups: []broker.BucketGroupInfo{{Leased: 1}}}, true, BucketActive},
		"held":                        {broker.BucketInfo{Groups: held(suspend.Bucket, now.Add(time.Second))}, false, BucketActive},
		"held until lately":           {broker.BucketInfo{Groups: held(suspend.Bucket, now.Add(-90*time.Second))}, false, BucketExpiringSoon},
		"its column is held":          {broker.BucketInfo{Groups: held(suspend.Column, now.Add(time.Second))}, false, BucketExpired},
	} {
		c.bucket.LastActive = now.Add(-2 * ttl)
		got := bucketOf(c.bucket, broker.TopicConfig{TTL: ttl, ExpireBacklog: c.backlog}, now).Status
		if got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}
