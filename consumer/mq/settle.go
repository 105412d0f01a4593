package mq

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	v2 "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/penstockmq/penstock/broker/rpc/penstockv1"
)

const (
	// ackBatch bounds the acks of one call.
	ackBatch = 64
	// ackCalls bounds the calls with fresh acks under way. While they are, acks gather for the next: batches grow with the
	// load, and no ack waits for company when there is none.
	ackCalls = 2
	// ackRetries bounds the batches that are being tried again.
	ackRetries = 64
)

// errStale says that a receipt handle is worth nothing any more.
var errStale = errors.New("receipt handle is stale")

// settler tells the broker what became of messages. A call that fails is repeated until the lease would have ended: from
// then on the broker decides by itself.
type settler struct {
	link         *link
	penstock     *penstock
	topic, group *v2.Resource
	log          *slog.Logger
	acks         chan ack
	quit         chan struct{} // closed when no more acks come
}

type ack struct {
	verdict          Verdict // for its settlement
	id, lite, handle string
	until            time.Time
}

func newSettler(l *link, p *penstock, o Options) *settler {
	return &settler{
		link: l, penstock: p, topic: resource(o.Topic), group: resource(o.Group), log: o.Logger,
		acks: make(chan ack, 4*ackBatch), quit: make(chan struct{}),
	}
}

// settle carries out a verdict. Acks are only queued; the rest is done when it returns.
func (s *settler) settle(ctx context.Context, v Verdict, l *lease, handle string, until time.Time) {
	v = s.penstock.held(ctx, v)
	if v.Kind == VerdictAck {
		select {
		case s.acks <- ack{v, l.id, l.lite, handle, until}:
		case <-ctx.Done():
		}
		return
	}
	s.insist(ctx, v.Kind.String(), l, until, func(ctx context.Context) error {
		// Asked at each try: the broker may have become another in the meantime.
		if err := s.penstock.tell(ctx, v, handle); !errors.Is(err, errNotTold) {
			return err
		}
		return s.plain(ctx, v, l, handle)
	})
}

// plain settles with RocketMQ's calls.
func (s *settler) plain(ctx context.Context, v Verdict, l *lease, handle string) error {
	switch v.Kind {
	case VerdictReject:
		return s.reject(ctx, l, handle)
	case VerdictSuspend:
		_, err := s.changeInvisible(ctx, l, handle, ceilMilli(v.After), true)
		return err
	case VerdictRetry, VerdictAck:
	}
	_, err := s.changeInvisible(ctx, l, handle, ceilMilli(v.After), false)
	return err
}

// insist repeats f until it succeeds, or cannot, or the lease is over.
func (s *settler) insist(ctx context.Context, op string, l *lease, until time.Time, f func(context.Context) error) {
	for n := 1; ; n++ {
		err := f(ctx)
		if err == nil {
			return
		}
		wait := retryDelay(n)
		if errors.Is(err, errStale) || hopeless(err) || time.Now().Add(wait).After(until) || !pause(ctx, wait) {
			s.log.Warn("message could not be settled; its lease will end", "verdict", op, "message_id", l.id, "error", err)
			return
		}
	}
}

// renew extends a lease to d from now and returns the handle that settles its message: the same handle, or with RocketMQ's
// call, which does not report a stale handle, the new one from the broker.
func (s *settler) renew(ctx context.Context, l *lease, handle string, d time.Duration) (string, error) {
	if err := s.penstock.renew(ctx, handle, d); !errors.Is(err, errNoRenew) {
		return handle, err
	}
	return s.changeInvisible(ctx, l, handle, d, false)
}

func (s *settler) changeInvisible(ctx context.Context, l *lease, handle string, d time.Duration, suspend bool) (string, error) {
	ctx, cancel := s.link.call(ctx)
	defer cancel()
	r := &v2.ChangeInvisibleDurationRequest{
		Group: s.group, Topic: s.topic, ReceiptHandle: handle, InvisibleDuration: durationpb.New(d),
		MessageId: l.id, LiteTopic: &l.lite,
	}
	if suspend {
		r.Suspend = &suspend
	}
	answer, err := s.link.stub.ChangeInvisibleDuration(ctx, r)
	return answer.GetReceiptHandle(), stale(refusal("change invisible duration", answer, err))
}

func (s *settler) reject(ctx context.Context, l *lease, handle string) error {
	ctx, cancel := s.link.call(ctx)
	defer cancel()
	answer, err := s.link.stub.ForwardMessageToDeadLetterQueue(ctx, &v2.ForwardMessageToDeadLetterQueueRequest{
		Group: s.group, Topic: s.topic, ReceiptHandle: handle, MessageId: l.id, LiteTopic: &l.lite,
	})
	return stale(refusal("forward to dead letters", answer, err))
}

// run sends the acks until quit is closed and all are sent, or ctx ends.
func (s *settler) run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	calls, retries := make(chan struct{}, ackCalls), make(chan struct{}, ackRetries)
	for {
		first, ok := s.next(ctx)
		if !ok {
			return
		}
		calls <- struct{}{} // free within callTimeout
		batch := s.gather(first)
		wg.Go(func() {
			left := s.sendAcks(ctx, batch)
			if len(left) == 0 {
				<-calls
				return
			}
			// Acks that keep failing are not to be in the way of fresh ones.
			retries <- struct{}{}
			<-calls
			s.insistAcks(ctx, left)
			<-retries
		})
	}
}

func (s *settler) next(ctx context.Context) (ack, bool) {
	select {
	case a := <-s.acks:
		return a, true
	default:
	}
	select {
	case a := <-s.acks:
		return a, true
	case <-s.quit:
		select { // what came before quit
		case a := <-s.acks:
			return a, true
		default:
			return ack{}, false
		}
	case <-ctx.Done():
		return ack{}, false
	}
}

func (s *settler) gather(first ack) []ack {
	batch := append(make([]ack, 0, ackBatch), first)
	for len(batch) < ackBatch {
		select {
		case a := <-s.acks:
			batch = append(batch, a)
		default:
			return batch
		}
	}
	return batch
}

func (s *settler) insistAcks(ctx context.Context, left []ack) {
	for n := 1; len(left) > 0; n++ {
		wait := retryDelay(n)
		soon := time.Now().Add(wait)
		kept := left[:0]
		for _, a := range left {
			if soon.After(a.until) {
				s.log.Warn("message could not be settled; its lease will end", "verdict", "ack", "message_id", a.id)
				continue
			}
			kept = append(kept, a)
		}
		if len(kept) == 0 || !pause(ctx, wait) {
			return
		}
		left = s.sendAcks(ctx, kept)
	}
}

// sendAcks returns the acks that are worth another try.
func (s *settler) sendAcks(ctx context.Context, batch []ack) []ack {
	var plain, told []ack
	for _, a := range batch {
		if s.penstock.tells(a.verdict) {
			told = append(told, a)
		} else {
			plain = append(plain, a)
		}
	}
	return append(s.sendPlain(ctx, plain), s.sendTold(ctx, told)...)
}

func (s *settler) sendTold(ctx context.Context, batch []ack) []ack {
	if len(batch) == 0 {
		return nil
	}
	entries := make([]*penstockv1.SettleEntry, len(batch))
	for i, a := range batch {
		entries[i] = entryOf(a.verdict, a.handle)
	}
	errs, err := s.penstock.settle(ctx, entries)
	if err != nil && !refused(err) {
		return batch
	}
	var left, plain []ack
	for i, a := range batch {
		switch {
		case err != nil || refused(errs[i]):
			a.verdict.Settlement = nil
			plain = append(plain, a)
		case s.acked(a, errs[i]):
			left = append(left, a)
		}
	}
	if len(plain) > 0 {
		s.log.Warn("settlements were refused; the messages are acked without", "messages", len(plain))
	}
	return append(left, s.sendPlain(ctx, plain)...)
}

func (s *settler) sendPlain(ctx context.Context, batch []ack) []ack {
	if len(batch) == 0 {
		return nil
	}
	ctx, cancel := s.link.call(ctx)
	defer cancel()
	r := &v2.AckMessageRequest{Group: s.group, Topic: s.topic, Entries: make([]*v2.AckMessageEntry, len(batch))}
	for i, a := range batch {
		r.Entries[i] = &v2.AckMessageEntry{MessageId: a.id, ReceiptHandle: a.handle, LiteTopic: &a.lite}
	}
	answer, err := s.link.stub.AckMessage(ctx, r)
	if err != nil {
		return batch
	}
	if len(answer.GetEntries()) != len(batch) {
		if codeError(answer.GetStatus()) == nil {
			return nil
		}
		return batch
	}
	var left []ack
	for i, entry := range answer.GetEntries() {
		if s.acked(batch[i], stale(codeError(entry.GetStatus()))) {
			left = append(left, batch[i])
		}
	}
	return left
}

// acked notes the answer to an ack and says whether it is worth another try.
func (s *settler) acked(a ack, err error) (again bool) {
	if errors.Is(err, errStale) {
		s.log.Warn("message was acked too late; it is out again", "message_id", a.id)
		return false
	}
	return err != nil
}

// stale marks the refusal of a handle.
func stale(err error) error {
	if IsCode(err, int32(v2.Code_INVALID_RECEIPT_HANDLE)) {
		return errors.Join(errStale, err)
	}
	return err
}

// ceilMilli rounds up to whole milliseconds, the protocol's step: a suspend is never too short.
func ceilMilli(d time.Duration) time.Duration {
	if rest := d % time.Millisecond; rest > 0 {
		d += time.Millisecond - rest
	}
	return d
}
