package node

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstockmq/penstock/broker"
	"github.com/penstockmq/penstock/consumer/reply"
)

// teller tells callers that the broker has given up their request: purged, expired, or tried too often. They would wait for
// their deadline otherwise.
//
// The broker calls discarded on one goroutine and keeps a snapshot of its store until all notices of a purge were delivered. So
// discarded only publishes a frame for a waiting caller, and queues the end of a record; several goroutines write these ends.
// While they make progress, discarded waits for room in the queue; while NATS is unreachable or slow, a notice that finds the
// queue full is dropped and counted: its record expires at its deadline.
type teller struct {
	// Immutable after newTeller.
	records func(ctx context.Context, id string, f reply.Failure) error // ends the record of an asynchronous request
	frames  func(r reply.Request, f reply.Failure) error                // notifies a caller that waits on a connection
	log     *slog.Logger
	queue   chan notice
	stopped context.Context // ends at the end of close's wait
	stop    context.CancelFunc
	tellers sync.WaitGroup // the goroutines end when the queue is closed and empty, or with stopped

	away   atomic.Bool  // the latest attempt to end a record failed
	untold atomic.Int64 // callers that were not notified
	logged atomic.Int64 // Unix seconds of the latest log line about untold
}

// notice is the end of one asynchronous request.
type notice struct {
	id      string
	failure reply.Failure
	until   time.Time // instant at which the record expires by itself
}

const (
	// tellMax bounds one attempt to notify one caller.
	tellMax = 2 * time.Second
	// tellAgain is the pause before another attempt.
	tellAgain = time.Second
	// tellFor bounds the attempts for a request without a deadline.
	tellFor = time.Hour
	// tellers is the number of goroutines that notify, tellQueue the number of notices that may wait for them.
	tellers   = 16
	tellQueue = 1 << 16
	// tellRoom is the pause between two checks of the tellers' progress while discarded waits for room.
	tellRoom = 250 * time.Millisecond
	// tellClose bounds the time for which close continues to notify.
	tellClose = 5 * time.Second
	// tellLog is the pause between two log lines about callers that were not notified.
	tellLog = 10 * time.Second
)

// startTeller opens the store of asynchronous requests. Without a store only callers that wait on a connection are notified.
func (n *Node) startTeller(ctx context.Context) *teller {
	if n.nats == nil {
		return nil
	}
	t := &teller{
		log: n.log,
		frames: func(r reply.Request, f reply.Failure) error {
			return reply.NewWriter(n.nats, r, maxAttempt).Fail(f)
		},
	}
	requests, err := n.openRequests(ctx)
	if err != nil {
		n.log.Warn("callers of asynchronous requests are not told when the broker gives them up", "error", err)
	} else {
		t.records = func(ctx context.Context, id string, f reply.Failure) error { return requests.Fail(ctx, id, 0, f) }
	}
	t.start()
	n.onClose(core, t.close)
	registerTeller(n.registry, t)
	return t
}

func (t *teller) start() {
	t.queue = make(chan notice, tellQueue)
	t.stopped, t.stop = context.WithCancel(context.Background())
	for range tellers {
		t.tellers.Go(func() {
			for x := range t.queue {
				t.tell(x)
			}
		})
	}
}

// close delivers the queued notices for at most tellClose. REQUIRES: discarded is not called any more.
func (t *teller) close() error {
	close(t.queue)
	defer time.AfterFunc(tellClose, t.stop).Stop()
	t.tellers.Wait()
	t.stop()
	return nil
}

// discarded is the broker's OnDiscard. A nil teller does nothing.
func (t *teller) discarded(d broker.Discarded) {
	if t == nil {
		return
	}
	r, err := reply.FromProperties(d.Message.Properties)
	switch f := failureOf(d); {
	case err != nil: // not sent by a gateway
	case !r.Async && r.Reply != "":
		if err := t.frames(r, f); err != nil {
			t.miss(r.ID, f, err)
		}
	case r.Async && t.records != nil:
		t.enqueue(notice{id: r.ID, failure: f, until: r.Deadline})
	}
}

func (t *teller) enqueue(x notice) {
	if x.until.IsZero() {
		x.until = time.Now().Add(tellFor)
	}
	for {
		select {
		case t.queue <- x:
			return
		default:
		}
		if t.away.Load() {
			t.miss(x.id, x.failure, errTellerFull)
			return
		}
		room := time.NewTimer(tellRoom)
		select {
		case t.queue <- x:
			room.Stop()
			return
		case <-room.C:
		}
	}
}

var errTellerFull = errors.New("too many notices wait while NATS is unreachable")

// tell ends one record, and retries until the record has expired.
func (t *teller) tell(x notice) {
	for {
		err := t.once(x)
		if err == nil || errors.Is(err, reply.ErrFinal) || errors.Is(err, reply.ErrNotFound) {
			t.away.Store(false)
			return
		}
		t.away.Store(true)
		again := time.NewTimer(tellAgain)
		select {
		case <-again.C:
		case <-t.stopped.Done():
			again.Stop()
		}
		if t.stopped.Err() != nil || !time.Now().Before(x.until) {
			t.miss(x.id, x.failure, err)
			return
		}
	}
}

func (t *teller) once(x notice) error {
	ctx, cancel := context.WithTimeout(t.stopped, tellMax)
	defer cancel()
	return t.records(ctx, x.id, x.failure)
}

// miss counts a caller that was not notified, and logs from time to time.
func (t *teller) miss(id string, f reply.Failure, err error) {
	n := t.untold.Add(1)
	last, now := t.logged.Load(), time.Now().Unix()
	if now-last >= int64(tellLog/time.Second) && t.logged.CompareAndSwap(last, now) {
		t.log.Warn("callers were not notified that their requests were given up", "request_id", id,
			"code", f.Code, "error", err, "untold", n)
	}
}

// maxAttempt makes a frame of the broker newer than those of any worker.
const maxAttempt = 1 << 20

func failureOf(d broker.Discarded) reply.Failure {
	switch d.Reason {
	case broker.DiscardPurged:
		return reply.Failure{Status: http.StatusConflict, Code: "request_purged", Message: "an operator removed the request from its queue"}
	case broker.DiscardDeadline, broker.DiscardExpired:
		return reply.Failure{Status: http.StatusGatewayTimeout, Code: "deadline_exceeded", Message: "the request waited too long in its queue"}
	}
	return reply.Failure{Status: http.StatusBadGateway, Code: "request_given_up", Message: "the request was given up: " + d.Reason}
}
