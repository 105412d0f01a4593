package admin

import (
	"net/http"
	"time"

	"github.com/penstockmq/penstock/suspend/signal"
)

// Signal is a load signal in force.
type Signal struct {
	Scope  string `json:"scope"` // column or level
	Name   string `json:"name"`
	Source string `json:"source"`
	Kind   string `json:"kind"` // alarm, poll or manual
	// Permille is what it asks for now, in thousandths: its default if it is stale.
	Permille int64 `json:"permille"`
	// Stale says that the metric behind it is not read any more.
	Stale  bool      `json:"stale,omitempty"`
	At     time.Time `json:"at"`
	Until  time.Time `json:"until,omitzero"`
	Reason string    `json:"reason,omitempty"`
}

// Signals is the answer to a list of them.
type Signals struct {
	Signals []Signal `json:"signals"`
	// Truncated says that there are more than were listed.
	Truncated bool `json:"truncated,omitempty"`
}

// Cleared says whether there was something to clear.
type Cleared struct {
	Cleared bool `json:"cleared"`
}

func signalOf(now time.Time, s signal.Signal) Signal {
	permille, stale := s.Effective(now)
	return Signal{
		Scope: s.Target.Scope.String(), Name: s.Target.Name, Source: s.Source, Kind: s.Kind.String(),
		Permille: permille, Stale: stale, At: s.At.UTC(), Until: s.Until.UTC(), Reason: s.Reason,
	}
}

func (s *Server) listSignals(r *http.Request) (int, any, error) {
	if s.alarms.signals == nil {
		return 0, nil, errNoSignals
	}
	q, err := parameters(r, "scope", "name", "limit")
	if err != nil {
		return 0, nil, err
	}
	limit, err := pageSize(q)
	if err != nil {
		return 0, nil, err
	}
	scope, err := scopeFilter(q)
	if err != nil {
		return 0, nil, err
	}
	now := time.Now()
	out := Signals{Signals: []Signal{}}
	for _, sig := range s.alarms.signals.All() {
		if scope != "" && scope != sig.Target.Scope.String() {
			continue
		}
		if q.Has("name") && q.Get("name") != sig.Target.Name {
			continue
		}
		if len(out.Signals) == limit {
			out.Truncated = true
			break
		}
		out.Signals = append(out.Signals, signalOf(now, sig))
	}
	return http.StatusOK, out, nil
}

// clearSignal takes back one signal. One that is polled or that fires again comes back.
func (s *Server) clearSignal(r *http.Request) (int, any, error) {
	if s.alarms.signals == nil {
		return 0, nil, errNoSignals
	}
	q, err := parameters(r, "scope", "name", "source")
	if err != nil {
		return 0, nil, err
	}
	target, err := targetOf(q.Get("scope"), q.Get("name"))
	if err != nil {
		return 0, nil, err
	}
	source := q.Get("source")
	if source == "" {
		return 0, nil, inField("source", errParameter)
	}
	there := false
	for _, sig := range s.alarms.signals.All() {
		there = there || sig.Target == target && sig.Source == source
	}
	// Cleared in any case: this process may not have heard of it yet.
	return http.StatusOK, Cleared{there}, s.alarms.signals.Clear(r.Context(), target, source)
}
