package rpc

import (
	"testing"

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
