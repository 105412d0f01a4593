package dispatch

import (
	"testing"

	"pgregory.net/rapid"
)

// TestRunsModel compares runs with a list that has an element for each message.
func TestRunsModel(t *testing.T) {
	type msg struct {
		size uint32
		dead bool
	}
	rapid.Check(t, func(t *rapid.T) {
		var r runs
		var all []msg
		head := 0
		stretch := func(from, to Offset, size uint32) {
			if from >= to {
				t.Fatalf("empty stretch at %d", from)
			}
			for off := from; off < to; off++ {
				if m := all[off]; m.dead || m.size != size {
					t.Fatalf("message %d is %+v, said live of size %d", off, m, size)
				}
				all[off].dead = true // each is let go once
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"push": func(t *rapid.T) {
				size := rapid.Uint32Range(1, 2).Draw(t, "size")
				r.push(Offset(len(all)), run{size: size})
				all = append(all, msg{size: size})
			},
			"kill": func(t *rapid.T) {
				if head == len(all) {
					return
				}
				from := rapid.IntRange(head, len(all)-1).Draw(t, "from")
				to := rapid.IntRange(from+1, len(all)).Draw(t, "to")
				r.kill(Offset(from), Offset(to), Offset(len(all)), stretch)
				for off := from; off < to; off++ {
					if !all[off].dead {
						t.Fatalf("message %d was not killed", off)
					}
				}
			},
			"pop": func(t *rapid.T) {
				to := rapid.IntRange(head, len(all)).Draw(t, "to")
				r.popTo(Offset(to), Offset(len(all)), stretch, Offset(head))
				for off := head; off < to; off++ {
					if !all[off].dead {
						t.Fatalf("message %d was not let go", off)
					}
				}
				head = to
			},
			"": func(t *rapid.T) {
				for off := head; off < len(all); off++ {
					i := r.find(Offset(off))
					if r[i].start > Offset(off) || r.end(i, Offset(len(all))) <= Offset(off) {
						t.Fatalf("message %d is not in run %d", off, i)
					}
					if r[i].dead != all[off].dead || (!r[i].dead && r[i].size != all[off].size) {
						t.Fatalf("message %d: run %+v, want %+v", off, r[i], all[off])
					}
					end := off
					for end < len(all) && all[end].dead {
						end++
					}
					if got := r.deadEnd(Offset(off), Offset(len(all))); got != Offset(end) {
						t.Fatalf("dead from %d to %d, want %d", off, got, end)
					}
				}
				if (len(r) > 0) != (head < len(all)) {
					t.Fatalf("%d runs for %d messages", len(r), len(all)-head)
				}
			},
		})
	})
}
