package mq

import (
	"context"
	"net"
)

// Dialer makes o connect through d.
func Dialer(o Options, d func(ctx context.Context, address string) (net.Conn, error)) Options {
	o.dialer = d
	return o
}
