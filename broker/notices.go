package broker

import (
	"sync/atomic"
	"time"

	"github.com/penstockmq/penstock/broker/dispatch"
)

// notices carries what OnRelease and OnDiscard are told from the owner loops and the
// polls to the one goroutine that calls them. Nobody waits for it: what finds the queue
// full is dropped and counted.
//
// A nil *notices is one that nobody listens to; all its methods do nothing.
type notices struct {
	// Immutable after newNotices.
	onRelease func(Released)
	onDiscard func(Discarded)
	dropped   *atomic.Int64
	queue     chan notice
	stop      chan struct{}
	ended     chan struct{}

	// snapshots counts those that wait in the queue.
	snapshots atomic.Int64

	// until is when Close has waited long enough; zero before it. Owned by run.
	until time.Time
	// running are the deliveries that OnRelease was told of and that have not ended.
	// Owned by run.
	running map[place]Released
}

// place names a message of a group.
type place struct {
	group  dispatch.GroupID
	bucket dispatch.BucketID
	offset dispatch.Offset
}

// notice is something to tell.
type notice interface {
	tell(n *notices)
	// count is how many messages it is about.
	count() int64
}

const (
	// maxRunning bounds the deliveries that are followed to their end.
	maxRunning = 1 << 20
	// closeWait is how long Close goes on telling what was queued.
	closeWait = 5 * time.Second
)

func newNotices(o Options, dropped *atomic.Int64) *notices {
	if o.OnRelease == nil && o.OnDiscard == nil {
		return nil
	}
	return &notices{
		onRelease: o.OnRelease, onDiscard: o.OnDiscard, dropped: dropped,
		queue: make(chan notice, o.MaxNotices), stop: make(chan struct{}), ended: make(chan struct{}),
		running: map[place]Released{},
	}
}

// run tells until close; then, for a while, what was queued before. Its owner is the
// Broker, whose Close waits for it.
func (n *notices) run() {
	if n == nil {
		return
	}
	defer close(n.ended)
	for {
		select {
		case x := <-n.queue:
			x.tell(n)
		case <-n.stop:
			n.drain()
			return
		}
	}
}

// drain empties the queue, and tells as long as there is time.
func (n *notices) drain() {
	for {
		select {
		case x := <-n.queue:
			x.tell(n)
		default:
			return
		}
	}
}

// over is whether what is queued is to be dropped: the broker closes, and has waited.
func (n *notices) over() bool {
	select {
	case <-n.stop:
	default:
		return false
	}
	if n.until.IsZero() {
		n.until = time.Now().Add(closeWait)
	}
	return time.Now().After(n.until)
}

// discard tells OnDiscard of one message.
func (n *notices) discard(d Discarded) {
	if n.over() {
		n.dropped.Add(1)
		return
	}
	n.onDiscard(d)
}

// release tells OnRelease of one delivery.
func (n *notices) release(r Released) {
	if n.over() {
		n.dropped.Add(1)
		return
	}
	n.onRelease(r)
}

// close ends run and waits for it. The loops have ended: nothing is queued any more
// but what a poll reads that was under way.
func (n *notices) close() {
	if n == nil {
		return
	}
	close(n.stop)
	<-n.ended
}

func (n *notices) put(x notice) bool {
	select {
	case n.queue <- x:
		return true
	default:
		n.dropped.Add(x.count())
		return false
	}
}

func (n *notices) wantsDiscards() bool { return n != nil && n.onDiscard != nil }

func (n *notices) wantsReleases() bool { return n != nil && n.onRelease != nil }
