package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/penstockmq/penstock/broker/lite"
	"github.com/penstockmq/penstock/consumer/reply"
)

// A queued request shows what is known about its wait, nothing that is not, and nothing once it runs.
func TestWaitIsExplained(t *testing.T) {
	var known Explanation
	var fails error
	asked := make(chan [2]string, 16)
	r := newRig(t, func(o *Options) {
		o.Explain = func(_ context.Context, bucket, handle string) (Explanation, error) {
			asked <- [2]string{bucket, handle}
			return known, fails
		}
	})
	url, j := r.accept()
	get := func() map[string]any {
		t.Helper()
		a := r.ask(http.MethodGet, url, "")
		a.check(t, 202, "")
		var doc map[string]any
		must(t, json.Unmarshal([]byte(a.body), &doc))
		return doc
	}
	start := time.Date(2026, 1, 2, 3, 4, 5, 678, time.FixedZone("", 3600))
	known = Explanation{Position: 0, EstimatedStart: start, WaitingFor: "column gpt-4o: rate 5/s"}
	d := get()
	if d["position"] != 0.0 || d["estimated_start"] != "2026-01-02T02:04:05Z" || d["waiting_for"] != "column gpt-4o: rate 5/s" {
		t.Errorf("%v", d)
	}
	bucket, err := lite.Encode(lite.Cell{User: "alice", Model: "gpt-4o"})
	must(t, err)
	if got := <-asked; got != [2]string{bucket, j.ID} { // the fake broker's handle is the id
		t.Errorf("asked about %q", got)
	}
	absent := func(d map[string]any) {
		t.Helper()
		for _, key := range []string{"position", "estimated_start", "waiting_for"} {
			if v, there := d[key]; there {
				t.Errorf("%s: %v", key, v)
			}
		}
	}
	known = Explanation{Position: 400}
	a := r.ask(http.MethodGet, url, "")
	if after := a.header.Get("Retry-After"); after != "20" {
		t.Errorf("Retry-After %s of a request with 400 before it, want 20", after)
	}
	<-asked
	known = Explanation{Position: -1}
	absent(get())
	known, fails = Explanation{Position: 3, WaitingFor: "x"}, errors.New("unreachable")
	absent(get())
	if n := r.g.Metrics().Unexplained.Load(); n != 1 {
		t.Errorf("%d unexplained", n)
	}
	must(t, r.store.Running(t.Context(), reply.Record{ID: j.ID}, 1))
	fails = nil
	absent(get())
	if len(asked) != 3 {
		t.Errorf("asked %d times", len(asked)+1)
	}
}

// A poll for a request without an estimate gets one second; a poll far from its turn gets more, as each poll costs the broker.
func TestRetryAfterOfAQueuedRequestFollowsPositionAndPace(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, c := range []struct {
		e    Explanation
		want time.Duration
	}{
		{Explanation{Position: -1}, pollHint},
		{Explanation{Position: 0}, pollHint},
		{Explanation{Position: 3}, pollHint},
		{Explanation{Position: 100}, 5 * time.Second},
		{Explanation{Position: 80_000}, pollHintMax},
		{Explanation{Position: 1 << 62}, pollHintMax},
		{Explanation{Position: 80_000, EstimatedStart: now.Add(10 * time.Second)}, 5 * time.Second},
		{Explanation{Position: 1, EstimatedStart: now.Add(time.Minute)}, 30 * time.Second},
		{Explanation{Position: 1, EstimatedStart: now.Add(24 * time.Hour)}, pollHintMax},
		{Explanation{Position: 1, EstimatedStart: now.Add(-time.Hour)}, pollHint},
	} {
		if got := c.e.pollAfter(now); got != c.want {
			t.Errorf("%+v: ask after %v, want %v", c.e, got, c.want)
		}
	}
}
