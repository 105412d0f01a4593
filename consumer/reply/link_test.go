package reply

import (
	"strconv"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// On a link of 1 MB/s with twenty fast answers the server cut the gateway, and all answers were lost. The bytes on the way must
// fall to the capacity of the link well within the server's write deadline of 10 s, and stay there.
//
// https://github.com/nats-io/nats.c/issues/317
func TestLinkWindowFollowsTheDelay(t *testing.T) {
	for _, rate := range []int64{100_000, 1_000_000, 100_000_000, 2_000_000_000} {
		l := link{bytes: linkStart, most: 32 << 20}
		queued := l.bytes // the streams use all that they may
		var longest time.Duration
		for i := range 200 {
			delay := time.Duration(float64(queued) / float64(rate) * float64(time.Second))
			if i > 60 { // the first window of the slowest takes 40 s
				longest = max(longest, delay)
			}
			took := max(min(delay, linkSlow), linkEvery)
			carried := min(int64(took.Seconds()*float64(rate)), 100*queued)
			queued = max(queued-carried, 0)
			l.measured(delay, carried)
			queued = max(queued, l.bytes)
		}
		if longest > 3*time.Second {
			t.Errorf("%d bytes a second: a delay of %s, window %d", rate, longest, l.bytes)
		}
		if fast := rate >= 100_000_000; fast && l.bytes <= linkStart {
			t.Errorf("%d bytes a second: window %d", rate, l.bytes)
		}
	}
}

func TestLinkWindowDoesNotGrowUnused(t *testing.T) {
	l := link{bytes: linkStart, most: 32 << 20}
	for range 100 {
		l.measured(time.Millisecond, 1000)
	}
	if l.bytes != linkStart {
		t.Errorf("window %d", l.bytes)
	}
	l.bytes = l.most
	l.idle()
	if l.bytes != linkStart {
		t.Errorf("window %d after a pause", l.bytes)
	}
}

// The windows of all streams together are within the link's, but for the least that each has; so is the first credit of
// streams that all begin at the same time, with the server's pending limit of 64 MiB as the bound.
func TestWindowsOfAllStreams(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		window := rapid.Int64Range(0, 32<<20).Draw(t, "link")
		most := rapid.Int64Range(1, 1<<20).Draw(t, "most")
		n := rapid.Int64Range(0, 100_000).Draw(t, "streams")
		got := share(window, n, most)
		if got < 1 || got > most || n*got > max(window, n*windowMin) {
			t.Fatalf("share %d", got)
		}
	})
	_, nc := newNATS(t, ServerOptions{})
	b := newInbox(t, nc, InboxOptions{})
	b.linkBytes.Store(b.opts.LinkBytes)
	var sum int64
	for i := range 20_000 {
		s, err := b.Open("r" + strconv.Itoa(i))
		must(t, err)
		sum += s.Window()
	}
	if sum > 64<<20 {
		t.Errorf("%d bytes of first credit", sum)
	}
}
