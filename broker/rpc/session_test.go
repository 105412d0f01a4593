package rpc

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v2 "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/penstockmq/penstock/broker"
)

func TestQueryRoute(t *testing.T) {
	used := &v2.Endpoints{Scheme: v2.AddressScheme_IPv4, Addresses: []*v2.Address{{Host: "10.1.2.3", Port: 18081}}}
	names := &v2.Endpoints{Scheme: v2.AddressScheme_DOMAIN_NAME, Addresses: []*v2.Address{{Host: "a", Port: 1}, {Host: "b", Port: 2}}}
	one := &v2.Endpoints{Scheme: v2.AddressScheme_DOMAIN_NAME, Addresses: names.GetAddresses()[:1]}
	for _, x := range []struct {
		name, advertise string
		used, want      *v2.Endpoints
	}{
		{"echo", "", used, used},
		{"one address for a name", "", names, one},
		{"advertised", "penstock.example:443", used, &v2.Endpoints{
			Scheme: v2.AddressScheme_DOMAIN_NAME, Addresses: []*v2.Address{{Host: "penstock.example", Port: 443}},
		}},
		{"advertised IPv6", "[::1]:443", used, &v2.Endpoints{
			Scheme: v2.AddressScheme_IPv6, Addresses: []*v2.Address{{Host: "::1", Port: 443}},
		}},
	} {
		t.Run(x.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := start(t, func(c *config) { c.rpc.Advertise = x.advertise }).client("c")
				topic := &v2.Resource{Name: "requests", ResourceNamespace: "ns"}
				out, err := c.QueryRoute(c.ctx, &v2.QueryRouteRequest{Topic: topic, Endpoints: x.used})
				must(t, err)
				want := &v2.MessageQueue{
					Topic: topic, Permission: v2.Permission_READ_WRITE,
					Broker:             &v2.Broker{Name: "penstock", Endpoints: x.want},
					AcceptMessageTypes: []v2.MessageType{v2.MessageType_LITE},
				}
				if n := len(out.GetMessageQueues()); n != 1 || !proto.Equal(out.GetMessageQueues()[0], want) {
					t.Errorf("route %v, want %v", out.GetMessageQueues(), want)
				}
				assigned, err := c.QueryAssignment(c.ctx, &v2.QueryAssignmentRequest{Topic: topic, Group: resource("pool"), Endpoints: x.used})
				must(t, err)
				if n := len(assigned.GetAssignments()); n != 1 || !proto.Equal(assigned.GetAssignments()[0].GetMessageQueue(), want) {
					t.Errorf("assignments %v, want %v", assigned.GetAssignments(), want)
				}
			})
		})
	}
}

func TestRouteWithoutEndpointsIsWhereTheConnectionArrived(t *testing.T) {
	f := startLoopback(t)
	c := f.client("c")
	out, err := c.QueryRoute(c.ctx, &v2.QueryRouteRequest{Topic: resource("requests")})
	must(t, err)
	want, err := endpointsOf(f.address)
	must(t, err)
	if got := out.GetMessageQueues()[0].GetBroker().GetEndpoints(); !proto.Equal(got, want) {
		t.Errorf("endpoints %v, want %v", got, want)
	}
}

func TestRouteAndAssignmentRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t).client("c")
		for topic, want := range map[string]v2.Code{"unknown": v2.Code_TOPIC_NOT_FOUND, "a b": v2.Code_ILLEGAL_TOPIC, "": v2.Code_ILLEGAL_TOPIC} {
			route, err := c.QueryRoute(c.ctx, &v2.QueryRouteRequest{Topic: resource(topic)})
			must(t, err)
			expectCode(t, route.GetStatus(), want)
			assigned, err := c.QueryAssignment(c.ctx, &v2.QueryAssignmentRequest{Topic: resource(topic), Group: resource("pool")})
			must(t, err)
			expectCode(t, assigned.GetStatus(), want)
		}
		for group, want := range map[string]v2.Code{"unknown": v2.Code_CONSUMER_GROUP_NOT_FOUND, "": v2.Code_ILLEGAL_CONSUMER_GROUP} {
			assigned, err := c.QueryAssignment(c.ctx, &v2.QueryAssignmentRequest{Topic: resource("requests"), Group: resource(group)})
			must(t, err)
			expectCode(t, assigned.GetStatus(), want)
		}
	})
}

// consumerSettings are those of an official Go lite consumer.
func consumerSettings() *v2.Settings {
	return &v2.Settings{
		ClientType:     v2.ClientType_LITE_PUSH_CONSUMER.Enum(),
		RequestTimeout: durationpb.New(3 * time.Second),
		UserAgent:      &v2.UA{Language: v2.Language_GOLANG, Version: "5.1.4"},
		PubSub: &v2.Settings_Subscription{Subscription: &v2.Subscription{
			Group:         resource("pool"),
			Subscriptions: []*v2.SubscriptionEntry{{Topic: resource("requests")}},
		}},
	}
}

// telemetry opens the stream; send sends settings and waits for their answer.
func (c *stub) telemetry() (stream v2.MessagingService_TelemetryClient, send func(*v2.Settings) (*v2.TelemetryCommand, error)) {
	c.f.t.Helper()
	stream, err := c.Telemetry(c.ctx)
	must(c.f.t, err)
	return stream, func(s *v2.Settings) (*v2.TelemetryCommand, error) {
		must(c.f.t, stream.Send(&v2.TelemetryCommand{Command: &v2.TelemetryCommand_Settings{Settings: s}}))
		return stream.Recv()
	}
}

func TestSettingsOfAConsumer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t, func(c *config) { c.group.MaxAttempts, c.group.ClientQuota = 5, 100 }).client("c")
		_, send := c.telemetry()
		out, err := send(consumerSettings())
		must(t, err)
		expectCode(t, out.GetStatus(), v2.Code_OK)
		s := out.GetSettings()
		sub := s.GetSubscription()
		if !sub.GetFifo() || sub.GetReceiveBatchSize() != 32 || sub.GetLongPollingTimeout().AsDuration() != 20*time.Second ||
			sub.GetLiteSubscriptionQuota() != 100 || sub.GetMaxLiteTopicSize() != 64 {
			t.Errorf("subscription %v", sub)
		}
		if sub.GetGroup().GetName() != "pool" || len(sub.GetSubscriptions()) != 1 || s.GetRequestTimeout().AsDuration() != 3*time.Second {
			t.Errorf("the client's own values are lost: %v", s)
		}
		if s.GetMetric() == nil || s.GetMetric().GetOn() {
			t.Errorf("metric %v, want off", s.GetMetric())
		}
		if b := s.GetBackoffPolicy(); b.GetMaxAttempts() != 5 || len(b.GetCustomizedBackoff().GetNext()) != 18 ||
			b.GetCustomizedBackoff().GetNext()[17].AsDuration() != 2*time.Hour {
			t.Errorf("backoff %v", b)
		}
		// Once more on the same stream, as clients do every five minutes.
		if _, err := send(consumerSettings()); err != nil {
			t.Fatal(err)
		}
	})
}

func TestBackoffByLanguage(t *testing.T) {
	for _, x := range []struct {
		header      string
		agent       v2.Language
		exponential bool
	}{
		{"GO", v2.Language_GOLANG, false},
		{"JAVA", v2.Language_JAVA, false},
		{"PYTHON", v2.Language_PYTHON, false},
		{"", v2.Language_LANGUAGE_UNSPECIFIED, false},
		{"HTTP", v2.Language_LANGUAGE_UNSPECIFIED, true},
		{"", v2.Language_NODE_JS, true},
	} {
		p := consumerBackoff(caller{language: x.header}, x.agent, 17)
		if got := p.GetExponentialBackoff() != nil; got != x.exponential {
			t.Errorf("%q, %v: exponential %v", x.header, x.agent, got)
		}
		if e := p.GetExponentialBackoff(); e != nil && (e.GetInitial().GetNanos() != 0 || e.GetMax().GetNanos() != 0 || e.GetInitial().GetSeconds() == 0) {
			t.Errorf("%q: %v, Node reads whole seconds", x.header, e)
		}
		if p.GetMaxAttempts() != 17 {
			t.Errorf("attempts %d", p.GetMaxAttempts())
		}
	}
}

func TestSettingsOfAProducer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t, func(c *config) { c.rpc.MaxBodyBytes = 1 << 20 }).client("c")
		_, send := c.telemetry()
		out, err := send(&v2.Settings{
			ClientType: v2.ClientType_PRODUCER.Enum(),
			PubSub:     &v2.Settings_Publishing{Publishing: &v2.Publishing{Topics: []*v2.Resource{resource("requests")}}},
		})
		must(t, err)
		p := out.GetSettings().GetPublishing()
		if p.GetMaxBodySize() != 1<<20 || !p.GetValidateMessageType() || len(p.GetTopics()) != 1 {
			t.Errorf("publishing %v", p)
		}
		b := out.GetSettings().GetBackoffPolicy()
		if e := b.GetExponentialBackoff(); b.GetMaxAttempts() != 3 || e.GetInitial().AsDuration() != 10*time.Millisecond ||
			e.GetMax().AsDuration() != time.Second || e.GetMultiplier() != 2 {
			t.Errorf("backoff %v", b)
		}
	})
}

func TestSettingsThatMakeNoSense(t *testing.T) {
	publishing := &v2.Settings_Publishing{Publishing: &v2.Publishing{}}
	subscription := &v2.Settings_Subscription{Subscription: &v2.Subscription{}}
	for name, s := range map[string]*v2.Settings{
		"consumer that publishes": {ClientType: v2.ClientType_PUSH_CONSUMER.Enum(), PubSub: publishing},
		"producer that consumes":  {ClientType: v2.ClientType_PRODUCER.Enum(), PubSub: subscription},
		"consumer of no type":     {PubSub: subscription},
		"neither":                 {ClientType: v2.ClientType_PRODUCER.Enum()},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				_, send := start(t).client("c").telemetry()
				if _, err := send(s); status.Code(err) != codes.InvalidArgument {
					t.Errorf("stream ended with %v, want InvalidArgument", err)
				}
			})
		})
	}
}

// An exclusive group: the newest subscriber has the lite topic, and the one before
// hears that it lost it.
func TestNoticeOfALostLiteTopic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, exact, func(c *config) { c.group.Exclusive = true })
		first, second := f.client("first"), f.client("second")
		stream, send := first.telemetry()
		_, err := send(consumerSettings())
		must(t, err)
		add := v2.LiteSubscriptionAction_PARTIAL_ADD
		expectCode(t, first.sync(add, nil, "a"), v2.Code_OK)
		expectCode(t, second.sync(add, nil, "a"), v2.Code_OK)
		notice, err := stream.Recv()
		must(t, err)
		if got := notice.GetNotifyUnsubscribeLiteCommand().GetLiteTopic(); got != "a" {
			t.Fatalf("notice %v", notice)
		}
		first.sent("a", "id")
		first.receiveNone()
		second.receiveOne()
	})
}

func TestClientsWithoutSettingsAreServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t).client("never heard of")
		beat, err := c.Heartbeat(c.ctx, &v2.HeartbeatRequest{Group: resource("pool"), ClientType: v2.ClientType_LITE_PUSH_CONSUMER})
		must(t, err)
		expectCode(t, beat.GetStatus(), v2.Code_OK)
		c.sent("alice", "id")
		expectCode(t, c.ack(handle(c.receiveOne())).GetStatus(), v2.Code_OK)
		for _, group := range []*v2.Resource{nil, resource("pool"), resource("unknown")} {
			out, err := c.NotifyClientTermination(c.ctx, &v2.NotifyClientTerminationRequest{Group: group})
			must(t, err)
			expectCode(t, out.GetStatus(), v2.Code_OK)
		}
	})
}

func TestTerminationEndsSubscriptions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t, exact).client("c")
		expectCode(t, c.sync(v2.LiteSubscriptionAction_PARTIAL_ADD, nil, "a"), v2.Code_OK)
		_, err := c.NotifyClientTermination(c.ctx, &v2.NotifyClientTerminationRequest{Group: resource("pool")})
		must(t, err)
		c.sent("a", "id")
		c.receiveNone()
	})
}

func TestClientIDIsRequired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t).client("c")
		for name, x := range map[string]struct {
			headers []string
			want    v2.Code
		}{
			"absent":   {nil, v2.Code_CLIENT_ID_REQUIRED},
			"blank":    {[]string{headerClientID, "  "}, v2.Code_CLIENT_ID_REQUIRED},
			"too long": {[]string{headerClientID, strings.Repeat("x", 256)}, v2.Code_BAD_REQUEST},
		} {
			ctx := metadata.AppendToOutgoingContext(context.Background(), x.headers...)
			route, err := c.QueryRoute(ctx, &v2.QueryRouteRequest{Topic: resource("requests")})
			must(t, err)
			expectCode(t, route.GetStatus(), x.want)
			a, err := c.tryReceive(ctx)
			must(t, err)
			expectCode(t, a.status, x.want)
			stream, err := c.Telemetry(ctx)
			must(t, err)
			if _, err := stream.Recv(); status.Code(err) != codes.InvalidArgument {
				t.Errorf("%s: telemetry ended with %v", name, err)
			}
		}
		// The official Go client's first heartbeat after a reconnect has no headers.
		beat, err := c.Heartbeat(context.Background(), &v2.HeartbeatRequest{})
		must(t, err)
		expectCode(t, beat.GetStatus(), v2.Code_OK)
	})
}

func TestUnsupportedCallsSaySo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t).client("c")
		end, err := c.EndTransaction(c.ctx, &v2.EndTransactionRequest{})
		must(t, err)
		expectCode(t, end.GetStatus(), v2.Code_NOT_IMPLEMENTED)
		update, err := c.UpdateOffset(c.ctx, &v2.UpdateOffsetRequest{})
		must(t, err)
		expectCode(t, update.GetStatus(), v2.Code_NOT_IMPLEMENTED)
		get, err := c.GetOffset(c.ctx, &v2.GetOffsetRequest{})
		must(t, err)
		expectCode(t, get.GetStatus(), v2.Code_NOT_IMPLEMENTED)
		query, err := c.QueryOffset(c.ctx, &v2.QueryOffsetRequest{})
		must(t, err)
		expectCode(t, query.GetStatus(), v2.Code_NOT_IMPLEMENTED)
		pull, err := c.PullMessage(c.ctx, &v2.PullMessageRequest{})
		must(t, err)
		frame, err := pull.Recv()
		must(t, err)
		expectCode(t, frame.GetStatus(), v2.Code_NOT_IMPLEMENTED)
	})
}

// TestQueriesCreateNoGroup: the queries of an official client before its first receive are
// answered as if the group of that receive existed, and create neither the group nor a topic.
func TestQueriesCreateNoGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, func(c *config) {
			c.broker.AutoCreate = true
			c.broker.AutoGroup = broker.GroupConfig{ClientQuota: 77, Wildcard: true}
		})
		c := f.client("c")
		topic, typo := resource("other"), resource("typo")
		route, err := c.QueryRoute(c.ctx, &v2.QueryRouteRequest{Topic: topic})
		must(t, err)
		expectCode(t, route.GetStatus(), v2.Code_OK)
		assigned, err := c.QueryAssignment(c.ctx, &v2.QueryAssignmentRequest{Topic: topic, Group: typo})
		must(t, err)
		expectCode(t, assigned.GetStatus(), v2.Code_OK)
		settings := consumerSettings()
		settings.GetSubscription().Group, settings.GetSubscription().Subscriptions[0].Topic = typo, topic
		_, send := c.telemetry()
		out, err := send(settings)
		must(t, err)
		if got := out.GetSettings().GetSubscription().GetLiteSubscriptionQuota(); got != 77 {
			t.Errorf("subscription quota %d, want that of a group made on demand", got)
		}
		terminated, err := c.NotifyClientTermination(c.ctx, &v2.NotifyClientTerminationRequest{Group: typo})
		must(t, err)
		expectCode(t, terminated.GetStatus(), v2.Code_OK)
		if groups, topics := f.broker.Groups(), f.broker.Topics(); len(groups) != 1 || len(topics) != 1 {
			t.Errorf("groups %+v and topics %+v, want the configured ones", groups, topics)
		}
		c.receive(func(r *v2.ReceiveMessageRequest) { r.MessageQueue.Topic, r.Group = topic, typo })
		if g, ok := f.broker.Group("typo"); !ok || g.Topic != "other" {
			t.Errorf("group after the first receive: %+v, %v", g, ok)
		}
	})
}
