package bench

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"
)

// watch draws until all is answered: a table in place on a terminal, else a line
// every two seconds.
func (l *demoLoad) watch(ctx context.Context, o DemoOptions, answered <-chan struct{}) {
	every := 2 * time.Second
	if o.Terminal {
		every = 200 * time.Millisecond
	}
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	drawn := 0
	for {
		select {
		case <-ctx.Done():
			return
		case <-answered:
			if o.Terminal {
				l.draw(o.Out, drawn)
			}
			return
		case <-ticker.C:
		}
		if o.Terminal {
			drawn = l.draw(o.Out, drawn)
		} else {
			l.line(o.Out)
		}
	}
}

// line prints the totals.
func (l *demoLoad) line(w io.Writer) {
	var sum cellTally
	l.mu.Lock()
	for _, t := range l.cells {
		sum.sent += t.sent
		sum.answered += t.answered
		sum.rejected += t.rejected
	}
	l.mu.Unlock()
	fmt.Fprintf(w, "%5.1fs  sent %d  answered %d  queued %d  rejected %d\n",
		time.Since(l.begin).Seconds(), sum.sent, sum.answered, sum.sent-sum.answered-sum.rejected, sum.rejected)
}

const barWidth = 20

// draw prints a row for each user, over the previous table, and returns its height.
func (l *demoLoad) draw(w io.Writer, previous int) int {
	var b strings.Builder
	if previous > 0 {
		fmt.Fprintf(&b, "\x1b[%dA", previous)
	}
	fmt.Fprintf(&b, "\x1b[K%5.1fs    burst: answered of sent%sothers: answered of sent\n", time.Since(l.begin).Seconds(), strings.Repeat(" ", 15))
	l.mu.Lock()
	for i := range demoUsers {
		var burst, rest cellTally
		for _, model := range demoModels() {
			t := l.cells[demoCell{demoUser(i), model}]
			into := &rest
			if t.burst {
				into = &burst
			}
			into.sent += t.sent
			into.answered += t.answered
		}
		full := barWidth * burst.answered / max(burst.sent, 1)
		fmt.Fprintf(&b, "\x1b[K%s  %s %s%s %2d/%2d      %2d/%2d\n", demoUser(i), demoModels()[i%len(demoModels())],
			strings.Repeat("█", full), strings.Repeat("░", barWidth-full), burst.answered, burst.sent, rest.answered, rest.sent)
	}
	l.mu.Unlock()
	fmt.Fprint(w, b.String())
	return demoUsers + 1
}
