package bench

import (
	"fmt"
	"io"
	"math"
	"slices"
	"time"

	"github.com/penstockmq/penstock/cmd/mockmodel"
)

// DemoSummary is how a demo went.
type DemoSummary struct {
	Sent       int   `json:"sent"`
	Answered   int   `json:"answered"`
	Rejected   int   `json:"rejected"`
	Lost       int   `json:"lost"`
	Duplicated int   `json:"duplicated"` // requests that reached the model more than once
	Suspends   int64 `json:"suspends"`   // answers of the pool that held a bucket
	// PaceErrorPct is the largest relative error of a limited cell's release rate
	// against its policy, in percent: releases are the starts of its calls at the model.
	PaceErrorPct float64 `json:"pace_error_pct"`
	// P99FreeMS is the 99th percentile of the time queued of requests whose cell was
	// never limited.
	P99FreeMS float64 `json:"p99_free_ms"`
	DurationS float64 `json:"duration_s"`
}

// maxPaceError is what the demo accepts, in percent.
const maxPaceError = 5

func (s DemoSummary) asExpected() bool {
	return s.Answered == s.Sent && s.Rejected == 0 && s.Lost == 0 && s.Duplicated == 0 && s.PaceErrorPct <= maxPaceError
}

func (s DemoSummary) print(w io.Writer) error {
	_, err := fmt.Fprintf(w, `
sent          %8d
answered      %8d
rejected      %8d
lost          %8d
duplicated    %8d
suspends      %8d
pace error    %8.2f %%   largest, of a limited cell against its policy (at most %d %%)
p99 free      %8.1f ms  time queued where no limit bound
duration      %8.1f s
`, s.Sent, s.Answered, s.Rejected, s.Lost, s.Duplicated, s.Suspends, s.PaceErrorPct, maxPaceError, s.P99FreeMS, s.DurationS)
	return err
}

// summary adds up the tenants' tallies and the model's record.
func (l *demoLoad) summary(calls []mockmodel.Call) DemoSummary {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := DemoSummary{DurationS: math.Round(time.Since(l.begin).Seconds()*1000) / 1000}
	var free []time.Duration
	for _, t := range l.cells {
		s.Sent += t.sent
		s.Answered += t.answered
		s.Rejected += t.rejected
		s.Lost += t.lost
		if !t.burst {
			free = append(free, t.queued...)
		}
	}
	s.P99FreeMS = ms(quantile(free, 0.99))
	seen := map[string]int{}
	starts := map[demoCell][]time.Time{}
	for _, c := range calls {
		cell, ok := l.sent[c.BodyHash]
		if !ok {
			continue
		}
		starts[cell] = append(starts[cell], c.Began)
		if seen[c.BodyHash]++; seen[c.BodyHash] == 2 {
			s.Duplicated++
		}
	}
	for cell, at := range starts {
		if l.cells[cell].burst {
			s.PaceErrorPct = max(s.PaceErrorPct, paceError(at, demoRate(cell)))
		}
	}
	return s
}

// demoRate is a bursting cell's limit by the demo's policy, a second.
func demoRate(c demoCell) float64 {
	switch {
	case c == (demoCell{demoUser(0), demoModels()[0]}):
		return 1
	case c.user == demoUser(1):
		return 20
	default:
		return 5
	}
}

// paceError compares the rate at which a cell's calls began with what it should be,
// in percent.
func paceError(at []time.Time, rate float64) float64 {
	if len(at) < 2 {
		return 100 // nothing to measure is no pace
	}
	slices.SortFunc(at, time.Time.Compare)
	span := at[len(at)-1].Sub(at[0]).Seconds()
	got := float64(len(at)-1) / span
	return math.Round(math.Abs(got-rate)/rate*1e4) / 100
}
