package admin

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/penstockmq/penstock/suspend"
)

// Suspend is a hold of a bucket, row, column, level or everything in one group.
type Suspend struct {
	Scope string `json:"scope"`
	// Name is the bucket, the user, the model or the level; empty for scope "all".
	Name   string    `json:"name"`
	Until  time.Time `json:"until"`
	By     string    `json:"by,omitempty"`
	Reason string    `json:"reason,omitempty"`
}

// Suspends is the answer to a list of them.
type Suspends struct {
	Suspends []Suspend `json:"suspends"`
	// Truncated says that there are more than were listed.
	Truncated bool `json:"truncated,omitempty"`
}

// SetSuspend is the body that sets a hold: until an instant, or for a duration from now.
type SetSuspend struct {
	Scope    string    `json:"scope"`
	Name     string    `json:"name"`
	Until    time.Time `json:"until,omitzero"`
	Duration *Duration `json:"duration,omitempty"`
	// Reason is for people: at most 255 bytes, no control characters. So is By, "operator" when empty.
	Reason string `json:"reason,omitempty"`
	By     string `json:"by,omitempty"`
}

// Lifted says whether there was something to lift.
type Lifted struct {
	Lifted bool `json:"lifted"`
}

// byOperator is who sets a hold over this API and does not say.
const byOperator = "operator"

func suspendOf(h suspend.Hold) Suspend {
	return Suspend{Scope: h.Target.Scope.String(), Name: h.Target.Name, Until: h.Until.UTC(), By: h.By, Reason: h.Reason}
}

func (s *Server) listSuspends(r *http.Request) (int, any, error) {
	q, err := parameters(r, "scope", "prefix", "limit")
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
	holds, err := s.broker.Holds(r.Context(), r.PathValue("group"), q.Get("prefix"), maxHolds)
	if err != nil {
		return 0, nil, err
	}
	out := Suspends{Suspends: []Suspend{}, Truncated: len(holds) == maxHolds}
	if scope != "" {
		holds = slices.DeleteFunc(holds, func(h suspend.Hold) bool { return h.Target.Scope.String() != scope })
	}
	// The soonest to end first: that is what changes next.
	slices.SortFunc(holds, func(a, b suspend.Hold) int {
		return cmp.Or(a.Until.Compare(b.Until), cmp.Compare(a.Target.Name, b.Target.Name))
	})
	if len(holds) > limit {
		holds, out.Truncated = holds[:limit], true
	}
	for _, h := range holds {
		out.Suspends = append(out.Suspends, suspendOf(h))
	}
	return http.StatusOK, out, nil
}

// maxHolds bounds what is looked at for one list: the broker has no order of holds to
// page by, and may have a million. A prefix narrows the search.
const maxHolds = 10_000

func (s *Server) setSuspend(r *http.Request) (int, any, error) {
	var body SetSuspend
	if err := decode(r, &body); err != nil {
		return 0, nil, err
	}
	h, err := body.hold(time.Now().Round(0))
	if err != nil {
		return 0, nil, err
	}
	if err := s.broker.SetHold(r.Context(), r.PathValue("group"), h); err != nil {
		return 0, nil, err
	}
	return http.StatusOK, suspendOf(h), nil
}

func (b SetSuspend) hold(now time.Time) (suspend.Hold, error) {
	target, err := targetOf(b.Scope, b.Name)
	if err != nil {
		return suspend.Hold{}, err
	}
	if err := cmp.Or(checkNote("reason", b.Reason), checkNote("by", b.By)); err != nil {
		return suspend.Hold{}, err
	}
	h := suspend.Hold{Target: target, Until: b.Until, By: cmp.Or(b.By, byOperator), Reason: b.Reason}
	switch {
	case (b.Duration == nil) == b.Until.IsZero():
		return suspend.Hold{}, inField("duration", fmt.Errorf("%w: want exactly one of until and duration", errBody))
	case b.Duration == nil:
		return h, nil
	}
	d := time.Duration(*b.Duration)
	if d < 0 {
		return suspend.Hold{}, inField("duration", fmt.Errorf("%w: %v", suspend.ErrNegative, d))
	}
	h.Until = now.Add(d)
	return h, nil
}

func (s *Server) liftSuspend(r *http.Request) (int, any, error) {
	q, err := parameters(r, "scope", "name")
	if err != nil {
		return 0, nil, err
	}
	target, err := targetOf(q.Get("scope"), q.Get("name"))
	if err != nil {
		return 0, nil, err
	}
	lifted, err := s.broker.LiftHold(r.Context(), r.PathValue("group"), target)
	return http.StatusOK, Lifted{lifted}, err
}
