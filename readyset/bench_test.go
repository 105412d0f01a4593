package readyset

import (
	"fmt"
	"testing"
	"unsafe"

	"github.com/penstockmq/penstock/suspend"
)

// sizes are few buckets and many: the cost of a turn must not follow their number.
var sizes = []int{5_000, 1_000_000}

func filled(n int) (*Set[int], []Entry[int]) {
	s := New[int](Options{})
	entries := make([]Entry[int], n)
	models := [8]string{"a", "b", "c", "d", "e", "f", "g", "h"}
	for i := range entries {
		s.Init(&entries[i], i, models[i%len(models)], Level(i/8%Levels))
		s.Add(&entries[i])
	}
	return s, entries
}

// BenchmarkTurn is one turn: taken, charged, ready again.
func BenchmarkTurn(b *testing.B) {
	for _, n := range sizes {
		b.Run(fmt.Sprint("entries=", n), func(b *testing.B) {
			s, _ := filled(n)
			b.ReportMetric(float64(unsafe.Sizeof(Entry[int]{})), "B/entry")
			b.ReportAllocs()
			for b.Loop() {
				e := s.Next()
				s.Charge(e, 1)
				s.Add(e)
			}
		})
	}
}

// BenchmarkTurnBesideParked is a turn of 5,000 entries beside others that are parked,
// each on a gate of its own.
func BenchmarkTurnBesideParked(b *testing.B) {
	for _, n := range sizes {
		b.Run(fmt.Sprint("parked=", n), func(b *testing.B) {
			s, _ := filled(5_000)
			parked := make([]Entry[int], n)
			for i := range parked {
				s.Init(&parked[i], i, "a", L1)
				s.Park(&parked[i], suspend.Target{Name: fmt.Sprint("bucket", i)})
			}
			b.ReportAllocs()
			for b.Loop() {
				e := s.Next()
				s.Charge(e, 1)
				s.Add(e)
			}
		})
	}
}

// BenchmarkParkOpen is one entry that parks and is resumed, among others that stay
// parked.
func BenchmarkParkOpen(b *testing.B) {
	for _, n := range sizes {
		b.Run(fmt.Sprint("parked=", n), func(b *testing.B) {
			s := New[int](Options{})
			parked, gates := make([]Entry[int], n), make([]suspend.Target, n)
			for i := range parked {
				gates[i] = suspend.Target{Name: fmt.Sprint("bucket", i)}
				s.Init(&parked[i], i, "a", L1)
				s.Park(&parked[i], gates[i])
			}
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				openGate(s, gates[i], s.Resume)
				s.Park(s.Next(), gates[i])
				if i += 4_999; i >= n { // not in the order of memory
					i -= n
				}
			}
		})
	}
}

// BenchmarkCloseColumn is a column that closes and opens with all that is in it.
func BenchmarkCloseColumn(b *testing.B) {
	for _, n := range sizes {
		b.Run(fmt.Sprint("entries=", n), func(b *testing.B) {
			s, _ := filled(n)
			b.ReportAllocs()
			for b.Loop() {
				s.CloseColumn("a")
				s.OpenColumn("a")
			}
		})
	}
}
