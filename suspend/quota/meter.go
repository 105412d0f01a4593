package quota

import (
	"time"

	"github.com/penstockmq/penstock/suspend/limit"
)

// meter is one limit of one account with what is used of it.
type meter interface {
	// opens is the earliest instant from now on at which an ask passes, and whether that is now. It is zero for a limit that
	// opens when something in flight ends.
	opens(now time.Time, running int64) (time.Time, bool)
	// charge counts n, into debt if need be; a negative n is given back.
	charge(at time.Time, n int64)
	// rests is the instant from which the meter is as good as a new one.
	rests(now time.Time) time.Time
	// follow puts a limit of the same kind in force, at permille/1000 of it, and keeps what is used. A permille of 0 leaves the
	// limit as it was: the account is closed then.
	follow(now time.Time, law any, permille int64)
	// convert brings the state in line with the law at now. What is owed is converted once, when the law changes: a state
	// that was asked under one law and computed with another would convert what is left again and again.
	convert(now time.Time)
	// used is what is used, of how much.
	used(now time.Time, running int64) (used, most int64)
	// append encodes the state; load is its inverse.
	append(b []byte) []byte
	load(r *reader)
}

// law is a limit of package limit with state S.
type law[L, S any] interface {
	Opens(s S, now time.Time) time.Time
	Charge(s S, now time.Time, cost int64) S
	Rests(s S, now time.Time) time.Time
	Scaled(permille int64) (L, bool)
}

// paced is the meter of a limit that opens by itself at an instant. The law is shared with the policy unless it is scaled:
// the meter of a cell's rate is 48 bytes.
type paced[L law[L, S], S any] struct {
	law   *L
	state S
}

type (
	rateMeter     = paced[limit.LeakyBucket, limit.LeakyState]
	windowMeter   = paced[limit.FixedWindow, limit.WindowState]
	bucketMeter   = paced[limit.TokenBucket, limit.TokenState] // quota, bytes_in, bytes_out
	observedMeter = paced[limit.ObservedRate, limit.ObservedState]
	tokensMeter   = paced[limit.TokenWindow, limit.TokenWindowState]
)

// newMeter is an unused meter for a law.
func newMeter(law any) meter {
	var m meter
	switch law.(type) {
	case *limit.LeakyBucket:
		m = &rateMeter{}
	case *limit.FixedWindow:
		m = &windowMeter{}
	case *limit.TokenBucket:
		m = &bucketMeter{}
	case *limit.ObservedRate:
		m = &observedMeter{}
	case *limit.TokenWindow:
		m = &tokensMeter{}
	case *limit.Adaptive:
		m = &adaptiveMeter{}
	default:
		m = &slotsMeter{}
	}
	m.follow(time.Time{}, law, full)
	return m
}

func (p *paced[L, S]) opens(now time.Time, _ int64) (time.Time, bool) {
	at := (*p.law).Opens(p.state, now)
	return at, !at.After(now)
}

func (p *paced[L, S]) charge(at time.Time, n int64) {
	if n != 0 {
		p.state = (*p.law).Charge(p.state, at, n)
	}
}

func (p *paced[L, S]) rests(now time.Time) time.Time { return (*p.law).Rests(p.state, now) }

func (p *paced[L, S]) follow(now time.Time, law any, permille int64) {
	l, ok := law.(*L)
	if !ok {
		return
	}
	fresh := p.law == nil
	if permille >= full || fresh {
		p.law = l
	}
	if scaled, ok := (*l).Scaled(permille); ok && permille < full {
		p.law = &scaled
	}
	if !fresh {
		p.convert(now)
	}
}

func (p *paced[L, S]) convert(now time.Time) { p.state = (*p.law).Charge(p.state, now, 0) }

// above is opens of what would be left if reserve were charged too.
func (p *paced[L, S]) above(now time.Time, reserve int64) (time.Time, bool) {
	at := (*p.law).Opens((*p.law).Charge(p.state, now, reserve), now)
	return at, !at.After(now)
}

func (p *paced[L, S]) used(now time.Time, _ int64) (used, most int64) {
	switch p := any(p).(type) {
	case *rateMeter:
		// One may go, and as many more as the burst allows; each that has to be waited for counts beyond it.
		most = p.law.Burst.Nanoseconds()/interval(p.law.Rate) + 1
		_, d := p.law.Peek(p.state, now, 1)
		if d.Allowed {
			return max(most-d.Remaining, 0), most
		}
		late := d.RetryAt.Sub(now).Nanoseconds()
		return most + (late-1)/interval(p.law.Rate), most
	case *windowMeter:
		_, d := p.law.Peek(p.state, now, 0)
		return p.law.Limit - d.Remaining, p.law.Limit
	case *bucketMeter:
		most = p.law.Full()
		return most - p.law.Balance(p.state, now), most
	case *observedMeter:
		rate := p.law.Rate
		most = int64(float64(rate.Events) * float64(p.law.Span()) / float64(max(rate.Per, 1)))
		return p.law.Observed(p.state, now), most
	case *tokensMeter:
		return p.law.Used(p.state, now), p.law.Limit
	}
	return 0, 0
}

// interval is the time of one event, for people: at least a nanosecond.
func interval(r limit.Rate) int64 { return max(int64(r.Per)/max(r.Events, 1), 1) }

// slotsMeter is a limit of what is in flight. The account counts that.
type slotsMeter struct{ law limit.Concurrency }

func (m *slotsMeter) opens(now time.Time, running int64) (time.Time, bool) {
	if m.law.Open(running) {
		return now, true
	}
	return time.Time{}, false
}

func (m *slotsMeter) charge(time.Time, int64) {}

func (m *slotsMeter) rests(now time.Time) time.Time { return now }

func (m *slotsMeter) convert(time.Time) {}

func (m *slotsMeter) follow(_ time.Time, law any, permille int64) {
	l, ok := law.(*limit.Concurrency)
	if !ok {
		return
	}
	if scaled, ok := l.Scaled(permille); ok {
		m.law = scaled
	} else if m.law.Max == 0 {
		m.law = *l
	}
}

func (m *slotsMeter) used(_ time.Time, running int64) (used, most int64) { return running, m.law.Max }

func (m *slotsMeter) append(b []byte) []byte { return b }

func (m *slotsMeter) load(*reader) {}

// adaptiveMeter is a column's window of what may be in flight. What the answers say is observed by the policy's law,
// whatever signals leave of it: so it is back where it was when they end.
type adaptiveMeter struct {
	full  *limit.Adaptive
	law   limit.Adaptive // full, scaled
	state limit.AdaptiveState
}

func (m *adaptiveMeter) opens(now time.Time, running int64) (time.Time, bool) {
	if m.law.Open(m.state, running) {
		return now, true
	}
	return time.Time{}, false
}

func (m *adaptiveMeter) charge(time.Time, int64) {}

func (m *adaptiveMeter) observe(now time.Time, s Settlement, running int64) {
	m.state = m.full.Observe(m.state, now, s.Feedback, s.Latency, running)
}

// rests is a while after the last answer: what was learned is then too old to be worth its memory.
func (m *adaptiveMeter) rests(now time.Time) time.Time {
	if m.state == (limit.AdaptiveState{}) {
		return now
	}
	return later(now, time.Unix(0, m.state.At).Add(learnedFor))
}

func (m *adaptiveMeter) convert(time.Time) {}

func (m *adaptiveMeter) follow(_ time.Time, law any, permille int64) {
	l, ok := law.(*limit.Adaptive)
	if !ok {
		return
	}
	if scaled, ok := l.Scaled(permille); ok {
		m.law = scaled
	} else if m.full == nil {
		m.law = *l
	}
	m.full = l
}

func (m *adaptiveMeter) used(_ time.Time, running int64) (used, most int64) {
	return running, m.law.Window(m.state)
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}
