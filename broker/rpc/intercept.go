package rpc

import (
	"context"
	"runtime/debug"
	"strings"
	"time"

	v2 "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// Request headers, as official clients write them.
const (
	headerClientID = "x-mq-client-id"
	headerLanguage = "x-mq-language"
)

const maxClientIDBytes = 255

// caller is who makes a call; it travels in the call's context.
type caller struct {
	id       string
	language string
}

type callerKey struct{}

func callerOf(ctx context.Context) caller {
	c, _ := ctx.Value(callerKey{}).(caller)
	return c
}

// admit finds out who calls and notes the sign of life.
func (s *Server) admit(ctx context.Context, method string) (context.Context, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	c := caller{id: strings.TrimSpace(header(md, headerClientID)), language: header(md, headerLanguage)}
	switch {
	case c.id == "" && method == v2.MessagingService_Heartbeat_FullMethodName:
		// The official Go client's heartbeat after a reconnect has no headers at all,
		// and a refusal makes it drop a healthy telemetry stream.
		return context.WithValue(ctx, callerKey{}, c), nil
	case c.id == "" && isPenstock(method):
		// An operator's tool that asks is no client of the group.
		return context.WithValue(ctx, callerKey{}, c), nil
	case c.id == "":
		return nil, refuse(v2.Code_CLIENT_ID_REQUIRED, "header %s is missing or blank", headerClientID)
	case len(c.id) > maxClientIDBytes:
		return nil, refuse(v2.Code_BAD_REQUEST, "header %s has %d bytes, at most %d", headerClientID, len(c.id), maxClientIDBytes)
	}
	if conn, ok := ctx.Value(connectionKey{}).(*connection); ok {
		touch, ok := s.clients.seen(conn, c.id, time.Now())
		if !ok {
			return nil, refuse(v2.Code_TOO_MANY_REQUESTS, "connection speaks for more than %d clients", maxClientsPerConnection)
		}
		if touch {
			s.broker.Touch(c.id)
		}
	}
	return context.WithValue(ctx, callerKey{}, c), nil
}

func header(md metadata.MD, key string) string {
	if v := md.Get(key); len(v) > 0 {
		return v[0]
	}
	return ""
}

// unary wraps every unary call: who calls, and a net under the handler. No call
// whose response has a status ends with a gRPC error; those of penstock.v1 have none.
func (s *Server) unary(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (response any, err error) {
	defer func() {
		if p := recover(); p != nil {
			response, err = refuseUnary(info.FullMethod, request, s.panicked(info.FullMethod, p))
		}
	}()
	ctx, err = s.admit(ctx, info.FullMethod)
	if err != nil {
		return refuseUnary(info.FullMethod, request, s.statusOf(err))
	}
	response, err = handler(ctx, request)
	if err != nil {
		return refuseUnary(info.FullMethod, request, s.statusOf(err))
	}
	return response, nil
}

func refuseUnary(method string, request any, st *v2.Status) (any, error) {
	if isPenstock(method) {
		return nil, refusePenstock(st)
	}
	if response, ok := answerWith(request, st); ok {
		return response, nil
	}
	return nil, grpcStatus(st)
}

// stream is unary for streams. A stream whose frames carry a status ends with one.
func (s *Server) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = refuseStream(ss, info.FullMethod, s.panicked(info.FullMethod, p))
		}
	}()
	ctx, err := s.admit(ss.Context(), info.FullMethod)
	if err == nil {
		err = handler(srv, &admittedStream{ServerStream: ss, ctx: ctx})
	}
	switch {
	case err == nil:
		return nil
	case ss.Context().Err() != nil:
		return status.FromContextError(ss.Context().Err()).Err() // nobody reads
	}
	return refuseStream(ss, info.FullMethod, s.statusOf(err))
}

func refuseStream(ss grpc.ServerStream, method string, st *v2.Status) error {
	if frame, ok := statusFrame(method, st); ok {
		return ss.SendMsg(frame)
	}
	return grpcStatus(st)
}

// grpcStatus is for calls that have no other way to say no: Telemetry.
func grpcStatus(st *v2.Status) error {
	code := codes.InvalidArgument
	if st.GetCode() >= v2.Code_INTERNAL_ERROR {
		code = codes.Internal
	}
	return status.Error(code, st.GetMessage())
}

type admittedStream struct {
	grpc.ServerStream

	ctx context.Context
}

func (s *admittedStream) Context() context.Context { return s.ctx }

// panicked logs what a handler fell over and gives a status without details.
func (s *Server) panicked(method string, p any) *v2.Status {
	s.log.Error("panic in a call", "method", method, "panic", p, "stack", string(debug.Stack()))
	return &v2.Status{Code: v2.Code_INTERNAL_SERVER_ERROR, Message: "internal error"}
}

// statusOf is the function of that name, and logs what should not happen.
func (s *Server) statusOf(err error) *v2.Status {
	st := statusOf(err)
	if st.GetCode() == v2.Code_INTERNAL_SERVER_ERROR {
		s.log.Error("internal error in a call", "error", err)
	}
	return st
}
