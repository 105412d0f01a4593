package rpc

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v2 "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
)

func TestPlaintextAndTLSOnOnePort(t *testing.T) {
	f := startLoopback(t)
	for name, c := range map[string]*stub{"plaintext": f.client("p"), "TLS": f.client("t", insecureTLS())} {
		out, err := c.Heartbeat(c.ctx, &v2.HeartbeatRequest{})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		expectCode(t, out.GetStatus(), v2.Code_OK)
	}
	// A connection that says nothing, or nonsense, holds up nobody.
	silent, err := net.Dial("tcp", f.address)
	must(t, err)
	defer silent.Close()
	odd, err := net.Dial("tcp", f.address)
	must(t, err)
	defer odd.Close()
	_, err = odd.Write([]byte("\x16\x16nonsense, and enough of it to be more than a record header"))
	must(t, err)
	c := f.client("later")
	_, err = c.Heartbeat(c.ctx, &v2.HeartbeatRequest{})
	must(t, err)
}

// C125 at this level: 50 parked polls and telemetry streams end with a clean status
// as soon as the server stops.
func TestC125_IdlePollsEndWhenTheServerStops(t *testing.T) {
	const polls = 50
	synctest.Test(t, func(t *testing.T) {
		f := start(t)
		c := f.client("c")
		stream, send := c.telemetry()
		_, err := send(consumerSettings())
		must(t, err)
		var g errgroup.Group
		for range polls {
			g.Go(func() error {
				a, err := c.tryReceive(c.ctx)
				if err == nil && (a.status.GetCode() != v2.Code_MESSAGE_NOT_FOUND || a.order != "st") {
					err = errors.New("a poll ended with " + a.status.String())
				}
				return err
			})
		}
		f.parked(polls)
		begin := time.Now()
		f.stop()
		must(t, g.Wait())
		if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
			t.Errorf("telemetry ended with %v", err)
		}
		if d := time.Since(begin); d > 500*time.Millisecond {
			t.Errorf("the stop took %v", d)
		}
		f.expectNoLease()
	})
}

func (f *fixture) expectNoLease() {
	f.t.Helper()
	for _, g := range f.stats().Groups {
		if g.Leases != 0 {
			f.t.Errorf("%d messages are out", g.Leases)
		}
	}
}

// A call that hangs is cut off when the grace is over.
func TestStopIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t)
		// The client reads nothing: the answer cannot be finished.
		c := f.client("c", grpc.WithStaticStreamWindowSize(64<<10), grpc.WithStaticConnWindowSize(64<<10))
		expectCode(t, c.send("alice", "id", func(m *v2.Message) { m.Body = make([]byte, 1<<20) }).GetStatus(), v2.Code_OK)
		_, err := c.ReceiveMessage(c.ctx, c.poll())
		must(t, err)
		synctest.Wait()
		begin := time.Now()
		f.stop()
		if d := time.Since(begin); d < 2*time.Second || d > 3*time.Second {
			t.Errorf("the stop took %v, the grace is 2s", d)
		}
		synctest.Wait()
		f.expectNoLease()
	})
}

func TestRunReportsAListenerThatFails(t *testing.T) {
	f := startLoopback(t)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	must(t, ln.Close())
	s, err := New(Options{Broker: f.broker})
	must(t, err)
	if err := s.Run(t.Context(), ln); err == nil {
		t.Error("no error")
	}
}

func TestPanicIsAnInternalError(t *testing.T) {
	var log bytes.Buffer
	s := &Server{opts: Options{}.withDefaults(), clients: newClients(), log: slog.New(slog.NewTextHandler(&log, nil))}
	ctx := context.Background()
	out, err := s.unary(ctx, &v2.HeartbeatRequest{}, &grpc.UnaryServerInfo{FullMethod: v2.MessagingService_Heartbeat_FullMethodName},
		func(context.Context, any) (any, error) { panic("secret detail") })
	must(t, err)
	st := out.(*v2.HeartbeatResponse).GetStatus()
	expectCode(t, st, v2.Code_INTERNAL_SERVER_ERROR)
	if strings.Contains(st.GetMessage(), "secret") {
		t.Errorf("the client hears %q", st.GetMessage())
	}
	if !strings.Contains(log.String(), "secret detail") || !strings.Contains(log.String(), "panic in a call") {
		t.Errorf("log: %q", log.String())
	}
}

// An error that no table knows reaches the client as an internal error, and the log.
func TestUnknownErrorIsLogged(t *testing.T) {
	var log bytes.Buffer
	s := &Server{opts: Options{}.withDefaults(), clients: newClients(), log: slog.New(slog.NewTextHandler(&log, nil))}
	out, err := s.unary(context.Background(), &v2.HeartbeatRequest{}, &grpc.UnaryServerInfo{FullMethod: v2.MessagingService_Heartbeat_FullMethodName},
		func(context.Context, any) (any, error) { return nil, errors.New("disk on fire") })
	must(t, err)
	expectCode(t, out.(*v2.HeartbeatResponse).GetStatus(), v2.Code_INTERNAL_SERVER_ERROR)
	if !strings.Contains(log.String(), "disk on fire") {
		t.Errorf("log: %q", log.String())
	}
}

// Every call of the service takes a request of zeros without falling over, and
// answers with a status.
func TestEmptyRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t).client("c")
		for _, m := range v2.MessagingService_ServiceDesc.Methods {
			in, ok := emptyRequest(m.MethodName)
			if !ok {
				t.Errorf("%s: no request known", m.MethodName)
				continue
			}
			out, ok := answerWith(in, nil)
			if !ok {
				t.Errorf("%s: no response known", m.MethodName)
				continue
			}
			must(t, c.conn.Invoke(c.ctx, "/"+v2.MessagingService_ServiceDesc.ServiceName+"/"+m.MethodName, in, out))
			st := out.(interface{ GetStatus() *v2.Status }).GetStatus()
			if code := st.GetCode(); code == v2.Code_CODE_UNSPECIFIED || code == v2.Code_INTERNAL_SERVER_ERROR {
				t.Errorf("%s: status %v", m.MethodName, st)
			}
		}
		a := c.receive(func(r *v2.ReceiveMessageRequest) { *r = v2.ReceiveMessageRequest{} })
		expectCode(t, a.status, v2.Code_ILLEGAL_TOPIC)
		stream, err := c.Telemetry(c.ctx)
		must(t, err)
		must(t, stream.Send(&v2.TelemetryCommand{}))
		must(t, stream.CloseSend())
		if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
			t.Errorf("telemetry ended with %v", err)
		}
	})
}

func emptyRequest(method string) (any, bool) {
	m := map[string]any{
		"QueryRoute": &v2.QueryRouteRequest{}, "Heartbeat": &v2.HeartbeatRequest{}, "SendMessage": &v2.SendMessageRequest{},
		"QueryAssignment": &v2.QueryAssignmentRequest{}, "AckMessage": &v2.AckMessageRequest{},
		"ForwardMessageToDeadLetterQueue": &v2.ForwardMessageToDeadLetterQueueRequest{}, "UpdateOffset": &v2.UpdateOffsetRequest{},
		"GetOffset": &v2.GetOffsetRequest{}, "QueryOffset": &v2.QueryOffsetRequest{}, "EndTransaction": &v2.EndTransactionRequest{},
		"NotifyClientTermination": &v2.NotifyClientTerminationRequest{}, "ChangeInvisibleDuration": &v2.ChangeInvisibleDurationRequest{},
		"RecallMessage": &v2.RecallMessageRequest{}, "SyncLiteSubscription": &v2.SyncLiteSubscriptionRequest{},
	}
	in, ok := m[method]
	return in, ok
}

// A request over the limit of gRPC has no message to answer to: it is the one
// refusal that is a gRPC error.
func TestRequestTooLarge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t, func(c *config) { c.rpc.MaxRequestBytes, c.rpc.MaxBodyBytes = 1<<20, 1<<19 }).client("c")
		sized := func(n int) *v2.Message { return liteMessage(func(m *v2.Message) { m.Body = make([]byte, n) }) }
		send := func(n int) (*v2.SendMessageResponse, error) {
			return c.SendMessage(c.ctx, &v2.SendMessageRequest{Messages: []*v2.Message{sized(n)}})
		}
		out, err := send(1<<19 + 1)
		must(t, err)
		expectCode(t, out.GetStatus(), v2.Code_MESSAGE_BODY_TOO_LARGE)
		if _, err := send(2 << 20); status.Code(err) != codes.ResourceExhausted {
			t.Errorf("error %v, want ResourceExhausted", err)
		}
		out, err = send(1 << 19)
		must(t, err)
		expectCode(t, out.GetStatus(), v2.Code_OK)
	})
}

func TestOptionsNameWhatIsWrong(t *testing.T) {
	_, err := New(Options{Advertise: "nowhere", MaxBodyBytes: 32 << 20, ReceiveBatch: -1, PollMax: time.Millisecond, MinInvisible: 24 * time.Hour})
	if err == nil {
		t.Fatal("no error")
	}
	for _, key := range []string{"broker", "advertise", "max body bytes", "receive batch", "poll max", "min invisible"} {
		if !strings.Contains(err.Error(), key) {
			t.Errorf("error does not name %q: %v", key, err)
		}
	}
}

// A consumer that vanishes without a FIN is noticed by the server's own pings.
func TestSilentConnectionIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t)
		var dead blackHole
		dialer := f.dialer
		f.dialer = func(ctx context.Context, a string) (net.Conn, error) {
			conn, err := dialer(ctx, a)
			return dead.wrap(conn), err
		}
		c := f.client("c")
		go func() { _, _ = c.tryReceive(c.ctx, wait(20*time.Second)) }()
		f.parked(1)
		dead.swallow.Store(true)
		time.Sleep(pingAfter + pingTimeout + time.Second)
		f.parked(0)
		dead.release()
	})
}

// Clients ping every 10 s, some without a call under way; gRPC's default would take
// that for abuse and disconnect them.
func TestPingsAreTolerated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t)
		connections := 0
		dialer := f.dialer
		f.dialer = func(ctx context.Context, a string) (net.Conn, error) {
			connections++
			return dialer(ctx, a)
		}
		c := f.client("c", grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: time.Second, PermitWithoutStream: true}))
		for range 3 {
			_, err := c.Heartbeat(c.ctx, &v2.HeartbeatRequest{})
			must(t, err)
			time.Sleep(2 * time.Minute)
		}
		if connections != 1 {
			t.Errorf("%d connections, want the first to last", connections)
		}
	})
}

// A process that is about to stop ends the polls that wait, and goes on serving: a poll
// that comes later waits, and is answered.
func TestEndPolls_LaterOnesWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t)
		c := f.client("c")
		ended := make(chan answer, 2)
		go func() { ended <- c.receive() }()
		f.parked(1)
		began := time.Now()
		f.server.EndPolls()
		if a := <-ended; a.status.GetCode() != v2.Code_MESSAGE_NOT_FOUND || time.Since(began) != 0 {
			t.Errorf("a poll that waits ends with %v after %v", a.status, time.Since(began))
		}
		go func() { ended <- c.receive() }()
		f.parked(1)
		c.sent("u1", "m1")
		if a := <-ended; len(a.messages) != 1 {
			t.Errorf("a later poll ends with %v and %d messages", a.status, len(a.messages))
		}
	})
}
