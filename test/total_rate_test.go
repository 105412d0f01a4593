package test

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/openai/openai-go/v3/option"

	"github.com/penstockmq/penstock/cmd/mockmodel"
)

// The total rate of a user or a model stays what the policy says, whoever dies or is
// added: the broker that owns the buckets decides, and keeps what it has decided.

// TestTotalRateStaysWhenPoolsDieAndJoin runs 2/s over four pools, for the column of a
// model and for the row of a user at the same time. 2/s is 30 in 15 s: per pool it
// would be half a message a second, which no share of it could be exact about.
func TestTotalRateStaysWhenPoolsDieAndJoin(t *testing.T) {
	t.Parallel()
	const (
		perSecond = 2
		measured  = 15 * time.Second
		buckets   = 10
		each      = 5
	)
	f := startFleet(t, fmt.Sprintf("columns: [{model: m, rate: %d/s}]\nrows: [{user: row, rate: %d/s}]\n", perSecond, perSecond))
	pools := f.pools(4)
	p := f.producerOf()
	for i := range buckets {
		queue(t, p, userName(i), model, each)
		queue(t, p, "row", fmt.Sprint("model-", i), each)
	}
	scopes := map[string]func(mockmodel.Call) bool{"column": ofModel(model), "row": ofUser("row")}
	// In the middle between two releases, so that the count is not one of edges.
	began := time.Now().Add(time.Second / perSecond / 2)
	from := map[string]time.Time{}
	for scope, is := range scopes {
		from[scope] = f.stub.first(scope, is).Add(time.Second / perSecond / 2)
		if from[scope].After(began) {
			began = from[scope]
		}
	}
	until(t, began.Add(measured/3))
	calls := f.stub.Stats().Calls
	f.stub.wait("a release", func(s mockmodel.Stats) bool { return s.Calls > calls }) // the next is half a second away
	pools[0].kill()
	until(t, began.Add(measured/2))
	f.pools(1)
	until(t, began.Add(measured+slack))
	for scope, is := range scopes {
		got := f.stub.between(from[scope], from[scope].Add(measured), is)
		if want := perSecond * measured.Seconds(); !near(got, want, 1) {
			t.Errorf("%s of %d/s: %d in %v, want %v", scope, perSecond, got, measured, want)
		}
	}
}

// TestTotalRateStaysWhenTheBrokerIsKilled kills the broker twice within a window of 100.
// It is a day and not a minute, so that its end is not near: the fault would be to begin
// anew with 100 after a kill.
func TestTotalRateStaysWhenTheBrokerIsKilled(t *testing.T) {
	t.Parallel()
	const (
		limit   = 100
		span    = 24 * time.Hour
		buckets = 20
		each    = 10
	)
	inside(t, span, time.Minute)
	f := startFleet(t, fmt.Sprintf("columns: [{model: m, window: %d/24h, window_at: release}]\n", limit))
	f.stub.on("", func(b *mockmodel.Behaviour) { b.Delay = mockmodel.Duration(50 * time.Millisecond) })
	p := f.producerOf()
	for i := range buckets {
		queue(t, p, userName(i), model, each)
	}
	f.pools(1)
	for _, at := range []int64{25, 60} {
		f.stub.wait("calls", func(s mockmodel.Stats) bool { return s.Calls >= at })
		f.kill()
		f.restart()
	}
	const leased = `penstock_broker_leases{group="pool",topic="requests"}`
	gone := 0 // settled or with a pool
	watch(t, enough, func() bool {
		gone = buckets*each - f.queued() + int(f.metric(leased))
		return gone >= limit
	}, func() string { return fmt.Sprintf("%d of %d are released", gone, limit) })
	settled := time.Now()
	until(t, settled.Add(2*slack))
	// A release that a kill caught on its way to the pool is charged and not called: its
	// lease ends after the test.
	if calls := f.stub.Stats().Calls; calls > limit || calls < limit/2 {
		t.Errorf("%d calls in a window of %d", calls, limit)
	}
	if gone = buckets*each - f.queued() + int(f.metric(leased)); gone != limit {
		t.Errorf("%d were released in a window of %d", gone, limit)
	}
	if e := f.explain(userName(0), model); e.State != "limited" || e.Gate == nil || e.Gate.Limit != "window" {
		t.Errorf("a bucket that waits: %+v", e)
	}
}

// TestTotalRateStaysWithMoreGateways adds a second gateway to one that has filled its
// buckets, and asks both for what a window lets in.
func TestTotalRateStaysWithMoreGateways(t *testing.T) {
	t.Parallel()
	const (
		perSecond = 5
		measured  = 4 * time.Second
		requests  = 30
		window    = 20
	)
	inside(t, 24*time.Hour, time.Minute)
	f := startFleet(t, fmt.Sprintf("limits: [{user: bob, window: %d/24h, window_at: admission}]\ncolumns: [{model: m, rate: %d/s}]\n", window, perSecond),
		"--in-flight", "8") // so that only the column keeps what is queued
	f.pools(1)
	first := f.gateway()
	send := func(s *system, user string) (accepted int) {
		for i := range requests {
			a := s.complete(t.Context(), user, fmt.Sprint(i), option.WithHeader("Prefer", "respond-async"))
			switch a.status {
			case http.StatusAccepted:
				accepted++
			case http.StatusTooManyRequests:
			default:
				t.Fatalf("%+v", a)
			}
		}
		return accepted
	}
	if n := send(first, "alice"); n != requests {
		t.Fatalf("%d of %d were accepted", n, requests)
	}
	half := time.Second / perSecond / 2
	alone := f.stub.first("a release", ofModel(model)).Add(half)
	until(t, alone.Add(measured))
	second := f.gateway()
	if n := send(second, "alice"); n != requests {
		t.Fatalf("%d of %d were accepted by the second gateway", n, requests)
	}
	both := alone.Add(time.Since(alone).Truncate(2 * half))
	if in := send(first, "bob") + send(second, "bob"); in != window {
		t.Errorf("two gateways let in %d in a window of %d", in, window)
	}
	until(t, both.Add(measured+slack))
	for what, from := range map[string]time.Time{"one gateway": alone, "two gateways": both} {
		if got := f.stub.between(from, from.Add(measured), nil); !near(got, perSecond*measured.Seconds(), 1) {
			t.Errorf("%s: %d in %v, the column is %d/s", what, got, measured, perSecond)
		}
	}
}
