package mq_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/penstockmq/penstock/consumer/mq"
)

// BenchmarkThroughput is a message's whole way: sent by one of 256 senders, received, run by a handler that does nothing,
// acked; broker and clients in one process over loopback.
func BenchmarkThroughput(b *testing.B) {
	n := startNode(b)
	p := n.producer(mq.Stubs)
	c, err := mq.NewConsumer(mq.Stubs, n.options(func(o *mq.Options) { o.Workers = 512 }))
	must(b, err)
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	var received atomic.Int64
	arrived := make(chan struct{}, 1)
	done := make(chan error, 1)
	go func() {
		done <- c.Run(ctx, func(context.Context, *mq.Message) mq.Verdict {
			if received.Add(1) == int64(b.N) {
				arrived <- struct{}{}
			}
			return mq.Ack()
		})
	}()
	body := make([]byte, 1024)
	b.ResetTimer()
	var next atomic.Int64
	var senders sync.WaitGroup
	for range 256 {
		senders.Go(func() {
			for i := next.Add(1); i <= int64(b.N); i = next.Add(1) {
				if _, err := p.Send(ctx, mq.Outgoing{Topic: topic, Lite: fmt.Sprint("bucket-", i%10_000), Body: body}); err != nil {
					b.Error(err)
				}
			}
		})
	}
	senders.Wait()
	<-arrived
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "messages/s")
	cancel()
	must(b, <-done)
}
