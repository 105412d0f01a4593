package quota

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/penstockmq/penstock/suspend/limit"
)

// recordVersion is the first byte of an account's record. If you change what follows it, add a version, keep reading
// this one, and add a case to the tests with bytes of both.
//
//	version 1 | rests | number of states, one byte | { kind | state }…
//
// rests is the instant (UnixNano) from which the record is worth nothing. Integers are varints; an instant in a state is
// written as its distance from the state's own latest instant, which is short. See kind for the kinds, and the append
// methods for the states. Limits are not in it, but for the rates that a state was computed with.
const recordVersion = 1

// maxRecordBytes bounds a record: the kinds are few and their states small.
const maxRecordBytes = 1024

// Dirty calls f for the record of every account that was touched since the last call, in the order in which they were.
// Shadow rules and floors of levels have no records: after a restart they count from nothing.
func (l *Ledger) Dirty(f func(Record)) {
	for _, a := range l.dirty {
		a.dirty = false
		var data []byte
		if !a.dead {
			data = a.encode(l.last)
		}
		if data == nil && !a.stored {
			continue
		}
		a.stored = data != nil
		f(Record{Target: a.target(), Data: data})
	}
	clear(l.dirty)
	l.dirty = l.dirty[:0]
	if cap(l.dirty) > shrinkFloor {
		l.dirty = nil
	}
}

// encode is the account's record; nil if it needs none.
func (a *account) encode(now time.Time) []byte {
	if a.extra != nil && a.extra.frozen != nil {
		return a.extra.frozen
	}
	from := now.Add(-clockTolerance) // now is the latest seen, and the clock may be that far behind it
	rests := from
	for _, m := range a.meters {
		rests = later(rests, m.rests(from))
	}
	var learned limit.Estimate
	if a.extra != nil {
		learned = a.extra.learned
	}
	if learned.Mean != 0 {
		rests = later(rests, time.Unix(0, a.extra.learnedAt).Add(learnedFor))
	}
	if !rests.After(from) {
		return nil
	}
	b := make([]byte, 1, 64)
	b[0] = recordVersion
	b = binary.AppendVarint(b, nanos(rests))
	count := len(b)
	b = append(b, 0)
	for i, m := range a.meters {
		if k := a.res.enforced[i].kind; k != kindInFlight {
			b = m.append(append(b, byte(k)))
			b[count]++
		}
	}
	if learned.Mean != 0 {
		b = binary.AppendVarint(append(b, byte(kindLearned)), learned.Mean)
		b = binary.AppendVarint(b, a.extra.learnedAt)
		b[count]++
	}
	return b
}

// Restore puts back an account as a record says, before anything is asked. Counts in flight come from Readmit. The state
// of a column or wider comes out of Due at once; a record that is worth nothing any more comes out of Dirty as a deletion.
// Errors wrap ErrRecord, and those of suspend.Target.Validate; the ledger is then as it was.
func (l *Ledger) Restore(now time.Time, rec Record) error {
	l.observe(now)
	if err := rec.Target.Validate(); err != nil {
		return fmt.Errorf("restore quota: %w", err)
	}
	rests, err := checkRecord(rec.Data)
	if err != nil {
		return fmt.Errorf("restore quota of %v: %w", rec.Target, err)
	}
	if rests.Before(now.Add(-learnedFor)) {
		// Worth nothing, and not only since a clock went back. The account that says so need not be among the others.
		a := l.newAccount(rec.Target)
		a.dead, a.stored = true, true
		l.touch(a)
		return nil
	}
	a := l.open(rec.Target)
	a.stored = true
	x := a.more()
	x.frozen, x.restsAt = append([]byte(nil), rec.Data...), nanos(rests)
	if a.narrow() {
		if a.res != nil { // somebody asked already
			a.thaw(now, x.frozen)
			x.frozen = nil
		}
		l.retire(now, a)
		return nil
	}
	a.res = nil
	l.wide(now, a)
	l.lookAgain(a)
	return nil
}

// checkRecord reads a record to its end.
func checkRecord(b []byte) (rests time.Time, err error) {
	switch {
	case len(b) == 0 || len(b) > maxRecordBytes:
		return rests, fmt.Errorf("%w: %d bytes, it must be from 1 to %d", ErrRecord, len(b), maxRecordBytes)
	case b[0] != recordVersion:
		return rests, fmt.Errorf("%w: version %d, this program reads %d", ErrRecord, b[0], recordVersion)
	}
	r := reader{b: b[1:]}
	rests = time.Unix(0, r.int())
	var seen uint16 // a bit for each kind; a map would be one for each record of a restart
	for n := r.byte(); n > 0 && !r.bad; n-- {
		k := kind(r.byte())
		if k >= kinds || seen&(1<<k) != 0 {
			return rests, fmt.Errorf("%w: kind %d", ErrRecord, uint8(k))
		}
		seen |= 1 << k
		if k == kindLearned {
			r.int()
			r.int()
			continue
		}
		m := blank(k)
		if m == nil {
			return rests, fmt.Errorf("%w: kind %d", ErrRecord, uint8(k))
		}
		m.load(&r)
	}
	if r.bad || len(r.b) > 0 {
		return rests, fmt.Errorf("%w: cut short, too long, or out of bounds", ErrRecord)
	}
	return rests, nil
}

// blank is a meter without a law that can load a state of the kind; nil if there is none.
func blank(k kind) meter {
	switch k {
	case kindRate:
		return &rateMeter{}
	case kindWindow:
		return &windowMeter{}
	case kindQuota, kindBytesIn, kindBytesOut:
		return &bucketMeter{}
	case kindObserved:
		return &observedMeter{}
	case kindTokens:
		return &tokensMeter{}
	case kindAdaptive:
		return &adaptiveMeter{}
	case kindInFlight, kindLearned, kindSignal:
	}
	return nil
}

// thaw loads a record that checkRecord has passed. States of kinds that the policy no longer has are forgotten.
func (a *account) thaw(now time.Time, b []byte) {
	r := reader{b: b[1:]}
	r.int()
	for n := r.byte(); n > 0 && !r.bad; n-- {
		k := kind(r.byte())
		if k == kindLearned {
			x := a.more()
			x.learned, x.learnedAt = limit.Estimate{Mean: max(r.int(), 0)}, r.int()
			continue
		}
		if m := a.meter(k); m != nil {
			m.load(&r)
			m.convert(now)
		} else if m := blank(k); m != nil {
			m.load(&r) // only to pass over it
		}
	}
}

// meter is the account's meter of a kind; nil if it has none.
func (a *account) meter(k kind) meter {
	for i, s := range a.res.enforced {
		if s.kind == k {
			return a.meters[i]
		}
	}
	return nil
}
