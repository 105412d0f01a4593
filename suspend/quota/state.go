package quota

import (
	"encoding/binary"
	"math"
	"time"

	"github.com/penstockmq/penstock/suspend/limit"
)

// reader takes integers off a record. After the first that is not there or out of bounds, bad stays set and all are zero.
type reader struct {
	b   []byte
	bad bool
}

func (r *reader) byte() byte {
	if r.bad || len(r.b) == 0 {
		r.bad = true
		return 0
	}
	c := r.b[0]
	r.b = r.b[1:]
	return c
}

func (r *reader) int() int64 {
	n, size := binary.Varint(r.b)
	if r.bad || size <= 0 {
		r.bad = true
		return 0
	}
	r.b = r.b[size:]
	return n
}

// count reads an integer that is not negative.
func (r *reader) count() int64 {
	n, size := binary.Uvarint(r.b)
	if r.bad || size <= 0 || n > math.MaxInt64 {
		r.bad = true
		return 0
	}
	r.b = r.b[size:]
	return int64(n)
}

// rate reads the rate that a state was computed with: the zero Rate, or one that can be divided by.
func (r *reader) rate() limit.Rate {
	rate := limit.Rate{Events: r.count(), Per: time.Duration(r.count())}
	if (rate.Events == 0) != (rate.Per == 0) {
		r.bad = true
	}
	return rate
}

// check sets bad unless ok holds.
func (r *reader) check(ok bool) {
	if !ok {
		r.bad = true
	}
}

func appendRate(b []byte, r limit.Rate) []byte {
	b = binary.AppendUvarint(b, uint64(max(r.Events, 0)))
	return binary.AppendUvarint(b, uint64(max(r.Per, 0)))
}

func appendInts(b []byte, ints ...int64) []byte {
	for _, n := range ints {
		b = binary.AppendVarint(b, n)
	}
	return b
}

// append encodes the state of each law; load is its inverse. Differences of instants may wrap round, and wrap back.
func (p *paced[L, S]) append(b []byte) []byte {
	switch s := any(&p.state).(type) {
	case *limit.LeakyState:
		return appendRate(appendInts(b, s.At, s.TAT-s.At, s.Frac), s.Rate)
	case *limit.WindowState:
		return appendInts(b, s.At, s.Used)
	case *limit.TokenState:
		return appendRate(appendInts(b, s.At, s.Tokens, s.Frac), s.Rate)
	case *limit.ObservedState:
		b = appendInts(b, s.At, s.Charged-s.At, s.Sum, int64(len(s.Used)))
		for _, n := range s.Used {
			b = binary.AppendUvarint(b, uint64(n))
		}
		return b
	case *limit.TokenWindowState:
		return appendInts(b, s.At, s.Begin-s.At, s.Used, s.Granted)
	}
	return b
}

func (p *paced[L, S]) load(r *reader) {
	switch s := any(&p.state).(type) {
	case *limit.LeakyState:
		s.At = r.int()
		s.TAT = s.At + r.int()
		s.Frac, s.Rate = r.int(), r.rate()
		r.check(s.Frac >= 0 && (s.Frac < s.Rate.Events || s.Frac == 0))
	case *limit.WindowState:
		s.At, s.Used = r.int(), r.int()
		r.check(s.Used >= 0)
	case *limit.TokenState:
		s.At, s.Tokens, s.Frac, s.Rate = r.int(), r.int(), r.int(), r.rate()
		r.check(s.Frac >= 0 && (s.Frac < int64(s.Rate.Per) || s.Frac == 0))
	case *limit.ObservedState:
		s.At = r.int()
		s.Charged = s.At + r.int()
		s.Sum = r.int()
		r.check(r.int() == int64(len(s.Used)) && s.Sum >= 0)
		for i := range s.Used {
			n := r.count()
			r.check(n <= math.MaxUint32)
			s.Used[i] = uint32(n)
		}
	case *limit.TokenWindowState:
		s.At = r.int()
		s.Begin = s.At + r.int()
		s.Used, s.Granted = r.int(), r.int()
		r.check(s.Used >= 0 && s.Granted >= 0)
	}
}

func (m *adaptiveMeter) append(b []byte) []byte {
	s := m.state
	return appendInts(b, s.At, s.Size, s.Good, s.Shrunk)
}

func (m *adaptiveMeter) load(r *reader) {
	m.state = limit.AdaptiveState{At: r.int(), Size: r.int(), Good: r.int(), Shrunk: r.int()}
	r.check(m.state.Size >= 0 && m.state.Good >= 0)
}

// nanos is t.UnixNano, or the nearest int64 can express.
func nanos(t time.Time) int64 {
	switch s, edge := t.Unix(), int64(math.MaxInt64/int64(time.Second)); {
	case s >= edge:
		return math.MaxInt64
	case s <= -edge:
		return math.MinInt64
	}
	return t.UnixNano()
}
