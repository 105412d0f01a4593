package mq

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	v2 "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/penstockmq/penstock/broker/lite"
)

const (
	// sendCalls bounds the calls under way. While they are, messages gather for the next one.
	sendCalls = 4
	// sendBatch and sendBytes bound one call.
	sendBatch = 64
	sendBytes = 2 << 20
	// sendTimeout bounds one call. A call ends sooner when the last Send that waits for it has given up, and a message
	// whose Send has given up before the call is not sent.
	sendTimeout = 10 * time.Second
	// penstockBroker begins the broker name of a Penstock broker, which stores a batch of lite messages all or none.
	penstockBroker = "penstock"
)

// stubsProducer is the Producer on the plain stubs. Sends that wait at the same time share a call: one fsync and one
// round trip for all of them.
type stubsProducer struct {
	opts    Options
	link    *link
	session *session
	sends   chan *send
	ids     messageIDs

	life context.Context // ends with Close
	end  context.CancelFunc
	done sync.WaitGroup // the goroutines below life
	once sync.Once
	err  error // of the connection's close, set by once

	batches sync.Map // topic → int: how many messages one call may have
}

// send is one Send on its way through the sender.
type send struct {
	ctx     context.Context //nolint:containedctx // of its Send, which may end before the call
	topic   string
	message *v2.Message
	bytes   int
	result  chan sendResult // buffered: its Send may be gone
}

type sendResult struct {
	receipt Receipt
	err     error
}

func newStubsProducer(o Options) (*stubsProducer, error) {
	link, err := dial(o)
	if err != nil {
		return nil, err
	}
	p := &stubsProducer{
		opts: o, link: link, session: newSession(link, o, v2.ClientType_PRODUCER),
		sends: make(chan *send, 4*sendBatch),
		ids:   newMessageIDs(),
	}
	p.life, p.end = context.WithCancel(context.Background())
	p.done.Go(func() { p.session.run(p.life) })
	p.done.Go(p.run)
	return p, nil
}

// Send implements [Producer].
func (p *stubsProducer) Send(ctx context.Context, m Outgoing) (Receipt, error) {
	if err := m.check(); err != nil {
		return Receipt{}, err
	}
	s := &send{ctx: ctx, topic: m.Topic, message: p.message(m), bytes: len(m.Body), result: make(chan sendResult, 1)}
	select {
	case p.sends <- s:
	case <-ctx.Done():
		return Receipt{}, fmt.Errorf("send: %w", context.Cause(ctx))
	case <-p.life.Done():
		return Receipt{}, fmt.Errorf("send: %w", ErrClosed)
	}
	select {
	case r := <-s.result:
		return r.receipt, r.err
	case <-ctx.Done():
		return Receipt{}, fmt.Errorf("send: %w", context.Cause(ctx))
	case <-p.life.Done():
		return Receipt{}, fmt.Errorf("send: %w", ErrClosed)
	}
}

func (m Outgoing) check() error {
	if err := lite.CheckTopic(m.Topic); err != nil {
		return fmt.Errorf("send: topic: %w", err)
	}
	if err := lite.CheckName(m.Lite); err != nil {
		return fmt.Errorf("send: lite topic: %w", err)
	}
	if len(m.Body) == 0 {
		return fmt.Errorf("send: %w", &CodeError{Code: int32(v2.Code_MESSAGE_BODY_EMPTY), Message: "body is empty"})
	}
	return nil
}

func (p *stubsProducer) message(m Outgoing) *v2.Message {
	out := &v2.Message{
		Topic:          resource(m.Topic),
		UserProperties: m.Properties,
		Body:           m.Body,
		SystemProperties: &v2.SystemProperties{
			MessageId:     p.ids.next(),
			Keys:          m.Keys,
			BodyEncoding:  v2.Encoding_IDENTITY,
			MessageType:   v2.MessageType_LITE,
			BornTimestamp: timestamppb.Now(),
			BornHost:      p.link.clientID,
			LiteTopic:     &m.Lite,
		},
	}
	if m.Tag != "" {
		out.SystemProperties.Tag = &m.Tag
	}
	return out
}

// Recall implements [Producer].
func (p *stubsProducer) Recall(ctx context.Context, topic, handle string) error {
	return recall(ctx, p.link, topic, handle)
}

func recall(ctx context.Context, l *link, topic, handle string) error {
	ctx, cancel := l.call(ctx)
	defer cancel()
	answer, err := l.stub.RecallMessage(ctx, &v2.RecallMessageRequest{Topic: resource(topic), RecallHandle: handle})
	err = refusal("recall", answer, err)
	if IsCode(err, int32(v2.Code_MESSAGE_NOT_FOUND)) {
		return errors.Join(ErrNotQueued, err)
	}
	return err
}

// Close implements [Producer]. Sends that have no answer yet return ErrClosed; their messages may have been stored.
func (p *stubsProducer) Close() error {
	p.once.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), pollsWait)
		_ = p.session.terminate(ctx) // a courtesy
		cancel()
		p.end()
		p.err = p.link.close()
		p.done.Wait()
	})
	return p.err
}

// run collects sends into calls until life ends.
func (p *stubsProducer) run() {
	var wg sync.WaitGroup
	defer wg.Wait()
	calls := make(chan struct{}, sendCalls)
	var held *send // did not fit into the batch before
	for {
		first := held
		if first == nil {
			select {
			case first = <-p.sends:
			case <-p.life.Done():
				return
			}
		}
		select {
		case calls <- struct{}{}:
		case <-p.life.Done():
			return
		}
		var batch []*send
		batch, held = p.gather(first)
		wg.Go(func() {
			defer func() { <-calls }()
			p.sendAll(batch)
		})
	}
}

// gather takes what waits and fits: the same topic, few enough, small enough.
func (p *stubsProducer) gather(first *send) (batch []*send, held *send) {
	batch = append(batch, first)
	size := first.bytes
	for len(batch) < p.batchOf(first.topic) {
		select {
		case s := <-p.sends:
			if s.topic != first.topic || size+s.bytes > sendBytes {
				return batch, s
			}
			batch = append(batch, s)
			size += s.bytes
		default:
			return batch, nil
		}
	}
	return batch, nil
}

// batchOf is 1 until learn has asked.
func (p *stubsProducer) batchOf(topic string) int {
	if n, ok := p.batches.Load(topic); ok {
		return n.(int)
	}
	return 1
}

// learn finds out, once for each topic, whether its broker may be sent batches. It also tells a missing topic before
// anything is sent.
func (p *stubsProducer) learn(ctx context.Context, topic string) error {
	if _, ok := p.batches.Load(topic); ok {
		return nil
	}
	queues, err := p.session.route(ctx, topic)
	if err != nil {
		return err
	}
	n := p.opts.SendBatch
	if n == 0 {
		n = sendBatch
		for _, q := range queues {
			if !strings.HasPrefix(q.GetBroker().GetName(), penstockBroker) {
				n = 1
			}
		}
	}
	p.batches.Store(topic, n)
	return nil
}

func (p *stubsProducer) sendAll(batch []*send) {
	batch = slices.DeleteFunc(batch, func(s *send) bool { return s.ctx.Err() != nil })
	if len(batch) == 0 {
		return
	}
	ctx, cancel := context.WithDeadline(p.life, waitedFor(batch, time.Now()))
	defer cancel()
	err := p.learn(ctx, batch[0].topic)
	if err == nil {
		err = p.call(ctx, batch)
	}
	var refused *CodeError
	if err == nil || len(batch) == 1 || !errors.As(err, &refused) {
		finish(batch, err)
		return
	}
	// The broker stores all or none, so one full bucket refuses the others' messages too: each is asked for alone.
	var wg sync.WaitGroup
	limit := make(chan struct{}, sendCalls)
	for _, s := range batch {
		limit <- struct{}{}
		wg.Go(func() {
			defer func() { <-limit }()
			one := []*send{s}
			finish(one, p.call(ctx, one))
		})
	}
	wg.Wait()
}

// waitedFor returns the instant at which the last Send of batch gives up: no caller would learn of a message stored later.
func waitedFor(batch []*send, now time.Time) time.Time {
	var last time.Time
	most := now.Add(sendTimeout)
	for _, s := range batch {
		until, ok := s.ctx.Deadline()
		if !ok || until.After(most) {
			return most
		}
		if until.After(last) {
			last = until
		}
	}
	return last
}

// finish gives err to all of batch; nil was given by call with the receipts.
func finish(batch []*send, err error) {
	if err == nil {
		return
	}
	for _, s := range batch {
		s.result <- sendResult{err: err}
	}
}

// call sends batch and hands out the receipts, or returns the error that all of it has.
func (p *stubsProducer) call(ctx context.Context, batch []*send) error {
	r := &v2.SendMessageRequest{Messages: make([]*v2.Message, len(batch))}
	for i, s := range batch {
		r.Messages[i] = s.message
	}
	answer, err := p.link.stub.SendMessage(p.link.sign(ctx), r)
	if err := refusal("send", answer, err); err != nil {
		return err
	}
	entries := answer.GetEntries()
	if len(entries) != len(batch) {
		return fmt.Errorf("send: %d results for %d messages", len(entries), len(batch))
	}
	for i, s := range batch {
		e := entries[i]
		s.result <- sendResult{receipt: Receipt{MessageID: e.GetMessageId(), RecallHandle: e.GetRecallHandle(), Offset: e.GetOffset()}}
	}
	return nil
}

// messageIDs makes ids in RocketMQ's first form, "01" and 16 bytes of hex: eight random ones of this producer, eight that count.
type messageIDs struct {
	prefix string
	count  *atomic.Uint64
}

func newMessageIDs() messageIDs {
	return messageIDs{prefix: "01" + randomHex(8), count: new(atomic.Uint64)}
}

func (m messageIDs) next() string {
	var n [8]byte
	binary.BigEndian.PutUint64(n[:], m.count.Add(1))
	return m.prefix + strings.ToUpper(hex.EncodeToString(n[:]))
}
