package dispatch

// Only live messages count: the retained messages that some group has not settled. A dead
// message only keeps its offset until the head passes it.

// isDead reports whether a retained message is settled in every group and deleted.
func (b *bucket) isDead(off Offset) bool {
	return b.live < b.retained && b.deep != nil && b.deep.dead.has(off)
}

// deadEnd returns the first offset in [off, limit) that is not dead, or limit.
func (b *bucket) deadEnd(off, limit Offset) Offset {
	if b.live == b.retained || b.deep == nil {
		return min(off, limit)
	}
	return b.deep.dead.end(off, limit)
}

// liveBetween counts the live messages from ≤ o < to. It costs two pages of the dead set,
// and an addition for each page between them.
func (b *bucket) liveBetween(from, to Offset) int {
	from, to = max(from, b.head()), min(to, b.tail)
	if from >= to {
		return 0
	}
	n := int(to - from)
	if b.live < b.retained && b.deep != nil {
		n -= b.deep.dead.count(from, to)
	}
	return n
}

// eachLive calls f for each range of equal live messages in [from, to).
func (b *bucket) eachLive(from, to Offset, f func(from, to Offset, size uint32)) {
	from, to = max(from, b.head()), min(to, b.tail)
	if from >= to {
		return
	}
	for i := b.runs.find(from); from < to; i++ {
		end := min(to, b.runs.end(i, b.tail))
		for from = b.deadEnd(from, end); from < end; from = b.deadEnd(from, end) {
			stop := end
			if b.deep != nil {
				stop = b.deep.dead.start(from, end)
			}
			f(from, stop, b.runs[i].size)
			from = stop
		}
	}
}

// entomb marks [from, to) as dead. REQUIRES: the messages are not counted as dead yet.
func (m *Machine) entomb(b *bucket, from, to Offset) {
	if from >= to {
		return
	}
	if b.deep == nil {
		b.deep = &deep{}
	}
	b.deep.dead.add(from, to, &m.pool)
	m.changed(b)
}

// dies deletes [from, to), which every group has settled, and marks the range as dead.
func (m *Machine) dies(b *bucket, from, to Offset) {
	b.eachLive(from, to, func(from, to Offset, size uint32) { m.forget(b, from, to, size) })
	m.entomb(b, from, to)
}

// buryDone marks the messages above the head that every group has settled as dead. It is
// for events that do not settle one message at a time. O(windows).
func (m *Machine) buryDone(b *bucket) {
	for c := b.first; c != nil; c = c.sibling {
		for off := max(c.floor, b.head()); off < c.next(); off++ {
			if !b.isDead(off) && b.isSettled(off) {
				m.dies(b, off, off+1)
			}
		}
	}
}

// trimDead drops the dead messages below the head. Their records are deleted with the bucket's.
func (m *Machine) trimDead(b *bucket) {
	d := b.deep
	if d == nil {
		return
	}
	d.dead.trim(b.head(), &m.pool)
	if b.retained == 0 {
		d.dead.trim(Offset((d.dead.first+uint64(len(d.dead.pages)))<<pageBits), &m.pool)
	}
	if d.dues != nil && len(b.runs) < dueFloor/2 {
		d.dues = nil
	}
	if len(d.dead.pages)+len(d.dead.gone)+len(d.dead.dirty) == 0 && d.dues == nil {
		b.deep = nil
	}
}

// shallow releases the deep state of a bucket that is removed.
func (m *Machine) shallow(b *bucket) {
	if d := b.deep; d != nil {
		d.dead.trim(Offset((d.dead.first+uint64(len(d.dead.pages)))<<pageBits), &m.pool)
		b.deep = nil
	}
}

// DeadState is the record of a page of a bucket: the dead messages among pageSize messages
// from Start on. It exists from the first death until the head has passed the page.
type DeadState struct {
	Bucket BucketID
	Start  Offset
	Page   DeadPage
}

// flushDead writes the changed pages and deletes the records of dropped ones.
func (m *Machine) flushDead(b *bucket) {
	if b.deep == nil {
		return
	}
	s := &b.deep.dead
	for _, number := range s.gone {
		m.write(Write{Op: DeleteDead, Bucket: b.id, Offset: Offset(number << pageBits)})
	}
	for _, number := range s.dirty {
		p := s.page(Offset(number << pageBits))
		if p == nil {
			continue // dropped meanwhile, with its record
		}
		p.dirty = false
		start := Offset(number << pageBits)
		if from := max(start, b.head()); p.n == 0 || s.count(from, start+pageSize) == 0 {
			continue // wholly below the head, where bits have no meaning
		}
		p.recorded = true
		m.write(Write{Op: PutDead, Bucket: b.id, Dead: put(&m.out.dead, DeadState{Bucket: b.id, Start: start, Page: *p.words()})})
	}
	s.gone, s.dirty = s.gone[:0], s.dirty[:0]
	m.trimDead(b)
}

// deleteDead deletes the records of a bucket that is deleted.
func (m *Machine) deleteDead(b *bucket) {
	if b.deep == nil {
		return
	}
	s := &b.deep.dead
	for _, number := range s.gone {
		m.write(Write{Op: DeleteDead, Bucket: b.id, Offset: Offset(number << pageBits)})
	}
	for i, p := range s.pages {
		if p.recorded {
			m.write(Write{Op: DeleteDead, Bucket: b.id, Offset: Offset((s.first + uint64(i)) << pageBits)})
		}
	}
}

// RestoreDead restores a page of dead messages. A record without a matching bucket or range
// is deleted. REQUIRES: its bucket was restored, and no cursor of it.
func (m *Machine) RestoreDead(s DeadState) {
	b := m.byID[s.Bucket]
	if b == nil || b.retained == 0 || s.Start+pageSize <= b.head() || s.Start >= b.tail {
		m.write(Write{Op: DeleteDead, Bucket: s.Bucket, Offset: s.Start})
		return
	}
	if b.deep == nil {
		b.deep = &deep{}
	}
	n := b.deep.dead.restore(uint64(s.Start)>>pageBits, &s.Page, b.head(), b.tail, &m.pool)
	b.live -= uint32(n)
	m.messages -= int64(n)
	b.runs[0].size = b.average() // mean size of the live messages
}
