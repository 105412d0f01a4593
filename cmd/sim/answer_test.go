package sim

import (
	"fmt"
	"testing"
	"time"
)

// Every request of a trace was answered, so an adaptive window grows as it would beside such a model, and shrinks where the
// answers were too slow.
func TestAnAdaptiveColumnGrowsAndShrinks(t *testing.T) {
	var trace []Request
	for i := range 600 {
		trace = append(trace, atOnce(1, fmt.Sprintf("u%d", i), "m", time.Duration(900+i*37%200)*time.Millisecond)...)
	}
	grown := run(t, trace, Options{Policy: parse(t, `columns: [{model: m, adaptive: {min: 1, max: 16}}]`)})
	if peak := grown.Models[0].Peak; peak != 16 {
		t.Errorf("at most %d ran at once, want all 16 in the end", peak)
	}
	slow := run(t, trace, Options{Policy: parse(t, `columns: [{model: m, adaptive: {min: 1, max: 16, latency: 500ms}}]`)})
	if peak := slow.Models[0].Peak; peak != 1 {
		t.Errorf("%d ran at once, though every answer was too slow", peak)
	}
}

// The sum of a thousand fractions depends on their order.
func TestFairnessIsTheSameToTheLastBit(t *testing.T) {
	var trace []Request
	for i := range 500 {
		for _, q := range atOnce(1+i%7, fmt.Sprintf("u%d", i), "m", time.Duration(1+i%13)*time.Millisecond) {
			q.Time = at(time.Duration(i) * time.Millisecond)
			trace = append(trace, q)
		}
	}
	o := Options{Policy: parse(t, `columns: [{model: m, rate: 900/s}]`)}
	want := run(t, trace, o).Fairness
	for range 5 {
		if got := run(t, trace, o).Fairness; got != want {
			t.Errorf("fairness %v and then %v", want, got)
		}
	}
}
