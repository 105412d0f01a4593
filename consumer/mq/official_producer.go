package mq

import (
	"context"
	"errors"
	"fmt"
	"sync"

	rocketmq "github.com/apache/rocketmq-clients/golang/v5"
	v2 "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
)

// officialProducer is the Producer on the official client. The client repeats a failed send by itself, up to three times,
// under the same message id.
type officialProducer struct {
	life context.Context // ends with Close
	end  context.CancelFunc
	// ready is closed when client and err are set, which begin does; they are not written afterwards.
	ready  chan struct{}
	client rocketmq.Producer
	err    error
	once   sync.Once
}

func newOfficialProducer(o Options) (*officialProducer, error) {
	config, err := officialConfig(o)
	if err != nil {
		return nil, err
	}
	if o.Topic == "" {
		return nil, errors.New("topic: missing; the official client starts with the topics it sends to")
	}
	p := &officialProducer{ready: make(chan struct{})}
	p.life, p.end = context.WithCancel(context.Background())
	// The client's start waits for the broker. Sends wait for the start, each as long as it likes.
	go p.begin(config, o)
	return p, nil
}

func (p *officialProducer) begin(config *rocketmq.Config, o Options) {
	defer close(p.ready)
	for n := 1; ; n++ {
		client, err := rocketmq.NewProducer(config, rocketmq.WithTopics(o.Topic))
		if err == nil {
			err = client.Start()
		}
		if err == nil {
			p.client = client
			return
		}
		p.err = officialError("start producer", err)
		if hopeless(p.err) {
			return
		}
		o.Logger.Warn("broker does not answer yet", "error", p.err)
		if !pause(p.life, retryDelay(n)) {
			return
		}
	}
}

// started waits for begin.
func (p *officialProducer) started(ctx context.Context) (rocketmq.Producer, error) {
	if p.life.Err() != nil {
		return nil, ErrClosed
	}
	select {
	case <-p.ready:
		if p.client == nil {
			return nil, p.err
		}
		return p.client, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-p.life.Done():
		return nil, ErrClosed
	}
}

// Send implements [Producer].
func (p *officialProducer) Send(ctx context.Context, m Outgoing) (Receipt, error) {
	if err := m.check(); err != nil {
		return Receipt{}, err
	}
	client, err := p.started(ctx)
	if err != nil {
		return Receipt{}, fmt.Errorf("send: %w", err)
	}
	out := &rocketmq.Message{Topic: m.Topic, Body: m.Body}
	out.SetLiteTopic(m.Lite)
	if m.Tag != "" {
		out.SetTag(m.Tag)
	}
	if len(m.Keys) > 0 {
		out.SetKeys(m.Keys...)
	}
	for key, value := range m.Properties {
		out.AddProperty(key, value)
	}
	receipts, err := client.Send(ctx, out)
	if err != nil {
		return Receipt{}, officialError("send", err)
	}
	if len(receipts) != 1 {
		return Receipt{}, fmt.Errorf("send: %d results for 1 message", len(receipts))
	}
	r := receipts[0]
	return Receipt{MessageID: r.MessageID, RecallHandle: r.RecallHandle, Offset: r.Offset}, nil
}

// Recall implements [Producer].
func (p *officialProducer) Recall(ctx context.Context, topic, handle string) error {
	client, err := p.started(ctx)
	if err != nil {
		return fmt.Errorf("recall: %w", err)
	}
	if _, err := client.Recall(ctx, topic, handle); err != nil {
		err = officialError("recall", err)
		if IsCode(err, int32(v2.Code_MESSAGE_NOT_FOUND)) {
			return errors.Join(ErrNotQueued, err)
		}
		return err
	}
	return nil
}

// Close implements [Producer].
func (p *officialProducer) Close() error {
	p.once.Do(func() {
		p.end()
		stopped := make(chan struct{})
		go func() {
			defer close(stopped)
			<-p.ready
			if p.client != nil {
				_ = p.client.GracefulStop() // its only error is a second stop
			}
		}()
		within(stopped)
	})
	return nil
}
