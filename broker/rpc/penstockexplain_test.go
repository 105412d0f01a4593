package rpc

import (
	"testing"
	"testing/synctest"

	"github.com/penstockmq/penstock/broker"
	"github.com/penstockmq/penstock/broker/dispatch"
	"github.com/penstockmq/penstock/broker/rpc/penstockv1"
)

// Every word of the broker for a state has one on the wire, and each another.
func TestStatesOnTheWire(t *testing.T) {
	seen := map[penstockv1.State]string{penstockv1.State_STATE_UNSPECIFIED: "none"}
	words := []string{broker.StateEmpty}
	for s := dispatch.WaitQueued; s <= dispatch.WaitReady; s++ {
		words = append(words, s.String())
	}
	for _, word := range words {
		wire := states[word]
		if other, taken := seen[wire]; taken {
			t.Errorf("%s is %v, as is %s", word, wire, other)
		}
		seen[wire] = word
	}
	if len(seen) != len(penstockv1.State_name) {
		t.Errorf("%d states are used, the wire has %d", len(seen), len(penstockv1.State_name))
	}
}

// Limits may come from a kept copy of a policy that its source has lost. The answer reports that.
func TestExplainTellsOfAPolicyThatItsSourceHasLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const notice = "a kept copy is in force"
		f := start(t, func(c *config) { c.broker.PolicyNotice = func() string { return notice } })
		c := f.client("c")
		c.sent("alice__gpt", "first")
		out, err := c.penstock().Explain(c.ctx, &penstockv1.ExplainRequest{
			Topic: "requests", Group: "pool", Of: &penstockv1.ExplainRequest_Bucket{Bucket: "alice__gpt"},
		})
		must(t, err)
		if out.GetPolicyNotice() != notice {
			t.Errorf("the answer says %q of the policy, want %q", out.GetPolicyNotice(), notice)
		}
	})
}
