package chaos

import (
	"slices"
	"testing"
	"time"
)

// TestCheckerFindsEachBrokenPromise feeds the checker with one broken promise at a time, and with its harmless neighbour.
func TestCheckerFindsEachBrokenPromise(t *testing.T) {
	t0 := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	at := func(seconds float64) time.Time { return t0.Add(time.Duration(seconds * float64(time.Second))) }
	whole := func(from, to float64) *call { return &call{began: at(from), ended: at(to), whole: true} }
	aborted := func(from, to float64) *call { return &call{began: at(from), ended: at(to)} }
	answered := func(end float64, calls ...*call) *request {
		return &request{name: "r", column: "c", began: at(0), outcome: outcomeAnswered, ended: at(end), calls: calls}
	}
	one := func(r *request) history {
		r.name, r.column = "r", "c"
		return history{lease: 4 * time.Second, requests: map[string]*request{"r": r}}
	}
	mail := func(m *message) history {
		m.id = "m"
		return history{messageLease: 4 * time.Second, messages: map[string]*message{"m": m}}
	}
	bounded := func(l limit, calls ...*call) history {
		h := one(answered(100, calls[0]))
		for _, c := range calls[1:] {
			name := c.began.String()
			h.requests[name] = &request{name: name, column: "c", outcome: outcomeAnswered, ended: at(100), calls: []*call{c}}
		}
		h.limits = map[string]limit{"c": l}
		return h
	}
	stalled := func(h history, from, to float64) history {
		h.stalled = []span{{at(from), at(to)}}
		return h
	}

	for _, c := range []struct {
		name string
		h    history
		want []rule
	}{
		{"answered once", one(answered(2, whole(0, 1))), nil},
		{"accepted and never ended", one(&request{accepted: true}), []rule{ruleLost}},
		{"accepted and gone", one(&request{accepted: true, outcome: outcomeCut, ended: at(1)}), []rule{ruleLost}},
		{"accepted and ended with a code", one(&request{accepted: true, outcome: outcomeRefused, ended: at(1)}), nil},
		{"accepted and ended without a code", one(&request{accepted: true, outcome: outcomeNoReason, ended: at(1)}), []rule{ruleReason}},
		{"a connection that is cut", one(&request{outcome: outcomeCut, ended: at(1)}), nil},
		{"a caller without an outcome", one(&request{}), []rule{ruleHang}},
		{"a caller beyond its patience", one(&request{outcome: outcomeHung, ended: at(60)}), []rule{ruleHang}},
		{"the answer of another request", one(&request{outcome: outcomeWrong, ended: at(1), calls: []*call{whole(0, 1)}}), []rule{ruleWrong}},
		{"answered by no model", one(answered(1)), []rule{ruleWrong}},

		{"run again after its pool was killed", one(answered(9, aborted(0, 2), whole(5, 6))), nil},
		{"run again after its outcome was seen", one(answered(2, whole(0, 1), whole(5, 6))), []rule{ruleTwice}},
		{"run after a post without an answer", one(&request{async: true, outcome: outcomeCut, ended: at(1), calls: []*call{whole(3, 4)}}), nil},
		{"run twice when its pool goes on", stalled(one(answered(30, whole(6.1, 7), whole(6.2, 7))), 1, 6), []rule{ruleOverlap}},
		{"run twice when its pool goes on after less than a lease", stalled(one(answered(30, whole(4.1, 5), whole(4.2, 5))), 1, 4), []rule{ruleOverlap}},
		{"run for the first time after its caller left", one(&request{outcome: outcomeCut, ended: at(1), calls: []*call{whole(3, 4)}}), []rule{ruleNobody}},
		{"run again after its caller left", one(&request{outcome: outcomeLeft, ended: at(1), calls: []*call{aborted(0, 1), whole(3, 4)}}), []rule{ruleTwice}},
		{"run just as its caller left", one(&request{outcome: outcomeLeft, ended: at(1), calls: []*call{whole(1.5, 4)}}), nil},
		{
			"run again after a byte was seen",
			one(&request{outcome: outcomeCut, ended: at(9), firstByte: at(1), calls: []*call{aborted(0, 2), whole(5, 6)}}),
			[]rule{ruleTwice},
		},
		{"run again while it runs", one(answered(9, whole(0, 6), whole(5, 7))), []rule{ruleOverlap}},
		{"run again while the first never ends", one(answered(9, &call{began: at(0)}, whole(5, 6))), []rule{ruleOverlap}},
		{"run again just as its connection ended", one(answered(9, aborted(0, 5.5), whole(5, 6))), nil},
		{"run again since its pool was stopped", stalled(one(answered(9, whole(0, 6), whole(5, 7))), 1, 6), nil},
		{"run again before the lease of a stopped pool ended", stalled(one(answered(9, whole(0, 6), whole(3, 7))), 1, 6), []rule{ruleOverlap}},
		{"run again after a pool was stopped before", stalled(one(answered(30, whole(10, 16), whole(15, 17))), 1, 6), []rule{ruleOverlap}},

		{"run after its hold", one(&request{outcome: outcomeAnswered, ended: at(9), notBefore: at(3), calls: []*call{whole(3, 4)}}), nil},
		{"run before its hold ended", one(&request{outcome: outcomeAnswered, ended: at(9), notBefore: at(3), calls: []*call{whole(2.9, 4)}}), []rule{ruleEarly}},

		{"delivered and acked", mail(&message{sent: true, acked: at(2), deliveries: []delivery{{at(0), at(1)}}}), nil},
		{"sent and not delivered", mail(&message{sent: true}), []rule{ruleLost}},
		{"not acknowledged and not delivered", mail(&message{}), nil},
		{"delivered and never acked", mail(&message{sent: true, deliveries: []delivery{{at(0), at(1)}}}), []rule{ruleLost}},
		{"delivered, and the answer of the ack is lost", mail(&message{sent: true, maybeAcked: true, deliveries: []delivery{{at(0), at(1)}}}), nil},
		{"delivered again after the ack", mail(&message{sent: true, acked: at(2), deliveries: []delivery{{at(0), at(1)}, {at(8), at(9)}}}), []rule{ruleTwice}},
		{"delivered again after the lease", mail(&message{sent: true, acked: at(9), deliveries: []delivery{{at(0), at(1)}, {at(1), at(5)}}}), nil},
		{"delivered again in the lease", mail(&message{sent: true, acked: at(9), deliveries: []delivery{{at(0), at(1)}, {at(1), at(3)}}}), []rule{ruleOverlap}},

		{"two at once", bounded(limit{inFlight: 2}, whole(0, 2), whole(1, 3), whole(2, 4)), nil},
		{"three at once", bounded(limit{inFlight: 2}, whole(0, 2), whole(1, 3), whole(1.5, 4)), []rule{ruleLimit}},
		{"three at once since a pool was stopped", stalled(bounded(limit{inFlight: 2}, whole(0, 2), whole(1, 3), whole(1.5, 4)), 0, 1), nil},
		{"a rate that is kept", bounded(limit{perSecond: 1, burst: 1}, whole(0, 1), whole(1, 2), whole(2, 3)), nil},
		{"a rate that is exceeded", bounded(limit{perSecond: 1, burst: 1}, whole(0, 1), whole(0.1, 2), whole(0.2, 3), whole(0.3, 1)), []rule{ruleLimit}},
		{"a limit that was not tried", history{limits: map[string]limit{"c": {inFlight: 1}}}, []rule{ruleLimit}},

		{"an answer that nobody reads", func() history {
			h := one(&request{outcome: outcomeLeft, ended: at(1), calls: []*call{{began: at(0), ended: at(1), written: 100}}})
			h.unread = 10
			return h
		}(), []rule{ruleNobody}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var got []rule
			for _, f := range judge(c.h) {
				got = append(got, f.rule)
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("found %v, want %v: %v", got, c.want, judge(c.h))
			}
		})
	}
}
