package mq

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"runtime"
	"slices"
	"sync"
	"time"

	v2 "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/penstockmq/penstock/broker/lite"
)

// What a client owes its broker, with the periods of the official clients.
const (
	heartbeatPeriod  = 10 * time.Second
	syncPeriod       = 30 * time.Second
	assignmentPeriod = 30 * time.Second
	// settingsWait is how long a start waits for the broker's settings before it goes on with defaults.
	settingsWait = callTimeout
)

// session keeps a client known to the broker: its settings over the telemetry stream, its heartbeat and, for a consumer,
// its subscription. Its goroutines run below run's ctx.
type session struct {
	// Immutable after newSession.
	link *link
	log  *slog.Logger

	kind     v2.ClientType
	topic    string
	group    string // empty for a producer
	settings *v2.Settings
	// describe asks what the broker can do beside the protocol; a consumer's.
	describe func(context.Context) error

	// resync is sent a token when the broker may have forgotten the subscription.
	resync chan struct{}
	// told is closed when the first settings have come.
	told chan struct{}

	mu sync.Mutex // guards the following fields
	// names are lite topics or "*", less those that others took over; empty for a producer.
	names []string
	// batch and longPoll are what the broker wants a receive to ask for.
	batch    int
	longPoll time.Duration
	// queues are where to receive; never empty after start.
	queues []*v2.MessageQueue
	// bare means that the broker knows "*" only as the attribute of a group and wants an empty set.
	bare bool
	// heard is whether told is closed.
	heard bool
}

func newSession(l *link, o Options, kind v2.ClientType) *session {
	s := &session{
		link: l, log: o.Logger, kind: kind, topic: o.Topic,
		resync: make(chan struct{}, 1), told: make(chan struct{}),
		batch: 32, longPoll: 20 * time.Second,
	}
	s.settings = &v2.Settings{
		ClientType:     &kind,
		AccessPoint:    l.endpoints,
		RequestTimeout: durationpb.New(callTimeout),
		UserAgent: &v2.UA{
			Language: v2.Language_GOLANG, Version: clientVersion, Platform: runtime.GOOS, Hostname: l.clientID,
		},
	}
	if kind == v2.ClientType_PRODUCER {
		publishing := &v2.Publishing{}
		if o.Topic != "" {
			publishing.Topics = []*v2.Resource{resource(o.Topic)}
		}
		s.settings.PubSub = &v2.Settings_Publishing{Publishing: publishing}
		return s
	}
	s.group, s.names = o.Group, o.Subscribe
	quota, size := int32(max(len(s.names), 2000)), int32(lite.MaxNameBytes)
	s.settings.PubSub = &v2.Settings_Subscription{Subscription: &v2.Subscription{
		Group: resource(o.Group),
		Subscriptions: []*v2.SubscriptionEntry{{
			Topic:      resource(o.Topic),
			Expression: &v2.FilterExpression{Type: v2.FilterType_TAG, Expression: "*"},
		}},
		LongPollingTimeout:    durationpb.New(s.longPoll),
		LiteSubscriptionQuota: &quota,
		MaxLiteTopicSize:      &size,
	}}
	return s
}

// start makes a consumer known: the topic exists, the settings are there, the subscription is made. It tries until it
// succeeds, ctx ends, or the broker says what no patience will change. REQUIRES: run is running.
func (s *session) start(ctx context.Context) error {
	for n := 1; ; n++ {
		err := s.introduce(ctx)
		if err == nil || ctx.Err() != nil {
			return err
		}
		if hopeless(err) {
			return err
		}
		if n == 1 {
			s.log.Warn("broker does not answer yet", "error", err)
		}
		if !pause(ctx, retryDelay(n)) {
			return ctx.Err()
		}
	}
}

func (s *session) introduce(ctx context.Context) error {
	if _, err := s.route(ctx, s.topic); err != nil {
		return err
	}
	// Settings come first: a RocketMQ proxy refuses receives of a client that it has no settings of.
	wait, cancel := context.WithTimeout(ctx, settingsWait)
	select {
	case <-s.told:
	case <-wait.Done():
	}
	cancel()
	if err := s.assign(ctx); err != nil {
		return err
	}
	return s.join(ctx)
}

// join asks what the broker can do, and then subscribes: what comes by the subscription is handled by what the broker can.
func (s *session) join(ctx context.Context) error {
	if err := s.describe(ctx); err != nil {
		return err
	}
	return s.subscribe(ctx)
}

// run does the periodic duties until ctx ends.
func (s *session) run(ctx context.Context) {
	var wg sync.WaitGroup
	wg.Go(func() { s.keepTelemetry(ctx) })
	wg.Go(func() { every(ctx, heartbeatPeriod, nil, s.heartbeat) })
	if s.group != "" {
		wg.Go(func() { every(ctx, syncPeriod, s.resync, s.join) })
		wg.Go(func() { every(ctx, assignmentPeriod, nil, s.assign) })
	}
	wg.Wait()
}

// every calls f once a period and whenever now has a token, and soon again after an error: an outage shows in the calls
// that matter, here it is only waited out.
func every(ctx context.Context, period time.Duration, now <-chan struct{}, f func(context.Context) error) {
	timer := time.NewTimer(period)
	defer timer.Stop()
	for failures := 0; ; {
		select {
		case <-ctx.Done():
			return
		case <-now:
		case <-timer.C:
		}
		if f(ctx) == nil {
			failures = 0
			timer.Reset(period)
			continue
		}
		failures++
		timer.Reset(min(period, retryDelay(failures)))
	}
}

// route asks whether the topic exists, and which brokers have it.
func (s *session) route(ctx context.Context, topic string) ([]*v2.MessageQueue, error) {
	ctx, cancel := s.link.call(ctx)
	defer cancel()
	r, err := s.link.stub.QueryRoute(ctx, &v2.QueryRouteRequest{Topic: resource(topic), Endpoints: s.link.endpoints})
	if err := refusal("query route", r, err); err != nil {
		return nil, err
	}
	return r.GetMessageQueues(), nil
}

func (s *session) heartbeat(ctx context.Context) error {
	ctx, cancel := s.link.call(ctx)
	defer cancel()
	r := &v2.HeartbeatRequest{ClientType: s.kind}
	if s.group != "" {
		r.Group = resource(s.group)
	}
	answer, err := s.link.stub.Heartbeat(ctx, r)
	return refusal("heartbeat", answer, err)
}

// assign learns which queues to receive from: one of a Penstock broker, one of each broker of a RocketMQ cluster.
func (s *session) assign(ctx context.Context) error {
	ctx, cancel := s.link.call(ctx)
	defer cancel()
	answer, err := s.link.stub.QueryAssignment(ctx, &v2.QueryAssignmentRequest{
		Topic: resource(s.topic), Group: resource(s.group), Endpoints: s.link.endpoints,
	})
	if err := refusal("query assignment", answer, err); err != nil {
		return err
	}
	queues := make([]*v2.MessageQueue, 0, len(answer.GetAssignments()))
	for _, a := range answer.GetAssignments() {
		queues = append(queues, a.GetMessageQueue())
	}
	if len(queues) == 0 {
		return errors.New("query assignment: the topic has no readable queue")
	}
	s.mu.Lock()
	s.queues = queues
	s.mu.Unlock()
	return nil
}

// subscribe sends the whole subscription. Repeating it is harmless, and keeps it alive.
func (s *session) subscribe(ctx context.Context) error {
	s.mu.Lock()
	names, bare := s.names, s.bare
	s.mu.Unlock()
	if bare {
		names = nil
	}
	err := s.sync(ctx, names)
	if !IsCode(err, int32(v2.Code_ILLEGAL_LITE_TOPIC)) || bare || !wildcard(names) {
		return err
	}
	// This broker takes "*" for a name. Its wildcard is an attribute of the group, and an empty set joins it.
	if err := s.sync(ctx, nil); err != nil {
		return err
	}
	s.log.Info("wildcard is left to the group's attribute lite.sub.wildcard", "group", s.group)
	s.mu.Lock()
	s.bare = true
	s.mu.Unlock()
	return nil
}

func (s *session) sync(ctx context.Context, names []string) error {
	ctx, cancel := s.link.call(ctx)
	defer cancel()
	answer, err := s.link.stub.SyncLiteSubscription(ctx, &v2.SyncLiteSubscriptionRequest{
		Action: v2.LiteSubscriptionAction_COMPLETE_ADD, Topic: resource(s.topic), Group: resource(s.group), LiteTopicSet: names,
	})
	return refusal("subscribe", answer, err)
}

// terminate says good-bye: the broker ends our polls and gives our share to others at once.
func (s *session) terminate(ctx context.Context) error {
	r := &v2.NotifyClientTerminationRequest{}
	if s.group != "" {
		r.Group = resource(s.group)
	}
	answer, err := s.link.stub.NotifyClientTermination(s.link.sign(ctx), r)
	return refusal("terminate", answer, err)
}

func wildcard(names []string) bool {
	return slices.Contains(names, lite.Wildcard)
}

// keepTelemetry holds the standing stream, over reconnects.
func (s *session) keepTelemetry(ctx context.Context) {
	for failures := 0; ; {
		settled, err := s.telemetry(ctx)
		if ctx.Err() != nil {
			return
		}
		if settled {
			failures = 0
			s.log.Warn("connection to the broker was lost", "error", err)
		}
		failures++
		if !pause(ctx, retryDelay(failures)) {
			return
		}
	}
}

// telemetry is one stream's life. settled says that settings came over it.
func (s *session) telemetry(ctx context.Context) (settled bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := s.link.stub.Telemetry(s.link.sign(ctx))
	if err != nil {
		return false, err
	}
	hello := &v2.TelemetryCommand{Command: &v2.TelemetryCommand_Settings{Settings: s.settings}}
	if err := stream.Send(hello); err != nil && !errors.Is(err, io.EOF) { // the reason of an EOF comes from Recv
		return false, err
	}
	for {
		command, err := stream.Recv()
		if err != nil {
			return settled, err
		}
		switch c := command.GetCommand().(type) {
		case *v2.TelemetryCommand_Settings:
			settled = true
			s.apply(c.Settings)
		case *v2.TelemetryCommand_NotifyUnsubscribeLiteCommand:
			s.forget(c.NotifyUnsubscribeLiteCommand.GetLiteTopic())
		default: // the others ask what a pool has no answer to
		}
	}
}

// apply takes the broker's values. New settings mean a new stream, and a broker that drops subscriptions with the old one.
func (s *session) apply(settings *v2.Settings) {
	s.mu.Lock()
	if sub := settings.GetSubscription(); sub != nil {
		if n := int(sub.GetReceiveBatchSize()); n > 0 {
			s.batch = n
		}
		if d := sub.GetLongPollingTimeout().AsDuration(); d > 0 {
			s.longPoll = d
		}
	}
	first := !s.heard
	s.heard = true
	s.mu.Unlock()
	if first {
		close(s.told)
		return
	}
	select {
	case s.resync <- struct{}{}:
	default:
	}
}

// forget drops a lite topic that another client of an exclusive group took over.
func (s *session) forget(name string) {
	s.log.Info("lite topic was taken over by another client", "lite_topic", name)
	s.mu.Lock()
	defer s.mu.Unlock()
	kept := make([]string, 0, len(s.names))
	for _, n := range s.names {
		if n != name {
			kept = append(kept, n)
		}
	}
	s.names = kept
}

// ask is what a receive asks for now: the i-th poll takes the queues in turn.
func (s *session) ask(i int) (queue *v2.MessageQueue, batch int, wait time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.queues[i%len(s.queues)], s.batch, s.longPoll
}
