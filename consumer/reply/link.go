package reply

import "time"

const (
	// linkStart is the window of a link that was not measured yet. NATS allows 10 s for one write, and a link of 0.4 MB/s
	// takes linkStart in that time.
	linkStart = 4 << 20
	// linkMin is the smallest window of a slow link.
	linkMin = 64 << 10
	// windowMin is the smallest window of a stream, so that each stream makes progress, however many there are.
	windowMin = 1 << 10

	// linkEvery is how often the delay of the link is measured while answers are under way.
	linkEvery = 500 * time.Millisecond
	// linkSlow is the delay from which on the window shrinks; a measurement without an answer for that long counts as slow.
	linkSlow = time.Second
	// linkQuick is the delay below which the window may grow.
	linkQuick = 100 * time.Millisecond
)

// link decides how many bytes of answers may be on their way from the NATS server to the gateway. The server cuts a client
// that does not take its queue within the write deadline, or whose queue exceeds the pending limit; then every answer of
// the gateway is lost. So the queue is kept short: its delay is measured, and the window of all streams together is halved
// while the delay is long, and doubled while the delay is short and the window is in use. It is pure.
type link struct {
	bytes int64 // the window
	most  int64
}

// measured applies one measurement: the delay of the link, and the bytes of answers since the previous measurement.
func (l *link) measured(delay time.Duration, carried int64) {
	switch {
	case delay >= linkSlow:
		l.bytes = max(l.bytes/2, min(linkMin, l.most))
	case delay < linkQuick && carried >= l.bytes/2:
		l.bytes = min(l.bytes*2, l.most)
	}
}

// idle drops the window of a fast link: the link may have changed since the last answer.
func (l *link) idle() { l.bytes = min(l.bytes, linkStart) }

// share returns the window of one of n streams.
func share(window int64, n int64, most int64) int64 {
	return max(min(window/max(n, 1), most), min(windowMin, most))
}
