// Package rpc speaks RocketMQ 5's MessagingService over gRPC for a broker, and beside it
// penstock.v1, for what a Penstock broker can do more: see penstockv1/penstock.proto.
//
// It owns the wire: validation in the order RocketMQ has it, the one table from
// errors to RocketMQ codes (status.go), the settings that official clients expect,
// and which connections a client has. It never decides what is delivered or
// stored; package broker does. Each RPC has a file of its own.
//
// cmd/node runs a Server beside the broker it was given. All handlers run
// concurrently; the only mutable state is the table of clients (clients.go), which
// has its own lock.
//
// # Errors
//
// RocketMQ puts errors into the status of a response and lets the call itself
// succeed: a gRPC error makes official clients tear their connection down. So every
// RPC whose response has a status answers with one, also after a panic. Those of
// penstock.v1 have none: there an error is gRPC's, with RocketMQ's code as a detail.
//
// # An answer to ReceiveMessage is one unit
//
// A client may act on received messages only after the stream has ended without an
// error, as all official clients do. If the server cannot write the whole stream
// it takes all its messages back at once, uncounted.
//
// # Differences from RocketMQ's proxy
//
//   - A client without settings, as after a restart of the server, is served.
//   - Namespaces are accepted and echoed but do not separate anything: some official
//     clients send theirs on some calls only.
//   - A poll waits as long as it asks for, also when that is under RocketMQ's 5 s,
//     and at most 20 s. Official clients ask for 5 s and more and see no difference.
//   - An invisible duration may be as short as Options.MinInvisible (1 s), not 10 s.
//   - The lite name `*` is accepted in subscriptions of every group.
package rpc
