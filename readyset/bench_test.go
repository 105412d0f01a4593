package readyset

import (
	"fmt"
	"testing"
	"unsafe"
)

// The cost of a turn must not follow the number of entries.
func BenchmarkTurn(b *testing.B) {
	for _, n := range []int{5_000, 1_000_000} {
		b.Run(fmt.Sprint("entries=", n), func(b *testing.B) {
			s := New[int](Options{})
			entries := make([]Entry[int], n)
			models := [8]string{"a", "b", "c", "d", "e", "f", "g", "h"}
			for i := range entries {
				s.Init(&entries[i], i, models[i%len(models)], Level(i/8%Levels))
				s.Add(&entries[i])
			}
			b.ReportMetric(float64(unsafe.Sizeof(entries[0])), "B/entry")
			b.ReportAllocs()
			for b.Loop() {
				e := s.Next()
				s.Charge(e, 1)
				s.Add(e)
			}
		})
	}
}
