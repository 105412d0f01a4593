package quota

import (
	"fmt"
	"time"

	"github.com/penstockmq/penstock/suspend"
)

// Explain lists the limits of a place with what is used of them: by scope, the narrowest first, enforced ones before shadow
// ones, and then what signals leave of the scope.
func (l *Ledger) Explain(now time.Time, p suspend.Place) []Line {
	l.observe(now)
	var lines []Line
	for scope := range suspend.Scope(scopes) {
		t, ok := p.Target(scope)
		if !ok {
			continue
		}
		a := l.find(t)
		if a == nil {
			a = l.newAccount(t) // has used nothing, and stays out of the books
		}
		l.refresh(now, a, p)
		lines = append(lines, a.lines(now)...)
		lines = append(lines, l.signalLines(now, a)...)
		if scope == suspend.Level {
			lines = append(lines, l.squeezeLines(now, a)...)
		}
	}
	return lines
}

func (a *account) lines(now time.Time) []Line {
	lines := make([]Line, 0, len(a.meters))
	for i, m := range a.meters {
		line := a.line(now, a.res.enforced[i], m)
		if f := a.factor(); f < full {
			line.Factor = f
		}
		lines = append(lines, line)
	}
	if a.extra == nil {
		return lines
	}
	for i, m := range a.extra.shadow {
		line := a.line(now, a.res.shadow[i], m)
		line.Shadow, line.WouldHold = true, *a.res.shadow[i].would
		lines = append(lines, line)
	}
	return lines
}

func (a *account) line(now time.Time, s spec, m meter) Line {
	used, most := m.used(now, int64(a.running))
	line := Line{
		Scope: a.scope.String(), Name: a.name, Limit: s.kind.String(), Value: fmt.Sprint(s.law),
		Used: used, Max: most, From: s.from.String(),
	}
	at, open := m.opens(now, int64(a.running))
	line.Open = open
	if !open {
		line.Opens = at
	}
	return line
}

// signalLines are one line for each signal in force.
func (l *Ledger) signalLines(now time.Time, a *account) []Line {
	if a.scope != suspend.Column && a.scope != suspend.Level {
		return nil
	}
	states := l.board.Explain(now, a.target())
	if len(states) == 0 && a.factor() == full {
		return nil
	}
	factor := a.factor()
	line := Line{
		Scope: a.scope.String(), Name: a.name, Limit: kindSignal.String(), Value: fmt.Sprintf("%d‰", factor),
		Used: factor, Max: full, Open: factor > 0, Factor: factor, From: "released step by step",
	}
	if len(states) == 0 {
		return []Line{line}
	}
	lines := make([]Line, 0, len(states))
	for _, s := range states {
		line.Value, line.Stale = fmt.Sprintf("%d‰", s.Permille), s.Stale
		line.From = s.Signal.Kind.String() + " " + s.Signal.Source
		if s.Signal.Reason != "" {
			line.From += ": " + s.Signal.Reason
		}
		lines = append(lines, line)
	}
	return lines
}

// squeezeLines are the limits of the whole whose reserve for more important levels a level touches.
func (l *Ledger) squeezeLines(now time.Time, a *account) []Line {
	level := a.level()
	var lines []Line
	l.wide(now, l.all)
	for i := range l.squeezes {
		s := &l.squeezes[i]
		at, short := s.short(now, level)
		if !short {
			continue
		}
		line := Line{
			Scope: a.scope.String(), Name: a.name, Limit: s.kind.String(),
			Value: "floor " + s.floor.Rate.String(), Used: s.floor.Full() - s.floor.Balance(s.floors[level], now), Max: s.floor.Full(),
			From: "gives way to the limit of the whole",
		}
		if floor := s.floor.Opens(s.floors[level], now); floor.Before(at) {
			at = floor
		}
		if line.Open = !at.After(now); !line.Open {
			line.Opens = at
		}
		lines = append(lines, line)
	}
	return lines
}

// Stats are the ledger's totals.
func (l *Ledger) Stats() Stats {
	s := Stats{Accounts: l.accounts(), InFlight: int64(l.all.running)}
	would := l.wouldBefore
	for key, n := range l.would {
		would[key.scope][key.kind] += *n
	}
	s.Held, s.WouldHold = counts(&l.held), counts(&would)
	return s
}

// counts lists what is not zero.
func counts(table *[scopes][kinds]int64) []Count {
	var list []Count
	for scope := range table {
		for k, n := range table[scope] {
			if n > 0 {
				list = append(list, Count{Scope: suspend.Scope(scope), Limit: kind(k).String(), N: n})
			}
		}
	}
	return list
}
