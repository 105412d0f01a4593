package test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/openai/openai-go/v3/option"

	"github.com/penstockmq/penstock/cmd/mockmodel"
)

// used is what the account of a cell has used of its tokens.
func (p *process) used(user string) (used int64) {
	p.t.Helper()
	for _, l := range p.explain(user, model).Limits {
		if l.Limit == "tokens" && l.Scope == "bucket" {
			return l.Used
		}
	}
	p.t.Fatalf("%s has no limit of tokens: %+v", user, p.explain(user, model))
	return 0
}

// TestC55_ParallelCallsShareOneBudget queues five calls and lets them go together. A
// window is 3 s in the place of a minute; what a window gives too much is taken from the
// following ones.
func TestC55_ParallelCallsShareOneBudget(t *testing.T) {
	t.Parallel()
	const budget, window, most = 100, 3 * time.Second, 200
	costs := []int{58, 80, 175, 175, 175}
	s := up(t, setup{
		live: fmt.Sprintf("rows: [{user: alice, tokens: %d/%v}]\n", budget, window),
		args: []string{"--in-flight", fmt.Sprint(len(costs))},
	})
	cost := map[string]int{} // by request id
	lift := s.hold("alice")
	var pending []<-chan answer
	for i, c := range costs {
		text := fmt.Sprintf("cost %d", i)
		size := bodySize(t, text, most)
		s.stub.on(text, func(b *mockmodel.Behaviour) { b.Tokens = c - size/4 - 1 })
		pending = append(pending, s.begin(t.Context(), "alice", text, option.WithJSONSet("max_tokens", most)))
		s.waitMetric("penstock_gateway_accepted_total", float64(i+1)) // their order
	}
	lift()
	for i, c := range pending {
		a := await(t, c, "answer") // none is lost
		if a.err != nil {
			t.Fatalf("call %d: %+v", i, a)
		}
		cost[a.header.Get("X-Request-Id")] = costs[i]
	}
	calls := s.stub.Calls(0)
	if len(calls) != len(costs) {
		t.Fatalf("%d calls, want %d", len(calls), len(costs))
	}
	// A window begins with the first charge, which is a moment before the model is called.
	windows := func(at time.Time) int { return int((at.Sub(calls[0].Began) + slack/2) / window) }
	first := 0
	for _, c := range calls {
		t.Logf("%d tokens after %v", cost[c.RequestID], c.Began.Sub(calls[0].Began))
		if windows(c.Ended) == 0 {
			first += cost[c.RequestID]
		}
		// Whatever was expected of a call: what it used, and the broker has been told, is paid
		// before another goes.
		used := 0
		for _, before := range calls {
			if before.Ended.Before(c.Began.Add(-slack / 2)) {
				used += cost[before.RequestID]
			}
		}
		if bound := (windows(c.Began) + 1) * budget; used >= bound {
			t.Errorf("a call after %v, when %d tokens were used: the windows until then give %d", c.Began.Sub(calls[0].Began), used, bound)
		}
	}
	if first > budget+slices.Max(costs) {
		t.Errorf("%d tokens in the first window, want at most %d", first, budget+slices.Max(costs))
	}
}

// bodySize is how many bytes the SDK sends for a call with max_tokens.
func bodySize(t *testing.T, text string, maxTokens int) int {
	t.Helper()
	p := chat(text)
	body, err := json.Marshal(p)
	must(t, err)
	return len(body) + len(fmt.Sprintf(`,"max_tokens":%d`, maxTokens))
}

// TestC59_RemovedOverridesFallBackAtOnce takes away one limit after the other under a
// constant load, each by a policy that is applied. Phases are 4 s in the place of 20.
func TestC59_RemovedOverridesFallBackAtOnce(t *testing.T) {
	t.Parallel()
	const load, phase, settle = 20, 4 * time.Second, time.Second
	override := "  - {user: u1, model: m, rate: 1/s}\n"
	ofUser := "  - {user: u1, rate: 5/s}\n"
	ofModel := "  - {model: m, rate: 10/s}\n"
	s := up(t, setup{live: "limits:\n" + override + ofUser + ofModel, args: []string{"--in-flight", "16"}})
	p := s.producerOf()
	feeding(t, load, func(ctx context.Context) error { return sendTo(ctx, p, "u1", model, "load") })
	s.stub.wait("the first call", func(st mockmodel.Stats) bool { return st.Calls > 0 })
	for i, step := range []struct {
		policy string
		want   float64
	}{
		{"", 1},
		{"limits:\n" + ofUser + ofModel, 5},
		{"limits:\n" + ofModel, 10},
		{"default_level: 1\n", load},
	} {
		if step.policy != "" {
			s.apply(step.policy)
		}
		from := time.Now().Add(settle)
		if step.want == load {
			// What had to wait goes at once; then there is only what comes.
			s.waitMetric("penstock_broker_messages", 0)
			from = time.Now()
		}
		to := from.Add(phase - settle)
		until(t, to)
		want := step.want * (phase - settle).Seconds()
		// The next limit is twice as much, or half.
		if got := s.stub.between(from, to, nil); !near(got, want, 1+want/5) {
			t.Errorf("phase %d: %d calls in %v, want %.0f", i+1, got, phase-settle, want)
		}
	}
	if got, err := s.post(http.DefaultClient, "", `{"model":"`+model+`","messages":[]}`); err != nil || got.status != http.StatusUnauthorized {
		t.Errorf("a request with no user: %d, %v", got.status, err)
	}
}

// TestC70_StreamedTokensCount makes five requests of about 300 tokens, one after the other,
// against 1,000: not streamed, streamed by a caller who asks for the usage, and streamed
// by one who does not.
func TestC70_StreamedTokensCount(t *testing.T) {
	t.Parallel()
	const output, goes, budget = 270, 4, 1000
	s := up(t, setup{live: fmt.Sprintf("limits: [{user: \"*\", model: m, tokens: %d/10m}]\n", budget)})
	s.stub.on("", func(b *mockmodel.Behaviour) { b.Tokens = output })
	counted := map[string]int64{}
	for user, more := range map[string]string{
		"alice": "", "bob": `,"stream":true,"stream_options":{"include_usage":true}`, "carol": `,"stream":true`,
	} {
		// The same number of bytes for each: the input counts too.
		body := fmt.Sprintf(`{"model":%q,"messages":[{"role":"user","content":%q}]%s}`, model, strings.Repeat("x", 60-len(more)), more)
		before := s.stub.Stats().Calls
		used := 0
		for range goes {
			got, err := s.post(http.DefaultClient, s.keys[user], body)
			if must(t, err); got.status != http.StatusOK {
				t.Fatalf("%s: %d %s", user, got.status, got.body)
			}
			calls := s.stub.Calls(0)
			used += calls[len(calls)-1].BodyBytes/4 + 1 + output // as the model says
			s.waitMetric("penstock_broker_messages", 0)          // settled
		}
		fifth, err := s.post(http.DefaultClient, s.keys[user], body, "Prefer: respond-async")
		if must(t, err); fifth.status != http.StatusAccepted {
			t.Fatalf("%s: the fifth: %d %s", user, fifth.status, fifth.body)
		}
		s.waitMetric("penstock_broker_messages", 1)
		until(t, time.Now().Add(slack/2))
		counted[user] = s.used(user)
		if counted[user] != int64(used) || used < budget+150 || used > budget+250 {
			t.Errorf("%s: %d tokens are counted, the model used %d", user, counted[user], used)
		}
		if e := s.explain(user, model); e.State != "limited" || e.Gate == nil || e.Gate.Limit != "tokens" {
			t.Errorf("%s: the fifth is not held back: %+v", user, e)
		}
		if n := s.stub.Stats().Calls - before; n != goes {
			t.Errorf("%s: %d calls, want %d", user, n, goes)
		}
		run(t, "buckets", "purge", "--user", user, "--model", model, "--admin", s.ready["admin"])
	}
	if counted["alice"] != counted["bob"] {
		t.Errorf("the same requests count %d not streamed and %d streamed", counted["alice"], counted["bob"])
	}
}
