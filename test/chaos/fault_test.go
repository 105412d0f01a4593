package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"syscall"
	"testing"
	"time"
)

// fault is how a process is hit.
type fault string

const (
	faultKill  fault = "kill"  // SIGKILL, and started again
	faultStop  fault = "stop"  // SIGTERM, and started again
	faultStall fault = "stall" // SIGSTOP for longer than a lease, then SIGCONT
)

// strike is one fault in a list.
type strike struct {
	fault   fault
	process int           // index in system.procs
	after   time.Duration // since the strike before
	length  time.Duration // of being down or stalled
}

// everyStrike lists each of the faults for each of the processes, in random order and with random pauses.
func everyStrike(rng *rand.Rand, processes int, faults ...fault) []strike {
	var list []strike
	for _, f := range faults {
		for p := range processes {
			list = append(list, randomStrike(rng, f, p))
		}
	}
	rng.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	return list
}

func randomStrike(rng *rand.Rand, f fault, process int) strike {
	between := func(from, to time.Duration) time.Duration { return from + time.Duration(rng.Int64N(int64(to-from))) }
	s := strike{fault: f, process: process, after: between(400*time.Millisecond, 1600*time.Millisecond), length: between(0, 700*time.Millisecond)}
	if f == faultStall {
		s.length = between(requestLease+time.Second, stallMax)
	}
	return s
}

const (
	// memoryMax bounds the resident memory of a process, including the block cache of 128 MiB. Callers that do not read offer
	// far more than this.
	memoryMax = 768 << 20
	// logMax bounds the log of a run.
	logMax = 8 << 20
)

// hit injects a strike and returns when the process serves again.
func (s *system) hit(k strike, sum *tally) {
	s.t.Helper()
	pause(context.Background(), k.after)
	p := s.procs[k.process]
	s.t.Logf("%s %s of %s for %v", time.Now().UTC().Format(clockFormat), k.fault, p.name, k.length.Round(time.Millisecond))
	if !p.alive() {
		s.t.Fatalf("%s ended by itself: %v", p.name, p.cmd.ProcessState)
	}
	s.checkSize(p)
	switch k.fault {
	case faultKill:
		sum.kills++
		p.kill()
	case faultStop:
		sum.stops++
		if err := p.stop(); err != nil {
			s.j.find(ruleState, p.name, "%v", err)
		}
	case faultStall:
		sum.stalls++
		from := time.Now()
		s.signal(p, syscall.SIGSTOP)
		pause(context.Background(), k.length)
		s.signal(p, syscall.SIGCONT)
		if p.name == "consumer" {
			s.j.change(func() { s.j.h.stalled = append(s.j.h.stalled, span{from, time.Now()}) })
		}
		return
	}
	pause(context.Background(), k.length)
	if err := p.start(startMax); err != nil {
		s.t.Fatal(err)
	}
}

func (s *system) signal(p *process, sig syscall.Signal) {
	if err := p.cmd.Process.Signal(sig); err != nil {
		s.t.Fatalf("%s: %v: %v", p.name, sig, err)
	}
}

func (s *system) checkSize(p *process) {
	if n := p.peakMemory(); n > memoryMax {
		s.j.find(ruleNobody, p.name, "%d MiB were resident, over %d", n>>20, int64(memoryMax)>>20)
	}
	if n := p.log.written(); n > logMax {
		s.j.find(ruleState, p.name, "%d bytes of log, over %d", n, logMax)
	}
}

// underLoad runs a deployment with callers, senders and a consumer, hits it, and judges.
func underLoad(t *testing.T, layout string, strikes []strike) tally {
	t.Helper()
	var sum tally
	j := newJournal(requestLease)
	s := newSystem(t, j, layout, t.TempDir(), startUpstream(t, j).url)
	s.start()
	s.applyPolicy()
	holds := map[string]time.Time{columnHeld: s.hold(columnHeld, 8*time.Second), columnShut: s.hold(columnShut, 2*time.Hour)}

	c := newCallers(j, s.http, s.keys)
	for range 10 {
		c.later(s.keys[0], columnHeld, holds[columnHeld], false)
	}
	c.later(s.keys[1], columnShut, holds[columnShut], false)
	m := newMessages(t, j, s.grpc, 1<<10)
	m.unacked = 50
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	c.start(ctx)
	m.start(ctx)
	for _, k := range strikes {
		s.hit(k, &sum)
		s.checkState(fmt.Sprintf("after %s of %s", k.fault, s.procs[k.process].name), holds)
	}
	pause(ctx, time.Second)
	cancel()

	s.openShut()
	delete(holds, columnShut)
	note := func(text string) { t.Logf("%s %s", time.Now().UTC().Format(clockFormat), text) }
	note("the load ends")
	c.wait()
	note("all callers have an outcome")
	c.settle()
	note("all accepted requests have ended")
	m.drain()
	note("all messages are acked")
	s.checkEmpty(requestTopic)
	s.checkEmpty(messageTopic)
	note("all buckets are empty")
	s.checkState("at the end", holds)
	for _, p := range s.procs {
		s.checkSize(p)
	}
	s.stop()
	return conclude(t, j, sum)
}

// openShut lifts the hold that is to last until the end of the load.
func (s *system) openShut() {
	s.t.Helper()
	s.j.change(func() {
		now := time.Now()
		for _, r := range s.j.h.requests {
			if r.column == columnShut && r.notBefore.After(now) {
				r.notBefore = now
			}
		}
	})
	s.lift(columnShut)
}

// findingsShown bounds the findings that a failed test prints.
const findingsShown = 30

// conclude judges a run, fails the test for each finding and returns the sum with its counts.
func conclude(t *testing.T, j *journal, sum tally) tally {
	t.Helper()
	found := j.judge()
	for i, f := range found {
		if i == findingsShown {
			t.Errorf("and %d more", len(found)-i)
			break
		}
		t.Error(f)
	}
	sum.add(j.count(found))
	return sum
}
