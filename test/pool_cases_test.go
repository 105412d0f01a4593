package test

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/penstockmq/penstock/broker/admin"
	"github.com/penstockmq/penstock/broker/lite"
	"github.com/penstockmq/penstock/cmd/mockmodel"
	"github.com/penstockmq/penstock/consumer/mq"
	"github.com/penstockmq/penstock/consumer/reply"
)

// The load of TestC09: each bucket gets a message every feedEvery for feedFor. The case
// feeds for 60 s; a head that blocks shows within the first suspend.
const (
	feedBuckets   = 50
	feedThrottled = 40
	feedEvery     = 200 * time.Millisecond
	feedFor       = 8 * time.Second
	feedHold      = 300 * time.Millisecond
)

// TestC09_ThrottledBucketsStallNobody feeds 50 buckets through a pool of 50 workers. In the
// second round 40 of them are turned away, always, for 300 ms each time; the other 10
// must not notice. A model that turns somebody away is left alone by all, so each of the
// 40 has one of its own; the limits of the policy are asked for all of them.
func TestC09_ThrottledBucketsStallNobody(t *testing.T) {
	t.Parallel()
	base := feed(t, 0)
	if len(base.delays) < feedBuckets*int(feedFor/feedEvery)/2 {
		t.Fatalf("%d messages in the round without throttled buckets", len(base.delays))
	}
	round := feed(t, feedThrottled)
	was, is := quantile(base.delays, 0.99), quantile(round.delays, 0.99)
	t.Logf("free buckets: p50 %v, p99 %v; with none throttled p50 %v, p99 %v",
		quantile(round.delays, 0.5), is, quantile(base.delays, 0.5), was)
	// The case allows 20 ms on a machine with nothing else to do. One that waits for a
	// suspend is late by up to 300 ms.
	if is > was+feedHold/2 {
		t.Errorf("p99 of the free buckets is %v, %v when none is throttled", is, was)
	}
	if len(round.gaps) != feedThrottled {
		t.Fatalf("%d throttled buckets were tried", len(round.gaps))
	}
	for user, gaps := range round.gaps {
		if shortest := slices.Min(gaps); shortest < feedHold {
			t.Errorf("%s: two deliveries are %v apart, the suspend is %v", user, shortest, feedHold)
		}
		if n := int(feedFor / (2 * feedHold)); len(gaps) < n {
			t.Errorf("%s: %d deliveries, want more than %d: its suspends do not end", user, len(gaps)+1, n)
		}
	}
}

// fed is what came of a round.
type fed struct {
	delays []time.Duration            // of the free buckets' messages, from send to the model
	gaps   map[string][]time.Duration // between the deliveries of a throttled user's bucket
}

// feed runs one round against a system of its own.
func feed(t *testing.T, throttled int) fed {
	t.Helper()
	s := startFleet(t, "limits: [{user: \"*\", rate: 1000/s, burst: 1s}]\nrows: [{user: \"*\", in_flight: 50}]\ncolumns: [{model: \"*\", in_flight: 50}]\n")
	s.pools(1, "--workers", fmt.Sprint(feedBuckets))
	user := func(i int) string {
		if i < throttled {
			return fmt.Sprintf("throttled-%02d", i)
		}
		return fmt.Sprintf("free-%02d", i)
	}
	work := s.stub.Behaviour()
	work.Delay = mockmodel.Duration(20 * time.Millisecond)
	must(t, s.stub.SetBehaviour(work))
	for i := range throttled {
		s.stub.AddRule(mockmodel.Rule{User: user(i), Apply: func(b *mockmodel.Behaviour) {
			failing(http.StatusTooManyRequests)(b)
			b.RetryAfter = mockmodel.Duration(feedHold)
		}})
	}
	producer := s.producer()

	var mu sync.Mutex // guards the following field
	sent := map[string]time.Time{}
	var feeders sync.WaitGroup
	for i := range feedBuckets {
		feeders.Go(func() {
			cell := lite.Cell{User: user(i), Model: model}
			if i < throttled {
				cell.Model = user(i)
			}
			name, err := lite.Encode(cell)
			if err != nil {
				t.Error(err)
				return
			}
			<-time.After(time.Duration(i) * feedEvery / feedBuckets) // not all at the same instant
			tick := time.NewTicker(feedEvery)
			defer tick.Stop()
			for n := range int(feedFor / feedEvery) {
				<-tick.C
				id := fmt.Sprintf("%d-%d", i, n)
				mu.Lock()
				sent[id] = time.Now()
				mu.Unlock()
				r := reply.Request{ID: id, User: cell.User, Model: cell.Model, Path: "/v1/chat/completions"}
				if _, err := producer.Send(t.Context(), mq.Outgoing{
					Topic: topic, Lite: name, Body: []byte(`{"model":"` + cell.Model + `"}`), Properties: r.Properties(),
				}); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	feeders.Wait()
	free := int64((feedBuckets - throttled) * int(feedFor/feedEvery))
	s.stub.wait("all of the free buckets", func(st mockmodel.Stats) bool { return st.Answered == free })
	watch(t, enough, func() bool { return s.queuedIn("free-") == 0 }, func() string { return "free buckets have messages" })

	out := fed{gaps: map[string][]time.Duration{}}
	last := map[string]time.Time{}
	for _, c := range s.stub.Calls(0) {
		if c.User < "throttled" {
			out.delays = append(out.delays, c.Began.Sub(sent[c.RequestID]))
			continue
		}
		if before, ok := last[c.User]; ok {
			out.gaps[c.User] = append(out.gaps[c.User], c.Began.Sub(before))
		}
		last[c.User] = c.Began
	}
	return out
}

// queuedIn is the number of messages in buckets whose names begin with prefix.
func (p *process) queuedIn(prefix string) (sum int) {
	p.t.Helper()
	var page admin.Buckets
	p.query("topics/"+topic+"/buckets?limit=1000&prefix="+url.QueryEscape(prefix), &page)
	for _, b := range page.Buckets {
		sum += b.Queued
	}
	return sum
}

func quantile(all []time.Duration, q float64) time.Duration {
	all = slices.Sorted(slices.Values(all))
	return all[int(q*float64(len(all)-1))]
}
