package chaos

import (
	"flag"
	"math/rand/v2"
	"sync"
	"testing"
	"time"
)

var (
	durationFlag = flag.Duration("chaos.duration", 0, "how long TestLong injects faults in random order; 0 skips it")
	seedFlag     = flag.Uint64("chaos.seed", 0, "seed of the lists of faults; 0 is 1 for the bounded run and random for TestLong")
)

func newRand(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 0)) }

// TestFaults injects every fault once, in an order that its seed gives.
func TestFaults(t *testing.T) {
	if *durationFlag > 0 {
		t.Skip("-chaos.duration is given: TestLong injects the faults")
	}
	seed := max(*seedFlag, 1)
	t.Logf("seed %d", seed)
	var mu sync.Mutex
	var sum tally
	t.Cleanup(func() { t.Logf("seed %d: %v", seed, sum) })
	for i, sc := range scenarios {
		t.Run(sc.name, func(t *testing.T) {
			t.Parallel()
			got := sc.bounded(t, newRand(seed+uint64(i)))
			mu.Lock()
			defer mu.Unlock()
			sum.add(got)
		})
	}
}

// TestLong injects random faults until -chaos.duration is over.
func TestLong(t *testing.T) {
	if *durationFlag == 0 {
		t.Skip("without -chaos.duration: make chaos DURATION=30m")
	}
	seed := *seedFlag
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	rng := newRand(seed)
	t.Logf("seed %d", seed)
	var sum tally
	for end := time.Now().Add(*durationFlag); time.Now().Before(end) && !t.Failed(); {
		sc := scenarios[rng.IntN(len(scenarios))]
		t.Run(sc.name, func(t *testing.T) { sum.add(sc.random(t, rng)) })
	}
	t.Logf("seed %d: %v", seed, sum)
}

// scenario is a deployment with a kind of faults.
type scenario struct {
	name            string
	bounded, random func(t *testing.T, rng *rand.Rand) tally
}

var scenarios = []scenario{
	{
		"one process",
		func(t *testing.T, rng *rand.Rand) tally {
			t.Helper()
			return underLoad(t, layoutUp, everyStrike(rng, 1, faultKill, faultKill, faultKill, faultStop, faultStall))
		},
		func(t *testing.T, rng *rand.Rand) tally {
			t.Helper()
			return underLoad(t, layoutUp, randomStrikes(rng, 1))
		},
	},
	{
		"three processes",
		func(t *testing.T, rng *rand.Rand) tally {
			t.Helper()
			return underLoad(t, layoutSplit, everyStrike(rng, 3, faultKill, faultStop, faultStall))
		},
		func(t *testing.T, rng *rand.Rand) tally {
			t.Helper()
			return underLoad(t, layoutSplit, randomStrikes(rng, 3))
		},
	},
	{
		"full disk",
		func(t *testing.T, _ *rand.Rand) tally { t.Helper(); return fullDisk(t) },
		func(t *testing.T, _ *rand.Rand) tally { t.Helper(); return fullDisk(t) },
	},
	{
		"damaged streams",
		func(t *testing.T, _ *rand.Rand) tally { t.Helper(); return damagedStreams(t, damages[:boundedDamages]) },
		func(t *testing.T, rng *rand.Rand) tally {
			t.Helper()
			return damagedStreams(t, shuffledDamages(rng, len(damages)))
		},
	},
	{"clock steps", clockSteps, clockSteps},
}

// randomStrikes lists 10 to 30 faults.
func randomStrikes(rng *rand.Rand, processes int) []strike {
	list := make([]strike, 10+rng.IntN(21))
	for i := range list {
		list[i] = randomStrike(rng, []fault{faultKill, faultKill, faultKill, faultStop, faultStall}[rng.IntN(5)], rng.IntN(processes))
	}
	return list
}
