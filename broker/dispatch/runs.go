package dispatch

import "sort"

// run is consecutive messages that are alike, up to where the next run starts.
type run struct {
	start Offset
	// deadline of each of them; 0 for none, or not known.
	deadline int64
	// size of each of them.
	size uint32
	// dead: settled in every group and deleted from the store.
	dead bool
}

// runs describes the retained messages of a bucket, in order. A queue of equal
// messages is one run, so is what was recovered from disk.
//
// Invariant: if the bucket retains anything, the first run starts at its head and the
// starts ascend, all below its tail.
type runs []run

// push describes a message, or some, that follow at off.
func (r *runs) push(off Offset, next run) {
	if n := len(*r); n > 0 {
		if last := &(*r)[n-1]; last.deadline == next.deadline && last.size == next.size && last.dead == next.dead {
			return
		}
	}
	next.start = off
	*r = append(*r, next)
}

// find is the index of the run that off is in. O(log runs), O(1) for the head of the
// queue, which is the usual question.
func (r runs) find(off Offset) int {
	if len(r) == 1 || off < r[1].start {
		return 0
	}
	return sort.Search(len(r), func(i int) bool { return r[i].start > off }) - 1
}

// end is where run i ends.
func (r runs) end(i int, tail Offset) Offset {
	if i+1 < len(r) {
		return r[i+1].start
	}
	return tail
}

// popTo forgets what is below head; live calls back with each live stretch of it.
func (r *runs) popTo(head, tail Offset, live func(from, to Offset, size uint32), from Offset) {
	for from < head {
		first := (*r)[0]
		end := r.end(0, tail)
		to := min(head, end)
		if !first.dead {
			live(from, to, first.size)
		}
		if end <= head {
			r.shift()
		} else {
			(*r)[0].start = head
		}
		from = to
	}
}

// shift drops the first run. The last one's memory is kept for the next message.
func (r *runs) shift() {
	if len(*r) == 1 {
		*r = (*r)[:0]
		return
	}
	*r = (*r)[1:]
}

// kill marks [from, to) as dead; live calls back with each stretch that was not.
func (r *runs) kill(from, to, tail Offset, live func(from, to Offset, size uint32)) {
	i := r.split(from, tail)
	for i < len(*r) && (*r)[i].start < to {
		if (*r)[i].dead {
			i++
			continue
		}
		if r.end(i, tail) > to {
			r.split(to, tail)
		}
		live((*r)[i].start, r.end(i, tail), (*r)[i].size)
		(*r)[i] = run{start: (*r)[i].start, dead: true}
		i++
	}
	r.join()
}

// split makes a run start at off and returns its index.
func (r *runs) split(off, tail Offset) int {
	if off >= tail {
		return len(*r)
	}
	i := r.find(off)
	if (*r)[i].start == off {
		return i
	}
	next := (*r)[i]
	next.start = off
	*r = append(*r, run{})
	copy((*r)[i+2:], (*r)[i+1:])
	(*r)[i+1] = next
	return i + 1
}

// join makes neighbours that are dead one run. O(runs), as split is.
func (r *runs) join() {
	kept := (*r)[:0]
	for _, x := range *r {
		if n := len(kept); n > 0 && kept[n-1].dead && x.dead {
			continue
		}
		kept = append(kept, x)
	}
	*r = kept
}

// deadEnd is off, or the end of the dead run that off is in.
func (r runs) deadEnd(off, tail Offset) Offset {
	i := r.find(off)
	if !r[i].dead {
		return off
	}
	return r.end(i, tail)
}
