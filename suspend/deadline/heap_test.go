package deadline

import (
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func at(n int64) time.Time { return time.Unix(0, n).UTC() }

// TestHeapAgainstModel drives a heap and a plain map through the same calls: the earliest must be the same instant, what is
// due must come out, all of it, and nothing else.
func TestHeapAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var h Heap[int]
		items := make([]*Item[int], 40)
		for i := range items {
			items[i] = &Item[int]{Value: i}
		}
		model := make(map[int]int64)
		pick := rapid.IntRange(0, len(items)-1)
		instant := rapid.Int64Range(-20, 20)
		t.Repeat(map[string]func(*rapid.T){
			"set": func(t *rapid.T) {
				i, when := pick.Draw(t, "item"), instant.Draw(t, "at")
				h.Set(items[i], at(when))
				model[i] = when
			},
			"remove": func(t *rapid.T) {
				i := pick.Draw(t, "item")
				_, want := model[i]
				if got := h.Remove(items[i]); got != want {
					t.Fatalf("Remove = %v, want %v", got, want)
				}
				delete(model, i)
			},
			"pop due": func(t *rapid.T) {
				popDueAgainstModel(t, &h, model, instant.Draw(t, "now"))
			},
			"": func(t *rapid.T) { checkHeap(t, &h, items, model) },
		})
	})
}

func popDueAgainstModel(t *rapid.T, h *Heap[int], model map[int]int64, now int64) {
	last := int64(math.MinInt64)
	for it := h.PopDue(at(now)); it != nil; it = h.PopDue(at(now)) {
		when, ok := model[it.Value]
		if !ok || when > now || when < last || it.Armed() {
			t.Fatalf("popped item %d at %d (armed %v) after %d, now %d", it.Value, when, it.Armed(), last, now)
		}
		last = when
		delete(model, it.Value)
	}
	for i, when := range model {
		if when <= now {
			t.Fatalf("item %d was due at %d, now %d, and stayed", i, when, now)
		}
	}
}

func checkHeap(t *rapid.T, h *Heap[int], items []*Item[int], model map[int]int64) {
	if h.Len() != len(model) {
		t.Fatalf("Len = %d, want %d", h.Len(), len(model))
	}
	for i, n := range h.nodes {
		if int(n.item.pos) != i+1 || n.at != n.item.at || (i > 0 && n.at < h.nodes[(i-1)/arity].at) {
			t.Fatalf("node %d is out of place: %+v of item %+v", i, n, n.item)
		}
	}
	earliest := int64(math.MaxInt64)
	for i, it := range items {
		when, armed := model[i]
		if it.Armed() != armed || (armed && !it.At().Equal(at(when))) {
			t.Fatalf("item %d: armed %v at %v, want %v at %v", i, it.Armed(), it.At(), armed, when)
		}
		if armed {
			earliest = min(earliest, when)
		}
	}
	next, ok := h.Next()
	if ok != (len(model) > 0) || (ok && next.UnixNano() != earliest) {
		t.Fatalf("Next = %v %v, want %v", next, ok, earliest)
	}
}

func TestSetOfItemArmedElsewhere(t *testing.T) {
	var a, b Heap[string]
	it := &Item[string]{Value: "x"}
	b.Set(&Item[string]{}, at(1))
	a.Set(it, at(2))
	if b.Remove(it) {
		t.Error("a heap removed an item of another")
	}
	defer func() {
		if recover() == nil {
			t.Error("an item was armed in two heaps")
		}
	}()
	b.Set(it, at(3))
}

// TestInstantsBeyondInt64 holds the order for instants whose UnixNano is undefined.
func TestInstantsBeyondInt64(t *testing.T) {
	instants := []time.Time{
		{},
		time.Unix(0, math.MinInt64),
		time.Unix(-1, 0),
		time.Unix(0, 0),
		time.Unix(math.MaxInt64/int64(time.Second)-1, 0),
		time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC),
	}
	var h Heap[int]
	for i, when := range slices.Backward(instants) {
		h.Set(&Item[int]{Value: i}, when)
	}
	var got []int
	for it := h.PopDue(instants[len(instants)-1]); it != nil; it = h.PopDue(instants[len(instants)-1]) {
		got = append(got, it.Value)
	}
	slices.Sort(got[:2]) // the zero time and the earliest int64 are one instant here
	if want := []int{0, 1, 2, 3, 4, 5}; !slices.Equal(got, want) {
		t.Errorf("order %v, want %v", got, want)
	}
}

// TestMemoryComesBack: a burst must not keep its memory after it has passed, nor its values.
func TestMemoryComesBack(t *testing.T) {
	const burst = 100_000
	var h Heap[int]
	for i := range burst {
		h.Set(&Item[int]{Value: i}, at(int64(i)))
	}
	for h.PopDue(at(burst)) != nil {
	}
	if c := cap(h.nodes); c > 4*shrinkFloor {
		t.Errorf("an empty heap keeps room for %d items", c)
	}
	for _, n := range h.nodes[:cap(h.nodes)] {
		if n.item != nil {
			t.Fatal("an empty heap keeps an item alive")
		}
	}
}

func BenchmarkSetPopDue(b *testing.B) {
	const armed = 1_000_000
	var h Heap[int]
	for i := range armed {
		h.Set(&Item[int]{}, at(int64(i)*7919%armed))
	}
	it, now := &Item[int]{}, int64(armed)
	for b.Loop() {
		now++
		h.Set(it, at(now))
		it = h.PopDue(at(now))
	}
}

func TestShiftMovesAllAndKeepsTheOrder(t *testing.T) {
	var h Heap[int]
	base := time.Unix(1000, 0)
	items := make([]Item[int], 5)
	for i := range items {
		items[i].Value = i
		h.Set(&items[i], base.Add(time.Duration(len(items)-i)*time.Second))
	}
	var far, past Item[int]
	h.Set(&far, time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC))
	h.Shift(time.Hour)
	h.Set(&past, time.Time{})
	h.Shift(-2 * time.Hour)
	h.Shift(time.Hour)
	if got := h.PopDue(base.Add(-100 * 365 * 24 * time.Hour)); got != &past {
		t.Fatalf("the earliest representable instant is %v", got)
	}
	for i := len(items) - 1; i >= 0; i-- {
		at := base.Add(time.Duration(len(items)-i) * time.Second)
		if !items[i].At().Equal(at) || h.PopDue(at.Add(-1)) != nil || h.PopDue(at) != &items[i] {
			t.Fatalf("item %d is not due at %v", i, at)
		}
	}
	if h.Len() != 1 {
		t.Errorf("%d items left", h.Len())
	}
}
