package rpc

import (
	"net"
	"sync/atomic"
)

// blackHole is a network that can stop carrying anything without telling anybody.
type blackHole struct {
	swallow atomic.Bool
	conns   []net.Conn
}

func (b *blackHole) wrap(conn net.Conn) net.Conn {
	b.conns = append(b.conns, conn)
	return &swallowing{Conn: conn, hole: b}
}

// release ends what the hole has swallowed.
func (b *blackHole) release() {
	for _, c := range b.conns {
		_ = c.Close()
	}
}

// swallowing is the client's end: what it writes is lost, so no ping is answered.
type swallowing struct {
	net.Conn

	hole *blackHole
}

func (s *swallowing) Write(p []byte) (int, error) {
	if s.hole.swallow.Load() {
		return len(p), nil
	}
	return s.Conn.Write(p)
}
