package test

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/penstockmq/penstock/cmd/mockmodel"
)

// slots is one limit of two requests at once, and the cells that share it.
type slots struct {
	*system
	fleet *fleet
	cells [][2]string
}

// ask sends one request for a cell through the gateway.
func (s *slots) ask(ctx context.Context, cell int, text string) (posted, error) {
	user, model := s.cells[cell][0], s.cells[cell][1]
	return s.postIn(ctx, http.DefaultClient, s.keys[user], fmt.Sprintf(`{"model":%q,"messages":[{"role":"user","content":%q}]}`, model, text))
}

// both asks for two cells at once and returns when the answers are there.
func (s *slots) both(text string, status int) {
	s.t.Helper()
	done := make(chan error, 2)
	for cell := range 2 {
		go func() {
			p, err := s.ask(s.t.Context(), cell, text)
			if err == nil && status != 0 && p.status != status {
				err = fmt.Errorf("status %d, want %d: %s", p.status, status, p.body)
			}
			done <- err
		}()
	}
	for range 2 {
		if err := await(s.t, done, text); err != nil && status != 0 {
			s.t.Errorf("%s: %v", text, err)
		}
	}
}

// twoAtOnce wants two of four requests to run at once, and never a third.
func (s *slots) twoAtOnce(after string) {
	s.t.Helper()
	s.stub.wait("all ends after "+after, open(0))
	s.stub.Reset()
	s.stub.on("work", func(b *mockmodel.Behaviour) { b.Delay = mockmodel.Duration(200 * time.Millisecond) })
	p := s.fleet.producerOf()
	for _, c := range s.cells {
		must(s.t, sendTo(s.t.Context(), p, c[0], c[1], "work"))
	}
	s.stub.wait("work after "+after, func(st mockmodel.Stats) bool { return st.Answered == int64(len(s.cells)) })
	if most := s.stub.Stats().MaxOpen; most != 2 {
		s.t.Errorf("after %s %d run at once, want 2", after, most)
	}
	s.fleet.waitMetric("penstock_broker_messages", 0)
	s.stub.Reset()
}

// TestInFlightOfRowsAndColumnsIsFreed has requests end in every way there is, two of them
// at a time where no more than two may run: then two run at once again, for a row and
// for a column.
func TestInFlightOfRowsAndColumnsIsFreed(t *testing.T) {
	t.Parallel()
	const lease = 3 * time.Second
	f := startFleet(t, "rows: [{user: alice, in_flight: 2}]\ncolumns: [{model: m, in_flight: 2}]\n")
	pool := f.pools(1, "--invisible", lease.String())[0]
	gate := f.gateway()
	for name, cells := range map[string][][2]string{
		"row":    {{"alice", "a"}, {"alice", "b"}, {"alice", "c"}, {"alice", "d"}},
		"column": {{"bob", model}, {"carol", model}, {"dave", model}, {"erin", model}},
	} {
		s := &slots{system: gate, fleet: f, cells: cells}
		s.twoAtOnce("the start of " + name)

		f.stub.on("error", failing(http.StatusInternalServerError))
		s.both("error", http.StatusInternalServerError)
		s.twoAtOnce("errors of " + name)

		f.stub.on("reset", faulty(mockmodel.FaultReset))
		s.both("reset", 0) // with whatever the gateway makes of it
		s.twoAtOnce("resets of " + name)

		f.stub.on("hang", faulty(mockmodel.FaultHang))
		s.both("hang", http.StatusGatewayTimeout)
		s.twoAtOnce("time-outs of " + name)

		f.stub.on("left", faulty(mockmodel.FaultHang))
		ctx, cancel := context.WithCancel(t.Context())
		left := make(chan error, 2)
		for cell := range 2 {
			go func() {
				_, err := s.ask(ctx, cell, "left")
				left <- err
			}()
		}
		f.stub.wait("requests whose callers leave", open(2))
		cancel()
		for range 2 {
			if err := await(t, left, "a caller that leaves"); err == nil {
				t.Error("a caller that left has an answer")
			}
		}
		s.twoAtOnce("cancels of " + name)

		f.stub.on("killed", faulty(mockmodel.FaultHang))
		p := f.producerOf()
		for _, c := range cells[:2] {
			must(t, sendTo(t.Context(), p, c[0], c[1], "killed"))
		}
		f.stub.wait("requests whose pool dies", open(2))
		next := f.pools(1, "--invisible", lease.String())[0]
		must(t, sendTo(t.Context(), p, cells[2][0], cells[2][1], "after"))
		killed := time.Now()
		pool.kill()
		pool = next
		// Until the leases end, the slots are taken by requests that nobody works on.
		f.stub.wait("the leases end", func(st mockmodel.Stats) bool { return st.Answered == 1 })
		calls := f.stub.Calls(0)
		if after := calls[len(calls)-1].Began.Sub(killed); after < lease/3 || after > lease+soon {
			t.Errorf("%s: the next began %v after its pool died, leases are %v", name, after, lease)
		}
		f.waitMetric("penstock_broker_messages", 0)
		s.twoAtOnce("leases of " + name)
	}
}
