package chaos

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// rule names a promise that a finding breaks.
type rule string

const (
	ruleLost    rule = "lost"    // acknowledged, and neither answered nor ended
	ruleTwice   rule = "twice"   // run or delivered again after it had ended
	ruleOverlap rule = "overlap" // run or delivered again while the first may still run
	ruleHang    rule = "hang"    // a caller waited beyond its time-out
	ruleReason  rule = "reason"  // ended without a code
	ruleWrong   rule = "wrong"   // an answer that belongs to another request, or that is cut without an error
	ruleEarly   rule = "early"   // run before its hold ended
	ruleLimit   rule = "limit"   // more than a limit lets through
	ruleNobody  rule = "nobody"  // the model wrote an answer without a reader
	ruleState   rule = "state"   // the program's own report is untrue: a hold or a policy is gone, messages are left
)

// finding is one broken promise.
type finding struct {
	rule   rule
	name   string // of the request, message, column or process
	detail string
}

func (f finding) String() string { return fmt.Sprintf("%s: %s: %s", f.rule, f.name, f.detail) }

// request is the history of one HTTP request. Its name is unique and is the prompt, which the model repeats.
type request struct {
	name, column string
	began        time.Time
	async        bool      // asked for with Prefer: respond-async
	accepted     bool      // answered 202
	firstByte    time.Time // zero: the caller saw no byte of a streamed answer
	ended        time.Time // the caller saw the outcome; zero: it has not
	outcome      outcome
	detail       string    // of the outcome
	notBefore    time.Time // the end of a hold on its column; zero: none
	calls        []*call   // of the model, in the order in which they began
}

// outcome is how a request ended for its caller.
type outcome string

const (
	outcomeOpen     outcome = ""         // it did not
	outcomeAnswered outcome = "answered" // with its own answer, whole
	outcomeRefused  outcome = "refused"  // with an error that has a code
	outcomeCut      outcome = "cut"      // the connection ended first
	outcomeHung     outcome = "hung"     // the caller gave up after its patience
	outcomeWrong    outcome = "wrong"    // with an answer that is not its own or not whole
	outcomeNoReason outcome = "no reason"
	outcomeLeft     outcome = "left" // the caller went away on purpose
)

// call is one run of a request at the model.
type call struct {
	began   time.Time
	ended   time.Time // zero: it still runs
	whole   bool      // answered to the end; otherwise its connection ended first
	written int64     // bytes of the answer
}

// message is the history of one RocketMQ message.
type message struct {
	id         string
	sent       bool // its send was answered OK
	deliveries []delivery
	acked      time.Time // an ack was answered OK; zero: none
	maybeAcked bool      // the answer of an ack was lost: the message may come again or not
}

// delivery is one receipt of a message: its lease began at asked at the earliest.
type delivery struct{ asked, received time.Time }

// limit is a limit of a column: the calls at once, or the calls a second with a burst.
type limit struct {
	inFlight  int
	perSecond float64
	burst     int
}

// span is a stretch of time.
type span struct{ from, to time.Time }

func (s span) meets(from, to time.Time) bool { return !from.After(s.to) && !to.Before(s.from) }

// history is everything that clients and the model saw in one run.
type history struct {
	lease        time.Duration // of a request
	messageLease time.Duration
	requests     map[string]*request
	messages     map[string]*message
	limits       map[string]limit // by column
	// stalled are the times in which a pool was stopped while its broker ran: its leases end, so that its requests may run
	// elsewhere although their first calls are still open.
	stalled []span
	// unread bounds the bytes of an answer whose caller does not read, 0: no caller did that.
	unread int64
}

// closing is the longest time after which the end of a connection is known at its other end. An aborted call counts as
// running until that long before the end that the model saw.
const closing = time.Second

// judge returns all broken promises of a run that is over, in the order of their names.
func judge(h history) []finding {
	var found []finding
	for _, name := range slices.Sorted(maps.Keys(h.requests)) {
		found = append(found, judgeRequest(h, h.requests[name])...)
	}
	for _, id := range slices.Sorted(maps.Keys(h.messages)) {
		found = append(found, judgeMessage(h, h.messages[id])...)
	}
	for _, column := range slices.Sorted(maps.Keys(h.limits)) {
		found = append(found, judgeLimit(h, column, h.limits[column])...)
	}
	return found
}

func judgeRequest(h history, r *request) (found []finding) {
	add := func(rule rule, format string, args ...any) {
		found = append(found, finding{rule, r.name, fmt.Sprintf(format, args...) + r.story()})
	}
	switch r.outcome {
	case outcomeOpen:
		if r.accepted {
			add(ruleLost, "accepted, and not ended: %s", r.detail)
		} else {
			add(ruleHang, "its caller got no outcome")
		}
	case outcomeHung:
		add(ruleHang, "%s", r.detail)
	case outcomeWrong:
		add(ruleWrong, "%s", r.detail)
	case outcomeNoReason:
		add(ruleReason, "%s", r.detail)
	case outcomeCut:
		if r.accepted {
			add(ruleLost, "accepted, and its outcome cannot be read: %s", r.detail)
		}
	case outcomeAnswered:
		if len(r.calls) == 0 {
			add(ruleWrong, "answered without a call of the model")
		}
	case outcomeLeft:
		for _, c := range r.calls {
			if h.unread > 0 && c.written > h.unread {
				add(ruleNobody, "the model wrote %d bytes that its caller did not read, over %d", c.written, h.unread)
			}
		}
	case outcomeRefused:
	}
	for i, c := range r.calls {
		if c.began.Before(r.notBefore) {
			add(ruleEarly, "called %v before its hold ended", r.notBefore.Sub(c.began))
		}
		grace := r.grace()
		if i > 0 && h.mayOverlap(r.calls[i-1], c) { // the answer of the first and the second call crossed
			grace = closing
		}
		over := !r.ended.IsZero() && !r.mayRunUnseen() && c.began.After(r.ended.Add(grace))
		switch {
		case over && i == 0:
			add(ruleNobody, "called %v after its caller saw the outcome %q", c.began.Sub(r.ended), r.outcome)
		case over:
			add(ruleTwice, "called again %v after its caller saw the outcome %q", c.began.Sub(r.ended), r.outcome)
		case i == 0:
		case !r.firstByte.IsZero() && c.began.After(r.firstByte):
			add(ruleTwice, "called again %v after its caller saw the first byte", c.began.Sub(r.firstByte))
		case r.calls[i-1].runsAt(c.began) && !h.mayOverlap(r.calls[i-1], c):
			add(ruleOverlap, "called again %v after the call before, which still ran", c.began.Sub(r.calls[i-1].began))
		}
	}
	return found
}

// grace is how long after its outcome a request may still be called: the news of a caller that left is on its way for a
// moment, an answer is not.
func (r *request) grace() time.Duration {
	if r.outcome == outcomeAnswered {
		return 0
	}
	return closing
}

// mayRunUnseen says whether the request may have been accepted without its caller's knowledge.
func (r *request) mayRunUnseen() bool { return r.async && !r.accepted && r.outcome == outcomeCut }

func (c *call) runsAt(t time.Time) bool { return c.last().After(t) }

// last is the instant until which the call runs for sure.
func (c *call) last() time.Time {
	switch {
	case c.ended.IsZero():
		return time.Unix(1<<40, 0)
	case c.whole:
		return c.ended
	}
	return c.ended.Add(-closing)
}

// clockFormat is how instants of a run are printed.
const clockFormat = "15:04:05.000"

// story lists the instants of a request, to find it in the logs.
func (r *request) story() string {
	at := func(t time.Time) string {
		if t.IsZero() {
			return "-"
		}
		return t.UTC().Format(clockFormat)
	}
	var b strings.Builder
	fmt.Fprintf(&b, " (column %s, asked at %s, ended at %s", r.column, at(r.began), at(r.ended))
	for _, c := range r.calls {
		fmt.Fprintf(&b, ", call %s to %s whole %v", at(c.began), at(c.ended), c.whole)
	}
	return b.String() + ")"
}

// mayOverlap says whether the lease of the first call ended because its pool was stopped.
func (h history) mayOverlap(first, second *call) bool {
	return slices.ContainsFunc(h.stalled, func(s span) bool {
		return s.meets(first.began, second.began) && second.began.Sub(first.began) >= h.lease
	})
}

// open says whether a message must come again.
func (m *message) open() bool { return len(m.deliveries) > 0 && m.acked.IsZero() && !m.maybeAcked }

func judgeMessage(h history, m *message) (found []finding) {
	add := func(rule rule, format string, args ...any) {
		found = append(found, finding{rule, m.id, fmt.Sprintf(format, args...)})
	}
	if m.sent && len(m.deliveries) == 0 {
		add(ruleLost, "its send was answered OK, and it was not delivered")
	}
	if m.open() {
		add(ruleLost, "delivered %d times, and never acked", len(m.deliveries))
	}
	for i, d := range m.deliveries {
		if !m.acked.IsZero() && d.received.After(m.acked) {
			add(ruleTwice, "delivered %v after its ack was answered OK", d.received.Sub(m.acked))
		} else if i > 0 {
			if gap := d.received.Sub(m.deliveries[i-1].asked); gap < h.messageLease {
				add(ruleOverlap, "delivered again after %v, its lease is %v", gap, h.messageLease)
			}
		}
	}
	return found
}

// judgeLimit looks at all calls of a column. A rate is judged over the whole run: on their way from the broker to the
// model calls may be held up and then arrive together.
func judgeLimit(h history, column string, l limit) []finding {
	var calls []*call
	for _, r := range h.requests {
		if r.column == column {
			calls = append(calls, r.calls...)
		}
	}
	if len(calls) == 0 {
		return []finding{{ruleLimit, column, "no call: the limit was not tried"}}
	}
	slices.SortFunc(calls, func(a, b *call) int { return a.began.Compare(b.began) })
	var found []finding
	if l.perSecond > 0 {
		took := calls[len(calls)-1].began.Sub(calls[0].began)
		if most := float64(l.burst) + took.Seconds()*l.perSecond; float64(len(calls)) > most+1 {
			found = append(found, finding{ruleLimit, column, fmt.Sprintf("%d calls in %v, over %.1f", len(calls), took, most)})
		}
	}
	if l.inFlight > 0 {
		if n, at := mostAtOnce(h, calls); n > l.inFlight {
			found = append(found, finding{ruleLimit, column, fmt.Sprintf("%d calls at once at %v, over %d", n, at.Format(time.TimeOnly), l.inFlight)})
		}
	}
	return found
}

// mostAtOnce counts calls that are open at the same time. A call that was open while its pool was stopped has a lease
// that ended, so that it has no place any more.
func mostAtOnce(h history, calls []*call) (most int, at time.Time) {
	type edge struct {
		at time.Time
		by int
	}
	var edges []edge
	for _, c := range calls {
		last := c.last()
		outlived := slices.ContainsFunc(h.stalled, func(s span) bool { return s.meets(c.began, last) })
		if outlived || !last.After(c.began) {
			continue
		}
		edges = append(edges, edge{c.began, 1}, edge{last, -1})
	}
	slices.SortFunc(edges, func(a, b edge) int { return cmp.Or(a.at.Compare(b.at), cmp.Compare(a.by, b.by)) })
	open := 0
	for _, e := range edges {
		if open += e.by; open > most {
			most, at = open, e.at
		}
	}
	return most, at
}
