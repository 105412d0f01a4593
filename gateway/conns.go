package gateway

import "net"

// sendBuffer bounds the bytes that the kernel takes for a caller that does not read; Linux makes twice as much of it. By
// itself it would grow to some MiB for each. A caller 100 ms away still gets more than 1 MB/s.
const sendBuffer = 128 << 10

// boundedListener bounds the send buffer of each connection.
type boundedListener struct{ net.Listener }

// Accept implements [net.Listener].
func (l boundedListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if tcp, ok := conn.(*net.TCPConn); ok && err == nil {
		_ = tcp.SetWriteBuffer(sendBuffer) // an error leaves the kernel's own
	}
	return conn, err
}
