package chaos

import (
	"fmt"
	"sync"
	"time"
)

// journal collects the history of a run from callers, consumers and the model at the same time.
type journal struct {
	mu       sync.Mutex // guards the following fields
	h        history
	accepted []*accepted
	findings []finding // those that were seen during the run
}

func newJournal(lease time.Duration) *journal {
	return &journal{h: history{
		lease: lease, messageLease: messageLease, unread: unreadBytes, limits: map[string]limit{},
		requests: map[string]*request{}, messages: map[string]*message{},
	}}
}

// request notes that a caller asks for a request.
func (j *journal) request(name, column string, notBefore time.Time) *request {
	j.mu.Lock()
	defer j.mu.Unlock()
	r := &request{name: name, column: column, began: time.Now(), notBefore: notBefore}
	j.h.requests[name] = r
	return r
}

// change runs f, which changes the history of a request or message.
func (j *journal) change(f func()) {
	j.mu.Lock()
	defer j.mu.Unlock()
	f()
}

// end records the outcome that the caller of r saw. The first outcome holds.
func (j *journal) end(r *request, o outcome, format string, args ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if r.outcome == outcomeOpen {
		r.ended, r.outcome, r.detail = time.Now(), o, fmt.Sprintf(format, args...)
	}
}

// called notes that the model begins to run a request.
func (j *journal) called(name, column string) *call {
	j.mu.Lock()
	defer j.mu.Unlock()
	c := &call{began: time.Now()}
	r := j.h.requests[name]
	if r == nil {
		r = &request{name: name, column: column, outcome: outcomeWrong, detail: "the model was called for a request that no caller made"}
		j.h.requests[name] = r
	}
	r.calls = append(r.calls, c)
	return c
}

func (j *journal) callEnded(c *call, whole bool, written int64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	c.ended, c.whole, c.written = time.Now(), whole, written
}

// message returns the history of a message. REQUIRES: mu is held.
func (j *journal) message(id string) *message {
	m := j.h.messages[id]
	if m == nil {
		m = &message{id: id}
		j.h.messages[id] = m
	}
	return m
}

// find notes a finding that no history shows.
func (j *journal) find(r rule, name, format string, args ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.findings = append(j.findings, finding{r, name, fmt.Sprintf(format, args...)})
}

// judge returns all findings of the run. REQUIRES: callers and consumers have stopped.
func (j *journal) judge() []finding {
	j.mu.Lock()
	defer j.mu.Unlock()
	return append(j.findings, judge(j.h)...)
}

// tally counts a run for its summary.
type tally struct {
	kills, stops, stalls, damages         int
	requests, accepted, sends, deliveries int
	lost, twice, findings                 int
}

func (t *tally) add(o tally) {
	t.kills += o.kills
	t.stops += o.stops
	t.stalls += o.stalls
	t.damages += o.damages
	t.requests += o.requests
	t.accepted += o.accepted
	t.sends += o.sends
	t.deliveries += o.deliveries
	t.lost += o.lost
	t.twice += o.twice
	t.findings += o.findings
}

func (t tally) String() string {
	return fmt.Sprintf("kills=%d stops=%d stalls=%d damages=%d requests=%d accepted=%d sends=%d deliveries=%d lost=%d twice=%d findings=%d",
		t.kills, t.stops, t.stalls, t.damages, t.requests, t.accepted, t.sends, t.deliveries, t.lost, t.twice, t.findings)
}

// count fills the part of the tally that the history shows.
func (j *journal) count(found []finding) (t tally) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, r := range j.h.requests {
		t.requests++
		if r.accepted {
			t.accepted++
		}
	}
	for _, m := range j.h.messages {
		if m.sent {
			t.sends++
		}
		t.deliveries += len(m.deliveries)
	}
	for _, f := range found {
		t.findings++
		switch f.rule {
		case ruleLost:
			t.lost++
		case ruleTwice, ruleOverlap:
			t.twice++
		default:
		}
	}
	return t
}
