package live

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstockmq/penstock/suspend"
	"github.com/penstockmq/penstock/suspend/signal"
)

func alarm(source string, permille int64) signal.Signal {
	now := time.Now().Round(0).UTC()
	return signal.Signal{
		Target: m1, Source: source, Permille: permille, At: now, Until: now.Add(time.Hour), Kind: signal.Alarm, Reason: "Busy",
	}
}

type heard struct {
	signal signal.Signal
	gone   bool
}

// listen is a subscriber whose notices can be awaited.
func listen(t *testing.T, s *Signals) <-chan heard {
	t.Helper()
	c := make(chan heard, 1000)
	t.Cleanup(s.Subscribe(func(s signal.Signal, gone bool) { c <- heard{s, gone} }))
	return c
}

func mustPublish(t *testing.T, s *Signals, sig signal.Signal) {
	t.Helper()
	if err := s.Publish(t.Context(), sig); err != nil {
		t.Fatal(err)
	}
}

func TestSignalsAreEverywhere(t *testing.T) {
	server := newNATS(t)
	a, b := runSignals(t, server.connect()), runSignals(t, server.connect())
	news := listen(t, b)
	odd := alarm("a source / with * odd > characters. "+strings.Repeat("x", 200), 300)
	odd.Target.Name = "org/model:7b.v2 ü"
	for _, want := range []signal.Signal{alarm("x", 500), alarm("x", 200), odd} {
		mustPublish(t, a, want)
		if got := receive(t, news); got.signal != want || got.gone {
			t.Errorf("heard %+v, want %+v", got, want)
		}
	}
	if all := b.All(); len(all) != 2 || all[0].Permille != 200 || all[1] != odd {
		t.Errorf("%+v", all)
	}
	if got, ok := b.Get(odd.Target, odd.Source); !ok || got != odd {
		t.Errorf("%+v, %v", got, ok)
	}
	for range 2 { // the second time there is nothing to take back
		if err := a.Clear(t.Context(), odd.Target, odd.Source); err != nil {
			t.Fatal(err)
		}
	}
	if got := receive(t, news); got.signal != odd || !got.gone {
		t.Errorf("heard %+v", got)
	}
	if all := b.All(); len(all) != 1 {
		t.Errorf("%+v", all)
	}
	bad := alarm("x", 1001)
	if err := a.Publish(t.Context(), bad); !errors.Is(err, signal.ErrInvalid) {
		t.Errorf("%v", err)
	}
}

// process is what serves: a board that is fed by a subscription, as a broker's is.
type process struct {
	mu      sync.Mutex
	board   signal.Board
	changed chan struct{}
}

// join starts a process. When it returns, the process serves.
func join(t *testing.T, server *natsServer) *process {
	t.Helper()
	s := runSignals(t, server.connect())
	p := &process{changed: make(chan struct{}, 100)}
	t.Cleanup(s.Subscribe(func(s signal.Signal, gone bool) {
		p.mu.Lock()
		defer p.mu.Unlock()
		if gone {
			p.board.Drop(time.Now(), s.Target, s.Source)
		} else {
			p.board.Put(time.Now(), s)
		}
		p.changed <- struct{}{}
	}))
	return p
}

func (p *process) factor(now time.Time) int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	f, _ := p.board.Factor(now, m1)
	return f
}

// TestC83_LateJoinerSeesThePause: column m1 is paused by an alarm; a process that is there, one that is added and one that
// restarts all know before they serve, all hear that it is cleared, and the second pause works, too.
func TestC83_LateJoinerSeesThePause(t *testing.T) {
	server := newNATS(t)
	operator := runSignals(t, server.connect())
	first := join(t, server)
	pause := alarm("busy/f1", 0)
	mustPublish(t, operator, pause)
	receive(t, first.changed)

	nc := server.connect()
	server.stop(nc)
	server.restart(nc)
	processes := []*process{first, join(t, server), join(t, server)}
	for i, p := range processes {
		if got := p.factor(time.Now()); got != 0 {
			t.Errorf("process %d serves m1 at %d", i, got)
		}
	}
	for _, p := range processes[1:] {
		receive(t, p.changed)
	}
	again := runSignals(t, server.connect())
	if err := again.Clear(t.Context(), m1, pause.Source); err != nil {
		t.Fatal(err)
	}
	for i, p := range processes {
		receive(t, p.changed)
		if got := p.factor(time.Now().Add(time.Second)); got == 0 {
			t.Errorf("process %d is still paused", i)
		}
	}
	mustPublish(t, again, alarm(pause.Source, 0))
	for i, p := range processes {
		receive(t, p.changed)
		if got := p.factor(time.Now().Add(2 * time.Second)); got != 0 {
			t.Errorf("process %d ignores the second pause: %d", i, got)
		}
	}
}

// TestSignalsSurviveNATS: they stay while it is away; what was taken back or published meanwhile is caught up with.
func TestSignalsSurviveNATS(t *testing.T) {
	server := newNATS(t)
	nc := server.connect()
	s := runSignals(t, nc)
	news := listen(t, s)
	for _, source := range []string{"stays", "goes"} {
		mustPublish(t, s, alarm(source, 100))
		receive(t, news)
	}
	server.stop(nc)
	if len(s.All()) != 2 {
		t.Error("forgotten while NATS is away")
	}
	if err := s.Publish(t.Context(), alarm("x", 0)); !errors.Is(err, ErrDisconnected) {
		t.Errorf("publish: %v", err)
	}
	if err := s.Clear(t.Context(), m1, "stays"); !errors.Is(err, ErrDisconnected) {
		t.Errorf("clear: %v", err)
	}
	server.restart(nc)
	other := runSignals(t, server.connect())
	if err := other.Clear(t.Context(), m1, "goes"); err != nil {
		t.Fatal(err)
	}
	if got := receive(t, news); !got.gone || got.signal.Source != "goes" {
		t.Errorf("heard %+v", got)
	}
	mustPublish(t, other, alarm("comes", 100))
	if got := receive(t, news); got.gone || got.signal.Source != "comes" {
		t.Errorf("heard %+v", got)
	}
	if all := s.All(); len(all) != 2 || all[0].Source != "comes" || all[1].Source != "stays" {
		t.Errorf("%+v", all)
	}
}

func TestSweepRemovesWhatHasEnded(t *testing.T) {
	server := newNATS(t)
	s := runSignals(t, server.connect())
	news := listen(t, s)
	ended := alarm("ended", 0)
	ended.At, ended.Until = ended.At.Add(-time.Hour), ended.At.Add(-2*keepEnded)
	stale := alarm("stale", 0)
	stale.Kind, stale.Default, stale.At, stale.Until = signal.Poll, 500, ended.At, ended.Until
	for _, sig := range []signal.Signal{ended, stale, alarm("running", 0)} {
		mustPublish(t, s, sig)
		receive(t, news)
	}
	if all := s.All(); len(all) != 2 {
		t.Errorf("ended ones are listed: %+v", all)
	}
	s.sweep(t.Context())
	if got := receive(t, news); !got.gone || got.signal != ended {
		t.Errorf("heard %+v", got)
	}
	if entries, err := s.bucket.kv.Keys(t.Context()); err != nil || len(entries) != 2 {
		t.Errorf("left: %v, %v", entries, err)
	}
	for range markersEvery {
		s.sweep(t.Context())
	}
}

func TestForeignEntriesAreRefused(t *testing.T) {
	server := newNATS(t)
	s := runSignals(t, server.connect())
	news := listen(t, s)
	value, err := encodeSignal(alarm("x", 0))
	if err != nil {
		t.Fatal(err)
	}
	for key, value := range map[string][]byte{"some.other.key": value, keyOf(m1, "y"): []byte("{}")} {
		if _, err := s.bucket.kv.Put(t.Context(), key, value); err != nil {
			t.Fatal(err)
		}
	}
	mustPublish(t, s, alarm("good", 0))
	if got := receive(t, news); got.signal.Source != "good" || len(s.All()) != 1 {
		t.Errorf("heard %+v, in force %+v", got, s.All())
	}
}

// TestSlowSubscriberHoldsUpNobody: it misses steps in between, never the last.
func TestSlowSubscriberHoldsUpNobody(t *testing.T) {
	s := runSignals(t, newNATS(t).connect())
	entered, release := make(chan struct{}, 100), make(chan struct{})
	var mu sync.Mutex
	var slow []int64
	cancel := s.Subscribe(func(s signal.Signal, _ bool) {
		entered <- struct{}{}
		<-release
		mu.Lock()
		defer mu.Unlock()
		slow = append(slow, s.Permille)
	})
	fast := listen(t, s)
	for permille := range int64(50) {
		mustPublish(t, s, alarm("x", permille))
		for receive(t, fast).signal.Permille != permille {
			t.Error("out of order")
		}
	}
	receive(t, entered)
	close(release)
	receive(t, entered)
	cancel() // waits for the call under way
	cancel()
	mu.Lock()
	defer mu.Unlock()
	if len(slow) != 2 || slow[0] != 0 || slow[1] != 49 || !slices.IsSorted(slow) {
		t.Errorf("saw %v", slow)
	}
	mustPublish(t, s, alarm("x", 999))
	receive(t, fast)
	if len(slow) != 2 {
		t.Error("called after its end")
	}
}

// TestPollerOverNATS: what one process polls, another hears of.
func TestPollerOverNATS(t *testing.T) {
	server := newNATS(t)
	model := &vllm{waiting: map[string]float64{"m1": 20}}
	page := httptest.NewServer(model)
	defer page.Close()
	polling, other := runSignals(t, server.connect()), runSignals(t, server.connect())
	news := listen(t, other)
	src := newSource(t, strings.Replace(waitingPolicy, "http://vllm", page.URL, 1))
	p := NewPoller(PollerOptions{Current: src.Current, Changed: src.Changed, Signals: polling, Logger: slog.New(&journal{})})
	ctx, cancel := context.WithCancel(t.Context())
	background(t, func() error { cancel(); return nil }, func() error { return p.Run(ctx) })
	got := receive(t, news).signal
	if got.Permille != 500 || got.Target != m1 || got.Source != "poll/waiting" || got.Kind != signal.Poll || got.Default != 400 {
		t.Errorf("%+v", got)
	}
	if want := `vllm:num_requests_waiting{model_name="m1"} is 20, target 10`; got.Reason != want {
		t.Errorf("reason %q", got.Reason)
	}
	model.set("m1", 40)
	for got.Permille != 250 {
		got = receive(t, news).signal
	}
	src.set(t, "")
	for gone := false; !gone; {
		gone = receive(t, news).gone
	}
}

func TestKeysAreApart(t *testing.T) {
	seen := map[string]string{}
	for _, scope := range []suspend.Scope{suspend.Column, suspend.Level} {
		for _, name := range []string{"1", "2", "1.x", "a.b", "a"} {
			for _, source := range []string{"", "x", "b.x", "1.x"} {
				key, what := keyOf(suspend.Target{Scope: scope, Name: name}, source), fmt.Sprint(scope, name, "|", source)
				if seen[key] != "" {
					t.Errorf("%s and %s share %s", what, seen[key], key)
				}
				seen[key] = what
			}
		}
	}
}
