package quota

import (
	"time"

	"github.com/penstockmq/penstock/suspend/limit"
)

// When a limit of the whole is short, the levels give way to it from the least important up: a level goes only while
// more than its reserve is left, so what is left below that is for those above it. Level 0 has no reserve and may use all.
//
//	level      0   1    2    3
//	reserve    0  1/8  1/4  1/2    of the capacity
//
// A level whose reserve is touched keeps a floor of 1/16 of the rate, so that it never stands still while the whole is open.
// Only limits that refill while nothing goes have reserves: of a window or of slots a level could never use its part.
//
// Rejected: a fixed share of the rate for each level, which wastes what the others leave.
const (
	reserveParts = 8 // reserves are in eighths of the capacity
	floorParts   = 16
)

var reserves = [levels]int64{0, 1, 2, 4}

// squeeze is one limit of the whole that levels give way to.
type squeeze struct {
	kind     kind
	meter    reserved
	capacity int64
	floor    limit.TokenBucket
	floors   [levels]limit.TokenState // what each level took of its floor; a restart forgets them
}

// reserved is a meter that can say when more than a reserve is left.
type reserved interface {
	above(now time.Time, reserve int64) (time.Time, bool)
}

// squeezesOf are the limits of the whole that levels give way to.
func squeezesOf(all *account) []squeeze {
	var list []squeeze
	for i, m := range all.meters {
		s := squeeze{kind: all.res.enforced[i].kind}
		var rate limit.Rate
		switch m := m.(type) {
		case *rateMeter:
			rate, s.meter = m.law.Rate, m
			s.capacity = m.law.Burst.Nanoseconds() / interval(rate)
		case *bucketMeter:
			rate, s.meter, s.capacity = m.law.Rate, m, m.law.Full()
		default:
			continue
		}
		if s.capacity < reserveParts {
			continue // no reserve is a whole event: the turns of the ready set keep the order alone
		}
		s.floor = limit.TokenBucket{Rate: limit.Rate{Events: rate.Events, Per: rate.Per * floorParts}}
		list = append(list, s)
	}
	return list
}

// convert brings the floors in line with the clock.
func (s *squeeze) convert(now time.Time) {
	for level := range s.floors {
		s.floors[level] = s.floor.Charge(s.floors[level], now, 0)
	}
}

// short is whether a level's reserve is touched.
func (s *squeeze) short(now time.Time, level uint8) (until time.Time, short bool) {
	if level == 0 {
		return time.Time{}, false
	}
	until, open := s.meter.above(now, s.capacity*reserves[level]/reserveParts)
	return until, !open
}

// squeezed is whether the whole has nothing left for a level now, and which limit will have at which instant.
func (l *Ledger) squeezed(now time.Time, a *account) (until time.Time, by kind, short bool) {
	level := a.level()
	for i := range l.squeezes {
		s := &l.squeezes[i]
		at, closed := s.short(now, level)
		if !closed {
			continue
		}
		floor := s.floor.Opens(s.floors[level], now)
		if !floor.After(now) {
			continue
		}
		if floor.Before(at) {
			at = floor
		}
		if !short || at.After(until) {
			until, by, short = at, s.kind, true
		}
	}
	return until, by, short
}

// floor charges to a level's floors what it takes of a limit whose reserve it touches.
func (l *Ledger) floor(now time.Time, a *account, amount func(kind) int64) {
	if len(l.squeezes) == 0 {
		return
	}
	level := a.level()
	for i := range l.squeezes {
		s := &l.squeezes[i]
		if _, short := s.short(now, level); short {
			s.floors[level] = s.floor.Charge(s.floors[level], now, amount(s.kind))
		}
	}
}
