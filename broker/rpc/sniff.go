package rpc

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// sniffer serves plaintext HTTP/2 and TLS on one port, as RocketMQ's proxy does: half
// of the official clients use TLS unless told otherwise, half do not. The first
// byte tells: a TLS handshake record begins with 0x16, HTTP/2 with the 'P' of PRI.
//
// It sits in gRPC's handshake and not in the listener, so that a connection that
// sends nothing holds up nobody and is bounded by gRPC's own time-out.
type sniffer struct {
	tls, plain credentials.TransportCredentials
}

const tlsHandshakeRecord = 0x16

func newSniffer(cfg *tls.Config) (*sniffer, error) {
	if cfg == nil {
		cert, err := selfSigned()
		if err != nil {
			return nil, fmt.Errorf("generate certificate: %w", err)
		}
		cfg = &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12}
	}
	// NewTLS adds "h2" to the protocols that ALPN offers.
	return &sniffer{tls: credentials.NewTLS(cfg), plain: insecure.NewCredentials()}, nil
}

func (s *sniffer) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	c := &sniffedConn{Conn: conn}
	if _, err := io.ReadFull(conn, c.first[:]); err != nil {
		return nil, nil, fmt.Errorf("read first byte: %w", err)
	}
	if c.first[0] == tlsHandshakeRecord {
		return s.tls.ServerHandshake(c)
	}
	return s.plain.ServerHandshake(c)
}

func (s *sniffer) ClientHandshake(context.Context, string, net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("sniffing credentials are for servers")
}

// Info describes the lesser of the two, since a connection may be plaintext.
func (s *sniffer) Info() credentials.ProtocolInfo { return s.plain.Info() }

func (s *sniffer) Clone() credentials.TransportCredentials {
	return &sniffer{tls: s.tls.Clone(), plain: s.plain.Clone()}
}

// OverrideServerName is for clients and does nothing.
func (s *sniffer) OverrideServerName(string) error { return nil }

// sniffedConn gives the first byte back to whoever reads next. Only one goroutine
// reads a connection.
type sniffedConn struct {
	net.Conn

	first [1]byte
	given bool
}

func (c *sniffedConn) Read(p []byte) (int, error) {
	if c.given || len(p) == 0 {
		return c.Conn.Read(p)
	}
	c.given = true
	p[0] = c.first[0]
	return 1, nil
}
