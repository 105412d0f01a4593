package rpc

import (
	"context"
	"sync"
	"time"

	v2 "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
	"google.golang.org/grpc/stats"
)

const (
	// touchInterval is how often the broker hears of a client that makes calls. Its
	// own limit for silent ones is minutes.
	touchInterval = 5 * time.Second
	// maxClientsPerConnection bounds the client ids that one connection may use.
	// Official clients use one each; a proxy in between may carry many.
	maxClientsPerConnection = 4096
	// maxQueuedCommands bounds the commands that wait for a client's telemetry
	// stream. More are dropped; see Notices.
	maxQueuedCommands = 256
)

// clients knows which client ids are connected, and through how many connections.
// A client has left when the last connection that spoke for it ended: only then
// are its polls worthless and its leases no longer renewed. Clients reconnect
// before the old connection is known dead, so a single one ending means nothing.
type clients struct {
	mu sync.Mutex
	// mu guards the following field, what it refers to, and every connection.
	byID map[string]*client
}

// client is a client id with at least one connection.
type client struct {
	connections int
	// touched is when the broker last heard of it.
	touched time.Time
	// lite is whether its settings say that it is a lite consumer.
	lite bool
	// synced is whether it has sent a SyncLiteSubscription.
	synced bool
	// commands leads to its newest telemetry stream; nil when it has none.
	commands chan *v2.TelemetryCommand
}

// connection is one HTTP/2 connection; it travels in the context of its calls.
type connection struct {
	ids   map[string]struct{}
	ended bool
}

type connectionKey struct{}

func newClients() *clients { return &clients{byID: make(map[string]*client)} }

// seen notes a call of client id on a connection. touch says that the broker should
// hear of it; ok is false when the connection uses too many ids.
func (c *clients) seen(conn *connection, id string, now time.Time) (touch, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if conn.ended {
		return false, true // the call is about to find out
	}
	cl := c.byID[id]
	if _, known := conn.ids[id]; !known {
		if len(conn.ids) >= maxClientsPerConnection {
			return false, false
		}
		if cl == nil {
			cl = &client{}
			c.byID[id] = cl
		}
		conn.ids[id] = struct{}{}
		cl.connections++
	}
	touch = now.Sub(cl.touched) >= touchInterval
	if touch {
		cl.touched = now
	}
	return touch, true
}

// end takes a connection away and returns the clients that have none left.
func (c *clients) end(conn *connection) (gone []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	conn.ended = true
	for id := range conn.ids {
		cl := c.byID[id]
		cl.connections--
		if cl.connections == 0 {
			delete(c.byID, id)
			gone = append(gone, id)
		}
	}
	conn.ids = nil
	return gone
}

// openTelemetry makes a new stream the one that the client's commands go to.
func (c *clients) openTelemetry(id string) chan *v2.TelemetryCommand {
	commands := make(chan *v2.TelemetryCommand, maxQueuedCommands)
	c.update(id, func(cl *client) { cl.commands = commands })
	return commands
}

// closeTelemetry is for a stream that ended; a newer one stays.
func (c *clients) closeTelemetry(id string, commands chan *v2.TelemetryCommand) {
	c.update(id, func(cl *client) {
		if cl.commands == commands {
			cl.commands = nil
		}
	})
}

func (c *clients) setLite(id string, lite bool) { c.update(id, func(cl *client) { cl.lite = lite }) }

func (c *clients) setSynced(id string) { c.update(id, func(cl *client) { cl.synced = true }) }

// update changes a client if it is connected.
func (c *clients) update(id string, f func(*client)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if cl := c.byID[id]; cl != nil {
		f(cl)
	}
}

// notifiable is where to send a client the notice that it lost a lite topic, nil if
// it cannot take one. Official Go clients crash on such a notice unless they are
// lite consumers that have synchronised once.
func (c *clients) notifiable(id string) chan<- *v2.TelemetryCommand {
	c.mu.Lock()
	defer c.mu.Unlock()
	cl := c.byID[id]
	if cl == nil || !cl.lite || !cl.synced {
		return nil
	}
	return cl.commands
}

// connectionWatch hears from gRPC when connections begin and end.
type connectionWatch struct {
	clients *clients
	// gone is told of each client whose last connection ended.
	gone func(client string)
}

func (w connectionWatch) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context {
	return context.WithValue(ctx, connectionKey{}, &connection{ids: make(map[string]struct{})})
}

func (w connectionWatch) HandleConn(ctx context.Context, s stats.ConnStats) {
	if _, ok := s.(*stats.ConnEnd); !ok {
		return
	}
	conn, ok := ctx.Value(connectionKey{}).(*connection)
	if !ok {
		return
	}
	for _, id := range w.clients.end(conn) {
		w.gone(id)
	}
}

func (w connectionWatch) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }
func (w connectionWatch) HandleRPC(context.Context, stats.RPCStats)                       {}
