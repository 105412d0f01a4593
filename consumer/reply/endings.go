package reply

import (
	"net/http"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

const (
	// endingsKept is how long an ending is remembered: as long as bytes may have been on their way into a connection that
	// was dead already.
	endingsKept = 10 * time.Second
	// endingsMax bounds their number; the oldest go first.
	endingsMax = 1 << 15
)

// endingRepeats are the times after a reconnect at which endings are published again. The gateway lost the same server and
// comes back when its own turn is, so once is not enough; an ending that it knows of changes nothing.
var endingRepeats = [...]time.Duration{0, time.Second, 3 * time.Second, 10 * time.Second, 30 * time.Second} // never written to

// Endings remembers how requests ended a moment ago, for the case that the last frame of an answer is lost with a dying
// connection: no later frame would show the gap, and the caller would wait for its deadline. After a reconnect it publishes
// a failure behind each answer that ended shortly before or during the outage. A reader that has the end ignores it; one that
// does not hears that the answer was lost.
//
// NATS delivers at most once, so the alternative is an acknowledgement of every answer, which would cost each request a
// round trip for the sake of a server that dies.
type Endings struct {
	nc     *nats.Conn
	status chan nats.Status
	stop   chan struct{}
	watch  sync.WaitGroup // the goroutine of run; ends on stop, Close waits for it

	mu     sync.Mutex // guards the following fields; nothing is published under it
	recent []ending   // by time
	closed bool
}

type ending struct {
	subject string
	attempt int
	seq     uint64 // of a frame after the last one
	at      time.Time
}

// NewEndings watches nc. The caller keeps nc open until after Close.
func NewEndings(nc *nats.Conn) *Endings {
	e := &Endings{nc: nc, stop: make(chan struct{}), status: nc.StatusChanged(nats.RECONNECTING, nats.CONNECTED)}
	e.watch.Go(e.run)
	return e
}

// Close ends the watch. It may be called twice.
func (e *Endings) Close() {
	e.mu.Lock()
	closed := e.closed
	e.closed = true
	e.mu.Unlock()
	if closed {
		return
	}
	close(e.stop)
	e.watch.Wait()
	e.nc.RemoveStatusListener(e.status)
}

// note remembers an ending.
func (e *Endings) note(n ending) {
	e.mu.Lock()
	defer e.mu.Unlock()
	old := 0
	for old < len(e.recent) && (n.at.Sub(e.recent[old].at) > endingsKept || len(e.recent)-old >= endingsMax) {
		old++
	}
	// What is cut off in front is given back when append moves the rest.
	e.recent = append(e.recent[old:], n)
}

// since are the endings from an instant on.
func (e *Endings) since(at time.Time) []ending {
	e.mu.Lock()
	defer e.mu.Unlock()
	var out []ending
	for _, n := range e.recent {
		if !n.at.Before(at) {
			out = append(out, n)
		}
	}
	return out
}

func (e *Endings) run() {
	var lost []ending
	var from time.Time // of the outage; zero: there is none
	repeat := time.NewTimer(time.Hour)
	defer repeat.Stop()
	var due []time.Duration
	for {
		select {
		case <-e.stop:
			return
		case s := <-e.status:
			if s == nats.RECONNECTING && from.IsZero() {
				from = time.Now()
			}
			if s != nats.CONNECTED || from.IsZero() {
				continue
			}
			lost = e.since(from.Add(-endingsKept))
			from, due = time.Time{}, endingRepeats[:]
			repeat.Reset(due[0])
		case <-repeat.C:
			e.publish(lost)
			if due = due[min(1, len(due)):]; len(due) == 0 {
				lost = nil
				continue
			}
			repeat.Reset(due[0] - endingRepeats[len(endingRepeats)-len(due)-1])
		}
	}
}

// publish tells readers that their answer was lost. An error means that the connection is gone again; the next reconnect
// begins anew.
func (e *Endings) publish(lost []ending) {
	for _, n := range lost {
		m, err := encode(n.subject, n.seq, Frame{Kind: Error, Attempt: n.attempt, Failure: Failure{
			Status: http.StatusBadGateway, Code: CodeReplyLost, Message: "the answer was lost with the connection between the worker and the gateway",
		}})
		if err == nil {
			_ = e.nc.PublishMsg(m)
		}
	}
}

// Remember lets e know how the answer of w ends. Nil does nothing.
func (w *Writer) Remember(e *Endings) { w.endings = e }

// ended notes the end of the answer, also if it could not be published.
func (w *Writer) ended() {
	if w.endings != nil && w.subject != "" {
		w.endings.note(ending{subject: w.subject, attempt: w.attempt, seq: w.seq, at: time.Now()})
	}
}
