package reply

import "time"

const (
	// linkStart is the window of a link of which nothing is known: a server that gives one write 10 s, as NATS does, gets
	// it over a link of 0.4 MB/s in time.
	linkStart = 4 << 20
	// linkMin is the least window of a link that is slow.
	linkMin = 64 << 10
	// windowMin is the least window of a stream, so that each goes on, however many there are.
	windowMin = 1 << 10

	// linkEvery is how often the delay of the link is measured while answers are under way.
	linkEvery = 500 * time.Millisecond
	// linkSlow is the delay from which on the window shrinks; no answer to a measurement for that long is one.
	linkSlow = time.Second
	// linkQuick is the delay below which the window may grow.
	linkQuick = 100 * time.Millisecond
)

// link decides how many bytes of answers may be on their way from the NATS server to the gateway. The server cuts a client
// that does not take what is queued for it within the write deadline, or when more than the pending limit is queued; then
// every answer of the gateway is lost. So the queue is kept short: its delay is measured, and the window of all streams
// together is halved while the delay is long and doubled while it is short and the window is in use. It is pure.
type link struct {
	bytes int64 // the window
	most  int64
}

// measured takes in one measurement: the delay of the link, and the bytes of answers that came since the one before.
func (l *link) measured(delay time.Duration, carried int64) {
	switch {
	case delay >= linkSlow:
		l.bytes = max(l.bytes/2, min(linkMin, l.most))
	case delay < linkQuick && carried >= l.bytes/2:
		l.bytes = min(l.bytes*2, l.most)
	}
}

// idle forgets that the link was fast: it may have changed since answers were under way.
func (l *link) idle() { l.bytes = min(l.bytes, linkStart) }

// share is the window of one of n streams.
func share(window int64, n int64, most int64) int64 {
	return max(min(window/max(n, 1), most), min(windowMin, most))
}
