package dispatch

// dueFloor is the number of runs from which on a bucket keeps its deadlines in a heap. With
// fewer runs it searches all of them.
const dueFloor = 64

// due is a deadline in a bucket and the offset at which its run begins.
type due struct {
	at   int64
	from Offset
}

// dues are the deadlines of a bucket's runs as a min-heap. The entry of a dropped run stays
// until its deadline, or until such entries are the majority.
type dues []due

func (h *dues) push(d due) {
	*h = append(*h, d)
	s := *h
	i := len(s) - 1
	for i > 0 {
		parent := (i - 1) / 2
		if s[parent].at <= s[i].at {
			return
		}
		s[parent], s[i] = s[i], s[parent]
		i = parent
	}
}

func (h *dues) pop() due {
	s := *h
	first, last := s[0], len(s)-1
	s[0] = s[last]
	*h = s[:last]
	h.down(0)
	return first
}

func (h *dues) down(i int) {
	s := *h
	for {
		least := i
		for c := 2*i + 1; c <= 2*i+2 && c < len(s); c++ {
			if s[c].at < s[least].at {
				least = c
			}
		}
		if least == i {
			return
		}
		s[i], s[least] = s[least], s[i]
		i = least
	}
}

// build fills h with the deadlines of all runs.
func (h *dues) build(r runs) {
	*h = (*h)[:0]
	for _, x := range r {
		if x.deadline != 0 {
			*h = append(*h, due{at: x.deadline, from: x.start})
		}
	}
	for i := len(*h)/2 - 1; i >= 0; i-- {
		h.down(i)
	}
}

// noteDue adds the deadline of a run that begins at from to the bucket's heap, which it
// builds at dueFloor runs.
func (b *bucket) noteDue(deadline int64, from Offset) {
	switch {
	case b.deep != nil && b.deep.dues != nil:
		if deadline != 0 {
			b.deep.dues.push(due{at: deadline, from: from})
		}
		if len(b.deep.dues) > 2*len(b.runs)+dueFloor { // most belong to dropped runs
			b.deep.dues.build(b.runs)
		}
	case len(b.runs) >= dueFloor:
		if b.deep == nil {
			b.deep = &deep{}
		}
		b.deep.dues = make(dues, 0, 2*dueFloor)
		b.deep.dues.build(b.runs)
	}
}

// overdue reports whether the message at off is known to be past its deadline.
func (b *bucket) overdue(now int64, off Offset) bool {
	d := b.runs[b.runs.find(off)].deadline
	return d != 0 && d <= now
}

// overdueEnd returns the end of the overdue messages that begin at off. It spends one of
// left for each run after the first.
func (b *bucket) overdueEnd(now int64, off Offset, left *int) Offset {
	i := b.runs.find(off)
	end := b.runs.end(i, b.tail)
	for i++; i < len(b.runs); i++ {
		if d := b.runs[i].deadline; d == 0 || d > now || !spend(left) {
			break
		}
		end = b.runs.end(i, b.tail)
	}
	return min(end, b.durable())
}

// stretch is the range from ≤ o < to.
type stretch struct{ from, to Offset }

// popOverdue removes a run past its deadline from the heap of a deep bucket and returns it,
// wherever it is in the bucket.
func (b *bucket) popOverdue(now int64) (stretch, due, bool) {
	h := &b.deep.dues
	for len(*h) > 0 && (*h)[0].at <= now {
		d := h.pop()
		off := max(d.from, b.head())
		if off >= b.tail {
			continue
		}
		if i := b.runs.find(off); b.runs[i].start == off && b.runs[i].deadline == d.at {
			return stretch{off, b.runs.end(i, b.tail)}, d, true
		}
	}
	return stretch{}, due{}, false
}

// overdueRuns returns the runs past their deadline in a bucket without a heap.
func (b *bucket) overdueRuns(now int64) []stretch {
	var passed []stretch
	for i, r := range b.runs {
		if r.deadline != 0 && r.deadline <= now {
			passed = append(passed, stretch{r.start, b.runs.end(i, b.tail)})
		}
	}
	return passed
}
