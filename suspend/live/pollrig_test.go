package live

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstockmq/penstock/suspend"
	"github.com/penstockmq/penstock/suspend/policy"
	"github.com/penstockmq/penstock/suspend/signal"
)

var m1 = suspend.Target{Scope: suspend.Column, Name: "m1"}

// vllm is a model server's metrics page, reached without a network so that it works in a bubble.
type vllm struct {
	mu      sync.Mutex
	waiting map[string]float64 // model → requests
	refuses bool
	hangs   bool
	asked   int
}

func (v *vllm) set(model string, waiting float64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.waiting[model] = waiting
}

func (v *vllm) fault(refuses, hangs bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.refuses, v.hangs = refuses, hangs
}

func (v *vllm) RoundTrip(r *http.Request) (*http.Response, error) {
	v.mu.Lock()
	v.asked++
	refuses, hangs := v.refuses, v.hangs
	v.mu.Unlock()
	switch {
	case hangs:
		<-r.Context().Done()
		return nil, r.Context().Err()
	case refuses:
		return nil, errors.New("connection refused")
	}
	w := httptest.NewRecorder()
	v.ServeHTTP(w, r)
	return w.Result(), nil
}

func (v *vllm) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	v.mu.Lock()
	defer v.mu.Unlock()
	fmt.Fprintln(w, "# TYPE vllm:num_requests_waiting gauge")
	for model, n := range v.waiting {
		fmt.Fprintf(w, "vllm:num_requests_waiting{engine=\"0\",model_name=%q} %v\n", model, n)
	}
	fmt.Fprintln(w, "# TYPE vllm:kv_cache_usage_perc gauge")
	fmt.Fprintln(w, `vllm:kv_cache_usage_perc{engine="0",model_name="m1"} 0.5`)
}

// memory is a Store of one process, with a board that hears of everything.
type memory struct {
	mu        sync.Mutex
	signals   map[string]signal.Signal
	board     signal.Board
	published int
	away      bool
}

func newMemory() *memory { return &memory{signals: make(map[string]signal.Signal)} }

func (m *memory) Get(target suspend.Target, source string) (signal.Signal, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s, ok := m.signals[keyOf(target, source)]
	return s, ok
}

func (m *memory) All() []signal.Signal {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.SortedFunc(maps.Values(m.signals), func(a, b signal.Signal) int {
		return cmp.Or(cmp.Compare(a.Target.Name, b.Target.Name), cmp.Compare(a.Source, b.Source))
	})
}

func (m *memory) Publish(_ context.Context, s signal.Signal) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.away {
		return ErrDisconnected
	}
	if err := s.Validate(); err != nil {
		return err
	}
	m.published++
	m.signals[keyOf(s.Target, s.Source)] = s
	m.board.Put(time.Now(), s)
	return nil
}

func (m *memory) Clear(_ context.Context, target suspend.Target, source string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.signals, keyOf(target, source))
	m.board.Drop(time.Now(), target, source)
	return nil
}

func (m *memory) factor(target suspend.Target) int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	f, _ := m.board.Factor(time.Now(), target)
	return f
}

func (m *memory) count() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.published
}

// journal keeps the messages of a log with the times at which they came.
type journal struct {
	mu    sync.Mutex
	lines []line
}

type line struct {
	at      time.Time
	message string
	failure string // its attribute error
}

func (j *journal) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelInfo }
func (j *journal) WithAttrs([]slog.Attr) slog.Handler           { return j }
func (j *journal) WithGroup(string) slog.Handler                { return j }
func (j *journal) Handle(_ context.Context, r slog.Record) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	l := line{at: r.Time, message: r.Message}
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == "error" {
			l.failure = a.Value.String()
		}
		return true
	})
	j.lines = append(j.lines, l)
	return nil
}

// find returns when the message was logged.
func (j *journal) find(message string) []time.Time {
	j.mu.Lock()
	defer j.mu.Unlock()
	var at []time.Time
	for _, l := range j.lines {
		if l.message == message {
			at = append(at, l.at)
		}
	}
	return at
}

// source is a policy that tests change.
type source struct {
	mu      sync.Mutex
	doc     *policy.Document
	changed chan struct{}
}

func newSource(t *testing.T, text string) *source {
	t.Helper()
	s := &source{changed: make(chan struct{})}
	s.set(t, text)
	return s
}

func (s *source) set(t *testing.T, text string) {
	t.Helper()
	doc, err := policy.Parse([]byte("version: 1\n" + text))
	if err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.doc = doc
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *source) Current() *policy.Document {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.doc
}

func (s *source) Changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}

const waitingPolicy = `
columns: [{model: "*", rate: 100/s}]
signals:
  - {name: waiting, column: m1, url: "http://vllm/metrics", series: 'vllm:num_requests_waiting{model_name="m1"}', target: 10, when_stale: 0.4}
`

// bench is a poller in a bubble.
type bench struct {
	vllm   *vllm
	store  *memory
	log    *journal
	policy *source
	poller *Poller
}

func newBench(t *testing.T, text string) *bench {
	t.Helper()
	return joinBench(t, &vllm{waiting: map[string]float64{"m1": 0}}, newMemory(), text)
}

// joinBench is one more process.
func joinBench(t *testing.T, v *vllm, store *memory, text string) *bench {
	t.Helper()
	b := &bench{vllm: v, store: store, log: &journal{}, policy: newSource(t, text)}
	b.poller = NewPoller(PollerOptions{
		Current: b.policy.Current, Changed: b.policy.Changed, Signals: store,
		Client: &http.Client{Transport: v}, Logger: slog.New(b.log),
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- b.poller.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	synctest.Wait()
	return b
}

func (b *bench) wantFactor(t *testing.T, want int64) {
	t.Helper()
	synctest.Wait()
	if got := b.store.factor(m1); got != want {
		t.Errorf("at %v the factor is %d, want %d", time.Now().Format("05.000"), got, want)
	}
}
