package rpc

import (
	"context"
	"net/netip"

	v2 "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
	"google.golang.org/grpc/peer"

	"github.com/penstockmq/penstock/broker/lite"
)

// QueryRoute answers with one queue, whatever the topic: lite messages find their
// bucket by name and not by queue. The answer to the same question is always the
// same, byte for byte; clients compare it with the last one.
//
// Codes: ILLEGAL_TOPIC, TOPIC_NOT_FOUND.
func (s *Server) QueryRoute(ctx context.Context, r *v2.QueryRouteRequest) (*v2.QueryRouteResponse, error) {
	topic := r.GetTopic()
	if err := lite.CheckTopic(topic.GetName()); err != nil {
		return nil, err
	}
	if err := s.broker.CheckTopic(topic.GetName()); err != nil {
		return nil, err
	}
	return &v2.QueryRouteResponse{
		Status:        statusOf(nil),
		MessageQueues: []*v2.MessageQueue{s.queue(ctx, topic, r.GetEndpoints())},
	}, nil
}

// queue is the one queue of a parent topic. Queue id 0 and broker id 0 are what
// some clients filter by.
func (s *Server) queue(ctx context.Context, topic *v2.Resource, used *v2.Endpoints) *v2.MessageQueue {
	return &v2.MessageQueue{
		Topic:              topic,
		Id:                 0,
		Permission:         v2.Permission_READ_WRITE,
		Broker:             &v2.Broker{Name: s.opts.BrokerName, Id: 0, Endpoints: s.endpoints(ctx, used)},
		AcceptMessageTypes: []v2.MessageType{v2.MessageType_LITE},
	}
}

// endpoints is where clients are to connect: what we were told to advertise, else
// the address that the client used, else the one its connection arrived at.
func (s *Server) endpoints(ctx context.Context, used *v2.Endpoints) *v2.Endpoints {
	if s.opts.Advertise != "" {
		if e, err := endpointsOf(s.opts.Advertise); err == nil { // checked by New
			return e
		}
	}
	if n := len(used.GetAddresses()); n > 0 {
		if used.GetScheme() == v2.AddressScheme_DOMAIN_NAME && n > 1 {
			// Java takes exactly one address for a name.
			return &v2.Endpoints{Scheme: used.GetScheme(), Addresses: used.GetAddresses()[:1]}
		}
		return used
	}
	if p, ok := peer.FromContext(ctx); ok && p.LocalAddr != nil {
		if e, err := endpointsOf(p.LocalAddr.String()); err == nil {
			return e
		}
	}
	return &v2.Endpoints{}
}

// endpointsOf writes HOST:PORT as RocketMQ does: the scheme says what the host is.
func endpointsOf(addr string) (*v2.Endpoints, error) {
	host, port, err := splitAddress(addr)
	if err != nil {
		return nil, err
	}
	scheme := v2.AddressScheme_DOMAIN_NAME
	if ip, err := netip.ParseAddr(host); err == nil {
		scheme = v2.AddressScheme_IPv6
		if ip.Unmap().Is4() {
			scheme = v2.AddressScheme_IPv4
		}
	}
	return &v2.Endpoints{Scheme: scheme, Addresses: []*v2.Address{{Host: host, Port: port}}}, nil
}
