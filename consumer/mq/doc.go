// Package mq is the small part of a RocketMQ 5 broker that Penstock's consumers and gateways use: receive and settle
// messages of lite topics, send and recall them.
//
// It owns: the connection, the client's duties towards a broker (settings, heartbeat, subscription, lease renewal), and
// the retries of calls that settle a message. What a Penstock broker can do beside that protocol it finds out when it connects
// ([Features]): there settlements and holds go over penstock.v1; any other broker is settled with RocketMQ's calls and hears
// nothing of them. Two adapters stand behind [Consumer] and [Producer]: [Stubs], on the plain
// gRPC stubs of the protocol, and [Official], on the official Go client. They pass the same tests; what the official
// client cannot do is said at [Official].
//
// It never decides what becomes of a message: the [Handler] does. It knows nothing of requests, limits or models.
//
// The pool and the gateway call it. Everything exported is safe for concurrent use; a Consumer runs once.
package mq
