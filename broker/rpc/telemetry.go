package rpc

import (
	"errors"
	"io"

	v2 "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
	"google.golang.org/grpc"
)

type telemetryStream = grpc.BidiStreamingServer[v2.TelemetryCommand, v2.TelemetryCommand]

// Telemetry is a client's standing stream: it sends its settings and gets them back
// with the server's values filled in, and it hears what it did not ask for. Neither
// subscriptions nor leases hang on it: the official Go client stays without its
// stream for up to five minutes after a reconnect, and works on.
//
// It ends when the client ends it and when the server stops, with gRPC's OK.
// Settings that make no sense end it with INVALID_ARGUMENT, as in RocketMQ.
func (s *Server) Telemetry(stream telemetryStream) error {
	ctx := stream.Context()
	who := callerOf(ctx)
	commands := s.clients.openTelemetry(who.id)
	defer s.clients.closeTelemetry(who.id, commands)

	// This goroutine writes; the one in received reads, and ends with the stream,
	// which is when this function returns.
	in := received(stream)
	for {
		select {
		case <-s.stopping.Done():
			return nil
		case c := <-commands:
			if err := stream.Send(c); err != nil {
				return err
			}
		case r := <-in:
			if errors.Is(r.err, io.EOF) {
				return nil
			}
			if r.err != nil {
				return r.err
			}
			// Other commands are answers to questions that we never ask.
			if settings := r.command.GetSettings(); settings != nil {
				if err := s.answerSettings(stream, who, settings); err != nil {
					return err
				}
			}
		}
	}
}

type receivedCommand struct {
	command *v2.TelemetryCommand
	err     error
}

// received reads a stream into a channel until the stream ends. Its last item has
// an error.
func received(stream telemetryStream) <-chan receivedCommand {
	in := make(chan receivedCommand)
	go func() {
		for {
			c, err := stream.Recv()
			select {
			case in <- receivedCommand{c, err}:
			case <-stream.Context().Done():
				return
			}
			if err != nil {
				return
			}
		}
	}()
	return in
}

func (s *Server) answerSettings(stream telemetryStream, who caller, settings *v2.Settings) error {
	if err := checkSettings(settings); err != nil {
		return err
	}
	switch settings.GetClientType() {
	case v2.ClientType_LITE_PUSH_CONSUMER, v2.ClientType_LITE_SIMPLE_CONSUMER:
		s.clients.setLite(who.id, true)
	default:
		s.clients.setLite(who.id, false)
	}
	return stream.Send(&v2.TelemetryCommand{
		Status:  statusOf(nil),
		Command: &v2.TelemetryCommand_Settings{Settings: s.mergeSettings(who, settings)},
	})
}
