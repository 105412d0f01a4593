package gateway

import (
	"container/list"
	"context"
	"net"
	"sync"
	"sync/atomic"
)

// sendBuffer bounds the kernel's buffer for a caller that does not read, in bytes; Linux doubles it. Without a bound it would
// grow to some MiB per connection. A caller 100 ms away still gets more than 1 MB/s.
const sendBuffer = 128 << 10

// strangers are the connections on which no request has shown a known API key yet. Their number is bounded, and the oldest
// is closed to make room: a caller with a key shows it right after it has connected.
type strangers struct {
	most    int          // immutable
	dropped atomic.Int64 // closed to make room

	mu    sync.Mutex // guards the following field; no connection is closed under it
	conns *list.List // of *conn, the oldest in front
}

func newStrangers(most int) *strangers { return &strangers{most: most, conns: list.New()} }

func (s *strangers) len() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return int64(s.conns.Len())
}

// conn is a connection of a caller.
type conn struct {
	net.Conn

	strangers *strangers
	place     *list.Element // nil once a request has shown a known key; guarded by strangers.mu
}

func (s *strangers) add(inner net.Conn) *conn {
	c := &conn{Conn: inner, strangers: s}
	var oldest *conn
	s.mu.Lock()
	c.place = s.conns.PushBack(c)
	if front := s.conns.Front(); s.conns.Len() > s.most {
		oldest, _ = front.Value.(*conn)
	}
	s.mu.Unlock()
	if oldest != nil {
		s.dropped.Add(1)
		_ = oldest.Close() // the server notices and ends a running request
	}
	return c
}

// known removes c from the strangers.
func (c *conn) known() {
	c.strangers.mu.Lock()
	defer c.strangers.mu.Unlock()
	if c.place != nil {
		c.strangers.conns.Remove(c.place)
		c.place = nil
	}
}

// Close implements [net.Conn].
func (c *conn) Close() error {
	c.known()
	return c.Conn.Close()
}

// listener makes connections strangers and bounds their send buffers.
type listener struct {
	net.Listener

	strangers *strangers
}

// Accept implements [net.Listener].
func (l listener) Accept() (net.Conn, error) {
	inner, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	if tcp, ok := inner.(*net.TCPConn); ok {
		_ = tcp.SetWriteBuffer(sendBuffer) // on an error the kernel's own size stays
	}
	return l.strangers.add(inner), nil
}

type connKey struct{}

// withConn is the server's ConnContext.
func withConn(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, c)
}

// showedKey records that a request on the connection of ctx has a known key.
func showedKey(ctx context.Context) {
	if c, ok := ctx.Value(connKey{}).(*conn); ok {
		c.known()
	}
}
