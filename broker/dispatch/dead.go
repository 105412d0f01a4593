package dispatch

import "math/bits"

const (
	// pageBits is the number of low bits of an offset that address a message within its page.
	pageBits = 12
	// pageSize is the number of offsets of a page.
	pageSize = 1 << pageBits
	// pageWords is the number of words of a page.
	pageWords = pageSize / 64
)

// DeadPage has one bit for each of pageSize consecutive offsets: set for a message that
// is settled in every group and deleted from the store.
type DeadPage [pageWords]uint64

// deadSet is the set of dead messages among the retained messages of a bucket. A message
// that dies above a live one stays in the set: the head cannot pass the live message, and a
// list of ranges would have to be searched and moved for each death.
//
// The set is a bitmap in pages. A page needs memory only while it has both live and dead
// messages, so the memory follows the number of live messages. Each page counts its dead
// messages, so the dead of a range are counted with two partial pages and one addition for
// each 4,096 messages between them.
//
// Bits below the bucket's head have no meaning.
type deadSet struct {
	// first is the number of pages[0]; a page's number is the offset divided by pageSize.
	first uint64
	pages []deadPage
	// dirty are the numbers of pages that differ from their records, without duplicates; gone
	// are the numbers of pages that were dropped and still have a record.
	dirty, gone []uint64
}

type deadPage struct {
	// bits is nil if no message of the page is dead, or if all are.
	bits *DeadPage
	// n is the number of set bits.
	n uint16
	// dirty: the number is in deadSet.dirty. recorded: the page has a record.
	dirty, recorded bool
}

// fullPage stands for every page in which all messages are dead. It is never written to.
var fullPage = func() *DeadPage {
	var p DeadPage
	for i := range p {
		p[i] = ^uint64(0)
	}
	return &p
}()

func (p *deadPage) words() *DeadPage {
	if p.n == pageSize {
		return fullPage
	}
	return p.bits
}

// page returns the page of an offset; nil if none of its messages has ever been dead.
func (s *deadSet) page(off Offset) *deadPage {
	i := uint64(off)>>pageBits - s.first
	if uint64(off)>>pageBits < s.first || i >= uint64(len(s.pages)) {
		return nil
	}
	return &s.pages[i]
}

func (s *deadSet) has(off Offset) bool {
	p := s.page(off)
	if p == nil || p.n == 0 {
		return false
	}
	at := off & (pageSize - 1)
	return p.words()[at>>6]&(1<<(at&63)) != 0
}

// end returns the first offset in [off, limit) that is not dead, or limit.
func (s *deadSet) end(off, limit Offset) Offset { return s.next(off, limit, 0) }

// start returns the first offset in [off, limit) that is dead, or limit.
func (s *deadSet) start(off, limit Offset) Offset { return s.next(off, limit, ^uint64(0)) }

// next returns the first offset in [off, limit) whose bit equals the bits of pattern, or
// limit: pattern 0 finds a live message, all ones find a dead one.
func (s *deadSet) next(off, limit Offset, pattern uint64) Offset {
	skip := uint16(pageSize) // count of dead messages in a page without a match
	if pattern != 0 {
		skip = 0
	}
	for off < limit {
		p := s.page(off)
		n := uint16(0)
		if p != nil {
			n = p.n
		}
		if n == skip {
			off = (off>>pageBits + 1) << pageBits
			continue
		}
		if n == 0 || n == pageSize {
			return off
		}
		at := off & (pageSize - 1)
		for w := at >> 6; w < pageWords; w++ {
			word := p.bits[w]
			if pattern == 0 {
				word = ^word
			}
			if w == at>>6 {
				word &= ^uint64(0) << (at & 63)
			}
			if word != 0 {
				return min(limit, off-at+w<<6+Offset(bits.TrailingZeros64(word)))
			}
		}
		off = (off>>pageBits + 1) << pageBits
	}
	return limit
}

// count returns the number of dead messages in [from, to).
func (s *deadSet) count(from, to Offset) int {
	n := 0
	for from < to {
		end := min(to, (from>>pageBits+1)<<pageBits)
		p := s.page(from)
		switch {
		case p == nil:
			if uint64(from)>>pageBits >= s.first {
				return n // there is no later page
			}
			end = min(to, Offset(s.first)<<pageBits)
		case end-from == pageSize:
			n += int(p.n)
		case p.n > 0:
			n += p.count(from, end)
		}
		from = end
	}
	return n
}

// count returns the number of dead messages in [from, to). REQUIRES: the range is in the page.
func (p *deadPage) count(from, to Offset) int {
	n, words := 0, p.words()
	eachWord(from, to, func(w Offset, mask uint64) { n += bits.OnesCount64(words[w] & mask) })
	return n
}

// eachWord calls f for each word that intersects [from, to). REQUIRES: the range is in one page.
func eachWord(from, to Offset, f func(w Offset, mask uint64)) {
	first := from & (pageSize - 1)
	last := first + (to - from) - 1
	for w := first >> 6; w <= last>>6; w++ {
		mask := ^uint64(0)
		if w == first>>6 {
			mask &= ^uint64(0) << (first & 63)
		}
		if w == last>>6 {
			mask &= ^uint64(0) >> (63 - last&63)
		}
		f(w, mask)
	}
}

// add makes [from, to) dead.
func (s *deadSet) add(from, to Offset, p *pool) {
	for from < to {
		end := min(to, (from>>pageBits+1)<<pageBits)
		s.addTo(s.reach(uint64(from)>>pageBits), from, end, p)
		from = end
	}
}

// reach extends the set to the page of a number and returns its index.
func (s *deadSet) reach(number uint64) int {
	if len(s.pages) == 0 {
		s.first = number
	}
	for number < s.first { // messages can die below the first page
		s.pages = append(s.pages, deadPage{})
		copy(s.pages[1:], s.pages)
		s.pages[0] = deadPage{}
		s.first--
	}
	for uint64(len(s.pages)) <= number-s.first {
		s.pages = append(s.pages, deadPage{})
	}
	return int(number - s.first)
}

func (s *deadSet) addTo(i int, from, to Offset, free *pool) {
	p := &s.pages[i]
	if p.n == pageSize {
		return
	}
	if p.bits == nil {
		p.bits = free.page()
	}
	n := 0
	eachWord(from, to, func(w Offset, mask uint64) {
		n += bits.OnesCount64(mask &^ p.bits[w])
		p.bits[w] |= mask
	})
	if n == 0 {
		return
	}
	p.n += uint16(n)
	if p.n == pageSize {
		free.putPage(p.bits)
		p.bits = nil
	}
	if !p.dirty {
		p.dirty = true
		s.dirty = append(s.dirty, s.first+uint64(i))
	}
}

// trim drops the pages that are wholly below head.
func (s *deadSet) trim(head Offset, free *pool) {
	n := min(uint64(head)>>pageBits-min(s.first, uint64(head)>>pageBits), uint64(len(s.pages)))
	if n == 0 {
		return
	}
	for i := range s.pages[:n] {
		p := &s.pages[i]
		if p.recorded {
			s.gone = append(s.gone, s.first+uint64(i))
		}
		if p.bits != nil {
			free.putPage(p.bits)
		}
		*p = deadPage{}
	}
	s.first += n
	s.pages = s.pages[n:]
}

// restore takes the part of a page's record that is in [head, tail), and returns the number
// of dead messages in it.
func (s *deadSet) restore(number uint64, page *DeadPage, head, tail Offset, free *pool) int {
	start := Offset(number << pageBits)
	from, to := max(start, head), min(start+pageSize, tail)
	i := s.reach(number)
	s.pages[i].recorded = true
	before := s.pages[i].n
	for off := from; off < to; {
		at := off - start
		if page[at>>6]&(1<<(at&63)) != 0 {
			s.addTo(i, off, off+1, free)
		}
		off++
	}
	s.pages[i].dirty = false
	s.dirty = s.dirty[:0] // the page equals its record
	return int(s.pages[i].n - before)
}
