package dispatch

import (
	"testing"

	"pgregory.net/rapid"
)

// TestDeadSetModel compares a set with a list that has an element for each offset.
func TestDeadSetModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const span = 3*pageSize + 100
		start := Offset(rapid.IntRange(0, 2*pageSize).Draw(t, "start"))
		var s deadSet
		var free pool
		dead := map[Offset]bool{}
		head, tail := start, start+span
		at := func(t *rapid.T, label string, least, most Offset) Offset {
			edge := rapid.SampledFrom([]int{0, 1, 63, 64, 65, pageSize - 1, pageSize, pageSize + 1, span / 2, span}).Draw(t, label)
			return min(most, least+Offset(edge))
		}
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				from := at(t, "from", head, tail)
				to := at(t, "to", from, tail)
				s.add(from, to, &free)
				for off := from; off < to; off++ {
					dead[off] = true
				}
			},
			"trim": func(t *rapid.T) {
				head = at(t, "head", head, tail)
				s.trim(head, &free)
			},
			"": func(t *rapid.T) {
				from := at(t, "from", head, tail)
				to := at(t, "to", from, tail)
				n := 0
				for off := from; off < to; off++ {
					if dead[off] {
						n++
					}
					if s.has(off) != dead[off] {
						t.Fatalf("%d dead is %v, want %v", off, s.has(off), dead[off])
					}
				}
				if got := s.count(from, to); got != n {
					t.Fatalf("%d of [%d, %d) are dead, want %d", got, from, to, n)
				}
				end, begin := from, from
				for end < to && dead[end] {
					end++
				}
				for begin < to && !dead[begin] {
					begin++
				}
				if got := s.end(from, to); got != end {
					t.Fatalf("dead from %d to %d of at most %d, want %d", from, got, to, end)
				}
				if got := s.start(from, to); got != begin {
					t.Fatalf("live from %d to %d of at most %d, want %d", from, got, to, begin)
				}
			},
		})
	})
}

// A page with only dead or only live messages takes no bitmap: the memory of a deep bucket
// follows the number of its live messages.
func TestDeadPagesOfOneKindTakeNoMemory(t *testing.T) {
	var s deadSet
	var free pool
	s.add(0, 100*pageSize, &free)
	s.add(200*pageSize, 200*pageSize+1, &free)
	bitmaps := 0
	for _, p := range s.pages {
		if p.bits != nil {
			bitmaps++
		}
	}
	if bitmaps != 1 {
		t.Errorf("%d bitmaps, want 1", bitmaps)
	}
}
