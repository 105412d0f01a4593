package mq

import (
	"fmt"

	v2 "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
)

// NewConsumer returns a Consumer of kind, or an error that names every option that is wrong. Nothing is connected yet.
func NewConsumer(kind Kind, o Options) (Consumer, error) {
	if err := o.fillConsumer(kind); err != nil {
		return nil, fmt.Errorf("consumer: %w", err)
	}
	switch kind {
	case Stubs:
		return &stubsConsumer{opts: o}, nil
	case Official:
		config, err := officialConfig(o)
		if err != nil {
			return nil, fmt.Errorf("consumer: %w", err)
		}
		return &officialConsumer{opts: o, config: config}, nil
	}
	return nil, fmt.Errorf("consumer: kind: %q is neither %q nor %q", kind, Stubs, Official)
}

// NewProducer returns a Producer of kind, or an error that names every option that is wrong. It connects in the background.
func NewProducer(kind Kind, o Options) (Producer, error) {
	if err := o.fillProducer(); err != nil {
		return nil, fmt.Errorf("producer: %w", err)
	}
	var p Producer
	var err error
	switch kind {
	case Stubs:
		p, err = newStubsProducer(o)
	case Official:
		p, err = newOfficialProducer(o)
	default:
		err = fmt.Errorf("kind: %q is neither %q nor %q", kind, Stubs, Official)
	}
	if err != nil {
		return nil, fmt.Errorf("producer: %w", err)
	}
	return p, nil
}

// wildcardRefused says whether err is the answer of a broker that knows no "*" in a partial subscription.
func wildcardRefused(err error) bool {
	return IsCode(err, int32(v2.Code_ILLEGAL_LITE_TOPIC), int32(v2.Code_INTERNAL_SERVER_ERROR))
}
