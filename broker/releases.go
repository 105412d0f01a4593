package broker

import (
	"time"

	"github.com/penstockmq/penstock/broker/dispatch"
	"github.com/penstockmq/penstock/broker/store"
	"github.com/penstockmq/penstock/suspend/quota"
)

// releaseNotice is a delivery that begins.
type releaseNotice struct {
	place place
	r     Released
}

func (x releaseNotice) tell(n *notices) {
	if len(n.running) < maxRunning {
		n.running[x.place] = x.r
	}
	n.release(x.r)
}

func (x releaseNotice) count() int64 { return 1 }

// released tells of a delivery, in the goroutine of its poll.
func (o *owner) released(now time.Time, it *pulledItem, m *store.Message) {
	if !o.notices.wantsReleases() {
		return
	}
	c := messageCost(m, len(m.Body))
	h := it.Handle
	o.notices.put(releaseNotice{place{h.Group, h.Bucket, h.Offset}, Released{
		Topic: o.name, Group: it.group, Lite: it.Name, Cell: it.Cell, Level: stampedLevel(m),
		Offset: uint64(h.Offset), Attempt: int(it.Attempt),
		Cost:   quota.Cost{Requests: c.Requests, Tokens: c.Input + c.MaxOutput, Output: c.MaxOutput, BytesIn: c.Bytes},
		Stored: m.Stored, At: now,
	}})
}

// endNotice is a delivery that ended. Only the first of a place counts: an ack comes
// with the end of its lease behind it.
type endNotice struct {
	place   place
	at      time.Time
	settled bool
	used    quota.Settlement // what its worker said; zero if nobody said anything
}

func (x endNotice) tell(n *notices) {
	r, ok := n.running[x.place]
	if !ok {
		return
	}
	delete(n.running, x.place)
	r.Ended, r.Settled, r.Used = x.at, x.settled, x.used
	n.release(r)
}

func (x endNotice) count() int64 { return 1 }

// ended tells that a delivery is over.
func (o *owner) ended(now time.Time, g dispatch.GroupID, b dispatch.BucketID, off dispatch.Offset, settled bool, used quota.Settlement) {
	if o.notices.wantsReleases() {
		o.notices.put(endNotice{place{g, b, off}, now, settled, used})
	}
}
