package dispatch

import (
	"fmt"
	"testing"
	"time"
)

// TestBatchesShareByCost: a poll that takes many messages, but one of a bucket, must not take the turns of a bucket whose
// message it has for passed. Buckets with messages of cost 1, 2, 4, 8 get the same cost, however the polls are cut.
func TestBatchesShareByCost(t *testing.T) {
	for _, most := range []int{1, 3, 32} {
		g := GroupConfig{Name: "pool", ID: 1, Wildcard: true, InFlight: 1024}
		r := newRig(t, TopicConfig{}, g)
		r.apply("columns:\n  - {model: m, rate: 1000/s, burst: 10ms}\n")
		costs := []int64{1, 2, 4, 8}
		for _, cost := range costs {
			a := r.send(fmt.Sprintf("u%d__m", cost), messages(3000)...)
			for off := range Offset(3000) {
				r.disk.costs[messageKey{a.Bucket, a.First + off}] = MessageCost{Requests: cost}
			}
		}
		served := map[string]int64{}
		for range 1000 { // ten seconds
			for range 8 {
				for _, it := range r.pull(1, "client", most) {
					var cost int64
					if _, err := fmt.Sscanf(it.Name, "u%d__m", &cost); err != nil {
						t.Fatal(err)
					}
					served[it.Name] += cost
					r.ack(it)
				}
			}
			r.pass(10 * time.Millisecond)
		}
		for _, cost := range costs {
			name := fmt.Sprintf("u%d__m", cost)
			if got := served[name]; got < 2400 || got > 2600 {
				t.Errorf("polls of %d: %s got %d of about 10,000; want a fourth", most, name, got)
			}
		}
	}
}
