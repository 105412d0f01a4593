package consumer

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/penstockmq/penstock/broker/lite"
	"github.com/penstockmq/penstock/consumer/forward"
	"github.com/penstockmq/penstock/consumer/reply"
)

// fill enters requests of different cells until one is refused.
func (s *shares) fill(now time.Time, cell func(i int) lite.Cell) (n int) {
	for ; n < 1<<16; n++ {
		if leave, _ := s.enter(now, cell(n), 1); leave == nil {
			return n
		}
	}
	return n
}

func TestEachThatHangsGetsLessThanTheOneBefore(t *testing.T) {
	now := time.Now()
	for _, tt := range []struct {
		slots, percent int
		want           []int // of columns that fill up one after the other
	}{
		{8, 50, []int{4, 2, 1, 1, 0}},
		{4096, 50, []int{2048, 1024, 512, 256}},
		{4096, 25, []int{1024, 768, 576, 432}},
		{100, 80, []int{80, 16, 4, 0}},
		{1, 50, []int{1, 0}},
		{2, 50, []int{1, 1, 0}},
		{8, 100, []int{1 << 16}},
		{0, 50, []int{1 << 16}}, // not known
	} {
		columns, rows := newShares(tt.slots, tt.percent, 0), newShares(tt.slots, tt.percent, 0)
		for i, want := range tt.want {
			if n := columns.fill(now, func(k int) lite.Cell { return lite.Cell{User: fmt.Sprint(i, "-", k), Model: fmt.Sprint(i)} }); n != want {
				t.Errorf("%d slots, %d %%: column %d holds %d, want %d", tt.slots, tt.percent, i, n, want)
			}
			if n := rows.fill(now, func(k int) lite.Cell { return lite.Cell{User: fmt.Sprint(i), Model: fmt.Sprint(i, "-", k)} }); n != want {
				t.Errorf("%d slots, %d %%: row %d holds %d, want %d", tt.slots, tt.percent, i, n, want)
			}
		}
	}
}

// Whatever shares columns and rows hold, a new one gets a slot as long as one is free; a finished request leaves no state
// behind.
func TestSharesLeaveRoom(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		slots := rapid.IntRange(1, 64).Draw(t, "slots")
		s := newShares(slots, rapid.IntRange(1, 99).Draw(t, "percent"), 0)
		now := time.Now()
		var running []func()
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			if len(running) > 0 && rapid.Bool().Draw(t, "leaves") {
				i := rapid.IntRange(0, len(running)-1).Draw(t, "which")
				running[i]()
				running = slices.Delete(running, i, i+1)
				continue
			}
			c := lite.Cell{User: fmt.Sprint(rapid.IntRange(0, 4).Draw(t, "user")), Model: fmt.Sprint(rapid.IntRange(0, 4).Draw(t, "model"))}
			leave, hold := s.enter(now, c, 1)
			switch {
			case leave == nil && len(running) < slots && s.columns[c.Model] == nil && s.rows[c.User] == nil:
				t.Fatalf("%v is refused a free slot with nothing running", c)
			case leave == nil && (hold < shareHold || hold > 2*shareHoldMax):
				t.Fatalf("held for %s", hold)
			case leave != nil:
				running = append(running, leave)
			}
			if len(running) > slots {
				t.Fatalf("%d run in %d slots", len(running), slots)
			}
		}
		for _, leave := range running {
			leave()
		}
		s.sweepOnce(now.Add(time.Hour))
		if s.all.running != 0 || s.held != 0 || len(s.columns) != 0 || len(s.rows) != 0 {
			t.Fatalf("left behind: %d running, %d bytes, %v, %v", s.all.running, s.held, s.columns, s.rows)
		}
	})
}

func TestBodiesThatRunAreBounded(t *testing.T) {
	now, s := time.Now(), newShares(100, 50, 10)
	first, _ := s.enter(now, lite.Cell{User: "a", Model: "a"}, 20)
	if first == nil {
		t.Fatal("a body over the bound never runs")
	}
	if leave, _ := s.enter(now, lite.Cell{User: "b", Model: "b"}, 1); leave != nil {
		t.Error("more bytes than the bound")
	}
	first()
	for range 2 {
		if leave, _ := s.enter(now, lite.Cell{User: "b", Model: "b"}, 5); leave == nil {
			t.Error("bytes were not given back")
		}
	}
	if leave, _ := s.enter(now, lite.Cell{User: "b", Model: "b"}, 1); leave != nil {
		t.Error("more bytes than the bound")
	}
}

// Cells over their share come back about twice as fast as slots of it become free, and seldom when none does; they are
// forgotten when they do not come back.
func TestCellsOverTheirShareComeBackAtItsPace(t *testing.T) {
	now, s := time.Now(), newShares(200, 50, 0)
	for i := range 10_000 {
		s.enter(now, lite.Cell{User: fmt.Sprint(i), Model: "m"}, 1)
	}
	ask := func(at time.Time) (mean time.Duration) {
		for range 100 {
			_, hold := s.enter(at, lite.Cell{User: "next", Model: "m"}, 1)
			mean += hold / 100
		}
		return mean
	}
	hung := now.Add(30 * time.Second)
	if hold := ask(hung); hold < 10_000*shareEach/3 || hold > 10_000*shareEach {
		t.Errorf("held for %s in the mean beside 10,000 others at a model that hangs", hold)
	}
	// A model that takes 100 ms for each of 100 requests ends one in a millisecond.
	for range 100 {
		s.leave(hung, hung.Add(-100*time.Millisecond), lite.Cell{User: "0", Model: "m"}, 1)
		s.enter(hung, lite.Cell{User: "0", Model: "m"}, 1)
	}
	if hold := ask(hung); hold < time.Second || hold > 5*time.Second {
		t.Errorf("held for %s in the mean beside 10,000 others at 1,000 a second", hold)
	}
	if s.columns["m"].waiting.len() < 9_900 {
		t.Fatalf("%d wait", s.columns["m"].waiting.len())
	}
	for i := range 100 {
		s.leave(hung, hung, lite.Cell{User: fmt.Sprint(i), Model: "m"}, 1)
	}
	for range 10_000 / sweepChunk {
		s.sweepOnce(now.Add(time.Hour))
	}
	if s.columns["m"] == nil {
		t.Error("forgotten before its cells")
	}
	s.sweepOnce(now.Add(time.Hour))
	if len(s.columns)+len(s.rows) != 0 {
		t.Errorf("left behind: %v, %v", s.columns, s.rows)
	}
}

// A model that stopped answering must not take the workers of a healthy one.
// https://github.com/vllm-project/production-stack/issues/749
func TestAHungModelLeavesWorkersToOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const workers, hung = 8, 3
		b := newMemory(workers)
		model := func(ctx context.Context, r forward.Request, sink forward.Sink) forward.Outcome {
			if r.Model != "good" {
				<-ctx.Done()
				return forward.Outcome{Kind: forward.Cancelled, Err: context.Cause(ctx)}
			}
			return takes(100*time.Millisecond)(ctx, r, sink)
		}
		_, stop := run(t, Options{Consumer: b, Downstream: downstreamFunc(model), Workers: workers})
		for i := range hung * 20 {
			b.put(t, lite.Cell{User: fmt.Sprint("user", i), Model: fmt.Sprint("hung", i%hung)}, reply.Request{}, "hangs")
		}
		time.Sleep(time.Second)
		begun := time.Now()
		b.put(t, lite.Cell{User: "someone", Model: "good"}, reply.Request{}, "good")
		b.until(t, "the good model's answer", func() bool { return b.left == hung*20 })
		if d := time.Since(begun); d > 500*time.Millisecond {
			t.Errorf("the good model answered after %s", d)
		}
		stop()
	})
}

// A user with few but slow requests for many models must not take all workers from one with quick requests.
// https://github.com/temporalio/documentation/pull/5276
func TestAUserWithSlowRequestsLeavesWorkersToOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const workers = 8
		b := newMemory(workers)
		var mu sync.Mutex
		var delays []time.Duration
		model := func(ctx context.Context, r forward.Request, sink forward.Sink) forward.Outcome {
			if r.User == "slow" {
				return takes(time.Minute)(ctx, r, sink)
			}
			o := takes(100*time.Millisecond)(ctx, r, sink)
			mu.Lock()
			delays = append(delays, time.Since(r.Accepted))
			mu.Unlock()
			return o
		}
		_, stop := run(t, Options{Consumer: b, Downstream: downstreamFunc(model), Workers: workers})
		for m := range 16 {
			b.put(t, lite.Cell{User: "slow", Model: fmt.Sprint("m", m)}, reply.Request{}, "slow")
		}
		time.Sleep(time.Second)
		for i := range 20 {
			b.put(t, lite.Cell{User: "quick", Model: fmt.Sprint("q", i%4)}, reply.Request{Accepted: time.Now()}, fmt.Sprint("quick", i))
		}
		b.until(t, "the quick user's answers", func() bool { mu.Lock(); defer mu.Unlock(); return len(delays) == 20 })
		slices.Sort(delays)
		if median := delays[len(delays)/2]; median > 2*time.Second {
			t.Errorf("the quick user's requests took %s in the median", median)
		}
		stop()
	})
}

// A model that is at its share, with very many cells waiting, is kept busy, and each message is delivered a few times only.
func TestAModelAtItsShareIsKeptBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const workers, messages, service = 64, 960, 200 * time.Millisecond
		b := newMemory(workers)
		_, stop := run(t, Options{Consumer: b, Downstream: takes(service), Workers: workers})
		begun := time.Now()
		for i := range messages {
			b.put(t, lite.Cell{User: fmt.Sprint("user", i), Model: "m"}, reply.Request{}, fmt.Sprint(i))
		}
		b.drained(t)
		ideal := messages / (workers / 2) * service
		if took := time.Since(begun); took > ideal*3/2 {
			t.Errorf("took %s, want about %s", took, ideal)
		}
		if n := len(b.turns); n > 8*messages {
			t.Errorf("%d deliveries of %d messages", n, messages)
		}
		stop()
	})
}
