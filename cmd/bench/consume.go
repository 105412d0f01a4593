package bench

import (
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/penstockmq/penstock/consumer/mq"
)

// benchTopic and benchGroup are what scenarios send to and read with.
const (
	benchTopic = "bench"
	benchGroup = "pool"
)

// arrivals notes when messages reach a handler.
type arrivals struct {
	// service is how long a handler is busy; immutable.
	service time.Duration

	mu sync.Mutex
	at map[string][]arrival // guarded by mu; by lite topic
}

type arrival struct {
	at    time.Time
	delay time.Duration // since its sender sent it
}

func (a *arrivals) handle(ctx context.Context, m *mq.Message) mq.Verdict {
	now := time.Now()
	a.mu.Lock()
	if a.at == nil {
		a.at = map[string][]arrival{}
	}
	a.at[m.Lite] = append(a.at[m.Lite], arrival{now, now.Sub(m.Born)})
	a.mu.Unlock()
	if a.service > 0 && !pause(ctx, a.service) {
		return mq.Suspend(0)
	}
	return mq.Ack()
}

// of returns the arrivals of one lite topic so far.
func (a *arrivals) of(lite string) []arrival {
	a.mu.Lock()
	defer a.mu.Unlock()
	return append([]arrival(nil), a.at[lite]...)
}

// consume starts n wildcard consumers, each with a connection of its own, until the returned function is called, which
// waits for them.
func consume(addr string, n, workers int, handle mq.Handler) (stop func() error, err error) {
	ctx, cancel := context.WithCancel(context.Background())
	var g errgroup.Group
	for i := range n {
		c, err := mq.NewConsumer(mq.Stubs, mq.Options{
			Endpoint: addr, Topic: benchTopic, Group: benchGroup, Workers: workers, Invisible: time.Minute,
		})
		if err != nil {
			cancel()
			return nil, fmt.Errorf("consumer %d: %w", i, err)
		}
		g.Go(func() error { return c.Run(ctx, handle) })
	}
	return func() error { cancel(); return g.Wait() }, nil
}

// sendMany sends n messages of one bucket from writers at the same time.
func sendMany(ctx context.Context, p mq.Producer, out mq.Outgoing, n, writers int) error {
	g, ctx := errgroup.WithContext(ctx)
	for w := range writers {
		g.Go(func() error {
			for i := w; i < n; i += writers {
				if _, err := p.Send(ctx, out); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return g.Wait()
}

// perSecond counts arrivals by whole seconds from begin on, for n seconds.
func perSecond(got []arrival, begin time.Time, n int) []int {
	counts := make([]int, n)
	for _, a := range got {
		if s := int(a.at.Sub(begin) / time.Second); !a.at.Before(begin) && s < n {
			counts[s]++
		}
	}
	return counts
}
