package test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstockmq/penstock/broker/admin"
	"github.com/penstockmq/penstock/cmd/mockmodel"
)

const async = "Prefer: respond-async"

func ask(text string) string {
	return fmt.Sprintf(`{"model":%q,"messages":[{"role":"user","content":%q}]}`, model, text)
}

// TestC82_RefusedTogetherReturnOverTime has 1,000 refused at once, with a wait of much more
// than 30 s; and in the second part as many as there is patience for come back as they
// were told.
func TestC82_RefusedTogetherReturnOverTime(t *testing.T) {
	t.Parallel()
	const (
		span     = 24 * time.Hour
		refused  = 1000
		window   = 5 * time.Second
		limit    = 40
		returned = 200
	)
	s := up(t, setup{live: fmt.Sprintf("limits:\n"+
		"  - {user: alice, window: 1/%v, window_at: admission}\n  - {user: bob, window: %d/%v, window_at: admission}\n", span, limit, window)})
	inside(t, span, 2*time.Minute)
	end := time.Now().Truncate(span).Add(span)
	if p, err := s.post(http.DefaultClient, s.keys["alice"], ask("first"), async); err != nil || p.status != http.StatusAccepted {
		t.Fatalf("%+v, %v", p, err)
	}
	values := map[int]int{}
	s.postEach(refused, 100, func(c *http.Client, i int) (posted, error) {
		return s.post(c, s.keys["alice"], ask(fmt.Sprint(i)), async)
	}, func(i int, p posted) {
		left := time.Until(end) // less than when it was asked
		after, err := strconv.Atoi(p.header.Get("Retry-After"))
		wait := time.Duration(after) * time.Second
		if p.status != http.StatusTooManyRequests || err != nil || wait < left || wait > (left+enough)*6/5 {
			t.Errorf("request %d: status %d, Retry-After %q with %v left", i, p.status, p.header.Get("Retry-After"), left)
		}
		values[after]++
	})
	if len(values) < 4 {
		t.Errorf("%d are told to come back at %d moments", refused, len(values))
	}

	begin := time.Now().Truncate(window).Add(window)
	until(t, begin)
	back := 0
	s.postEach(limit+returned, limit+returned, func(c *http.Client, i int) (posted, error) {
		p, err := s.post(c, s.keys["bob"], ask(fmt.Sprint(i)), async)
		if err != nil || p.status != http.StatusTooManyRequests {
			return posted{}, err
		}
		told := time.Now()
		after, err := strconv.Atoi(p.header.Get("Retry-After"))
		if err != nil {
			return p, err
		}
		<-time.After(time.Until(told.Add(time.Duration(after) * time.Second)))
		return s.post(c, s.keys["bob"], ask(fmt.Sprint("again ", i)), async)
	}, func(_ int, p posted) {
		if p.status == http.StatusAccepted {
			back++
		}
	})
	if back < limit*9/10 {
		t.Errorf("%d of those who were told to come back were let in, the window lets in %d", back, limit)
	}
}

// TestC89_RefusalsAreCounted makes 1,010 requests where ten may pass, and as many where the
// same rule is in shadow. The case's minute is a day: it does not end while the test runs.
func TestC89_RefusalsAreCounted(t *testing.T) {
	t.Parallel()
	const limit, asks = 10, 1010
	inside(t, 24*time.Hour, 3*time.Minute)
	rule := fmt.Sprintf("user: \"*\", model: \"*\", window: %d/24h, window_at: admission", limit)
	s := up(t, setup{live: "limits: [{" + rule + "}]\n", args: []string{"--in-flight", "64"}})
	statuses := func(user string) map[int]int {
		count := map[int]int{}
		s.postEach(asks, 16, func(c *http.Client, i int) (posted, error) {
			return s.post(c, s.keys[user], ask(fmt.Sprint(i)))
		}, func(_ int, p posted) { count[p.status]++ })
		return count
	}
	if got := statuses("alice"); got[http.StatusOK] != limit || got[http.StatusTooManyRequests] != asks-limit {
		t.Errorf("%v, want %d answered and %d refused", got, limit, asks-limit)
	}
	s.metrics(map[string]float64{
		"penstock_gateway_accepted_total": limit, "penstock_gateway_refused_total": asks - limit,
		"penstock_gateway_would_refuse_total": 0, `penstock_gateway_refused_limit_total{scope="bucket"}`: asks - limit,
	})
	s.apply("limits: [{" + rule + ", shadow: true}]\n")
	watch(t, enough, func() bool {
		var p admin.Policy
		s.query("policy", &p)
		return len(p.Limits) == 1
	}, func() string { return "the policy is not in force" })
	if got := statuses("bob"); got[http.StatusOK] != asks {
		t.Errorf("report only: %v, want %d answered", got, asks)
	}
	s.metrics(map[string]float64{
		"penstock_gateway_accepted_total": limit + asks, "penstock_gateway_refused_total": asks - limit,
		"penstock_gateway_would_refuse_total": asks - limit, `penstock_gateway_would_limit_total{scope="bucket"}`: asks - limit,
	})
	if n := s.stub.Stats().Answered; n != limit+asks {
		t.Errorf("%d reached the model, want %d", n, limit+asks)
	}
}

// TestC95_CallersCannotChooseWhoseBudget asks with the key of one user and every claim
// that a request can make, then with no key at all.
func TestC95_CallersCannotChooseWhoseBudget(t *testing.T) {
	t.Parallel()
	const limit, asks = 5, 300
	inside(t, 24*time.Hour, 2*time.Minute)
	s := up(t, setup{live: fmt.Sprintf("limits: [{user: \"*\", model: \"*\", window: %d/24h, window_at: admission}]\n", limit)})
	claims := func(key string) map[int]int {
		count := map[int]int{}
		s.postEach(asks, 8, func(c *http.Client, i int) (posted, error) {
			claim := "bob"
			if i > 0 && key != "" {
				claim = fmt.Sprint("tenant-", i)
			}
			headers := []string{fmt.Sprintf("X-Forwarded-For: 10.0.0.%d", i%256), "Forwarded: for=" + claim}
			for _, name := range []string{"X-Penstock-User", "X-User", "X-User-Id", "User", "OpenAI-Organization", "X-Forwarded-User"} {
				headers = append(headers, name+": "+claim)
			}
			return s.post(c, key, `{"user":"`+claim+`",`+ask(fmt.Sprint(i))[1:], headers...)
		}, func(_ int, p posted) { count[p.status]++ })
		return count
	}
	buckets := func() (names []string) {
		var page admin.Buckets
		s.query("topics/"+topic+"/buckets", &page)
		for _, b := range page.Buckets {
			names = append(names, b.User+"/"+b.Model)
		}
		return names
	}
	if got := claims(s.keys["alice"]); got[http.StatusOK] != limit || got[http.StatusTooManyRequests] != asks-limit {
		t.Errorf("alice, by whatever name: %v, want %d answered and the rest refused", got, limit)
	}
	if got := claims(""); got[http.StatusUnauthorized] != asks {
		t.Errorf("without a key: %v, want 401 only", got)
	}
	if got := claims("sk-penstock-guess"); got[http.StatusUnauthorized] != asks {
		t.Errorf("with a key that does not exist: %v, want 401 only", got)
	}
	for _, c := range s.stub.Calls(0) {
		if c.User != "alice" {
			t.Errorf("the model was called for %q", c.User)
		}
	}
	if got := buckets(); len(got) != 1 || got[0] != "alice/"+model {
		t.Errorf("buckets %v, want alice's alone", got)
	}
	for i := range limit + 1 {
		p, err := s.post(http.DefaultClient, s.keys["bob"], ask("bob"))
		if passes := p.status == http.StatusOK; err != nil || passes != (i < limit) {
			t.Errorf("bob's own request %d: status %d, %v", i+1, p.status, err)
		}
	}
}

// TestC111_RefusalsComeAtOnce has senders ask for ten times of what they may, over few
// seconds. A throttle that holds answers back would make them time out and send again.
func TestC111_RefusalsComeAtOnce(t *testing.T) {
	t.Parallel()
	const (
		senders  = 20
		limit    = 20 // a second
		every    = 100 * time.Millisecond
		measured = 5 // seconds
	)
	s := up(t, setup{live: fmt.Sprintf("limits: [{user: \"*\", model: \"*\", window: %d/1s, window_at: admission}]\n", limit), args: []string{"--in-flight", "64"}})
	var connections, sent, accepted atomic.Int64
	var mu sync.Mutex // guards the following field
	var refusals []time.Duration
	begin := time.Now().Truncate(time.Second).Add(2 * time.Second)
	until(t, begin)
	end := begin.Add(measured * time.Second)
	var g sync.WaitGroup
	for range senders {
		client := &http.Client{Timeout: enough, Transport: &http.Transport{
			DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
				connections.Add(1)
				return new(net.Dialer).DialContext(ctx, network, addr)
			},
		}}
		t.Cleanup(client.CloseIdleConnections)
		g.Go(func() {
			tick := time.NewTicker(every)
			defer tick.Stop()
			for now := time.Now(); now.Before(end); now = <-tick.C {
				p, err := s.post(client, s.keys["alice"], ask(fmt.Sprint(sent.Add(1))), async)
				if err != nil {
					t.Error(err)
					return
				}
				switch hint, err := strconv.Atoi(p.header.Get("Retry-After")); {
				case p.status == http.StatusAccepted:
					accepted.Add(1)
				case p.status != http.StatusTooManyRequests || err != nil || hint < 1:
					t.Errorf("status %d, Retry-After %q", p.status, p.header.Get("Retry-After"))
				default:
					mu.Lock()
					refusals = append(refusals, p.took)
					mu.Unlock()
				}
			}
		})
	}
	g.Wait()
	n := accepted.Load()
	t.Logf("%d sent, %d accepted over %d connections; refusals took p50 %v, p99 %v", sent.Load(), n, connections.Load(),
		quantile(refusals, 0.5), quantile(refusals, 0.99))
	// The last requests may fall into one window more.
	if n < limit*measured*9/10 || n > limit*(measured+1) {
		t.Errorf("%d were accepted in %d s, the limit is %d/s", n, measured, limit)
	}
	if len(refusals) < 3*limit*measured {
		t.Errorf("%d refusals of %d requests: that is no load", len(refusals), sent.Load())
	}
	if late := quantile(refusals, 0.99); late > slack {
		t.Errorf("refusals take p99 %v", late)
	}
	if c := connections.Load(); c > senders*11/10 {
		t.Errorf("%d senders opened %d connections", senders, c)
	}
	s.stub.wait("all that was accepted", func(st mockmodel.Stats) bool { return st.Answered >= n })
	s.waitMetric("penstock_broker_messages", 0)
	bodies := map[string]bool{}
	for _, c := range s.stub.Calls(0) {
		if bodies[c.BodyHash] {
			t.Error("a request reached the model twice")
		}
		bodies[c.BodyHash] = true
	}
	if len(bodies) != int(n) {
		t.Errorf("%d requests reached the model, %d were accepted", len(bodies), n)
	}
}
