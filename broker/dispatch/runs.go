package dispatch

import "sort"

// run is consecutive messages that are alike, up to where the next run starts.
type run struct {
	start Offset
	// deadline of each of them; 0 for none, or not known.
	deadline int64
	// size of each of them.
	size uint32
	// requests, input and output are the cost of each message, see MessageCost. requests 0
	// means that the cost is unknown.
	requests, input, output uint32
}

// runs describes the retained messages of a bucket, in order. A queue of equal
// messages is one run, and so are all recovered messages. Dead messages are kept
// in deadSet instead, so runs are only ever added at the tail and dropped
// at the head.
//
// Invariant: if the bucket retains anything, the first run starts at its head and the
// starts ascend, all below its tail.
type runs []run

// push adds the messages of next at off, and reports whether that took another run.
func (r *runs) push(off Offset, next run) bool {
	if n := len(*r); n > 0 {
		if last := &(*r)[n-1]; last.alike(&next) {
			return false
		}
	}
	next.start = off
	*r = append(*r, next)
	return true
}

// alike reports whether the messages of two runs are equal in every field.
func (r *run) alike(o *run) bool {
	return r.deadline == o.deadline && r.size == o.size && r.requests == o.requests && r.input == o.input && r.output == o.output
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

// popTo drops the runs below head.
func (r *runs) popTo(head, tail Offset) {
	if len(*r) == 0 {
		return
	}
	if head >= tail { // the last run's memory is kept for the next message
		*r = (*r)[len(*r)-1:][:0]
		return
	}
	*r = (*r)[r.find(head):]
	(*r)[0].start = max((*r)[0].start, head)
}
