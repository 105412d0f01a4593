package mq

import (
	"context"
	"crypto/hmac"
	crand "crypto/rand"
	"crypto/sha1" //nolint:gosec // the protocol's signature is HMAC-SHA1
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strconv"
	"time"

	v2 "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

const (
	// callTimeout bounds a unary call. RocketMQ's clients have 3 s.
	callTimeout = 3 * time.Second
	// receiveMax bounds a message from the broker, as RocketMQ's proxy bounds one to it.
	receiveMax = 130 << 20
	// clientVersion is only used by RocketMQ to choose between an old and a new form of some answers.
	clientVersion = "5.1.4"
)

// link is a client's connection: the stubs, and what every call carries. It is immutable; the connection behind it
// reconnects by itself.
type link struct {
	conn      *grpc.ClientConn
	stub      v2.MessagingServiceClient
	clientID  string
	accessKey string
	secret    Secret
	endpoints *v2.Endpoints
}

// dial makes a link. It does not wait for the connection.
func dial(o Options) (*link, error) {
	endpoints, err := endpointsOf(o.Endpoint)
	if err != nil {
		return nil, err
	}
	creds := insecure.NewCredentials()
	if o.TLS {
		creds = credentials.NewTLS(&tls.Config{
			MinVersion:         tls.VersionTLS12,
			InsecureSkipVerify: o.InsecureSkipVerify, //nolint:gosec // the operator's choice, for self-signed brokers
		})
	}
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(creds),
		// A broker that restarts is back within a second; the default's two minutes would be the outage.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 2 * time.Second},
			MinConnectTimeout: callTimeout,
		}),
		// RocketMQ's proxy takes more pings than this for an attack.
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 5 * time.Minute, Timeout: 20 * time.Second}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(receiveMax)),
		grpc.WithInitialWindowSize(1 << 20),
		grpc.WithInitialConnWindowSize(8 << 20),
		grpc.WithDisableServiceConfig(),
	}
	if o.dialer != nil {
		options = append(options, grpc.WithContextDialer(o.dialer))
	}
	conn, err := grpc.NewClient("passthrough:///"+o.Endpoint, options...)
	if err != nil {
		return nil, fmt.Errorf("dial: %w", err)
	}
	return &link{
		conn:      conn,
		stub:      v2.NewMessagingServiceClient(conn),
		clientID:  newClientID(),
		accessKey: o.AccessKey,
		secret:    o.Secret,
		endpoints: endpoints,
	}, nil
}

func (l *link) close() error { return l.conn.Close() }

// sign adds the headers of a call. Only the date is signed; that is the scheme.
func (l *link) sign(ctx context.Context) context.Context {
	date := time.Now().UTC().Format("20060102T150405Z")
	kv := []string{
		"x-mq-client-id", l.clientID,
		"x-mq-language", "GO",
		"x-mq-protocol", "v2",
		"x-mq-client-version", clientVersion,
		"x-mq-date-time", date,
		"x-mq-namespace", "",
	}
	if l.accessKey != "" {
		mac := hmac.New(sha1.New, []byte(l.secret))
		mac.Write([]byte(date))
		kv = append(kv, "authorization", "MQv2-HMAC-SHA1 Credential="+l.accessKey+"//Rocketmq, SignedHeaders=x-mq-date-time, Signature="+
			hex.EncodeToString(mac.Sum(nil)))
	}
	return metadata.AppendToOutgoingContext(ctx, kv...)
}

// call is the context of a unary call below ctx.
func (l *link) call(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	return l.sign(ctx), cancel
}

// answered is a unary response: gRPC delivers refusals as success with a status inside.
type answered interface{ GetStatus() *v2.Status }

// refusal is the error of a call that gave response or err.
func refusal(op string, response answered, err error) error {
	if err == nil {
		err = codeError(response.GetStatus())
	}
	if err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	return nil
}

func codeError(s *v2.Status) error {
	if s.GetCode() == v2.Code_OK {
		return nil
	}
	return &CodeError{Code: int32(s.GetCode()), Message: s.GetMessage()}
}

// hopeless says that asking again will not help: the operator has to do something first.
func hopeless(err error) bool {
	if ce, ok := errors.AsType[*CodeError](err); ok {
		switch code := v2.Code(ce.Code); code {
		case v2.Code_TOPIC_NOT_FOUND, v2.Code_CONSUMER_GROUP_NOT_FOUND, v2.Code_UNAUTHORIZED, v2.Code_FORBIDDEN,
			v2.Code_NOT_IMPLEMENTED, v2.Code_UNSUPPORTED, v2.Code_VERSION_UNSUPPORTED:
			return true
		default: // the 400xx are faults of the request
			return code >= v2.Code_BAD_REQUEST && code < v2.Code_UNAUTHORIZED
		}
	}
	switch status.Code(err) {
	case codes.Unimplemented, codes.Unauthenticated, codes.PermissionDenied:
		return true
	default:
		return false
	}
}

func resource(name string) *v2.Resource { return &v2.Resource{Name: name} }

// endpointsOf is HOST:PORT as the protocol has it.
func endpointsOf(endpoint string) (*v2.Endpoints, error) {
	host, portText, err := net.SplitHostPort(endpoint)
	if err != nil {
		return nil, fmt.Errorf("endpoint: %w", err)
	}
	port, err := strconv.ParseUint(portText, 10, 16)
	if err != nil {
		return nil, fmt.Errorf("endpoint: port %q is not a number", portText)
	}
	scheme := v2.AddressScheme_DOMAIN_NAME
	if ip, err := netip.ParseAddr(host); err == nil {
		scheme = v2.AddressScheme_IPv4
		if ip.Is6() {
			scheme = v2.AddressScheme_IPv6
		}
	}
	return &v2.Endpoints{Scheme: scheme, Addresses: []*v2.Address{{Host: host, Port: int32(port)}}}, nil
}

// newClientID is unique: two processes with one id would steal each other's subscriptions.
func newClientID() string {
	host, err := os.Hostname()
	if err != nil || len(host) > 64 {
		host = "penstock"
	}
	return host + "@" + strconv.Itoa(os.Getpid()) + "@" + randomHex(8)
}

// randomHex is n random bytes in upper-case hex. crypto/rand does not fail.
func randomHex(n int) string {
	b := make([]byte, n)
	_, _ = crand.Read(b)
	return fmt.Sprintf("%X", b)
}

// pause waits for d; false means that ctx ended first.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// retryDelay is the pause before try number n, 1 for the first repetition: 20 ms doubling up to 2 s, the upper half of it at
// random, so that a thousand workers do not come back in step.
func retryDelay(n int) time.Duration {
	d := 20 * time.Millisecond << min(n-1, 10)
	d = min(d, 2*time.Second)
	return d/2 + rand.N(d/2)
}
