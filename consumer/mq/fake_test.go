package mq_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v2 "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"

	"github.com/penstockmq/penstock/consumer/mq"
)

// fake is a MessagingService that misbehaves as a test says. It delivers what is in batches, one batch a poll.
type fake struct {
	v2.UnimplementedMessagingServiceServer

	batches chan []*v2.Message
	// refuse answers a call by its kind; nil lets it pass.
	refuse func(f *fake, request any) *v2.Status

	mu       sync.Mutex // guards the following fields
	syncs    [][]string
	attempts []string // ids of polls that were given messages or broken
	breaks   int      // polls to break off after their messages
	acked    []string // handles
	settled  []string // "<handle> <kind>"
	suspends []time.Duration
	headers  metadata.MD
	ended    chan struct{} // closed by NotifyClientTermination
}

func ok() *v2.Status { return &v2.Status{Code: v2.Code_OK} }

func (f *fake) status(request any) *v2.Status {
	if f.refuse != nil {
		if st := f.refuse(f, request); st != nil {
			return st
		}
	}
	return ok()
}

func (f *fake) QueryRoute(ctx context.Context, r *v2.QueryRouteRequest) (*v2.QueryRouteResponse, error) {
	f.mu.Lock()
	f.headers, _ = metadata.FromIncomingContext(ctx)
	f.mu.Unlock()
	queue := &v2.MessageQueue{Topic: r.GetTopic(), Broker: &v2.Broker{Name: "broker-a", Endpoints: r.GetEndpoints()}}
	return &v2.QueryRouteResponse{Status: f.status(r), MessageQueues: []*v2.MessageQueue{queue}}, nil
}

func (f *fake) Heartbeat(_ context.Context, r *v2.HeartbeatRequest) (*v2.HeartbeatResponse, error) {
	return &v2.HeartbeatResponse{Status: f.status(r)}, nil
}

func (f *fake) QueryAssignment(_ context.Context, r *v2.QueryAssignmentRequest) (*v2.QueryAssignmentResponse, error) {
	queue := &v2.MessageQueue{Topic: r.GetTopic(), Broker: &v2.Broker{Name: "broker-a", Endpoints: r.GetEndpoints()}}
	return &v2.QueryAssignmentResponse{Status: f.status(r), Assignments: []*v2.Assignment{{MessageQueue: queue}}}, nil
}

func (f *fake) SyncLiteSubscription(_ context.Context, r *v2.SyncLiteSubscriptionRequest) (*v2.SyncLiteSubscriptionResponse, error) {
	f.mu.Lock()
	f.syncs = append(f.syncs, r.GetLiteTopicSet())
	f.mu.Unlock()
	return &v2.SyncLiteSubscriptionResponse{Status: f.status(r)}, nil
}

func (f *fake) NotifyClientTermination(_ context.Context, r *v2.NotifyClientTerminationRequest) (*v2.NotifyClientTerminationResponse, error) {
	defer close(f.ended)
	return &v2.NotifyClientTerminationResponse{Status: f.status(r)}, nil
}

func (f *fake) Telemetry(stream grpc.BidiStreamingServer[v2.TelemetryCommand, v2.TelemetryCommand]) error {
	for {
		c, err := stream.Recv()
		if err != nil {
			return err
		}
		if err := stream.Send(c); err != nil {
			return err
		}
	}
}

func (f *fake) ReceiveMessage(r *v2.ReceiveMessageRequest, stream grpc.ServerStreamingServer[v2.ReceiveMessageResponse]) error {
	var batch []*v2.Message
	select {
	case batch = <-f.batches:
	case <-f.ended:
	case <-stream.Context().Done():
		return stream.Context().Err()
	}
	st := ok()
	if len(batch) == 0 {
		st.Code = v2.Code_MESSAGE_NOT_FOUND
	}
	if err := stream.Send(&v2.ReceiveMessageResponse{Content: &v2.ReceiveMessageResponse_Status{Status: st}}); err != nil {
		return err
	}
	for _, m := range batch {
		if err := stream.Send(&v2.ReceiveMessageResponse{Content: &v2.ReceiveMessageResponse_Message{Message: m}}); err != nil {
			return err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(batch) > 0 {
		f.attempts = append(f.attempts, r.GetAttemptId())
	}
	if f.breaks > 0 && len(batch) > 0 {
		f.breaks--
		return status.Error(codes.Unavailable, "broken off")
	}
	return nil
}

func (f *fake) AckMessage(_ context.Context, r *v2.AckMessageRequest) (*v2.AckMessageResponse, error) {
	answer := &v2.AckMessageResponse{Status: ok()}
	for _, e := range r.GetEntries() {
		st := f.status(e)
		if st.GetCode() == v2.Code_OK {
			f.mu.Lock()
			f.acked = append(f.acked, e.GetReceiptHandle())
			f.mu.Unlock()
		} else {
			answer.Status.Code = v2.Code_MULTIPLE_RESULTS
		}
		answer.Entries = append(answer.Entries, &v2.AckMessageResultEntry{Status: st, ReceiptHandle: e.GetReceiptHandle()})
	}
	return answer, nil
}

func (f *fake) ChangeInvisibleDuration(_ context.Context, r *v2.ChangeInvisibleDurationRequest) (*v2.ChangeInvisibleDurationResponse, error) {
	kind := " renewed"
	if r.GetSuspend() {
		kind = " suspended"
	}
	f.mu.Lock()
	if r.GetSuspend() {
		f.suspends = append(f.suspends, r.GetInvisibleDuration().AsDuration())
	}
	f.settled = append(f.settled, r.GetReceiptHandle()+kind)
	f.mu.Unlock()
	return &v2.ChangeInvisibleDurationResponse{Status: f.status(r), ReceiptHandle: r.GetReceiptHandle() + "'"}, nil
}

func (f *fake) ForwardMessageToDeadLetterQueue(_ context.Context, r *v2.ForwardMessageToDeadLetterQueueRequest) (*v2.ForwardMessageToDeadLetterQueueResponse, error) {
	f.mu.Lock()
	f.settled = append(f.settled, r.GetReceiptHandle()+" rejected")
	f.mu.Unlock()
	return &v2.ForwardMessageToDeadLetterQueueResponse{Status: f.status(r)}, nil
}

func message(handle, body string, change ...func(*v2.SystemProperties)) *v2.Message {
	p := &v2.SystemProperties{
		MessageId: handle, ReceiptHandle: &handle, LiteTopic: new("lite"), DeliveryAttempt: proto.Int32(1),
		BodyEncoding: v2.Encoding_IDENTITY,
	}
	for _, f := range change {
		f(p)
	}
	return &v2.Message{Topic: &v2.Resource{Name: topic}, Body: []byte(body), SystemProperties: p}
}

// withFake runs test in a bubble with a consumer of a fake.
func withFake(t *testing.T, f *fake, o mq.Options, test func(t *testing.T, c *consumer)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f.batches, f.ended = make(chan []*v2.Message, 10), make(chan struct{})
		ln := bufconn.Listen(1 << 20)
		s := grpc.NewServer()
		v2.RegisterMessagingServiceServer(s, f)
		go func() { _ = s.Serve(ln) }() // its error is the stop
		t.Cleanup(s.Stop)
		n := &node{t: t, address: "fake:1", dialer: func(ctx context.Context, _ string) (net.Conn, error) { return ln.DialContext(ctx) }}
		test(t, n.consume(mq.Stubs, func(to *mq.Options) {
			to.AccessKey, to.Secret, to.Invisible, to.Polls = o.AccessKey, o.Secret, o.Invisible, o.Polls
		}))
	})
}

// A broker whose wildcard is the group's attribute refuses the name "*" and takes the empty set.
func TestTheWildcardFallsBackToTheGroupsAttribute(t *testing.T) {
	f := &fake{refuse: func(_ *fake, r any) *v2.Status {
		if s, ok := r.(*v2.SyncLiteSubscriptionRequest); ok && slices.Contains(s.GetLiteTopicSet(), "*") {
			return &v2.Status{Code: v2.Code_ILLEGAL_LITE_TOPIC}
		}
		return nil
	}}
	withFake(t, f, mq.Options{}, func(t *testing.T, c *consumer) {
		f.batches <- []*v2.Message{message("h", "x")}
		c.expect("x", 1).answer(mq.Ack())
		time.Sleep(61 * time.Second)
		f.mu.Lock()
		defer f.mu.Unlock()
		if len(f.syncs) != 4 || len(f.syncs[0]) != 1 {
			t.Fatalf("subscriptions %q", f.syncs)
		}
		for _, names := range f.syncs[1:] {
			if len(names) != 0 {
				t.Errorf("subscription %q after the first was refused", names)
			}
		}
	})
}

// A batch whose stream breaks is asked for again under the same attempt id, and only the whole one runs.
func TestABrokenBatchIsAskedForAgain(t *testing.T) {
	f := &fake{breaks: 2}
	withFake(t, f, mq.Options{Polls: 1}, func(t *testing.T, c *consumer) {
		for range 3 {
			f.batches <- []*v2.Message{message("a", "a"), message("b", "b")}
		}
		f.batches <- []*v2.Message{message("c", "c")}
		ran := map[string]int{}
		for range 3 {
			d := c.next()
			ran[string(d.Body)]++
			d.answer(mq.Ack())
		}
		time.Sleep(time.Minute)
		if len(c.deliveries) != 0 || ran["a"] != 1 || ran["b"] != 1 || ran["c"] != 1 {
			t.Errorf("ran %v and %d more", ran, len(c.deliveries))
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		id := f.attempts
		if len(id) != 4 || id[0] != id[1] || id[1] != id[2] || id[2] == id[3] {
			t.Errorf("attempt ids %q", id)
		}
	})
}

// An ack that fails is repeated and holds up no other; one that cannot succeed is not.
func TestAcksAreRepeatedOneByOne(t *testing.T) {
	failures := map[string]int{"b": 5, "c": 1 << 30}
	f := &fake{refuse: func(f *fake, r any) *v2.Status {
		e, ok := r.(*v2.AckMessageEntry)
		if !ok {
			return nil
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		if failures[e.GetReceiptHandle()]--; failures[e.GetReceiptHandle()] >= 0 {
			return &v2.Status{Code: v2.Code_INTERNAL_SERVER_ERROR}
		}
		if e.GetReceiptHandle() == "stale" {
			return &v2.Status{Code: v2.Code_INVALID_RECEIPT_HANDLE}
		}
		return nil
	}}
	withFake(t, f, mq.Options{Invisible: 20 * time.Second}, func(t *testing.T, c *consumer) {
		for _, h := range []string{"c", "stale", "b", "a"} {
			f.batches <- []*v2.Message{message(h, h)}
			c.expect(h, 1).answer(mq.Ack())
		}
		time.Sleep(10 * time.Second)
		f.mu.Lock()
		got := slices.Clone(f.acked)
		f.mu.Unlock()
		slices.Sort(got)
		if !slices.Equal(got, []string{"a", "b"}) {
			t.Errorf("acked %q", got)
		}
		tries := func() int {
			f.mu.Lock()
			defer f.mu.Unlock()
			return 1<<30 - failures["c"]
		}
		time.Sleep(time.Minute)
		before := tries()
		time.Sleep(time.Minute)
		if after := tries(); after != before || before < 10 {
			t.Errorf("%d tries until the lease's end, %d after", before, after-before)
		}
	})
}

func TestRenewalChangesTheHandle(t *testing.T) {
	f := &fake{}
	withFake(t, f, mq.Options{Invisible: 30 * time.Second}, func(t *testing.T, c *consumer) {
		f.batches <- []*v2.Message{message("h", "x")}
		d := c.expect("x", 1)
		time.Sleep(25 * time.Second) // two renewals, each at a third
		d.answer(mq.Ack())
		time.Sleep(time.Second)
		f.mu.Lock()
		defer f.mu.Unlock()
		if !slices.Equal(f.settled, []string{"h renewed", "h' renewed"}) || !slices.Equal(f.acked, []string{"h''"}) {
			t.Errorf("renewals %q, acks %q", f.settled, f.acked)
		}
	})
}

// What comes after the stop began is given back at once and never reaches the handler.
func TestWhatComesAfterTheStopIsReleased(t *testing.T) {
	f := &fake{refuse: func(f *fake, r any) *v2.Status {
		if _, ok := r.(*v2.NotifyClientTerminationRequest); ok { // a poll takes it before the good-bye is answered
			f.batches <- []*v2.Message{message("late", "late")}
		}
		return nil
	}}
	withFake(t, f, mq.Options{}, func(t *testing.T, c *consumer) {
		f.batches <- []*v2.Message{message("h", "x")}
		c.expect("x", 1).answer(mq.Ack())
		time.Sleep(time.Second)
		begin := time.Now()
		c.stop()
		if d := time.Since(begin); d != 0 {
			t.Errorf("stop took %s with a broker that answers", d)
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		if len(c.deliveries) != 0 || !slices.Equal(f.settled, []string{"late suspended"}) {
			t.Errorf("%d ran, settled %q", len(c.deliveries), f.settled)
		}
	})
}

func TestPackedBodiesAreUnpacked(t *testing.T) {
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	_, err := z.Write([]byte("plain"))
	must(t, err)
	must(t, z.Close())
	gzipped := func(p *v2.SystemProperties) { p.BodyEncoding = v2.Encoding_GZIP }
	f := &fake{}
	withFake(t, f, mq.Options{}, func(t *testing.T, c *consumer) {
		f.batches <- []*v2.Message{message("broken", "no gzip", gzipped), message("h", packed.String(), gzipped)}
		c.expect("plain", 1).answer(mq.Ack())
		time.Sleep(time.Second)
		f.mu.Lock()
		defer f.mu.Unlock()
		if !slices.Equal(f.settled, []string{"broken rejected"}) {
			t.Errorf("settled %q", f.settled)
		}
	})
}

// The signature is of RocketMQ's scheme.
func TestCallsAreSigned(t *testing.T) {
	f := &fake{}
	withFake(t, f, mq.Options{AccessKey: "ak", Secret: "sk"}, func(t *testing.T, c *consumer) {
		f.batches <- []*v2.Message{message("h", "x")}
		c.expect("x", 1).answer(mq.Ack())
		f.mu.Lock()
		defer f.mu.Unlock()
		// The bubble's clock starts at 2000-01-01T00:00:00Z; HMAC-SHA1("sk", "20000101T000000Z").
		want := "MQv2-HMAC-SHA1 Credential=ak//Rocketmq, SignedHeaders=x-mq-date-time, Signature=a5eb431470a490b60d59209b5980c0e3282ef6b9"
		if got := f.headers.Get("authorization"); len(got) != 1 || got[0] != want {
			t.Errorf("authorization %q, want %q", got, want)
		}
		if got := f.headers.Get("x-mq-client-id"); len(got) != 1 || got[0] == "" {
			t.Errorf("client id %q", got)
		}
	})
}
