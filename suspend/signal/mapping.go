package signal

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/penstockmq/penstock/suspend"
)

// ErrTarget: an alert matches a mapping, but its labels name no column.
var ErrTarget = errors.New("alert names no column")

// Mapping says which alerts matter and what they ask for.
type Mapping struct {
	Name     string
	Match    map[string]string // labels an alert must have, with their values
	Target   suspend.Target    // what is scaled, unless By is set
	By       string            // the label whose value names the model of the column that is scaled
	Permille int64             // the factor while it fires
	For      time.Duration     // how long one post holds. Who posts repeats it more often than that
	HoldDown time.Duration     // how long the factor stays after it is resolved: an alarm that flaps does not flap through
}

// Matches says whether the alert has all labels of the mapping.
func (m Mapping) Matches(a Alert) bool { return has(a.Labels, m.Match) }

// Raise is the signal of a firing alert that matches. Each alert is a source of its own: of several that fire for one
// target, the last to be resolved opens it. Errors wrap ErrTarget.
func (m Mapping) Raise(now time.Time, a Alert) (Signal, error) {
	s := Signal{
		Target: m.Target, Source: m.Name + "/" + a.Fingerprint, Permille: m.Permille,
		At: now, Until: now.Add(m.For), Kind: Alarm, Reason: a.reason(),
	}
	if !a.Changed.IsZero() && a.Changed.Before(now) {
		s.At = a.Changed
		if latest := s.At.Add(MaxFor); s.Until.After(latest) {
			s.Until = latest
		}
	}
	if m.By != "" {
		model, ok := a.Labels[m.By]
		if !ok {
			return Signal{}, fmt.Errorf("%w: alarm %s takes it from label %s, which is missing", ErrTarget, m.Name, m.By)
		}
		s.Target = suspend.Target{Scope: suspend.Column, Name: model}
	}
	if err := s.Validate(); err != nil {
		return Signal{}, fmt.Errorf("%w: alarm %s: %w", ErrTarget, m.Name, err)
	}
	return s, nil
}

// Resolve is what remains of a signal that the alert has raised once it is resolved: the same factor for the rest of the
// hold-down, or nothing. It may be posted again and again without making the hold-down longer. mappings are those of
// today; a signal whose mapping is gone has no hold-down.
func Resolve(now time.Time, a Alert, raised Signal, mappings []Mapping) (s Signal, gone bool) {
	end := now
	if !a.Ends.IsZero() && a.Ends.Before(now) {
		end = a.Ends
	}
	until := end
	mapping, _, _ := raised.Origin()
	for _, m := range mappings {
		if m.Name == mapping {
			until = end.Add(m.HoldDown)
		}
	}
	if !until.After(now) {
		return Signal{}, true
	}
	raised.At, raised.Until = end, until
	return raised, false
}

// Origin is the mapping under which an alert has raised the signal, and the alert's fingerprint; ok is false if none has.
func (s Signal) Origin() (mapping, fingerprint string, ok bool) {
	if s.Kind != Alarm {
		return "", "", false
	}
	return strings.Cut(s.Source, "/") // a mapping's name has no slash
}

// Outdates says whether the signal tells of something later than the alert, which then was overtaken on its way.
func (s Signal) Outdates(a Alert) bool { return s.At.After(a.Changed) && !a.Changed.IsZero() }

func (a Alert) reason() string {
	name := a.Labels["alertname"]
	if name == "" || a.Summary == "" {
		return cut(name + a.Summary)
	}
	return cut(name + ": " + a.Summary)
}
