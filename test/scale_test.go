package test

import (
	"encoding/json"
	"os/exec"
	"strconv"
	"testing"

	"github.com/penstockmq/penstock/cmd/bench"
)

// Very many buckets. The broker and its clients run in a process of their own without
// the race detector; what it measures is printed, and only counts, ratios within one
// machine and bounds of another order of magnitude are asserted.

// benchBuckets runs the scenario and checks that each message came exactly once.
func benchBuckets(t *testing.T, count int, args ...string) bench.Buckets {
	t.Helper()
	program, err := quickProgram()
	must(t, err)
	args = append([]string{"bench", "buckets", "--json", "--count", strconv.Itoa(count)}, args...)
	out, err := exec.CommandContext(t.Context(), program, args...).Output()
	must(t, err)
	var r bench.Buckets
	must(t, json.Unmarshal(out, &r))
	phases := []bench.BucketsPhase{r.Backlog}
	if r.Fresh != nil {
		phases = append(phases, *r.Fresh)
	}
	for _, p := range phases {
		if p.Sent != count || p.Delivered != count || p.Duplicated != 0 || p.Missing != 0 {
			t.Fatalf("%d buckets, a message each: %+v", count, p)
		}
	}
	return r
}

// RocketMQ 5.5.0 left 15,455 of 20,000 unseen for over a minute here, and with its
// other store the last one came 17 s late.
func TestFreshBucketsReachWaitingConsumers(t *testing.T) {
	r := benchBuckets(t, 20_000, "--consumers", "16")
	if r.Fresh == nil {
		t.Fatal("consumers did not wait")
	}
	t.Logf("%.0f/s sent, the last was delivered %.1f ms after the last OK", r.Fresh.SendPerS, r.Fresh.LastMS)
	if r.Fresh.LastMS > 5000 {
		t.Errorf("the last message came %.0f ms after it was sent", r.Fresh.LastMS)
	}
}

// Consumers that start find the backlog of ten times the buckets at the pace of the
// tenth: what a delivery costs does not follow the number of buckets.
func TestBacklogOfManyBuckets(t *testing.T) {
	const few, many = 10_000, 100_000
	small := benchBuckets(t, few, "--skip-fresh").Backlog
	large := benchBuckets(t, many, "--skip-fresh").Backlog
	ratio := (large.LastMS / many) / (small.LastMS / few)
	t.Logf("drained %d buckets at %.0f/s, %d at %.0f/s: a message costs %.2f times as much", few, small.DeliverPerS, many, large.DeliverPerS, ratio)
	if ratio > 5 {
		t.Errorf("with %d buckets a message takes %.1f times as long as with %d", many, ratio, few)
	}
}

func TestMillionBuckets(t *testing.T) {
	if testing.Short() {
		t.Skip("takes minutes")
	}
	r := benchBuckets(t, 1_000_000, "--skip-fresh", "--body", "256")
	t.Logf("a million buckets: sent at %.0f/s, drained at %.0f/s", r.Backlog.SendPerS, r.Backlog.DeliverPerS)
	t.Logf("start with a message in each: %.0f ms, heap %.0f MB", r.StartBacklogMS, r.HeapBacklogMB)
	t.Logf("start with each idle: %.0f ms, heap %.0f MB; resident %.0f MB", r.StartEmptyMS, r.HeapIdleMB, r.RSSMB)
}
