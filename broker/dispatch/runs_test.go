package dispatch

import (
	"testing"

	"pgregory.net/rapid"
)

// TestRunsModel compares runs with a list that has an element for each message.
func TestRunsModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var r runs
		var all []uint32
		head := 0
		t.Repeat(map[string]func(*rapid.T){
			"push": func(t *rapid.T) {
				size := rapid.Uint32Range(1, 2).Draw(t, "size")
				r.push(Offset(len(all)), run{size: size})
				all = append(all, size)
			},
			"pop": func(t *rapid.T) {
				head = rapid.IntRange(head, len(all)).Draw(t, "to")
				r.popTo(Offset(head), Offset(len(all)))
			},
			"": func(t *rapid.T) {
				for off := head; off < len(all); off++ {
					i := r.find(Offset(off))
					if r[i].start > Offset(off) || r.end(i, Offset(len(all))) <= Offset(off) {
						t.Fatalf("message %d is not in run %d", off, i)
					}
					if r[i].size != all[off] {
						t.Fatalf("message %d: run %+v, want size %d", off, r[i], all[off])
					}
				}
				if (len(r) > 0) != (head < len(all)) {
					t.Fatalf("%d runs for %d messages", len(r), len(all)-head)
				}
			},
		})
	})
}
