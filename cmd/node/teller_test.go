package node

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstockmq/penstock/broker"
	"github.com/penstockmq/penstock/consumer/reply"
)

// purged is a request that an operator purged.
func purged(r reply.Request) broker.Discarded {
	return broker.Discarded{Message: broker.Message{Properties: r.Properties()}, Reason: broker.DiscardPurged}
}

// told is a store of records: each Fail takes a time, and fails while away.
type told struct {
	takes time.Duration

	mu   sync.Mutex // guards the following fields
	away bool
	ids  map[string]string // code by request
}

func (s *told) fail(ctx context.Context, id string, f reply.Failure) error {
	select {
	case <-time.After(s.takes):
	case <-ctx.Done():
		return ctx.Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.away {
		return errors.New("no responders")
	}
	s.ids[id] = f.Code
	return nil
}

func newTold(s *told) *teller {
	s.ids = map[string]string{}
	t := &teller{records: s.fail, log: slog.New(slog.DiscardHandler)}
	t.start()
	return t
}

// While NATS is away a purge of 100,000 requests took 2 s each, and the broker kept its snapshot all that time.
func TestTellerHoldsNobodyWhileNATSIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &told{takes: time.Hour} // until the attempt is given up
		x := newTold(s)
		began := time.Now()
		const purge = 100_000
		for i := range purge {
			x.discarded(purged(reply.Request{ID: "r" + strconv.Itoa(i), Async: true, Deadline: began.Add(time.Minute)}))
		}
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("the broker was held for %s", took)
		}
		if n := len(x.queue); n != tellQueue {
			t.Errorf("%d wait", n)
		}
		began = time.Now()
		if err := x.close(); err != nil || time.Since(began) > tellClose+tellMax {
			t.Errorf("close took %s, error %v", time.Since(began), err)
		}
		if n := x.untold.Load(); n != purge {
			t.Errorf("%d of %d counted as not told", n, purge)
		}
	})
}

func TestTellerTellsAllOfALargePurge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &told{takes: 2 * time.Millisecond}
		x := newTold(s)
		const purge = tellQueue + 20_000
		for i := range purge {
			x.discarded(purged(reply.Request{ID: "r" + strconv.Itoa(i), Async: true}))
		}
		// The rest of the queue has its time before the broker closes.
		time.Sleep(time.Minute)
		if err := x.close(); err != nil {
			t.Error(err)
		}
		if len(s.ids) != purge || x.untold.Load() != 0 || s.ids["r0"] != "request_purged" {
			t.Errorf("%d of %d told, %d not, code %q", len(s.ids), purge, x.untold.Load(), s.ids["r0"])
		}
	})
}

// Notices queued while NATS was unreachable are sent when it is back, except those whose record has expired.
func TestTellerTriesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &told{away: true}
		x := newTold(s)
		for i := range 100 {
			x.discarded(purged(reply.Request{ID: "r" + strconv.Itoa(i), Async: true, Deadline: time.Now().Add(time.Hour)}))
		}
		x.discarded(purged(reply.Request{ID: "late", Async: true, Deadline: time.Now().Add(time.Second)}))
		time.Sleep(time.Minute)
		s.mu.Lock()
		s.away = false
		s.mu.Unlock()
		time.Sleep(time.Minute)
		if err := x.close(); err != nil {
			t.Error(err)
		}
		// The late one found NATS back before its first attempt, or was given up.
		if n := len(s.ids); n < 100 || int64(n)+x.untold.Load() != 101 {
			t.Errorf("%d told, %d not", n, x.untold.Load())
		}
	})
}

// A caller that waits on a connection hears at once, whatever becomes of records; a message of another client has no caller.
func TestTellerTellsCallersThatWait(t *testing.T) {
	var got []string
	x := &teller{log: slog.New(slog.DiscardHandler), frames: func(r reply.Request, f reply.Failure) error {
		got = append(got, r.ID+" "+f.Code)
		return nil
	}}
	x.discarded(purged(reply.Request{ID: "r1", Reply: "penstock.reply.gw.r1"}))
	x.discarded(purged(reply.Request{ID: "r2"}))
	x.discarded(purged(reply.Request{ID: "r3", Async: true})) // no store
	x.discarded(broker.Discarded{Message: broker.Message{Properties: map[string]string{reply.PropertyReply: "elsewhere"}}})
	if len(got) != 1 || got[0] != "r1 request_purged" {
		t.Errorf("told %q", got)
	}
	(*teller)(nil).discarded(purged(reply.Request{ID: "r1", Reply: "penstock.reply.gw.r1"}))
}
