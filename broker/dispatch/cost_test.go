package dispatch

import (
	"testing"
)

// TestCostsAreReadOfRecoveredMessagesAlone: the loop read each message of a backlog from the
// store, again and again while its bucket waited, as soon as any limit counted tokens.
func TestCostsAreReadOfRecoveredMessagesAlone(t *testing.T) {
	reads := map[Offset]int{}
	r := newRig(t, TopicConfig{}, wild)
	count := func() {
		r.m.cfg.CostOf = func(_ BucketID, off Offset) MessageCost {
			reads[off]++
			return MessageCost{Requests: 1, Input: 60_000}
		}
	}
	count()
	r.apply("columns:\n  - {model: m, tokens: 100000/1h}\n")
	says := func(input int64) MessageMeta {
		return MessageMeta{Size: 10, Cost: MessageCost{Requests: 1, Input: input, MaxOutput: 1}}
	}
	r.send("a__m", says(60_000), says(50_000), says(60_000), says(70_000))
	for _, off := range []Offset{0, 1} { // 110,000 tokens of 100,000: the last one may go beyond
		it := r.one(1, "c")
		if it.Handle.Offset != off {
			t.Fatalf("offset %d went, want %d", it.Handle.Offset, off)
		}
		r.ack(it)
	}
	r.none(1, "c") // until the debt is paid
	if len(reads) != 0 {
		t.Errorf("costs were read of a backlog that the machine has seen: %v", reads)
	}
	r.restart()
	count()
	a := r.m.byName["a__m"]
	for range 5 {
		if got := r.m.costAt(a, 2); got.Input != 60_000 {
			t.Errorf("a recovered message costs %+v", got)
		}
	}
	if len(reads) != 1 || reads[2] != 1 {
		t.Errorf("reads of a recovered message that waits: %v, want one", reads)
	}
	for i := range maxCosts {
		r.m.costs[BucketID(i)] = readCost{}
	}
	r.m.costAt(a, 3)
	if n := len(r.m.costs); n > maxCosts {
		t.Errorf("%d costs are remembered, at most %d", n, maxCosts)
	}
}
