package suspend

import (
	"cmp"
	"errors"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"
)

const modelMax = time.Minute

var modelTargets = []Target{
	bucket("a"), bucket("b"), bucket("c"),
	{Row, "alice"},
	{Row, "bob"},
	{Column, "gpt"},
	{Column, "phi"},
	{Level, "0"},
	{Level, "3"},
	{Scope: All},
}

// TestTableAgainstModel drives a table and a plain map of instants through the same calls.
func TestTableAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &tableModel{table: New(modelMax), now: noon, until: make(map[Target]time.Time)}
		t.Repeat(map[string]func(*rapid.T){
			"extend": m.extend, "set": m.set, "restore": m.restore, "lift": m.lift, "pop due": m.popDue, "blocking": m.blocking,
			"": m.check,
		})
	})
}

type tableModel struct {
	table *Table
	now   time.Time
	until map[Target]time.Time
}

func (m *tableModel) draw(t *rapid.T) Hold {
	m.now = m.now.Add(time.Duration(rapid.Int64Range(0, 20).Draw(t, "pause")) * time.Second)
	d := time.Duration(rapid.Int64Range(-5, 70).Draw(t, "for")) * time.Second
	return Hold{
		Target: rapid.SampledFrom(modelTargets).Draw(t, "target"),
		Until:  m.now.Add(d),
		By:     strconv.FormatInt(m.now.UnixNano(), 36),
	}
}

func (m *tableModel) extend(t *rapid.T) {
	h := m.draw(t)
	got, changed, err := m.table.Extend(m.now, h)
	if h.Until.After(m.now.Add(modelMax)) {
		if !errors.Is(err, ErrTooLong) || changed {
			t.Fatalf("Extend beyond the maximum: %v %v", changed, err)
		}
		return
	}
	old := m.until[h.Target]
	want := h.Until.After(m.now) && h.Until.After(old)
	if want {
		m.until[h.Target] = h.Until
	}
	if err != nil || changed != want || !got.Until.Equal(m.until[h.Target]) || (changed && got != h) {
		t.Fatalf("Extend(%+v) over %v = %+v %v %v", h, old, got, changed, err)
	}
}

func (m *tableModel) set(t *rapid.T) {
	h := m.draw(t)
	err := m.table.Set(m.now, h)
	switch {
	case h.Until.After(m.now.Add(modelMax)):
		if !errors.Is(err, ErrTooLong) {
			t.Fatalf("Set beyond the maximum: %v", err)
		}
		return
	case err != nil:
		t.Fatal(err)
	case h.Until.After(m.now):
		m.until[h.Target] = h.Until
	default:
		delete(m.until, h.Target)
	}
}

func (m *tableModel) restore(t *rapid.T) {
	h := m.draw(t)
	if _, ok := m.table.Restore(m.now, h); ok != h.Until.After(m.now) {
		t.Fatalf("Restore(%+v) = %v", h, ok)
	}
	if latest := m.now.Add(modelMax); h.Until.After(latest) {
		h.Until = latest
	}
	if h.Until.After(m.now) {
		m.until[h.Target] = h.Until
	}
}

func (m *tableModel) lift(t *rapid.T) {
	target := rapid.SampledFrom(modelTargets).Draw(t, "target")
	until, want := m.until[target]
	delete(m.until, target)
	if h, ok := m.table.Lift(target); ok != want || !h.Until.Equal(until) {
		t.Fatalf("Lift(%v) = %+v %v, want %v %v", target, h, ok, until, want)
	}
}

func (m *tableModel) popDue(t *rapid.T) {
	m.draw(t)
	for h, ok := m.table.PopDue(m.now); ok; h, ok = m.table.PopDue(m.now) {
		until, held := m.until[h.Target]
		if !held || !until.Equal(h.Until) || until.After(m.now) {
			t.Fatalf("popped %+v at %v, want until %v", h, m.now, until)
		}
		delete(m.until, h.Target)
	}
	for target, until := range m.until {
		if !until.After(m.now) {
			t.Fatalf("%v was due at %v and stayed", target, until)
		}
	}
}

func (m *tableModel) blocking(t *rapid.T) {
	p := Place{
		Bucket: rapid.SampledFrom([]string{"a", "b", "d"}).Draw(t, "bucket"),
		User:   rapid.SampledFrom([]string{"", "alice", "carol"}).Draw(t, "user"),
		Model:  rapid.SampledFrom([]string{"", "gpt", "llama"}).Draw(t, "model"),
		Level:  uint8(rapid.IntRange(0, 4).Draw(t, "level")),
	}
	m.wantLatest(t, p, All, m.table.Blocking)
	m.wantLatest(t, p, Row, m.table.Parking)
}

func (m *tableModel) wantLatest(t *rapid.T, p Place, widest Scope, ask func(time.Time, Place) (Hold, bool)) {
	covers := []Target{
		bucket(p.Bucket), {Row, p.User}, {Column, p.Model}, {Level, strconv.Itoa(int(min(p.Level, 3)))}, {Scope: All},
	}
	want := m.now
	for _, target := range covers[:widest+1] {
		if until := m.until[target]; until.After(want) {
			want = until
		}
	}
	h, held := ask(m.now, p)
	if held != want.After(m.now) || (held && (!h.Until.Equal(want) || !m.until[h.Target].Equal(want))) {
		t.Fatalf("%+v is blocked by %+v %v, want until %v", p, h, held, want)
	}
}

func (m *tableModel) check(t *rapid.T) {
	got := make(map[Target]time.Time)
	m.table.Each(func(h Hold) bool {
		got[h.Target] = h.Until
		return true
	})
	if len(got) != len(m.until) || m.table.Len() != len(m.until) {
		t.Fatalf("%d of %d holds listed, want %d", len(got), m.table.Len(), len(m.until))
	}
	var earliest time.Time
	for target, until := range m.until {
		if h, ok := m.table.Get(target); !ok || !h.Until.Equal(until) || !got[target].Equal(until) {
			t.Fatalf("%v: %+v %v, listed %v, want %v", target, h, ok, got[target], until)
		}
		if earliest.IsZero() || until.Before(earliest) {
			earliest = until
		}
	}
	if next, ok := m.table.Next(); ok == earliest.IsZero() || (ok && !next.Equal(earliest)) {
		t.Fatalf("Next = %v %v, want %v", next, ok, earliest)
	}
}

// TestScopesAddUp: lifting the column does not lift the cell's own hold, and the wider of two equal holds is named.
func TestScopesAddUp(t *testing.T) {
	table := New(0)
	place := Place{Bucket: "alice__gpt", User: "alice", Model: "gpt", Level: 2}
	hold := func(target Target, d time.Duration) {
		t.Helper()
		if _, _, err := table.Extend(noon, Hold{Target: target, Until: noon.Add(d)}); err != nil {
			t.Fatal(err)
		}
	}
	want := func(at time.Time, target Target) {
		t.Helper()
		if h, ok := table.Blocking(at, place); !ok || h.Target != target {
			t.Errorf("blocked by %v %v, want %v", h, ok, target)
		}
	}
	hold(bucket(place.Bucket), time.Second)
	hold(Target{Column, "gpt"}, 2*time.Second)
	hold(Target{Level, "2"}, 2*time.Second)
	hold(Target{Scope: All}, time.Millisecond)
	want(noon, Target{Level, "2"})
	if h, ok := table.Parking(noon, place); !ok || h.Target != bucket(place.Bucket) {
		t.Errorf("parked on %v %v", h, ok)
	}
	table.Lift(Target{Level, "2"})
	want(noon, Target{Column, "gpt"})
	table.Lift(Target{Column, "gpt"})
	want(noon, bucket(place.Bucket))
	if h, ok := table.Blocking(noon.Add(time.Second), place); ok {
		t.Errorf("held at its end by %v", h)
	}
}

func TestTargetValidate(t *testing.T) {
	for _, tc := range []struct {
		target Target
		want   error
	}{
		{bucket("alice__gpt-4o"), nil},
		{Target{Row, "Zoë / 42"}, nil},
		{Target{Column, strings.Repeat("m", 128)}, nil},
		{Target{Level, "3"}, nil},
		{Target{Scope: All}, nil},
		{bucket(""), ErrTarget},
		{bucket("a b"), ErrTarget},
		{bucket(strings.Repeat("b", 65)), ErrTarget},
		{Target{Row, ""}, ErrTarget},
		{Target{Row, "*"}, ErrTarget},
		{Target{Row, "a\x00b"}, ErrTarget},
		{Target{Column, "\xff"}, ErrTarget},
		{Target{Column, strings.Repeat("m", 129)}, ErrTarget},
		{Target{Level, "4"}, ErrTarget},
		{Target{Level, ""}, ErrTarget},
		{Target{All, "x"}, ErrTarget},
		{Target{scopes, "x"}, ErrScope},
		{Target{255, "x"}, ErrScope},
	} {
		if err := tc.target.Validate(); !errors.Is(err, tc.want) || (tc.want == nil) != (err == nil) {
			t.Errorf("%v: %v, want %v", tc.target, err, tc.want)
		}
		table := New(0)
		h := Hold{Target: tc.target, Until: noon.Add(time.Second)}
		_, _, err := table.Extend(noon, h)
		if setErr := table.Set(noon, h); (err == nil) != (tc.want == nil) || (setErr == nil) != (tc.want == nil) {
			t.Errorf("%v: Extend %v, Set %v", tc.target, err, setErr)
		}
		if _, ok := table.Restore(noon, h); ok != (tc.want == nil) || (table.Len() == 1) != ok {
			t.Errorf("%v: restored %v", tc.target, ok)
		}
		table.Lift(tc.target) // any target, however odd, may be asked for
	}
}

func TestScopeText(t *testing.T) {
	for s := range Scope(scopes) {
		if got, err := ParseScope(s.String()); err != nil || got != s {
			t.Errorf("%v is read as %v, %v", s, got, err)
		}
	}
	for _, s := range []string{"", "Bucket", "scope(9)", "cell"} {
		if _, err := ParseScope(s); !errors.Is(err, ErrScope) {
			t.Errorf("ParseScope(%q): %v", s, err)
		}
	}
}

// TestNotesAreCut: a long reason is cut between characters, and refuses nothing.
func TestNotesAreCut(t *testing.T) {
	table := New(0)
	long := strings.Repeat("é", 200)
	h, _, err := table.Extend(noon, Hold{Target: bucket("b"), Until: noon.Add(1), By: long, Reason: "x" + long})
	if err != nil || len(h.By) != 254 || len(h.Reason) != 255 || !utf8.ValidString(h.By) || !utf8.ValidString(h.Reason) {
		t.Errorf("by %d bytes, reason %d bytes, %v", len(h.By), len(h.Reason), err)
	}
}

// TestClockStepsBack: after a step back nothing is held longer than the maximum, nothing is opened by the step, and a
// small inversion of now changes nothing.
func TestClockStepsBack(t *testing.T) {
	table := New(time.Hour)
	for name, d := range map[string]time.Duration{"short": time.Minute, "long": time.Hour} {
		if err := table.Set(noon, Hold{Target: bucket(name), Until: noon.Add(d)}); err != nil {
			t.Fatal(err)
		}
	}
	until := func(name string) time.Time {
		h, _ := table.Get(bucket(name))
		return h.Until
	}
	table.Blocking(noon.Add(-clockTolerance), Place{})
	if !until("long").Equal(noon.Add(time.Hour)) {
		t.Errorf("a small inversion moved a hold to %v", until("long"))
	}
	back := noon.Add(-10 * time.Minute)
	if _, due := table.PopDue(back); due {
		t.Error("a step back opened a hold")
	}
	if !until("short").Equal(noon.Add(time.Minute)) || !until("long").Equal(back.Add(time.Hour)) {
		t.Errorf("after the step: short until %v, long until %v", until("short"), until("long"))
	}
	years := noon.AddDate(-10, 0, 0)
	table.Blocking(years, Place{})
	for _, name := range []string{"short", "long"} {
		if !until(name).Equal(years.Add(time.Hour)) {
			t.Errorf("%s is held until %v, years ahead", name, until(name))
		}
	}
	if next, _ := table.Next(); !next.Equal(years.Add(time.Hour)) {
		t.Errorf("next wake-up %v", next)
	}
}

// TestRestoreDrawsIn: what was stored under a clock that ran ahead, or a higher maximum, is held for the maximum.
func TestRestoreDrawsIn(t *testing.T) {
	table := New(time.Hour)
	h, ok := table.Restore(noon, Hold{Target: bucket("b"), Until: noon.AddDate(10, 0, 0), By: "w"})
	if !ok || !h.Until.Equal(noon.Add(time.Hour)) || h.By != "w" {
		t.Errorf("restored %+v %v", h, ok)
	}
}

func TestEachStops(t *testing.T) {
	table := New(0)
	for _, target := range modelTargets {
		if err := table.Set(noon, Hold{Target: target, Until: noon.Add(1)}); err != nil {
			t.Fatal(err)
		}
	}
	var seen []Scope
	table.Each(func(h Hold) bool {
		seen = append(seen, h.Target.Scope)
		return len(seen) < 4
	})
	if len(seen) != 4 || !slices.IsSortedFunc(seen, func(a, b Scope) int { return cmp.Compare(b, a) }) {
		t.Errorf("visited %v, want 4, the widest first", seen)
	}
}

// TestMillionHoldsFitAndLeaveNothing: a hold stays under 200 bytes beside its name, and the memory goes when holds end.
func TestMillionHoldsFitAndLeaveNothing(t *testing.T) {
	const n = 200_000
	names := make([]string, n)
	for i := range names {
		names[i] = "user-" + strconv.Itoa(i)
	}
	before := heapBytes()
	table := New(0)
	for i, name := range names {
		h := Hold{Target: bucket(name), Until: noon.Add(time.Duration(i+1) * time.Millisecond), By: "pool-1", Reason: "rate"}
		if _, _, err := table.Extend(noon, h); err != nil {
			t.Fatal(err)
		}
	}
	if per := (heapBytes() - before) / n; per > 200 {
		t.Errorf("a hold takes %d bytes", per)
	} else {
		t.Logf("a hold takes %d bytes", per)
	}
	for range names {
		if _, ok := table.PopDue(noon.Add(time.Hour)); !ok {
			t.Fatal("a hold is missing")
		}
	}
	if left := heapBytes() - before; left > 1<<20 {
		t.Errorf("%d bytes are left when all holds have ended", left)
	}
	runtime.KeepAlive(table)
	runtime.KeepAlive(names)
}

func heapBytes() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func BenchmarkBlocking(b *testing.B) {
	const n = 1_000_000
	table := New(0)
	places := make([]Place, n)
	for i := range places {
		places[i] = Place{Bucket: "u" + strconv.Itoa(i), User: "u", Model: "m"}
		_, _ = table.Restore(noon, Hold{Target: bucket(places[i].Bucket), Until: noon.Add(time.Hour)})
	}
	i := 0
	for b.Loop() {
		if _, ok := table.Blocking(noon, places[i]); !ok {
			b.Fatal("open")
		}
		i = (i + 7919) % n
	}
}
