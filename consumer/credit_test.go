package consumer

import (
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstockmq/penstock/consumer/mq"
	"github.com/penstockmq/penstock/consumer/reply"
)

// The model is read only as far as the caller's credit goes, and when the caller vanishes its call ends. The message is settled as for a caller that left.
func TestAnswerThatIsNotReadStopsItsModel(t *testing.T) {
	nc, b := natsServer(t, ""), newMemory(4)
	var written atomic.Int64
	ended := make(chan struct{})
	s := newStub(t, func(w http.ResponseWriter, r *http.Request, _ string) {
		defer close(ended)
		w.Header().Set("Content-Type", "text/event-stream")
		event := append([]byte(`data: {"text":"`), make([]byte, 4000)...)
		for i := range event[15:] {
			event[15+i] = 'x'
		}
		event = append(event, "\"}\n\n"...)
		for r.Context().Err() == nil { // without an end
			n, err := w.Write(event)
			if err != nil {
				return
			}
			written.Add(int64(n))
		}
	})
	p, stop := run(t, Options{Consumer: b, Downstream: upstream(t, s), NATS: nc})
	c := newCaller(t, nc, b)
	stream := c.put(t, alice, "unread", "long", time.Time{})
	if f, err := stream.Next(t.Context()); err != nil || f.Kind != reply.Head {
		t.Fatalf("%+v, %v", f, err)
	}
	stream.Close() // and no cancel: as when a gateway dies
	<-ended
	b.drained(t)
	stop()
	if p.credits.Waits() != 1 {
		t.Errorf("the writer waited %d times", p.credits.Waits())
	}
	// The kernel's socket buffers between model and pool take some bytes more.
	if n := written.Load(); n > 32<<20 {
		t.Errorf("the model wrote %d bytes", n)
	}
	m := p.opts.Metrics
	if v := b.verdicts("long"); len(v) != 1 || v[0] != mq.VerdictAck || m.Cancelled.Load() != 1 || m.Dead.Load() != 0 {
		t.Errorf("verdicts %v, %d cancelled, %d dead", v, m.Cancelled.Load(), m.Dead.Load())
	}
}
